//! The memory of an arena: slots of each class under one budget.

use super::error::ArenaError;
use super::shape::ArenaShape;
use super::slab::{SlabId, SlabSlot};

/// What a new budget did to the slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "memory of withdrawn slots counts as freed"]
pub struct SlotChanges {
    /// Slots that exist from now on, without a slab.
    pub added: Vec<SlabSlot>,
    /// Slots whose memory is to be freed, and the slabs that were in them.
    pub withdrawn: Vec<(SlabSlot, Option<SlabId>)>,
}

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Without memory. Becomes free when the budget grows.
    Withdrawn,
    /// With memory, without a slab. Becomes held by placing one, or withdrawn.
    Free,
    /// Holds this slab, or will when its read has ended. Becomes free, withdrawn, or held by another slab.
    Held(usize),
}

#[derive(Debug)]
pub(super) struct Slots {
    classes: Vec<Class>,
    budget: u64,
}

#[derive(Debug)]
struct Class {
    bytes: u64,
    slots: Vec<SlotState>,
    free: Vec<u32>,
    withdrawn: Vec<u32>,
    live: u64,
}

impl Slots {
    /// # Errors
    /// [`ArenaError::TooSmall`].
    pub fn new(shape: &ArenaShape, budget: u64) -> Result<Self, ArenaError> {
        let counts = shape.divide(budget)?;
        let classes = shape.class_bytes().iter().map(|&bytes| Class {
            bytes,
            slots: Vec::new(),
            free: Vec::new(),
            withdrawn: Vec::new(),
            live: 0,
        });
        let mut slots = Self { classes: classes.collect(), budget };
        for (class, &count) in counts.iter().enumerate() {
            while slots.classes[class].live < count {
                slots.add(class);
            }
            // The lowest number is taken first.
            slots.classes[class].free.reverse();
        }
        Ok(slots)
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    pub fn set_budget(&mut self, budget: u64) {
        debug_assert!(self.bytes() <= budget, "slots are withdrawn first");
        self.budget = budget;
    }

    /// Bytes of all slots that have memory.
    pub fn bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.live * class.bytes).sum()
    }

    /// Slots of a class that have memory.
    pub fn live(&self, class: usize) -> u64 {
        self.classes[class].live
    }

    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// All slots of a class, by their numbers.
    pub fn states(&self, class: usize) -> &[SlotState] {
        &self.classes[class].slots
    }

    pub fn free(&self, class: usize) -> &[u32] {
        &self.classes[class].free
    }

    /// Adds a slot, with the number of a withdrawn one if there is any.
    pub fn add(&mut self, class: usize) -> SlabSlot {
        let Class { slots, free, withdrawn, live, .. } = &mut self.classes[class];
        let index = withdrawn.pop().unwrap_or_else(|| {
            slots.push(SlotState::Withdrawn);
            (slots.len() - 1) as u32
        });
        slots[index as usize] = SlotState::Free;
        free.push(index);
        *live += 1;
        SlabSlot { class: class as u32, index }
    }

    /// Takes a free slot for a slab.
    pub fn take(&mut self, class: usize, slab: usize) -> Option<SlabSlot> {
        let index = self.classes[class].free.pop()?;
        let slot = SlabSlot { class: class as u32, index };
        self.hold(slot, slab);
        Some(slot)
    }

    /// The slot holds this slab from now on, whatever it held.
    pub fn hold(&mut self, slot: SlabSlot, slab: usize) {
        self.classes[slot.class as usize].slots[slot.index as usize] = SlotState::Held(slab);
    }

    /// A held slot becomes free.
    pub fn free_up(&mut self, slot: SlabSlot) {
        let class = &mut self.classes[slot.class as usize];
        class.slots[slot.index as usize] = SlotState::Free;
        class.free.push(slot.index);
    }

    /// Withdraws a free slot.
    pub fn withdraw_free(&mut self, class: usize) -> Option<SlabSlot> {
        let index = self.classes[class].free.pop()?;
        let slot = SlabSlot { class: class as u32, index };
        self.withdraw(slot);
        Some(slot)
    }

    /// Withdraws a slot that held a slab, which is gone.
    pub fn withdraw(&mut self, slot: SlabSlot) {
        let class = &mut self.classes[slot.class as usize];
        class.slots[slot.index as usize] = SlotState::Withdrawn;
        class.withdrawn.push(slot.index);
        class.live -= 1;
    }
}
