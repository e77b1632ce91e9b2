//! Policies of textbooks that decide which slabs stay in memory.

use interbed_plan::routing::{LayerVisit, SlabPolicy};
use interbed_weights::experts::ArenaShape;

/// The number of uses of the whole model, counted in layers, after which a slab is worth half under [`Rule::Aged`].
const AGE: f64 = 8.0;

/// The rule that decides which slab is dropped first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The least recently used slab is dropped first.
    Lru,
    /// The least frequently used slab is dropped first; among several, the least recently used one.
    Lfu,
    /// The slab with the lowest uses / (1 + accesses since the last use / (8 x layers)) is dropped first, where the
    /// accesses of all layers count together.
    Aged,
}

/// Which slabs share memory with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The slabs of a layer share memory; each layer has room for the same number of slabs.
    Layer,
    /// All slabs of the model share memory.
    Model,
}

/// A policy of textbooks. It finds each victim by a look at all slabs, so that there is little to get wrong.
#[derive(Debug)]
pub(super) struct Textbook<'s> {
    shape: &'s ArenaShape,
    rule: Rule,
    scope: Scope,
    budget: u64,
    used: Vec<u64>,
    held: Vec<Vec<usize>>, // [group]: slabs
    resident: Vec<bool>,   // [layer, expert]
    uses: Vec<u64>,
    last: Vec<u64>,
    clock: u64,
}

impl<'s> Textbook<'s> {
    pub fn new(shape: &'s ArenaShape, rule: Rule, scope: Scope, budget: u64) -> Self {
        let groups = if scope == Scope::Layer { shape.layers() } else { 1 };
        let slabs = shape.layers() * shape.experts();
        Self {
            shape,
            rule,
            scope,
            budget,
            used: vec![0; groups],
            held: vec![Vec::new(); groups],
            resident: vec![false; slabs],
            uses: vec![0; slabs],
            last: vec![0; slabs],
            clock: 0,
        }
    }

    /// Returns the bytes that the group of `layer` may have. Each layer's group has room for the same number of slabs.
    fn room(&self, layer: u32) -> u64 {
        let bank = u128::from(self.shape.bank_bytes());
        match self.scope {
            Scope::Model => self.budget,
            Scope::Layer => {
                let slabs = u128::from(self.budget) * self.shape.experts() as u128 / bank;
                slabs as u64 * self.shape.slab_bytes(layer)
            }
        }
    }

    fn rank(&self, slab: usize) -> (f64, u64) {
        let last = self.last[slab];
        let uses = self.uses[slab] as f64;
        match self.rule {
            Rule::Lru => (0.0, last),
            Rule::Lfu => (uses, last),
            Rule::Aged => (uses / (1.0 + (self.clock - last) as f64 / (AGE * self.shape.layers() as f64)), last),
        }
    }
}

impl SlabPolicy for Textbook<'_> {
    fn visit(&mut self, visit: &LayerVisit) -> u64 {
        let (layer, experts) = (visit.layer as usize, self.shape.experts());
        let bytes = self.shape.slab_bytes(visit.layer);
        let group = if self.scope == Scope::Layer { layer } else { 0 };
        let room = self.room(visit.layer);
        let slab_of = |expert: u32| layer * experts + expert as usize;
        for &(expert, tokens) in &visit.wanted {
            self.clock += 1;
            self.uses[slab_of(expert)] += u64::from(tokens);
            self.last[slab_of(expert)] = self.clock;
        }
        let is_wanted = |slab: usize| {
            let wanted = |&(expert, _): &(u32, u32)| slab_of(expert).cmp(&slab);
            visit.wanted.binary_search_by(wanted).is_ok()
        };
        let mut read = 0;
        for &(expert, _) in &visit.wanted {
            let slab = slab_of(expert);
            if self.resident[slab] {
                continue;
            }
            read += bytes;
            while self.used[group] + bytes > room {
                let held = self.held[group].iter().enumerate().filter(|&(_, &slab)| !is_wanted(slab));
                let ranked = held.map(|(at, &slab)| (self.rank(slab), at));
                let lowest = ranked.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let Some((_, at)) = lowest else { break };
                let victim = self.held[group].swap_remove(at);
                self.resident[victim] = false;
                self.used[group] -= self.shape.slab_bytes((victim / experts) as u32);
            }
            // If everything in memory is in use, the slab is read without being kept.
            if self.used[group] + bytes <= room {
                self.held[group].push(slab);
                self.resident[slab] = true;
                self.used[group] += bytes;
            }
        }
        read
    }
}
