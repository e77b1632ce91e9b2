//! One server of a fleet, which has a block manager and computes prompts one after the other.

use interbed_kv::{BlockError, BlockManager, ChainRoot, EvictionKind, KeyChain, KvConfig, SequenceId, TokenId};

use super::chains::ContentNumber;
use super::router::KvChanges;
use interbed_plan::Refusal;

/// The token that ends each prompt. The token's block stands for the answer, and is never published.
const ANSWER: TokenId = TokenId::MAX;

/// What a server found of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Served {
    /// The number of leading blocks that were in the server's memory.
    pub found: usize,
    /// The number of blocks after the found ones that the remote tier had.
    pub fetched: usize,
    /// Whether the prompt needs more blocks than the server has. Such a prompt counts as a miss, and nothing of it is
    /// kept.
    pub refused: bool,
    /// What changed in the server's memory.
    pub changes: KvChanges,
}

/// A server. Prompts use its memory as in a replay of one server, and take its time one after the other.
#[derive(Debug)]
pub(super) struct Server {
    manager: BlockManager,
    root: ChainRoot,
    /// The content of each block that can be found.
    held: Vec<ContentNumber>, // [block]
    tokens: Vec<TokenId>,
    /// When the server has computed all prompts so far, in microseconds.
    idle_from: u64,
    /// The number of prompt tokens that the server has computed.
    pub computed_tokens: u64,
    /// The microseconds that requests have been in flight, summed over all requests.
    pub flight: u64,
}

impl Server {
    /// Creates an idle server of `num_blocks` blocks, each of which holds one block of the trace. `tells_changes` says
    /// whether somebody follows what changes in the server's memory.
    ///
    /// # Errors
    /// Fails if the number of blocks is invalid.
    pub fn new(num_blocks: usize, eviction: EvictionKind, tells_changes: bool) -> Result<Self, Refusal> {
        let config = KvConfig { num_blocks, block_size: 1, watermark: 0.0, eviction, ..KvConfig::default() };
        let mut manager = BlockManager::new(config)?;
        let held = if tells_changes { vec![0; num_blocks] } else { Vec::new() };
        if tells_changes {
            manager.name_contents(KeyChain::new([0; 32], [0; 32]));
        }
        Ok(Self {
            manager,
            root: ChainRoot::default(),
            held,
            tokens: Vec::new(),
            idle_from: 0,
            computed_tokens: 0,
            flight: 0,
        })
    }

    /// Takes a prompt that consists of `blocks`, which have the given `contents`. The server looks them up, asks
    /// `fetch` how many of those that it lacks come from elsewhere, and publishes all that it lacked.
    ///
    /// # Errors
    /// Fails if the manager refuses what it should not.
    pub fn serve(
        &mut self,
        request: usize,
        blocks: &[u32],
        contents: &[ContentNumber],
        fetch: impl FnOnce(&[ContentNumber]) -> usize,
    ) -> Result<Served, Refusal> {
        let id = SequenceId(request as u64);
        self.tokens.clear();
        self.tokens.extend_from_slice(blocks);
        self.tokens.push(ANSWER);
        let hashes = self.manager.hash_prefix(&self.root, &self.tokens);
        let because = |error| Refusal::because(format!("request {request} of the trace"), error);
        let found = match self.manager.allocate(id, &self.tokens, &hashes) {
            Ok(allocation) => allocation.num_cached_tokens,
            Err(BlockError::Never { .. }) => return Ok(Served { refused: true, ..Served::default() }),
            Err(error) => return Err(because(error)),
        };
        let fetched = fetch(&contents[found..]);
        if fetched > 0 {
            let fetch = self.manager.begin_fetch(id, fetched).map_err(because)?;
            self.manager.finish_fetch(fetch.id, fetched);
        }
        self.manager.commit(id, blocks.len());
        let changes = self.changes(&contents[found..]);
        self.manager.free(id);
        Ok(Served { found, fetched, refused: false, changes })
    }

    /// Returns what the last prompt changed in the server's memory, in which the contents `new` were missing.
    fn changes(&mut self, new: &[ContentNumber]) -> KvChanges {
        // Both lists are empty unless the manager was asked to keep them. Every eviction came before the first
        // publication.
        let removed = self.manager.take_evicted().iter().map(|evicted| self.held[evicted.part.block.index()]).collect();
        let published = self.manager.take_published();
        for (block, &content) in published.iter().zip(new) {
            self.held[block.index()] = content;
        }
        KvChanges { removed, stored: new[..published.len().min(new.len())].to_vec() }
    }

    /// Computes for `micros` microseconds, after everything that came before, and returns the time at which that is
    /// done.
    pub fn compute(&mut self, now: u64, micros: u64) -> u64 {
        self.idle_from = self.idle_from.max(now).saturating_add(micros);
        self.idle_from
    }

    /// Returns the number of contents that were evicted so far.
    pub fn evictions(&self) -> u64 {
        self.manager.stats().evictions
    }

    /// Checks the block manager's invariants.
    ///
    /// # Errors
    /// Fails with the first invariant that does not hold.
    pub fn check(&self) -> Result<(), Refusal> {
        self.manager.check().map_err(|error| Refusal::because("the block manager's invariants after the replay", error))
    }
}
