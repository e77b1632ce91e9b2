//! Rooms in which running sequences keep their KV: in blocks as the sequences need them, or in a part for each that has
//! room for the longest sequence.

use std::collections::HashMap;

use interbed_kv::{AllocStatus, BlockManager, ChainRoot, KvConfig, SequenceId, TokenId};

use interbed_plan::Refusal;

/// The answer of a room to whether a sequence may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The sequence may begin; `cached` of its tokens are in the room already.
    Now { cached: usize },
    /// The sequence may begin only after another sequence has left.
    Later,
    /// The sequence is longer than the room.
    Never,
}

/// The number of token slots that are taken, and how many of them are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Slots {
    pub taken: usize,
    pub empty: usize,
}

/// A room in which sequences keep their KV.
pub(super) trait Room {
    /// Takes room for `tokens`, if there is any; in the end the sequence will have `longest` tokens.
    ///
    /// # Errors
    /// Fails only if the room is broken.
    fn admit(&mut self, id: SequenceId, tokens: &[TokenId], longest: usize) -> Result<Admission, Refusal>;

    /// Notes that the first `num_tokens` tokens are computed, so that other sequences may use them.
    fn publish(&mut self, id: SequenceId, num_tokens: usize);

    /// Takes room for one more token. Returns false if there is none.
    fn grow(&mut self, id: SequenceId, token: TokenId) -> bool;

    /// Releases everything that the sequence holds.
    fn release(&mut self, id: SequenceId);

    /// Returns the slots that are taken now.
    fn slots(&self) -> Slots;
}

/// A room of blocks with a few tokens each, which the block manager gives out.
pub(super) struct Paged {
    manager: BlockManager,
    root: ChainRoot,
}

impl Paged {
    /// Creates a room whose blocks `config` describes.
    ///
    /// # Errors
    /// Fails if `config` is invalid.
    pub fn new(config: KvConfig) -> Result<Self, Refusal> {
        Ok(Self { manager: BlockManager::new(config)?, root: ChainRoot::default() })
    }

    /// Checks the block manager's invariants.
    ///
    /// # Errors
    /// Fails with the first invariant that does not hold.
    pub fn check(&self) -> Result<(), Refusal> {
        self.manager.check().map_err(|error| Refusal::because("the block manager's invariants after the replay", error))
    }
}

impl Room for Paged {
    fn admit(&mut self, id: SequenceId, tokens: &[TokenId], longest: usize) -> Result<Admission, Refusal> {
        if longest > self.manager.capacity_tokens() {
            return Ok(Admission::Never);
        }
        let hashes = self.manager.hash_prefix(&self.root, tokens);
        match self.manager.can_allocate(tokens, &hashes) {
            AllocStatus::Ok => {
                let allocation = self
                    .manager
                    .allocate(id, tokens, &hashes)
                    .map_err(|error| Refusal::because("after it was promised", error))?;
                Ok(Admission::Now { cached: allocation.num_cached_tokens })
            }
            AllocStatus::Later => Ok(Admission::Later),
            AllocStatus::Never { .. } => Ok(Admission::Never),
        }
    }

    fn publish(&mut self, id: SequenceId, num_tokens: usize) {
        self.manager.commit(id, num_tokens);
    }

    fn grow(&mut self, id: SequenceId, token: TokenId) -> bool {
        self.manager.append(id, &[token]).is_ok()
    }

    fn release(&mut self, id: SequenceId) {
        self.manager.free(id);
    }

    fn slots(&self) -> Slots {
        let stats = self.manager.stats();
        Slots { taken: stats.slots_allocated, empty: stats.slots_empty }
    }
}

/// A room in which each sequence takes room for the longest one when it begins, as in servers before paged KV.
pub(super) struct Preallocated {
    longest: usize,
    places: usize,
    tokens: HashMap<SequenceId, usize>,
    slots: Slots,
}

impl Preallocated {
    /// Creates a room for `capacity` tokens, of which each sequence takes `longest`.
    pub fn new(capacity: usize, longest: usize) -> Self {
        let longest = longest.max(1);
        Self { longest, places: capacity / longest, tokens: HashMap::new(), slots: Slots::default() }
    }
}

impl Room for Preallocated {
    fn admit(&mut self, id: SequenceId, tokens: &[TokenId], longest: usize) -> Result<Admission, Refusal> {
        if longest > self.longest || self.places == 0 {
            return Ok(Admission::Never);
        }
        if self.tokens.len() == self.places {
            return Ok(Admission::Later);
        }
        self.tokens.insert(id, tokens.len());
        self.slots.taken += self.longest;
        self.slots.empty += self.longest - tokens.len();
        Ok(Admission::Now { cached: 0 })
    }

    fn publish(&mut self, _: SequenceId, _: usize) {}

    fn grow(&mut self, id: SequenceId, _: TokenId) -> bool {
        let Some(tokens) = self.tokens.get_mut(&id).filter(|tokens| **tokens < self.longest) else { return false };
        *tokens += 1;
        self.slots.empty -= 1;
        true
    }

    fn release(&mut self, id: SequenceId) {
        if let Some(tokens) = self.tokens.remove(&id) {
            self.slots.taken -= self.longest;
            self.slots.empty -= self.longest - tokens;
        }
    }

    fn slots(&self) -> Slots {
        self.slots
    }
}
