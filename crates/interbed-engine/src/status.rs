//! The engine's status: a snapshot for `/health`, `/metrics` and the start-up report.

use std::time::Duration;

use interbed_device::StripStats;
use interbed_kv::{KvStats, TierFigures};
use interbed_weights::StreamStats;

use crate::FinishReason;
use crate::runner::RunnerMemory;

/// The engine's status when it last published its figures. Counters are totals since the start.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Whether the engine makes progress, by [`Health`].
    pub health: Health,
    /// The number of engine steps.
    pub steps: u64,
    /// The numbers of tokens that passes had, of prompts and of decodes together.
    pub pass_tokens: TokenHistogram,
    /// The number of sequences in the waiting queue.
    pub waiting: usize,
    /// The number of running sequences.
    pub running: usize,
    /// The number of sequences whose KV is swapped out, or on its way out or in.
    pub swapped: usize,
    /// The number of prompt tokens of admitted requests. Each request counts once, however often it was preempted.
    pub prompt_tokens: u64,
    /// The number of prompt tokens that were cached when their request was first admitted.
    pub cached_tokens: u64,
    /// The number of tokens generated.
    pub generation_tokens: u64,
    /// The number of requests that ended, by reason: `stop`, `length`, `cancelled`, `failed`.
    pub finished: FinishedCounts,
    /// The number of times that sequences had to make room for others.
    pub preemptions: u64,
    /// The number of preemptions in which KV was swapped out; in all others it is computed again.
    pub preemptions_swap: u64,
    /// The block manager's figures.
    pub kv: KvStats,
    /// The memory of weights, of a KV block and of the device.
    pub memory: RunnerMemory,
    /// The time that giving out the blocks of a step took, with the planning around it.
    pub allocation_seconds: Histogram,
    /// The figures of the tiers of KV below memory, nearest first.
    pub tiers: Vec<TierStatus>,
    /// The sequences that are longer than memory and have not ended.
    pub longer_than_memory: usize,
    /// The figures of blocks that are mapped side by side, if the engine maps them so.
    pub strips: Option<StripsStatus>,
    /// What streaming the weights has taken since the start, if they are streamed.
    pub stream: Option<StreamStats>,
    /// The time since the last step ended, or since work arrived at an idle engine if that is later.
    pub since_last_step: Duration,
    /// The number of idle checks that found blocks which were neither free nor cached. It is always 0 unless there is a
    /// bug; the engine recovers and goes on.
    pub leaks_found: u64,
}

impl EngineStatus {
    /// Returns the bytes of all KV blocks that have memory, or may take it.
    pub fn kv_bytes(&self) -> u64 {
        self.memory.kv_block.0.saturating_mul(self.kv.blocks_total.saturating_sub(self.kv.blocks_withdrawn) as u64)
    }

    /// Returns the figures of the tier with this name, if there is such a tier.
    pub fn tier(&self, name: &str) -> Option<&TierStatus> {
        self.tiers.iter().find(|tier| tier.name == name)
    }
}

/// Figures of a tier of KV below memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierStatus {
    /// The tier's [name](interbed_kv::LowerTier::name).
    pub name: &'static str,
    /// The figures that the tier counts itself.
    pub store: TierFigures,
    /// The computed blocks that wait for buffers to be stored.
    pub fresh_blocks: usize,
    /// The prompt tokens whose KV the tier was asked for.
    pub asked_tokens: u64,
    /// The prompt tokens whose KV came from the tier.
    pub fetched_tokens: u64,
    /// The fetches that have ended.
    pub fetches: u64,
    /// The seconds that sequences waited for fetches that have ended.
    pub fetch_seconds: f64,
    /// The fetches that did not bring all blocks that were asked for.
    pub fetches_cut: u64,
    /// The prefixes that were in the tier and were computed, since that was expected to be faster.
    pub recomputed: u64,
    /// The prefixes of which the first part was computed while the rest was read.
    pub shared: u64,
}

/// Figures of KV blocks that are mapped side by side.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StripsStatus {
    /// The number of mappings of all strips, as the system counts them.
    pub mappings: usize,
    /// The most mappings that all strips together may have.
    pub mappings_max: usize,
    /// The number of blocks mapped in strips. A block in several strips counts several times.
    pub mapped_blocks: usize,
    /// The number of times that a sequence's blocks had no room in a strip for a pass.
    pub listed: u64,
    /// The time that steps took before their passes to decide about strips, to map blocks and to wait.
    pub time: Duration,
    /// The counts of the mapping work.
    pub work: StripStats,
}

/// The engine's health, which says whether the engine makes *progress*, not whether the process lives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// The engine is idle, or its steps are completing.
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
    /// Requests that ended with an end-of-sequence token, a stop token or a complete constraint.
    pub stop: u64,
    /// Requests that reached `max_tokens` or the end of the context.
    pub length: u64,
    /// Requests whose client went away. A request that the text layer ends at a stop string counts here too.
    pub cancelled: u64,
    /// Requests that failed, for example because a pass failed, numbers were not finite, or the request could never
    /// fit.
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
    /// The numbers of durations by size. Entry `i` counts durations of at most [`Histogram::BOUNDS`]`[i]` seconds that
    /// are above the bound before; the last entry counts the rest.
    pub counts: [u64; Histogram::BOUNDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// The upper bounds of the entries of `counts`, in seconds.
    pub const BOUNDS: [f64; 8] = [1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 1e-3, 1e-2, 0.1];

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(Self::BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

/// A histogram of passes, by their number of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenHistogram {
    /// The numbers of passes by size. Entry `i` counts passes of at most [`TokenHistogram::BOUNDS`]`[i]` tokens that
    /// are above the bound before; the last entry counts the rest.
    pub counts: [u64; TokenHistogram::BOUNDS.len() + 1],
    /// The sum of the tokens of all passes.
    pub sum: u64,
}

impl TokenHistogram {
    /// The upper bounds of the entries of `counts`, in tokens.
    pub const BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

    /// Counts one pass of `tokens` tokens.
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
