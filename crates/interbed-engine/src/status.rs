//! The engine's status: a snapshot for `/health`, `/metrics` and the start-up report.

use std::time::Duration;

use interbed_device::StripStats;
use interbed_kv::{KvStats, TierFigures};
use interbed_weights::StreamStats;

use crate::FinishReason;
use crate::runner::RunnerMemory;

/// A snapshot of the engine's figures. Counters are totals since the engine started. [`health`](Self::health) and
/// [`since_last_step`](Self::since_last_step) are determined when the status is requested; the other figures are those
/// that the engine published last.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Whether the engine makes progress.
    pub health: Health,
    /// The number of engine steps that began a forward pass.
    pub steps: u64,
    /// A histogram of the number of tokens per forward pass. Prompt tokens and decode tokens count together.
    pub pass_tokens: TokenHistogram,
    /// The number of sequences in the waiting queue.
    pub waiting: usize,
    /// The number of running sequences.
    pub running: usize,
    /// The number of sequences whose KV is swapped out, or is being swapped out or in.
    pub swapped: usize,
    /// The number of prompt tokens of admitted requests. Each request counts once, however often it was preempted.
    pub prompt_tokens: u64,
    /// The number of prompt tokens whose KV was cached when their request was first admitted.
    pub cached_tokens: u64,
    /// The number of tokens generated.
    pub generation_tokens: u64,
    /// The number of requests that ended, by reason: `stop`, `length`, `cancelled`, `failed`.
    pub finished: FinishedCounts,
    /// The number of preemptions. In a preemption, a sequence, or a beam search with all its beams, gives up its KV
    /// blocks to other sequences.
    pub preemptions: u64,
    /// The number of preemptions in which the KV was swapped out. In all other preemptions, the KV is dropped, and
    /// computed again later.
    pub preemptions_swap: u64,
    /// Figures of the KV block manager.
    pub kv: KvStats,
    /// The memory that the weights and each KV block take, and the figures of a device that has its own memory.
    pub memory: RunnerMemory,
    /// A histogram of the time that the engine spends in each step on scheduling sequences and on allocating their KV
    /// blocks.
    pub allocation_seconds: Histogram,
    /// Figures of the KV tiers on disk or in a shared store, nearest tier first.
    pub tiers: Vec<TierStatus>,
    /// The number of unfinished sequences whose KV does not fit in memory, so that most of it lies on disk.
    pub longer_than_memory: usize,
    /// Figures of strips, in which the KV blocks of a sequence are mapped to consecutive addresses. `None` if the
    /// engine has no strips.
    pub strips: Option<StripsStatus>,
    /// Statistics of weight streaming since the start; `None` if the weights are not streamed.
    pub stream: Option<StreamStats>,
    /// The time since the last step ended, or since work arrived at an idle engine if that is later.
    pub since_last_step: Duration,
    /// The number of times that the engine was idle and found leaked KV blocks, which belonged to no sequence but were
    /// neither free nor cached. A leak is a bug; the engine then frees all blocks and continues.
    pub leaks_found: u64,
}

impl EngineStatus {
    /// Returns the memory of all KV blocks in bytes. Blocks that were withdrawn from the pool do not count, because
    /// they have no memory.
    pub fn kv_bytes(&self) -> u64 {
        self.memory.kv_block.0.saturating_mul(self.kv.blocks_total.saturating_sub(self.kv.blocks_withdrawn) as u64)
    }

    /// Returns the figures of the tier with this name, if there is such a tier.
    pub fn tier(&self, name: &str) -> Option<&TierStatus> {
        self.tiers.iter().find(|tier| tier.name == name)
    }
}

/// Figures of a KV tier on disk or in a shared store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierStatus {
    /// The tier's [name](interbed_kv::LowerTier::name).
    pub name: &'static str,
    /// Figures that the tier itself reports.
    pub store: TierFigures,
    /// The number of computed blocks that wait for a free buffer before they can be written to the tier.
    pub fresh_blocks: usize,
    /// The number of prompt tokens whose KV was requested from the tier. Only fetches that have ended count.
    pub asked_tokens: u64,
    /// The number of prompt tokens whose KV was read from the tier.
    pub fetched_tokens: u64,
    /// The number of fetches that have ended.
    pub fetches: u64,
    /// The total duration of all fetches that have ended, in seconds.
    pub fetch_seconds: f64,
    /// The number of fetches that returned fewer blocks than were requested.
    pub fetches_cut: u64,
    /// The number of prefixes that were in the tier, but were computed in full instead of being read.
    pub recomputed: u64,
    /// The number of prefixes whose first part was computed while the rest was read from the tier.
    pub shared: u64,
}

/// Figures of strips, in which the KV blocks of a sequence are mapped to consecutive addresses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StripsStatus {
    /// The number of memory mappings of all strips together, as the operating system counts mappings.
    pub mappings: usize,
    /// The maximum number of memory mappings that all strips together may have.
    pub mappings_max: usize,
    /// The number of KV blocks that are mapped in strips. A block counts once for each strip that maps it.
    pub mapped_blocks: usize,
    /// The number of times that a forward pass read a sequence's blocks through a block table because no strip (range
    /// of consecutive addresses) had room for them. Sequences longer than a strip do not count.
    pub listed: u64,
    /// The total time that steps spent before their forward passes on planning strips, on mapping blocks, and on
    /// waiting for mappings in progress.
    pub time: Duration,
    /// Counts and times of the work of mapping KV blocks into strips and removing them.
    pub work: StripStats,
}

/// The engine's health: whether the engine makes *progress*, and not only whether the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// The engine is idle, or it has work and completes steps.
    #[default]
    Ok,
    /// There is work, but no step has completed for a while, or nothing could be scheduled for many steps. The string
    /// says which.
    Stalled(String),
    /// The engine thread has ended; the string says why.
    Dead(String),
}

/// The numbers of requests that ended, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct FinishedCounts {
    /// The number of requests that ended at an end-of-sequence token, at a stop token, or because their constraint was
    /// complete and allowed no further token.
    pub stop: u64,
    /// The number of requests that reached `max_tokens` or the end of the context.
    pub length: u64,
    /// The number of requests that were cancelled, either because the client went away or because the text layer found
    /// a stop string.
    pub cancelled: u64,
    /// The number of requests that failed, for example because a forward pass failed, because the logits were not
    /// finite, or because the request needed more KV blocks than there are.
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
    /// The number of durations in each bucket. Bucket `i` counts durations that are longer than the previous bound and
    /// at most [`Histogram::BOUNDS`]`[i]` seconds; the last bucket counts all longer durations.
    pub counts: [u64; Histogram::BOUNDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// The upper bounds of all buckets but the last, in seconds.
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
    /// The number of forward passes in each bucket. Bucket `i` counts forward passes with more tokens than the previous
    /// bound and at most [`TokenHistogram::BOUNDS`]`[i]` tokens; the last bucket counts all larger forward passes.
    pub counts: [u64; TokenHistogram::BOUNDS.len() + 1],
    /// The total number of tokens of all forward passes.
    pub sum: u64,
}

impl TokenHistogram {
    /// The upper bounds of all buckets but the last, in tokens.
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
