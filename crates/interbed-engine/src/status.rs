//! A snapshot of the engine for `/health`, `/metrics` and the start-up report.

use std::time::Duration;

use interbed_device::{DeviceStats, StripStats};
use interbed_weights::StreamStats;

use crate::{FinishReason, KvDiskStatus, KvRemoteStatus};

/// What the engine was doing when its last step ended. Counters are totals since start.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Whether work is progressing; see [`Health`].
    pub health: Health,
    /// Engine steps (forward passes).
    pub steps: u64,
    /// How many tokens passes had, of prompts and of decodes together.
    pub pass_tokens: TokenHistogram,
    /// Sequences in the waiting queue.
    pub waiting: usize,
    /// Sequences in the running set.
    pub running: usize,
    /// Sequences whose KV is swapped out, or on its way out or in.
    pub swapped: usize,
    /// Prompt tokens received by admitted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Requests that ended, by reason: `stop`, `length`, `cancelled`, `failed`.
    pub finished: FinishedCounts,
    /// Times that sequences had to make room for others.
    pub preemptions: u64,
    /// Preemptions in which KV was swapped out; in all others it is computed again.
    pub preemptions_swap: u64,
    /// Swap space.
    pub swap: SwapStatus,
    /// KV blocks, by state, and the prefix cache's figures.
    pub kv: KvStatus,
    /// KV on disk, if there is any.
    pub kv_disk: Option<KvDiskStatus>,
    /// KV in a store that servers share, if there is one.
    pub kv_remote: Option<KvRemoteStatus>,
    /// Mappings of KV blocks side by side, if the engine uses them.
    pub strips: Option<StripsStatus>,
    /// Bytes of memory that weights take.
    pub weights_bytes: u64,
    /// What streaming the weights has taken since the start, if they are streamed.
    pub stream: Option<StreamStats>,
    /// What the device was used for, if it has memory of its own.
    pub device: Option<DeviceStats>,
    /// Time since the last step ended.
    pub since_last_step: Duration,
    /// Times an idle check found blocks that were neither free nor cached. Always 0, or there is a bug; the engine
    /// recovers and goes on.
    pub leaks_found: u64,
}

/// KV that is mapped side by side.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StripsStatus {
    /// Mappings of all strips, as the system counts them.
    pub mappings: usize,
    /// Most mappings that all strips together may have.
    pub mappings_max: usize,
    /// Blocks mapped in strips; shared ones count several times.
    pub mapped_blocks: usize,
    /// Times that a sequence's blocks had no room in a strip for a pass.
    pub listed: u64,
    /// Time that steps took before their passes to decide about strips, to map blocks and to wait.
    pub time: Duration,
    /// Counts of the mapping work.
    pub work: StripStats,
}

/// Whether the engine makes *progress*, not whether the process lives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// Idle, or steps are completing.
    #[default]
    Ok,
    /// There is work, but no step has completed for the time given, or nothing could be scheduled for many steps.
    Stalled(String),
    /// The engine thread has ended.
    Dead(String),
}

/// Requests that ended, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct FinishedCounts {
    /// End-of-sequence or a stop token.
    pub stop: u64,
    /// `max_tokens` or the end of the context.
    pub length: u64,
    /// The client went away (a stop string matched by the text layer counts here too, see `text`).
    pub cancelled: u64,
    /// A failed pass, numbers that are not finite, or a request that could never fit.
    pub failed: u64,
}

/// Totals that the engine counts itself; other totals are counted by its parts.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) steps: u64,
    pub(crate) pass_tokens: TokenHistogram,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) finished: FinishedCounts,
    pub(crate) leaks_found: u64,
    pub(crate) allocation_seconds: Histogram,
}

impl FinishedCounts {
    /// Counts a request that ended well for this reason.
    pub(crate) fn count(&mut self, reason: FinishReason) {
        match reason {
            FinishReason::Length => self.length += 1,
            FinishReason::EndOfSequence | FinishReason::StopToken(_) | FinishReason::Complete => self.stop += 1,
        }
    }
}

/// KV blocks by state.
#[derive(Debug, Clone, Copy, Default)]
pub struct KvStatus {
    /// Most blocks that there can be.
    pub blocks_total: usize,
    /// Blocks held by sequences or by swaps in flight.
    pub blocks_used: usize,
    /// Blocks that no sequence holds but whose content can still be found.
    pub blocks_cached: usize,
    /// Blocks whose content is not needed.
    pub blocks_free: usize,
    /// Blocks without memory, which weights have instead.
    pub blocks_withdrawn: usize,
    /// Bytes of all blocks that have memory, or may take it.
    pub bytes: u64,
    /// Token slots of used blocks.
    pub slots_allocated: usize,
    /// Slots of used blocks that hold no token yet: internal fragmentation.
    pub slots_empty: usize,
    /// Prompt tokens of admitted requests, each counted once however often it was preempted.
    pub prefix_query_tokens: u64,
    /// Prompt tokens that the prefix cache held at first admission.
    pub prefix_hit_tokens: u64,
    /// Cached blocks whose content was given up for new content.
    pub evictions: u64,
    /// Allocations refused for want of blocks.
    pub allocation_failures: u64,
    /// Blocks computed twice, and merged.
    pub blocks_merged: u64,
    /// Sequences that forked off another.
    pub forks: u64,
    /// Shared blocks that were copied, because one of those that shared them wrote to it.
    pub copy_on_writes: u64,
    /// How long giving out the blocks of a step took, with the planning around it.
    pub allocation_seconds: Histogram,
}

/// Swap space, in blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SwapStatus {
    /// Slots, each for one block; 0 without swap space.
    pub slots_total: usize,
    /// Slots that hold KV or are reserved for KV on its way out.
    pub slots_used: usize,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Blocks copied out by swaps that succeeded.
    pub blocks_out: u64,
    /// Blocks copied in by swaps that succeeded.
    pub blocks_in: u64,
    /// Swaps that failed, whose KV was computed again.
    pub failed: u64,
}

/// Counts of durations, by size.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// How many were at most [`Histogram::BOUNDS`]`[i]` seconds and above the bound before; the last counts the rest.
    pub counts: [u64; Histogram::BOUNDS.len() + 1],
    /// All durations together, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Upper bounds in seconds.
    pub const BOUNDS: [f64; 8] = [1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 1e-3, 1e-2, 0.1];

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(Self::BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

/// Counts of passes, by their number of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenHistogram {
    /// How many were at most [`TokenHistogram::BOUNDS`]`[i]` and above the bound before; the last counts the rest.
    pub counts: [u64; TokenHistogram::BOUNDS.len() + 1],
    /// Sum of all numbers that were counted.
    pub sum: u64,
}

impl TokenHistogram {
    /// Upper bounds.
    pub const BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

    /// Counts one number.
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
