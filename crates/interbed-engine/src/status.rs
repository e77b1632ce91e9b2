//! The engine's status: a snapshot for `/health`, `/metrics` and the start-up report.

use std::time::Duration;

use interbed_device::StripStats;
use interbed_kv::{KvStats, TailStats, TierFigures};
use interbed_weights::StreamStats;

use crate::FinishReason;
use crate::runner::RunnerMemory;

/// A snapshot of the engine's figures. Counters are totals since the engine started. [`health`](Self::health) and
/// [`since_last_step`](Self::since_last_step) are determined when the status is requested; all other figures are the
/// ones that the engine last published.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Whether the engine makes progress.
    pub health: Health,
    /// The number of engine steps that began a forward pass, whether or not the forward pass succeeded.
    pub steps: u64,
    /// A histogram of the number of tokens in each successful forward pass. Prompt tokens and decode tokens count
    /// together.
    pub pass_tokens: TokenHistogram,
    /// The number of sequences in the waiting queue.
    pub waiting: usize,
    /// The number of running sequences.
    pub running: usize,
    /// The number of sequences whose KV is swapped out, or is being swapped out or in.
    pub swapped: usize,
    /// The total number of prompt tokens of all admitted requests. A request counts once, even if it was preempted and
    /// admitted again.
    pub prompt_tokens: u64,
    /// The number of prompt tokens whose KV was found in memory, on disk or in a shared store when their request was
    /// first admitted, and was therefore not computed.
    pub cached_tokens: u64,
    /// The number of tokens generated.
    pub generation_tokens: u64,
    /// The number of answers that ended for each reason: `stop`, `length`, `cancelled`, `failed`.
    pub finished: FinishedCounts,
    /// The number of preemptions. In a preemption, a sequence, or a beam search with all its beams, gives up its KV
    /// blocks to other sequences.
    pub preemptions: u64,
    /// The number of preemptions in which the KV was swapped out. In all other preemptions, the KV was dropped, to be
    /// computed again later.
    pub preemptions_swap: u64,
    /// Statistics of the KV block manager. Numbers of blocks are of those that hold the KV of all tokens.
    pub kv: KvStats,
    /// Statistics of the blocks that hold the KV of windows, and states.
    pub tails: TailStats,
    /// The memory that the weights use and the memory that each KV block uses. If the device has memory of its own, its
    /// statistics are included.
    pub memory: RunnerMemory,
    /// A histogram of the time that each engine step spends on scheduling sequences, on allocating their KV blocks, and
    /// on beginning to fetch KV from the tiers.
    pub allocation_seconds: Histogram,
    /// Statistics of the KV tiers, which store KV on disk or in a shared store. The tiers are in the order in which the
    /// engine searches them.
    pub tiers: Vec<TierStatus>,
    /// The number of unfinished sequences whose KV does not fit in memory, so that part of it lies on disk.
    pub longer_than_memory: usize,
    /// Statistics of strips. A strip is an address range in which the KV blocks of one sequence are mapped one after
    /// another. `None` if the engine has no strips.
    pub strips: Option<StripsStatus>,
    /// Statistics of weight streaming since the weights were opened; `None` if the weights are not streamed.
    pub stream: Option<StreamStats>,
    /// The time since the latest step with a forward pass ended. If work has arrived at the idle engine since then, the
    /// time counts from the arrival of that work.
    pub since_last_step: Duration,
    /// The number of times that the engine, while idle, found leaked KV blocks. A leaked block is neither free nor
    /// cached, although no sequence holds it. A leak is a bug; the engine then frees all blocks and continues.
    pub leaks_found: u64,
}

impl EngineStatus {
    /// Returns the total size of the memory of all blocks of KV and of states, in bytes. Blocks that were withdrawn
    /// from the pool are left out, because they have no memory.
    pub fn kv_bytes(&self) -> u64 {
        let trunk = self.kv.blocks_total.saturating_sub(self.kv.blocks_withdrawn) as u64;
        let tails = self.tails.bytes(|group| group.blocks_held + group.blocks_cached + group.blocks_free);
        self.memory.kv_block.0.saturating_mul(trunk).saturating_add(tails)
    }

    /// Returns which share of the memory that KV and states may take is held by sequences, from 0 to 1.
    pub fn kv_share(&self) -> f64 {
        // Where there are no tails, bytes need not be known.
        let (block, tails) = match self.tails.groups.is_empty() {
            true => (1, 0),
            false => (self.memory.kv_block.0, self.tails.bytes(|group| group.blocks_held)),
        };
        let total = (self.kv.blocks_total as u64).saturating_mul(block).max(1);
        (self.kv.blocks_used as u64 * block + tails) as f64 / total as f64
    }

    /// Returns the figures of the tier named `name`; `None` if there is no such tier.
    pub fn tier(&self, name: &str) -> Option<&TierStatus> {
        self.tiers.iter().find(|tier| tier.name == name)
    }
}

/// Statistics of a KV tier, which stores KV on disk or in a shared store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierStatus {
    /// The tier's [name](interbed_kv::LowerTier::name).
    pub name: &'static str,
    /// Figures that the tier itself reports.
    pub store: TierFigures,
    /// The number of computed blocks that wait for a free buffer before they can be written to the tier.
    pub fresh_blocks: usize,
    /// The number of prompt tokens whose KV the engine requested from the tier. Fetches that are still running do not
    /// count.
    pub asked_tokens: u64,
    /// The number of prompt tokens whose KV the engine received from the tier. Fetches that are still running do not
    /// count.
    pub fetched_tokens: u64,
    /// The number of fetches from the tier that have ended.
    pub fetches: u64,
    /// The sum of the durations of all fetches from the tier that have ended, in seconds.
    pub fetch_seconds: f64,
    /// The number of fetches that returned fewer blocks than were requested.
    pub fetches_cut: u64,
    /// The number of times that the tier had the KV of a prefix, but the engine chose to compute all of it rather than
    /// read it.
    pub recomputed: u64,
    /// The number of times that the engine computed the first part of a prefix while it read the rest from the tier.
    pub shared: u64,
}

/// Statistics of strips. A strip is an address range in which one sequence's KV blocks are mapped one after another.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StripsStatus {
    /// The number of memory mappings of all strips together. The operating system limits the mappings of a process.
    pub mappings: usize,
    /// The maximum number of memory mappings that all strips together may have.
    pub mappings_max: usize,
    /// The number of KV blocks that are mapped in strips. A block counts once for each strip that maps it.
    pub mapped_blocks: usize,
    /// The number of times that the strips had no room for a sequence's blocks, so that a forward pass read them
    /// through a block table. A sequence counts again in each such forward pass. Sequences longer than a strip do not
    /// count.
    pub listed: u64,
    /// The total time that steps spent on strips before their forward passes. It includes planning, mapping blocks, and
    /// waiting for mappings that the mapping thread was still making.
    pub time: Duration,
    /// The number of changes to the mappings in strips, the time that they took, and the time that steps waited for
    /// them.
    pub work: StripStats,
}

/// The engine's health: whether the engine makes *progress*, and not only whether the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// The engine is idle, or it has work and completes steps.
    #[default]
    Ok,
    /// There is work, but no step has completed for longer than [`EngineConfig::stall`](crate::EngineConfig::stall), or
    /// many steps in a row scheduled nothing. The string says which.
    Stalled(String),
    /// The engine thread has ended; the string says why.
    Dead(String),
}

/// The number of answers that ended for each reason. A request for several answers counts once for each of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct FinishedCounts {
    /// The number of answers that ended at an end-of-sequence token, at a stop token, or because the constraint on the
    /// answer, such as a grammar, allowed no further token.
    pub stop: u64,
    /// The number of answers that reached `max_tokens` or the maximum context length. Completed embeddings count here
    /// too.
    pub length: u64,
    /// The number of answers that were cancelled because the client went away, or because a stop string was found in
    /// the text.
    pub cancelled: u64,
    /// The number of answers that failed, for example because a forward pass failed, because the logits were not
    /// finite, or because a sequence needed more KV blocks than the engine has.
    pub failed: u64,
}

impl FinishedCounts {
    /// Counts a request that ended well for `reason`.
    pub(crate) fn count(&mut self, reason: FinishReason) {
        match reason {
            FinishReason::Length => self.length += 1,
            FinishReason::EndOfSequence | FinishReason::StopToken(_) | FinishReason::Complete => self.stop += 1,
        }
    }
}

/// A histogram of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// The number of durations in each bucket. A duration belongs to the first bucket `i` for which it is at most
    /// [`Histogram::BOUNDS`]`[i]` seconds. The last bucket counts the durations that exceed every bound.
    pub counts: [u64; Histogram::BOUNDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// The largest duration of each bucket, in seconds. The last bucket has no bound.
    pub const BOUNDS: [f64; 8] = [1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 1e-3, 1e-2, 0.1];

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(Self::BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

/// A histogram of the number of tokens per forward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenHistogram {
    /// The number of forward passes in each bucket. A forward pass belongs to the first bucket `i` for which it has at
    /// most [`TokenHistogram::BOUNDS`]`[i]` tokens. The last bucket counts the forward passes that exceed every bound.
    pub counts: [u64; TokenHistogram::BOUNDS.len() + 1],
    /// The total number of tokens in all forward passes that were counted.
    pub sum: u64,
}

impl TokenHistogram {
    /// The largest number of tokens of each bucket. The last bucket has no bound.
    pub const BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

    /// Counts one forward pass of `tokens` tokens.
    pub fn record(&mut self, tokens: u64) {
        self.counts[Self::BOUNDS.partition_point(|&bound| bound < tokens)] += 1;
        self.sum += tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_buckets() {
        let mut histogram = Histogram::default();
        for micros in [1, 2, 20, 1_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        assert_eq!(histogram.counts, [1, 1, 1, 0, 0, 0, 0, 0, 1]);
        assert!((histogram.sum - 1.000_023).abs() < 1e-9);
    }

    #[test]
    fn numbers_fall_into_their_buckets() {
        let mut histogram = TokenHistogram::default();
        for tokens in [0, 1, 2, 8, 9, 20_000] {
            histogram.record(tokens);
        }
        assert_eq!((&histogram.counts[..3], histogram.counts[13]), (&[2, 2, 1][..], 1));
        assert_eq!((histogram.counts.iter().sum::<u64>(), histogram.sum), (6, 20_020));
    }
}
