//! Slots of each class under one budget, which are the memory of an arena.

use super::error::ArenaError;
use super::shape::ArenaShape;
use super::slab::{SlabId, SlabSlot};

/// Slots that a change of the budget adds and removes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "memory of withdrawn slots counts as freed"]
pub struct SlotChanges {
    /// New slots, which hold no slab yet.
    pub added: Vec<SlabSlot>,
    /// Slots whose memory the caller must free, each with the slab that it held, if any.
    pub withdrawn: Vec<(SlabSlot, Option<SlabId>)>,
}

/// Content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The slot has no memory. A larger budget makes it `Free`.
    Withdrawn,
    /// The slot has memory and no slab. A placement makes it `Held`, a smaller budget makes it `Withdrawn`.
    Free,
    /// The slot holds this slab, or will hold it when the slab's read has ended. The slot can become `Free`,
    /// `Withdrawn`, or `Held` by another slab.
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
    /// Creates as many slots of each class as `budget` allows.
    ///
    /// # Errors
    /// Fails with [`ArenaError::TooSmall`] if `budget` is less than [`ArenaShape::least_bytes`].
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

    /// Returns the number of bytes of all slots that have memory.
    pub fn bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.live * class.bytes).sum()
    }

    /// Returns the number of slots of a class that have memory.
    pub fn live(&self, class: usize) -> u64 {
        self.classes[class].live
    }

    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Returns the states of all slots of a class. The position of a state in the slice is the slot's
    /// [`SlabSlot::index`].
    pub fn states(&self, class: usize) -> &[SlotState] {
        &self.classes[class].slots
    }

    pub fn free(&self, class: usize) -> &[u32] {
        &self.classes[class].free
    }

    /// Adds a free slot. If there is a withdrawn slot, the new slot gets its index.
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

    /// Gives a free slot of `class` to `slab`, and returns the slot; returns `None` if no slot of the class is free.
    pub fn take(&mut self, class: usize, slab: usize) -> Option<SlabSlot> {
        let index = self.classes[class].free.pop()?;
        let slot = SlabSlot { class: class as u32, index };
        self.hold(slot, slab);
        Some(slot)
    }

    /// Records that `slot` belongs to `slab` from now on, whichever slab it held before.
    pub fn hold(&mut self, slot: SlabSlot, slab: usize) {
        self.classes[slot.class as usize].slots[slot.index as usize] = SlotState::Held(slab);
    }

    /// Makes a slot that belonged to a slab free again.
    pub fn free_up(&mut self, slot: SlabSlot) {
        let class = &mut self.classes[slot.class as usize];
        class.slots[slot.index as usize] = SlotState::Free;
        class.free.push(slot.index);
    }

    /// Removes a free slot from `class` and returns it, so that the caller can free its memory. Returns `None` if no
    /// slot of the class is free.
    pub fn withdraw_free(&mut self, class: usize) -> Option<SlabSlot> {
        let index = self.classes[class].free.pop()?;
        let slot = SlabSlot { class: class as u32, index };
        self.withdraw(slot);
        Some(slot)
    }

    /// Removes `slot`, which is free, from its class.
    ///
    /// # Panics
    /// Panics if the slot is not free.
    pub fn refuse(&mut self, slot: SlabSlot) {
        let free = &mut self.classes[slot.class as usize].free;
        let place = free.iter().position(|&index| index == slot.index).expect("a slot without memory is free");
        free.remove(place);
        self.withdraw(slot);
    }

    /// Removes `slot` from its class: the slot no longer counts as memory, and a new slot may get its index. If the
    /// slot held a slab, the caller must have evicted the slab before.
    pub fn withdraw(&mut self, slot: SlabSlot) {
        let class = &mut self.classes[slot.class as usize];
        class.slots[slot.index as usize] = SlotState::Withdrawn;
        class.withdrawn.push(slot.index);
        class.live -= 1;
    }
}
