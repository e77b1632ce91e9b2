//! Policies of textbooks for slabs.

use interbed_plan::routing::{LayerVisit, SlabPolicy};
use interbed_weights::experts::ArenaShape;

/// Uses of the whole model, in layers, after which a slab is worth half, for [`Rule::Aged`].
const AGE: f64 = 8.0;

/// What goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The least recently used.
    Lru,
    /// The least frequently used; of those, the least recently used.
    Lfu,
    /// The lowest of uses / (1 + accesses since the last use / (8 x layers)), accesses of all layers together.
    Aged,
}

/// What slabs share memory with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of a layer, an equal part of the memory for each.
    Layer,
    /// All.
    Model,
}

/// One of them. Each victim is found by a look at all slabs, so that there is little to get wrong.
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

    /// Bytes that a layer's group may have: of all layers' groups, each has room for the same number of slabs.
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
            // If all that is in memory is in use, it is streamed past the rest.
            if self.used[group] + bytes <= room {
                self.held[group].push(slab);
                self.resident[slab] = true;
                self.used[group] += bytes;
            }
        }
        read
    }
}
