//! Measures how long the block manager's operations take with prompts as long as the trace's.

use std::time::{Duration, Instant};

use interbed_kv::{BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};

use super::trace::Trace;
use interbed_plan::Refusal;

/// The number of blocks in the measured pool.
const POOL_BLOCKS: usize = 1 << 15;

/// The share of the pool that prompts fill; answers fill the rest.
const PROMPT_SHARE: f64 = 0.75;

/// The fewest blocks of a prompt. A prompt's last block is never found, and all last blocks must find a free block.
const PROMPT_BLOCKS_MIN: usize = 8;

/// The time that an operation takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Operation {
    /// The operation's name.
    pub name: &'static str,
    /// The unit that the time refers to.
    pub per: &'static str,
    /// The time in nanoseconds.
    pub nanoseconds: f64,
}

/// Measures all operations `repeat` times on a pool of [`POOL_BLOCKS`] blocks of `block_size` tokens, and returns the
/// shortest times, because other programs may use the machine meanwhile.
///
/// # Errors
/// Fails if the block size is invalid, or a manager refuses what it should not.
pub(super) fn measure(
    trace: &Trace,
    eviction: EvictionKind,
    block_size: usize,
    repeat: usize,
) -> Result<Vec<Operation>, Refusal> {
    // All rounds use one pool: the first round is the slowest, because it touches the memory for the first time.
    let mut bench = Bench::new(trace, eviction, block_size)?;
    let mut best = bench.round()?;
    for _ in 1..repeat {
        for (best, operation) in best.iter_mut().zip(bench.round()?) {
            best.nanoseconds = best.nanoseconds.min(operation.nanoseconds);
        }
    }
    Ok(best)
}

struct Bench {
    manager: BlockManager,
    root: ChainRoot,
    block_size: usize,
    /// The number of tokens in each sequence's prompt, a multiple of the block size.
    lengths: Vec<usize>,
    tokens: Vec<TokenId>,
    operations: Vec<Operation>,
}

impl Bench {
    fn new(trace: &Trace, eviction: EvictionKind, block_size: usize) -> Result<Self, Refusal> {
        let config = KvConfig { num_blocks: POOL_BLOCKS, block_size, eviction, ..KvConfig::default() };
        let manager = BlockManager::new(config)?;
        let mut left = (POOL_BLOCKS as f64 * PROMPT_SHARE) as usize;
        let mut lengths = Vec::new();
        for request in trace.requests().iter().cycle() {
            let blocks = request.input_tokens.div_ceil(block_size).clamp(PROMPT_BLOCKS_MIN, POOL_BLOCKS / 16);
            if blocks > left {
                break;
            }
            left -= blocks;
            lengths.push(blocks * block_size);
        }
        let tokens = Vec::with_capacity(POOL_BLOCKS * block_size);
        Ok(Self { manager, root: ChainRoot::default(), block_size, lengths, tokens, operations: Vec::new() })
    }

    /// Runs each operation once. The pool is empty before and after the round.
    fn round(&mut self) -> Result<Vec<Operation>, Refusal> {
        let blocks = self.lengths.iter().sum::<usize>() / self.block_size;
        let time = self.allocate(0)?;
        self.tell("allocate", "block", time, blocks);
        let time = self.publish();
        self.tell("publish", "block", time, blocks);
        let (time, appended) = self.append_blocks()?;
        self.tell("append", "block", time, appended);
        let (time, appended) = self.append_tokens()?;
        self.tell("append_token", "token", time, appended);
        let held = self.manager.stats().blocks_used;
        let time = self.free();
        self.tell("free", "block", time, held);
        let time = self.allocate(0)?;
        self.tell("hit", "block", time, blocks);
        self.free();
        self.fill()?;
        let time = self.allocate(1)?;
        self.tell("evict", "block", time, blocks);
        self.free();
        self.manager.free(self.filler());
        self.manager.reset_cache();
        Ok(std::mem::take(&mut self.operations))
    }

    fn tell(&mut self, name: &'static str, per: &'static str, time: Duration, count: usize) {
        let nanoseconds = time.as_nanos() as f64 / count.max(1) as f64;
        self.operations.push(Operation { name, per, nanoseconds });
    }

    /// Allocates prompts of which no two begin alike. Calls with equal `kind`s allocate equal prompts.
    fn allocate(&mut self, kind: u32) -> Result<Duration, Refusal> {
        self.tokens.clear();
        for (number, &length) in self.lengths.iter().enumerate() {
            let first = (number as u32).wrapping_mul(2_654_435_761).wrapping_add(kind);
            self.tokens.extend((0..length as u32).map(|place| first.wrapping_add(place.wrapping_mul(40_503))));
        }
        let mut rest = self.tokens.as_slice();
        let started = Instant::now();
        for (number, &length) in self.lengths.iter().enumerate() {
            let (prompt, others) = rest.split_at(length);
            rest = others;
            let hashes = self.manager.hash_prefix(&self.root, prompt);
            self.manager
                .allocate(SequenceId(number as u64), prompt, &hashes)
                .map_err(|error| Refusal::because("the pool has room", error))?;
        }
        Ok(started.elapsed())
    }

    fn publish(&mut self) -> Duration {
        let started = Instant::now();
        for (number, &length) in self.lengths.iter().enumerate() {
            self.manager.commit(SequenceId(number as u64), length);
        }
        started.elapsed()
    }

    /// Appends a block's worth of tokens to each sequence in turn, until half of the free blocks are used.
    fn append_blocks(&mut self) -> Result<(Duration, usize), Refusal> {
        let tokens = vec![7; self.block_size];
        let (count, decoding) = (self.manager.stats().blocks_free / 2, self.decoding());
        let started = Instant::now();
        for at in 0..count {
            self.manager
                .append(SequenceId((at % decoding) as u64), &tokens)
                .map_err(|error| Refusal::because("blocks are free", error))?;
        }
        Ok((started.elapsed(), count))
    }

    /// Appends one token to each sequence in turn, as decoding does, until half of the free blocks are used.
    fn append_tokens(&mut self) -> Result<(Duration, usize), Refusal> {
        let decoding = self.decoding();
        let each = self.manager.stats().blocks_free / 2 / decoding * self.block_size;
        let started = Instant::now();
        for _ in 0..each {
            for number in 0..decoding {
                self.manager
                    .append(SequenceId(number as u64), &[7])
                    .map_err(|error| Refusal::because("blocks are free", error))?;
            }
        }
        Ok((started.elapsed(), each * decoding))
    }

    /// Returns the number of sequences that decode together.
    fn decoding(&self) -> usize {
        self.lengths.len().min(256)
    }

    /// Gives all free blocks to one sequence, so that others get blocks only by eviction.
    fn fill(&mut self) -> Result<(), Refusal> {
        let tokens = vec![7; self.manager.stats().blocks_free * self.block_size];
        let hashes = self.manager.hash_prefix(&ChainRoot::unshared(), &tokens);
        self.manager
            .allocate(self.filler(), &tokens, &hashes)
            .map_err(|error| Refusal::because("blocks are free", error))?;
        Ok(())
    }

    fn filler(&self) -> SequenceId {
        SequenceId(self.lengths.len() as u64)
    }

    fn free(&mut self) -> Duration {
        let started = Instant::now();
        for number in 0..self.lengths.len() {
            self.manager.free(SequenceId(number as u64));
        }
        started.elapsed()
    }
}
