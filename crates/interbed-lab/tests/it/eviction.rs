//! Tests eviction policies by themselves: their contract under random operations, a comparison of the textbook ones
//! with plain versions, what they find, and a block manager that uses them.

mod manager;
mod shares;
mod textbook;

use interbed_kv::{BlockHash, BlockId, Content, EvictionKind, EvictionPolicy, OwnerId};
use interbed_lab::eviction::POLICIES;

use interbed_kv::testing::{Rng, mix};
/// What the block manager would know of a block.
#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Unknown,
    Held {
        content: u64,
        parent: Option<BlockId>,
    },
    Cached {
        content: u64,
        parent: Option<BlockId>,
    },
}

/// A forest of published contents, of which a policy is told as by the block manager.
struct Forest {
    policy: Box<dyn EvictionPolicy>,
    states: Vec<State>, // [block]
    rng: Rng,
    /// Whether all contents have the same hash.
    collide: bool,
    /// The owner of each block's content. [block]
    owners: Vec<OwnerId>,
    /// Whether the policy tells owners apart.
    tells_owners: bool,
}

const OWNERS: usize = 3;

impl Forest {
    fn new(kind: EvictionKind, blocks: usize, seed: u64, collide: bool) -> Self {
        Self {
            policy: kind.build(blocks),
            states: vec![State::default(); blocks],
            rng: Rng(mix(seed)),
            collide,
            owners: vec![OwnerId::default(); blocks],
            tells_owners: kind == EvictionKind::ADAPTIVE,
        }
    }

    fn is_cached(&self, block: BlockId) -> bool {
        matches!(self.states[block.index()], State::Cached { .. })
    }

    fn parent(&self, block: BlockId) -> Option<BlockId> {
        match self.states[block.index()] {
            State::Unknown => None,
            State::Held { parent, .. } | State::Cached { parent, .. } => parent,
        }
    }

    fn children(&self, block: BlockId) -> Vec<BlockId> {
        self.blocks().filter(|&child| self.parent(child) == Some(block)).collect()
    }

    fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.states.len() as u32).map(BlockId)
    }

    fn pick(&mut self, wanted: impl Fn(&State) -> bool) -> Option<BlockId> {
        let blocks: Vec<_> = self.blocks().filter(|block| wanted(&self.states[block.index()])).collect();
        (!blocks.is_empty()).then(|| blocks[self.rng.below(blocks.len())])
    }

    /// Looks up the chain down to `block`, and finds all of it: the holders of a block hold its whole chain.
    fn hit(&mut self, block: BlockId) {
        let mut chain: Vec<_> = std::iter::successors(Some(block), |&block| self.parent(block)).collect();
        chain.reverse();
        for block in chain {
            self.policy.hit(block);
            let state = &mut self.states[block.index()];
            if let State::Cached { content, parent } = *state {
                *state = State::Held { content, parent };
            }
        }
    }

    fn publish(&mut self) {
        let Some(block) = self.pick(|state| matches!(state, State::Unknown)) else { return };
        let parent = if self.rng.once_in(4) { None } else { self.pick(|state| matches!(state, State::Held { .. })) };
        let content = self.rng.below(300) as u64;
        let hash = BlockHash(if self.collide { 7 } else { mix(content) });
        let owner = match parent {
            Some(parent) => self.owners[parent.index()],
            None => OwnerId(self.rng.below(OWNERS) as u32),
        };
        self.owners[block.index()] = owner;
        self.policy.publish(block, Content { hash, parent, owner });
        self.states[block.index()] = State::Held { content, parent };
    }

    /// Releases a held block whose children are all cached.
    fn insert(&mut self) {
        let Some(block) = self.pick(|state| matches!(state, State::Held { .. })) else { return };
        let children = self.children(block);
        if !children.iter().all(|&child| self.is_cached(child)) {
            return;
        }
        self.policy.insert(block, children.is_empty());
        let State::Held { content, parent } = self.states[block.index()] else { unreachable!("it is held") };
        self.states[block.index()] = State::Cached { content, parent };
    }

    fn victim(&mut self) {
        let owner = OwnerId(self.rng.below(OWNERS) as u32);
        let victim = self.policy.victim(owner);
        let is_own = |block: BlockId| !self.tells_owners || self.owners[block.index()] == owner;
        let is_any = self.blocks().any(|block| self.is_cached(block) && is_own(block));
        assert_eq!(victim.is_some(), is_any, "some cached block of an owner is a leaf");
        let Some(victim) = victim else { return };
        assert!(is_own(victim), "{victim} was evicted, but is not the owner's");
        assert!(self.is_cached(victim), "{victim} was evicted, but is not cached");
        assert!(self.children(victim).is_empty(), "{victim} was evicted before its children");
        let parent = self.parent(victim);
        self.states[victim.index()] = State::Unknown;
        let orphaned = parent.filter(|&parent| self.is_cached(parent) && self.children(parent).is_empty());
        if let Some(parent) = orphaned {
            self.policy.became_leaf(parent);
        }
    }

    fn reset(&mut self) {
        for block in self.blocks() {
            if !matches!(std::mem::take(&mut self.states[block.index()]), State::Unknown) {
                self.policy.forget(block);
            }
        }
    }

    fn move_one(&mut self) {
        let (Some(from), Some(to)) =
            (self.pick(|state| !matches!(state, State::Unknown)), self.pick(|state| matches!(state, State::Unknown)))
        else {
            return;
        };
        self.policy.moved(from, to);
        for child in self.children(from) {
            if let State::Held { parent, .. } | State::Cached { parent, .. } = &mut self.states[child.index()] {
                *parent = Some(to);
            }
        }
        self.states[to.index()] = std::mem::take(&mut self.states[from.index()]);
        self.owners[to.index()] = self.owners[from.index()];
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.publish(),
            30..65 => self.insert(),
            65..75 => {
                if let Some(block) = self.pick(|state| !matches!(state, State::Unknown)) {
                    self.hit(block);
                }
            }
            75..93 => self.victim(),
            93..99 => self.move_one(),
            _ if self.rng.once_in(4) => self.reset(),
            _ => self.policy.resize(1 + self.rng.below(self.states.len())),
        }
        let cached = self.blocks().filter(|&block| self.is_cached(block)).count();
        assert_eq!(self.policy.len(), cached);
        assert_eq!(self.policy.is_empty(), cached == 0);
        assert!(self.blocks().all(|block| self.policy.contains(block) == self.is_cached(block)));
    }

    /// Checks that everything can be evicted once nothing is held.
    fn drain(&mut self) {
        while self.states.iter().any(|state| matches!(state, State::Held { .. })) {
            self.insert();
        }
        while !self.policy.is_empty() {
            self.victim();
        }
        (0..OWNERS as u32).for_each(|owner| assert_eq!(self.policy.victim(OwnerId(owner)), None));
    }
}

#[test]
fn only_cached_leaves_are_evicted_and_all_of_them() {
    for kind in POLICIES {
        for seed in 0..15 {
            println!("{kind}, seed {seed}");
            let blocks = [1, 2, 5, 12, 40][seed as usize % 5];
            let mut forest = Forest::new(kind, blocks, seed, seed % 4 == 0);
            (0..2500).for_each(|_| forest.step());
            forest.drain();
        }
    }
}
