//! One server of a fleet: a block manager, and prompts that it computes one after the other.

use interbed_kv::{BlockError, BlockManager, ChainRoot, EvictionKind, KeyChain, KvConfig, SequenceId, TokenId};

use super::chains::ContentNumber;
use super::router::KvChanges;
use interbed_plan::Refusal;

/// The token that ends each prompt. Its block is never published, as it stands for the answer.
const ANSWER: TokenId = TokenId::MAX;

/// What a server found of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Served {
    /// Leading blocks that were in its memory.
    pub found: usize,
    /// Blocks after these that the remote tier had.
    pub fetched: usize,
    /// Whether the prompt needs more blocks than the server has: it counts as a miss, and nothing is kept.
    pub refused: bool,
    /// What changed in its memory.
    pub changes: KvChanges,
}

/// A server: its memory is used as `interbed-lab replay` uses that of one server, its time by the prompts it computes.
#[derive(Debug)]
pub(super) struct Server {
    manager: BlockManager,
    root: ChainRoot,
    /// The content of each findable block.
    held: Vec<ContentNumber>, // [block]
    tokens: Vec<TokenId>,
    /// When it has computed all prompts so far, in microseconds.
    idle_from: u64,
    /// Tokens of prompts that it has computed.
    pub computed_tokens: u64,
    /// Microseconds that requests have been in flight, one after the other.
    pub flight: u64,
}

impl Server {
    /// An idle server of `num_blocks` blocks that hold a block of the trace each; `tells_changes` if somebody follows
    /// what changes in its memory.
    ///
    /// # Errors
    /// A number of blocks that cannot be.
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

    /// Takes a prompt of `blocks`, whose `contents` are these: looks it up here, has `fetch` say how many blocks come
    /// from elsewhere of those that it lacks, and publishes these and what it computes.
    ///
    /// # Errors
    /// A manager that refuses what it should not.
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

    /// What the last prompt has changed here, of which these contents were not.
    fn changes(&mut self, new: &[ContentNumber]) -> KvChanges {
        // Both are empty unless somebody asks. What was evicted, was so before anything was published.
        let removed = self.manager.take_evicted().iter().map(|evicted| self.held[evicted.block.index()]).collect();
        let published = self.manager.take_published();
        for (block, &content) in published.iter().zip(new) {
            self.held[block.index()] = content;
        }
        KvChanges { removed, stored: new[..published.len().min(new.len())].to_vec() }
    }

    /// Computes for so many microseconds, once it has computed what came before; returns when that is done.
    pub fn compute(&mut self, now: u64, micros: u64) -> u64 {
        self.idle_from = self.idle_from.max(now).saturating_add(micros);
        self.idle_from
    }

    /// Contents evicted so far.
    pub fn evictions(&self) -> u64 {
        self.manager.stats().evictions
    }

    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Refusal> {
        self.manager.check().map_err(|error| Refusal::because("the block manager's invariants after the replay", error))
    }
}
