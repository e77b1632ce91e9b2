//! Plans which experts are in memory: visits, placements, budgets.

use super::error::ArenaError;
use super::figures::{ArenaFigures, ShadowHits};
use super::scores::{Scores, SlabCounts};
use super::shape::ArenaShape;
use super::slab::{Placement, SlabId, SlabSlot};
use super::slots::{SlotChanges, SlotState, Slots};
use super::victims::Victims;

/// One in this many slabs is the part of the bank by which the shadow arena is larger.
const SHADOW_PART: u64 = 16;

/// Decides which slabs are in memory, within a budget in bytes. A slab is the weights of one expert in one layer. A
/// slot is memory for one slab. [The module](super) explains the decisions. The arena itself reads nothing. Its caller,
/// the *driver*, reads the slabs and computes with them.
///
/// For each mixture layer of a forward pass, the driver calls [`begin_visit`](Self::begin_visit) with the experts that
/// the router chose. The driver computes with each of the [`hits`](Self::hits), and calls [`release`](Self::release)
/// for it. For each of the [`misses`](Self::misses), the driver calls [`place`](Self::place), reads the slab, calls
/// [`loaded`](Self::loaded), computes, and calls `release`. At the end, the driver calls
/// [`end_visit`](Self::end_visit). If `place` returns `None`, every suitable slot holds a pinned slab or is being read
/// into. The driver must then release a slab or wait for a read.
#[derive(Debug)]
pub struct Arena {
    pub(super) shape: ArenaShape,
    pub(super) slots: Slots,
    pub(super) slabs: Vec<Slab>, // [layer, expert]
    pub(super) scores: Scores,
    pub(super) visit: Option<u32>,    // the layer that is visited
    pub(super) victims: Vec<Victims>, // [class]
    evictions: Vec<u64>,              // [class]
    shadow_slots: Vec<u64>,           // [class]
    wanted: Vec<(u32, u32)>,          // the visit's experts, ascending, with their tokens
    hits: Vec<u32>,
    misses: Vec<u32>,
    arriving: Vec<u32>,
    brought: usize, // the visit's experts that were read ahead for it, and have arrived
    next_ticket: u64,
    figures: ArenaFigures,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slab {
    pub state: SlabState,
    /// Whether the current visit needs the slab and has not released it yet.
    pub pinned: bool,
    /// Number of evictions in the slab's class up to and including the last eviction of this slab; 0 if it was never
    /// evicted.
    left: u64,
}

/// Where a slab is, and in which slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlabState {
    /// The slab is only on disk. A placement makes it `Loading`.
    Absent,
    /// The slab is being read into a slot that is reserved for it. The end of the read makes the slab `Resident`, or
    /// `Absent` if the read fails.
    Loading { slot: SlabSlot, ticket: u64 },
    /// The slab is in memory. It becomes `Absent` if it is evicted, or if a smaller budget takes the slot's memory
    /// away. Neither happens while the slab is pinned.
    Resident { slot: SlabSlot },
}

impl Arena {
    /// Creates an arena in which no slab is in memory. `budget` is in bytes.
    ///
    /// # Errors
    /// Fails with [`ArenaError::TooSmall`] if `budget` is below the least possible budget, which the error names.
    pub fn new(shape: ArenaShape, budget: u64) -> Result<Self, ArenaError> {
        let slots = Slots::new(&shape, budget)?;
        let classes = shape.class_bytes().len();
        let class_slabs = |class| shape.class_slabs(class);
        Ok(Self {
            victims: (0..classes).map(|_| Victims::default()).collect(),
            shadow_slots: (0..classes).map(|class| class_slabs(class).div_ceil(SHADOW_PART)).collect(),
            evictions: vec![0; classes],
            slots,
            slabs: vec![Slab { state: SlabState::Absent, pinned: false, left: 0 }; shape.slabs()],
            scores: Scores::new(&shape),
            visit: None,
            wanted: Vec::with_capacity(shape.experts()),
            hits: Vec::with_capacity(shape.experts()),
            misses: Vec::with_capacity(shape.experts()),
            arriving: Vec::with_capacity(shape.experts()),
            brought: 0,
            next_ticket: 0,
            figures: ArenaFigures::default(),
            shape,
        })
    }

    /// Begins the visit of a forward pass to mixture layer `layer`. Each entry of `wanted` is the number of an expert
    /// that the pass needs, and the number of tokens that use this expert. The method counts these uses, and pins the
    /// slabs of these experts. Entries may be in any order, and those without tokens are ignored.
    ///
    /// # Panics
    /// Panics if another visit has not ended, or if an expert does not exist or is listed twice.
    pub fn begin_visit(&mut self, layer: u32, wanted: &[(u32, u32)]) {
        assert!(self.visit.is_none(), "the visit of layer {layer} begins before another has ended");
        self.wanted.clear();
        self.wanted.extend(wanted.iter().filter(|&&(_, tokens)| tokens > 0));
        self.wanted.sort_unstable();
        assert!(self.wanted.windows(2).all(|pair| pair[0].0 != pair[1].0), "an expert is named twice: {wanted:?}");
        let token_uses = self.wanted.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        self.visit = Some(layer);
        for list in [&mut self.hits, &mut self.misses, &mut self.arriving] {
            list.clear();
        }
        self.brought = 0;
        let class = self.shape.class_of(layer) as usize;
        let bytes = self.shape.slab_bytes(layer);
        let ArenaFigures { decode, chunks, prefetch, .. } = &mut self.figures;
        let figures = if self.shape.is_decode(token_uses) { decode } else { chunks };
        figures.visits += 1;
        figures.token_uses += token_uses;
        for &(expert, _) in &self.wanted {
            let index = self.shape.index(SlabId { layer, expert });
            let slab = &mut self.slabs[index];
            slab.pinned = true;
            figures.wanted_bytes += bytes;
            match slab.state {
                SlabState::Resident { .. } => {
                    figures.hits += 1;
                    self.hits.push(expert);
                }
                SlabState::Loading { .. } => {
                    figures.arriving += 1;
                    self.arriving.push(expert);
                }
                SlabState::Absent => {
                    figures.misses += 1;
                    figures.miss_bytes += bytes;
                    let evicted_since = self.evictions[class] - slab.left;
                    if slab.left > 0 && evicted_since < self.shadow_slots[class] {
                        figures.shadow_bytes += bytes;
                    }
                    self.misses.push(expert);
                }
            }
            if slab.state != SlabState::Absent && self.scores.is_promised(index) {
                prefetch.used += 1;
                prefetch.used_bytes += bytes;
                self.brought += usize::from(matches!(slab.state, SlabState::Resident { .. }));
            }
        }
        self.scores.visited(layer as usize, &self.wanted);
        let experts = self.shape.experts();
        let first = layer as usize * experts;
        (first..first + experts).for_each(|index| self.rate(index));
    }

    /// Returns those experts of the visit that were in memory when the visit began, in ascending order.
    pub fn hits(&self) -> &[u32] {
        &self.hits
    }

    /// Returns those experts of the visit that were neither in memory nor being read when the visit began, in ascending
    /// order. The driver must [`place`](Self::place) them.
    pub fn misses(&self) -> &[u32] {
        &self.misses
    }

    /// Returns those experts of the visit that were already being read when the visit began, in ascending order. If the
    /// read of an expert fails, the driver must [`place`](Self::place) the expert.
    pub fn arriving(&self) -> &[u32] {
        &self.arriving
    }

    /// Returns how many of the visit's experts were not in memory when the visit began, or were in memory only because
    /// they had been prefetched.
    pub fn lacking(&self) -> usize {
        self.misses.len() + self.arriving.len() + self.brought
    }

    /// Finds a slot for an expert of the visit that is not in memory. Takes a free slot if there is one, or else the
    /// slot of the slab with the lowest score. Returns `None` if every slot of the expert's size class holds a pinned
    /// slab or is being read into.
    ///
    /// # Panics
    /// Panics if no visit has begun, if the visit does not need the expert, or if the expert is in memory or being
    /// read.
    pub fn place(&mut self, expert: u32) -> Option<Placement> {
        let layer = self.visit.expect("a visit has begun");
        let slab = SlabId { layer, expert };
        let index = self.shape.index(slab);
        let Slab { state, pinned, .. } = self.slabs[index];
        assert!(pinned && state == SlabState::Absent, "{slab:?} is placed, and is {state:?}, pinned: {pinned}");
        self.find_slot(slab, index, f64::INFINITY)
    }

    /// Finds a slot for a slab that a later visit may need. `likelihood` (0 to 1) is the probability that the next
    /// visit to the slab's layer uses the slab. The score of the slab takes this probability into account until that
    /// visit. The method takes a free slot if there is one. Otherwise, it takes the slot of the slab with the lowest
    /// score, if this score is below the score of `slab`. The driver may cancel the read at any time by calling
    /// [`failed`](Self::failed).
    ///
    /// Returns `None` if there is no suitable slot, if the slab is in memory or being read, or if the present visit
    /// needs it.
    pub fn may_prefetch(&mut self, slab: SlabId, likelihood: f32) -> Option<Placement> {
        let index = self.shape.index(slab);
        let likelihood = likelihood.clamp(0.0, 1.0);
        if self.slabs[index].state != SlabState::Absent || self.slabs[index].pinned {
            return None;
        }
        let placement = self.find_slot(slab, index, self.scores.expected(index, likelihood))?;
        self.scores.promise(index, likelihood);
        self.figures.prefetch.placed += 1;
        self.figures.prefetch.placed_bytes += self.shape.slab_bytes(slab.layer);
        Some(placement)
    }

    /// Reports that the read with this ticket is complete. If the ticket is not that of the slab's current read,
    /// returns false and changes nothing.
    pub fn loaded(&mut self, slab: SlabId, ticket: u64) -> bool {
        let index = self.shape.index(slab);
        let Some(slot) = self.loading(index, ticket) else { return false };
        self.slabs[index].state = SlabState::Resident { slot };
        self.rate(index);
        true
    }

    /// Reports that the read with this ticket failed or was cancelled, and that nothing writes to its slot any more. If
    /// the ticket is not that of the slab's current read, returns false and changes nothing.
    pub fn failed(&mut self, slab: SlabId, ticket: u64) -> bool {
        let index = self.shape.index(slab);
        let Some(slot) = self.loading(index, ticket) else { return false };
        self.slabs[index].state = SlabState::Absent;
        self.scores.promise(index, 0.0);
        self.slots.free_up(slot);
        self.figures.failed += 1;
        true
    }

    /// Reports that the forward pass has finished computing with an expert of the visit. The expert's slab may be
    /// evicted from now on.
    ///
    /// # Panics
    /// Panics if no visit has begun, if the visit has not pinned the expert's slab, or if the slab is not in memory.
    pub fn release(&mut self, expert: u32) {
        let layer = self.visit.expect("a visit has begun");
        let index = self.shape.index(SlabId { layer, expert });
        let slab = &mut self.slabs[index];
        let resident = matches!(slab.state, SlabState::Resident { .. });
        assert!(slab.pinned && resident, "expert {expert} of layer {layer} is released, and is {slab:?}");
        slab.pinned = false;
        self.rate(index);
    }

    /// Ends the visit. The driver calls this method when the forward pass goes on to another layer or has failed. Slabs
    /// of the visit that are still pinned are released, and reads that have begun continue.
    ///
    /// # Panics
    /// Panics if no visit has begun.
    pub fn end_visit(&mut self) {
        let layer = self.visit.take().expect("a visit has begun");
        for at in 0..self.wanted.len() {
            let index = self.shape.index(SlabId { layer, expert: self.wanted[at].0 });
            if std::mem::replace(&mut self.slabs[index].pinned, false) {
                self.rate(index);
            }
        }
    }

    /// Returns whether the current visit needs this expert. Returns false if no visit has begun.
    pub fn is_wanted(&self, expert: u32) -> bool {
        self.visit.is_some() && self.wanted.binary_search_by_key(&expert, |&(wanted, _)| wanted).is_ok()
    }

    /// Returns the slot of a slab, or `None` if the slab is not in memory.
    pub fn slot_of(&self, slab: SlabId) -> Option<SlabSlot> {
        match self.slabs[self.shape.index(slab)].state {
            SlabState::Resident { slot } => Some(slot),
            SlabState::Absent | SlabState::Loading { .. } => None,
        }
    }

    /// Sets the budget, which is the largest total size of all slots in bytes. If the budget shrinks, the arena
    /// withdraws slots, and the driver must free the memory of these slots. Free slots come first, then the slots of
    /// the slabs with the lowest scores. Slots with pinned slabs and slots that are being read into are kept. If the
    /// kept slots exceed the new budget, [`budget`](Self::budget) returns their total size in bytes, and the driver can
    /// repeat the call later.
    ///
    /// # Errors
    /// Fails with [`ArenaError::TooSmall`] if `budget` is below the least possible budget. Nothing is changed in this
    /// case.
    pub fn set_budget(&mut self, budget: u64) -> Result<SlotChanges, ArenaError> {
        let counts = self.shape.divide(budget)?;
        let mut changes = SlotChanges::default();
        for (class, &count) in counts.iter().enumerate() {
            while self.slots.live(class) > count {
                if let Some(slot) = self.slots.withdraw_free(class) {
                    changes.withdrawn.push((slot, None));
                    continue;
                }
                let Some((_, victim)) = self.lowest(class) else { break };
                let slot = self.evict(victim);
                self.slots.withdraw(slot);
                changes.withdrawn.push((slot, Some(self.shape.id(victim))));
            }
        }
        self.slots.set_budget(budget.max(self.slots.bytes()));
        for (class, &count) in counts.iter().enumerate() {
            let bytes = self.shape.class_bytes()[class];
            while self.slots.live(class) < count && self.slots.bytes() + bytes <= self.slots.budget() {
                changes.added.push(self.slots.add(class));
            }
        }
        Ok(changes)
    }

    /// Takes a free slot away again, because no memory could be allocated for it. The budget is then what the other
    /// slots take, until [`set_budget`](Self::set_budget) is called. Returns whether the class of the slot still has as
    /// many slots as it needs.
    ///
    /// # Panics
    /// Panics if the slot is not free.
    pub fn refuse(&mut self, slot: SlabSlot) -> bool {
        self.slots.refuse(slot);
        self.slots.set_budget(self.slots.bytes());
        let class = slot.class as usize;
        self.slots.live(class) >= self.shape.least_slots(class)
    }

    /// Returns the largest total size that all slots may have, in bytes.
    pub fn budget(&self) -> u64 {
        self.slots.budget()
    }

    /// Returns the total size of all slots that have memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.bytes()
    }

    /// Returns whether a slot has memory. A slot has none after [`set_budget`](Self::set_budget) has withdrawn it.
    pub fn is_live(&self, slot: SlabSlot) -> bool {
        let state = self.slots.states(slot.class as usize).get(slot.index as usize);
        state.is_some_and(|state| *state != SlotState::Withdrawn)
    }

    /// Returns the number of slots of a size class that have memory. Slot numbers may exceed this count if the budget
    /// was larger before.
    pub fn slot_count(&self, class: u32) -> u64 {
        self.slots.live(class as usize)
    }

    /// Returns the shape of the model's mixture layers.
    pub fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    /// Returns how often each slab was used. After a restart, pass these counts to [`warm`](Self::warm).
    pub fn counts(&self) -> SlabCounts {
        self.scores.counts()
    }

    /// Copies the number of uses of each slab to `counts`. Allocates nothing if `counts` already has the right shape.
    pub fn copy_counts(&self, counts: &mut SlabCounts) {
        self.scores.copy_counts(counts);
    }

    /// Replaces the counts of uses by counts from an earlier run. If the experts of a layer have more than 16 uses on
    /// average, the counts of this layer are scaled down to an average of 16.
    ///
    /// # Errors
    /// Fails with [`ArenaError::Counts`] if the counts belong to another model or are damaged. Nothing is changed in
    /// this case.
    pub fn warm(&mut self, counts: &SlabCounts) -> Result<(), ArenaError> {
        self.scores.warm(counts)?;
        (0..self.slabs.len()).for_each(|index| self.rate(index));
        Ok(())
    }

    /// Returns what the arena has counted since it was created.
    pub fn figures(&self) -> ArenaFigures {
        self.figures
    }

    /// Returns the total size of the misses that a slightly larger arena would have avoided.
    pub fn shadow_hits(&self) -> ShadowHits {
        let sizes = self.shadow_slots.iter().zip(self.shape.class_bytes());
        let ArenaFigures { decode, chunks, .. } = &self.figures;
        ShadowHits {
            bytes: decode.shadow_bytes + chunks.shadow_bytes,
            more: sizes.map(|(slots, bytes)| slots * bytes).sum(),
        }
    }

    /// Finds a free slot of the slab's class, or else the slot of the slab with the lowest score, if that score is
    /// below `limit`.
    fn find_slot(&mut self, slab: SlabId, index: usize, limit: f64) -> Option<Placement> {
        let class = self.shape.class_of(slab.layer) as usize;
        let (slot, evicted) = match self.slots.take(class, index) {
            Some(slot) => (slot, None),
            None => {
                let (_, victim) = self.lowest(class).filter(|&(score, _)| score < limit)?;
                let slot = self.evict(victim);
                self.slots.hold(slot, index);
                self.figures.evictions += 1;
                (slot, Some(self.shape.id(victim)))
            }
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.slabs[index].state = SlabState::Loading { slot, ticket };
        Some(Placement { slab, slot, evicted, ticket })
    }

    /// Returns the slab of a class that is evicted next, with its score.
    fn lowest(&self, class: usize) -> Option<(f64, usize)> {
        let held = |slot: u32| match self.slots.states(class)[slot as usize] {
            SlotState::Held(slab) => slab,
            SlotState::Free | SlotState::Withdrawn => unreachable!("slot {slot} of class {class} holds nothing"),
        };
        self.victims[class].lowest(held).map(|(score, slot)| (score, held(slot)))
    }

    /// Takes a resident slab out of its slot, and returns the slot, which the caller may use.
    fn evict(&mut self, index: usize) -> SlabSlot {
        let slab = &mut self.slabs[index];
        let SlabState::Resident { slot } = slab.state else { unreachable!("{slab:?} is a victim") };
        self.evictions[slot.class as usize] += 1;
        self.victims[slot.class as usize].stays(slot.index);
        slab.state = SlabState::Absent;
        slab.left = self.evictions[slot.class as usize];
        self.scores.promise(index, 0.0);
        slot
    }

    fn loading(&self, index: usize, ticket: u64) -> Option<SlabSlot> {
        match self.slabs[index].state {
            SlabState::Loading { slot, ticket: own } if own == ticket => Some(slot),
            _ => None,
        }
    }

    /// Tells the victims what a slab's score is now, or that the slab stays.
    fn rate(&mut self, index: usize) {
        let slab = &self.slabs[index];
        let SlabState::Resident { slot } = slab.state else { return };
        let victims = &mut self.victims[slot.class as usize];
        match slab.pinned {
            true => victims.stays(slot.index),
            false => victims.may_go(slot.index, self.scores.score(index)),
        }
    }
}
