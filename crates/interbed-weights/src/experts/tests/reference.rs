//! The arena's policy exactly as its description says, without any of the arena's short cuts.

use std::collections::{BTreeMap, BTreeSet};

use crate::experts::{Arena, ArenaShape, Placement, SlabId, SlabSlot};

pub struct Reference {
    shape: ArenaShape,
    uses: BTreeMap<SlabId, f32>,
    totals: BTreeMap<u32, f64>,
    clocks: BTreeMap<u32, u64>,
    last: BTreeMap<SlabId, u64>,
    likelihood: BTreeMap<SlabId, f32>,
    resident: BTreeMap<SlabId, SlabSlot>,
    loading: BTreeSet<SlabId>,
    pinned: BTreeSet<SlabId>,
}

impl Reference {
    pub fn new(shape: ArenaShape) -> Self {
        Self {
            shape,
            uses: BTreeMap::new(),
            totals: BTreeMap::new(),
            clocks: BTreeMap::new(),
            last: BTreeMap::new(),
            likelihood: BTreeMap::new(),
            resident: BTreeMap::new(),
            loading: BTreeSet::new(),
            pinned: BTreeSet::new(),
        }
    }

    pub fn visited(&mut self, layer: u32, wanted: &[(u32, u32)]) {
        self.likelihood.retain(|slab, _| slab.layer != layer);
        let wanted: BTreeMap<u32, u32> = wanted.iter().copied().filter(|&(_, tokens)| tokens > 0).collect();
        let tokens: u64 = wanted.values().map(|&tokens| u64::from(tokens)).sum();
        let clock = self.clocks.entry(layer).or_default();
        *clock += wanted.len() as u64;
        for (&expert, &of) in &wanted {
            let slab = SlabId { layer, expert };
            let uses = (f64::from(of) * (wanted.len() as f64 / tokens as f64)) as f32;
            *self.uses.entry(slab).or_default() += uses;
            *self.totals.entry(layer).or_default() += f64::from(uses);
            self.last.insert(slab, *clock);
            self.pinned.insert(slab);
        }
        let experts = self.shape.experts() as f64;
        if self.totals.get(&layer).is_some_and(|&total| total > 128.0 * experts) {
            let own = self.uses.iter_mut().filter(|(slab, _)| slab.layer == layer);
            self.totals.insert(layer, own.map(|(_, uses)| (*uses *= 0.5, f64::from(*uses)).1).sum());
        }
    }

    /// Returns the slab that a placement evicts: `None` if there is no slot, `Some(None)` if a slot is free.
    pub fn victim(&self, arena: &Arena, slab: SlabId) -> Option<Option<SlabId>> {
        self.victim_below(arena, slab, f64::INFINITY)
    }

    pub fn prefetch_victim(&self, arena: &Arena, slab: SlabId, likelihood: f32) -> Option<Option<SlabId>> {
        if self.resident.contains_key(&slab) || self.loading.contains(&slab) || self.pinned.contains(&slab) {
            return None;
        }
        self.victim_below(arena, slab, self.score(slab, likelihood))
    }

    pub fn placed(&mut self, placement: &Placement, likelihood: f32) {
        placement.evicted.iter().for_each(|slab| self.evicted(*slab));
        assert!(self.loading.insert(placement.slab), "{placement:?} is being read already");
        let slots = self.resident.values().filter(|&&slot| slot == placement.slot);
        assert_eq!(slots.count(), 0, "{placement:?} goes where another slab is");
        self.likelihood.insert(placement.slab, likelihood);
    }

    pub fn evicted(&mut self, slab: SlabId) {
        assert!(!self.pinned.contains(&slab), "{slab:?} is pinned and evicted");
        assert!(self.resident.remove(&slab).is_some(), "{slab:?} is evicted and not resident");
        self.likelihood.remove(&slab);
    }

    pub fn loaded(&mut self, slab: SlabId, slot: SlabSlot) {
        assert!(self.loading.remove(&slab));
        self.resident.insert(slab, slot);
    }

    pub fn failed(&mut self, slab: SlabId) {
        assert!(self.loading.remove(&slab));
        self.likelihood.remove(&slab);
    }

    pub fn released(&mut self, slab: SlabId) {
        assert!(self.pinned.remove(&slab));
    }

    pub fn ended(&mut self) {
        self.pinned.clear();
    }

    /// Takes note of a restart: counts stay as they are if they are few, and ages begin anew.
    pub fn warmed(&mut self) {
        for layer in 0..self.shape.layers() as u32 {
            let experts = 0..self.shape.experts() as u32;
            let slabs: Vec<SlabId> = experts.map(|expert| SlabId { layer, expert }).collect();
            let now = self.clocks.get(&layer).copied().unwrap_or(0);
            let sum = |uses: &BTreeMap<SlabId, f32>| -> f64 {
                slabs.iter().map(|slab| f64::from(uses.get(slab).copied().unwrap_or(0.0))).sum()
            };
            let (total, most) = (sum(&self.uses), 16.0 * self.shape.experts() as f64);
            for slab in &slabs {
                self.last.insert(*slab, now);
                if let Some(uses) = self.uses.get_mut(slab).filter(|_| total > most) {
                    *uses = (f64::from(*uses) * (most / total)) as f32;
                }
            }
            self.totals.insert(layer, sum(&self.uses));
        }
    }

    pub fn check(&self, arena: &Arena) {
        for layer in 0..self.shape.layers() as u32 {
            for expert in 0..self.shape.experts() as u32 {
                let slab = SlabId { layer, expert };
                assert_eq!(arena.slot_of(slab), self.resident.get(&slab).copied(), "{slab:?}");
            }
        }
    }

    fn victim_below(&self, arena: &Arena, slab: SlabId, limit: f64) -> Option<Option<SlabId>> {
        let class = self.shape.class_of(slab.layer);
        let is_of_class = |slab: &SlabId| self.shape.class_of(slab.layer) == class;
        let used = self.resident.keys().chain(&self.loading).filter(|slab| is_of_class(slab)).count();
        if (used as u64) < arena.slot_count(class) {
            return Some(None);
        }
        let free = self.resident.keys().filter(|slab| is_of_class(slab) && !self.pinned.contains(slab));
        let scored = free.map(|&slab| (self.score(slab, self.likelihood.get(&slab).copied().unwrap_or(0.0)), slab));
        let lowest = scored.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
        (lowest.0 < limit).then_some(Some(lowest.1))
    }

    fn score(&self, slab: SlabId, likelihood: f32) -> f64 {
        let total = self.totals.get(&slab.layer).copied().unwrap_or(0.0);
        let uses = f64::from(self.uses.get(&slab).copied().unwrap_or(0.0));
        let clock = self.clocks.get(&slab.layer).copied().unwrap_or(0);
        let age = (clock - self.last.get(&slab).copied().unwrap_or(0)) as f64;
        let score = if total > 0.0 { uses / (total * (1.0 + age / 8.0)) } else { 0.0 };
        let likelihood = f64::from(likelihood);
        if likelihood == 0.0 {
            return score;
        }
        (1.0 - likelihood) * score + likelihood * (uses + 1.0) / (total + 1.0)
    }
}
