//! Drives the arena as an engine drives it.

use interbed_weights::experts::{Arena, ArenaError, ArenaShape, Placement, SlabCounts, SlabId, UNDER_WAY_MAX};

use super::policy::SlabPolicy;
use super::trace::LayerVisit;

/// Plays routings to an arena, the memory of experts, whose reads all succeed.
#[derive(Debug)]
pub struct Player {
    arena: Arena,
    ahead: Option<Ahead>,
}

/// Describes how experts are read before the router asks for them.
#[derive(Debug)]
struct Ahead {
    likelihood: f32,
    /// Experts that each layer's last visit wanted.
    last: Vec<Vec<u32>>,
}

impl Player {
    /// Makes a player with `budget` bytes for experts.
    ///
    /// # Errors
    /// Fails with [`ArenaError::TooSmall`] if `budget` is below the least.
    pub fn new(shape: &ArenaShape, budget: u64) -> Result<Self, ArenaError> {
        Ok(Self { arena: Arena::new(shape.clone(), budget)?, ahead: None })
    }

    /// Reads, while a layer computes, the experts that the next layer used last; `likelihood` says how likely they are
    /// used again.
    pub fn reading_ahead(mut self, likelihood: f32) -> Self {
        let last = vec![Vec::new(); self.arena.shape().layers()];
        self.ahead = Some(Ahead { likelihood, last });
        self
    }

    /// Begins with counts of uses that were made earlier.
    ///
    /// # Errors
    /// Fails with [`ArenaError::Counts`] if the counts are another model's or damaged.
    pub fn warm(&mut self, counts: &SlabCounts) -> Result<(), ArenaError> {
        self.arena.warm(counts)
    }

    /// Returns the arena in its present state.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn place(&mut self, missing: &mut std::vec::IntoIter<u32>, reads: &mut Vec<Placement>) {
        while reads.len() < UNDER_WAY_MAX
            && let Some(&expert) = missing.as_slice().first()
            && let Some(placement) = self.arena.place(expert)
        {
            reads.push(placement);
            missing.next();
        }
    }
}

impl SlabPolicy for Player {
    fn visit(&mut self, visit: &LayerVisit) -> u64 {
        self.arena.begin_visit(visit.layer, &visit.wanted);
        let read = self.arena.misses().len() as u64 * self.arena.shape().slab_bytes(visit.layer);
        let hits = self.arena.hits().to_vec();
        let mut missing = self.arena.misses().to_vec().into_iter();
        let mut reads = Vec::with_capacity(UNDER_WAY_MAX);
        // Reads begin before anything is computed.
        self.place(&mut missing, &mut reads);
        hits.into_iter().for_each(|expert| self.arena.release(expert));
        self.place(&mut missing, &mut reads);
        while !reads.is_empty() {
            let Placement { slab, ticket, .. } = reads.remove(0);
            assert!(self.arena.loaded(slab, ticket), "{slab:?} was being read");
            self.arena.release(slab.expert);
            self.place(&mut missing, &mut reads);
        }
        assert_eq!(missing.len(), 0, "every slab finds a slot once others are released");
        self.arena.end_visit();
        if let Some(Ahead { likelihood, last }) = &mut self.ahead {
            let next = (visit.layer + 1) % self.arena.shape().layers() as u32;
            for &expert in &last[next as usize] {
                let slab = SlabId { layer: next, expert };
                if let Some(Placement { slab, ticket, .. }) = self.arena.may_prefetch(slab, *likelihood) {
                    assert!(self.arena.loaded(slab, ticket), "{slab:?} was being read");
                }
            }
            last[visit.layer as usize] = visit.wanted.iter().map(|&(expert, _)| expert).collect();
        }
        read
    }
}
