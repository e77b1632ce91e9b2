//! Compares the load in blocks with the load in pre-allocated memory.

use interbed_kv::KvConfig;

use super::load::{self, Load, Pace};
use super::room::{Paged, Preallocated};
use super::trace::Trace;
use interbed_plan::Refusal;
use interbed_plan::words::grouped;

/// The most blocks of a pool that a load is replayed with, because the records of the blocks must fit into memory.
pub const LOAD_BLOCKS_MAX: usize = 1 << 22;

/// What is compared: the load of a trace in blocks, and in pre-allocated memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub pace: Pace,
    /// The number of tokens in a block.
    pub block_size: usize,
    /// The number of blocks that both ways of storing sequences get; `None` for as many as blocks need so that no
    /// sequence waits.
    pub blocks: Option<usize>,
    /// The number of tokens that are pre-allocated for each sequence; `None` for those of the longest request.
    pub longest: Option<usize>,
}

/// The result of a comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    pub pace: Pace,
    pub block_size: usize,
    /// The number of tokens that are pre-allocated for each sequence.
    pub longest: usize,
    /// The number of tokens that fit into the memory that both ways get.
    pub capacity_tokens: usize,
    /// The load in as many blocks as are needed so that no sequence waits.
    pub ample: Load,
    /// The load in the blocks of the given memory, if the question names one.
    pub limited: Option<Load>,
    /// The load in memory of the same size, of which each sequence takes room for the longest one.
    pub preallocated: Load,
}

impl Question {
    /// Returns how many times the trace is replayed.
    pub fn replays(&self) -> usize {
        2 + usize::from(self.blocks.is_some())
    }

    /// Returns the number of blocks with which no sequence waits.
    ///
    /// # Errors
    /// Fails if more than [`LOAD_BLOCKS_MAX`] blocks are needed.
    pub fn ample_blocks(&self, trace: &Trace) -> Result<usize, Refusal> {
        let blocks = load::ample_blocks(trace, self.pace, self.block_size);
        if blocks > LOAD_BLOCKS_MAX {
            return Err(Refusal::advised(
                format!(
                    "the load may take {} blocks of {} tokens at a time; expected at most {}",
                    grouped(blocks as u64),
                    self.block_size,
                    grouped(LOAD_BLOCKS_MAX as u64)
                ),
                "give a larger --block-size, a higher --prefill-rate or --decode-rate, or cut the trace",
            ));
        }
        Ok(blocks)
    }

    /// Replays the trace in blocks and in pre-allocated memory.
    ///
    /// # Errors
    /// Fails if the block size is invalid, the load takes too many blocks, or a block manager breaks its contract.
    pub fn answer(self, trace: &Trace, mut progress: impl FnMut()) -> Result<Comparison, Refusal> {
        let Self { pace, block_size, .. } = self;
        let ample_blocks = self.ample_blocks(trace)?;
        let usual = KvConfig { block_size, prefix_caching: trace.has_hashes(), ..KvConfig::default() };
        let mut paged = |num_blocks: usize, watermark: f64| {
            let mut room = Paged::new(KvConfig { num_blocks, watermark, ..usual.clone() })?;
            let load = load::replay(trace, pace, &mut room, &mut progress)?;
            room.check()?;
            Ok::<_, Refusal>(load)
        };
        usual.check()?;
        let ample = paged(ample_blocks, 0.0)?;
        let limited = self.blocks.map(|blocks| paged(blocks, usual.watermark)).transpose()?;
        let capacity_tokens = self.blocks.map_or(ample.taken_peak, |blocks| blocks * block_size);
        let longest = self.longest.unwrap_or_else(|| trace.longest()).max(1);
        let mut room = Preallocated::new(capacity_tokens, longest);
        let preallocated = load::replay(trace, pace, &mut room, &mut progress)?;
        Ok(Comparison { pace, block_size, longest, capacity_tokens, ample, limited, preallocated })
    }
}

impl Comparison {
    /// Returns the load in blocks, in the memory that both ways are given.
    pub fn paged(&self) -> &Load {
        self.limited.as_ref().unwrap_or(&self.ample)
    }

    /// Returns the number of tokens that pre-allocation takes for as many sequences as the blocks held at their peak,
    /// if no sequence had to wait.
    pub fn preallocated_tokens(&self) -> f64 {
        self.ample.running_peak as f64 * self.longest as f64
    }

    /// Returns the number of sequences that fit at once if each is pre-allocated.
    pub fn preallocated_sequences(&self) -> usize {
        self.capacity_tokens / self.longest
    }
}
