//! Finds out what a cache of some size would have found: the trace's prompts go through the block manager, one after
//! the other.

use std::time::{Duration, Instant};

use interbed_kv::{BlockError, BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};

use super::explain::{Listener, Misses};
use super::trace::Trace;
use interbed_plan::Refusal;

/// The token that ends each prompt. The token's block stands for the answer, and is never published.
const ANSWER: TokenId = TokenId::MAX;

/// What one policy found with one cache size.
#[derive(Debug, Clone)]
pub(super) struct Hits {
    /// The number of blocks of the cache.
    pub blocks: usize,
    /// The number of prompt blocks that were found, out of [`Trace::references`].
    pub hit_blocks: u64,
    /// The number of prompt tokens that were found, out of [`Trace::input_tokens`].
    pub hit_tokens: u64,
    /// The number of evicted blocks.
    pub evictions: u64,
    /// The number of requests that needed more blocks than the cache has; they count as misses.
    pub refused: usize,
    /// The number of blocks in the prompts that were not refused.
    pub admitted_blocks: u64,
    /// The mean number of blocks with content while a request holds its blocks.
    pub used_mean: f64,
    /// The greatest number of blocks with content while a request holds its blocks.
    pub used_peak: usize,
    /// The share of token slots that hold no token among those of the held blocks, with blocks as long as the trace's.
    pub fragmentation: f64,
    /// The time inside the manager for prompts that were not refused.
    pub time: Duration,
    /// Why requests missed, if this was requested.
    pub misses: Option<Misses>,
}

/// Sends the prompts through a manager whose cache has `blocks` blocks. Each block of the trace takes one block of the
/// manager, with the block's number as its token; one more block is for the answer. Each request is given its blocks,
/// publishes those of its prompt, and releases them, the last first, before the next request comes. `explain` is told
/// why each request missed.
///
/// # Errors
/// Fails if a manager refuses what it should not, if its invariants do not hold afterwards, or if `explain` fails.
pub(super) fn replay(
    trace: &Trace,
    eviction: EvictionKind,
    blocks: usize,
    mut explain: Option<&mut Listener<'_>>,
) -> Result<Hits, Refusal> {
    // Blocks beyond the trace's references could neither be used nor evicted.
    let num_blocks = blocks.min(trace.references().len()) + 1;
    let config = KvConfig { num_blocks, block_size: 1, watermark: 0.0, eviction, ..KvConfig::default() };
    let mut manager = BlockManager::new(config)?;
    let root = ChainRoot::default();
    let mut hits = Hits {
        blocks,
        hit_blocks: 0,
        hit_tokens: 0,
        evictions: 0,
        refused: 0,
        admitted_blocks: 0,
        used_mean: 0.0,
        used_peak: 0,
        fragmentation: 0.0,
        time: Duration::ZERO,
        misses: explain.is_some().then(|| Misses::new(trace)),
    };
    let (mut held_slots, mut held_tokens, mut used) = (0u64, 0u64, 0u64);
    let mut tokens = Vec::new();
    for (number, request) in trace.requests().iter().enumerate() {
        let id = SequenceId(number as u64);
        tokens.clear();
        tokens.extend_from_slice(trace.blocks(request));
        tokens.push(ANSWER);
        let mut started = Instant::now();
        let hashes = manager.hash_prefix(&root, &tokens);
        let miss = explain.is_some().then(|| {
            let asked = Instant::now();
            let miss = manager.explain(&tokens, &hashes);
            // The time for explaining is not part of the measurement.
            started += asked.elapsed();
            miss
        });
        let allocation = manager.allocate(id, &tokens, &hashes);
        manager.commit(id, tokens.len() - 1);
        let time = started.elapsed();
        let found = match allocation {
            Ok(allocation) => Some(allocation.num_cached_tokens),
            Err(BlockError::Never { .. }) => None,
            Err(error) => return Err(Refusal::because(format!("request {number} of the trace"), error)),
        };
        if let (Some(listener), Some(misses)) = (&mut explain, &mut hits.misses) {
            listener(eviction, blocks, &misses.add(trace, number, request, miss.filter(|_| found.is_some())))?;
        }
        let Some(found) = found else {
            hits.refused += 1;
            continue;
        };
        hits.time += time;
        hits.admitted_blocks += (tokens.len() - 1) as u64;
        hits.hit_blocks += found as u64;
        hits.hit_tokens += trace.tokens_of(found).min(request.input_tokens) as u64;
        let stats = manager.stats();
        let with_content = stats.blocks_used + stats.blocks_cached - 1;
        used += with_content as u64;
        hits.used_peak = hits.used_peak.max(with_content);
        let slots = trace.tokens_of(tokens.len() - 1);
        held_slots += slots as u64;
        held_tokens += request.input_tokens.min(slots) as u64;
        let started = Instant::now();
        manager.free(id);
        hits.time += started.elapsed();
    }
    manager.check().map_err(|error| Refusal::because("the block manager's invariants after the replay", error))?;
    hits.evictions = manager.stats().evictions;
    hits.used_mean = used as f64 / (trace.requests().len() - hits.refused).max(1) as f64;
    hits.fragmentation = if held_slots == 0 { 0.0 } else { 1.0 - held_tokens as f64 / held_slots as f64 };
    Ok(hits)
}

impl Hits {
    /// Returns the share of the prompts' blocks that were found.
    pub fn rate(&self, trace: &Trace) -> f64 {
        share(self.hit_blocks, trace.references().len() as u64)
    }

    /// Returns the share of the prompts' tokens that were found.
    pub fn token_rate(&self, trace: &Trace) -> f64 {
        share(self.hit_tokens, trace.input_tokens())
    }

    /// Returns how many blocks of one token each went through the manager in a second of its own time. Each was looked
    /// up, given, published and released.
    pub fn blocks_per_second(&self) -> f64 {
        self.admitted_blocks as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Returns `part` divided by `whole`, or 0 if `whole` is 0.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::policy;

    #[test]
    fn prompts_that_are_refused_do_not_count_as_work_done() {
        let mut trace = Trace::default();
        for ids in [&[1, 2][..], &[1, 2, 3], &[1, 4]] {
            trace.push(0.0, 512 * ids.len(), 0, ids);
        }
        trace.finish();
        let hits = replay(&trace, policy("lru").expect("a policy"), 2, None).expect("a good manager");
        assert_eq!((hits.refused, hits.admitted_blocks, hits.hit_blocks), (1, 4, 1));
        let speed = hits.blocks_per_second() * hits.time.as_secs_f64().max(1e-9);
        assert!((speed - 4.0).abs() < 1e-6, "{speed} blocks in the time of four");
    }
}
