//! Finds out what tiers of KV would have found and written. The trace's prompts go through the block manager, with
//! other tiers below it.

use std::fmt::Write as _;

use interbed_kv::{BlockManager, ChainRoot, Gate, KeyChain, KvConfig, KvTierConfig, SequenceId, Tier, TokenId};
use serde_json::json;

use super::hits::share;
use super::trace::Trace;
use interbed_plan::Refusal;

/// The token that ends each prompt. The token's block stands for the answer, and is never published.
const ANSWER: TokenId = TokenId::MAX;

/// The number of segments of the last tier, which is taken to be a disk and empties a segment as a whole.
const SEGMENTS: usize = 64;

/// The number of blocks that are written to the last tier together.
const RECORD: usize = 8;

/// What one tier found and wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TierHits {
    blocks: usize,
    hits: u64,
    /// The number of blocks that were written, whether for the first time or again. It is 0 for the first tier, in
    /// which blocks are computed.
    written: u64,
}

/// What all tiers together found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TiersFound {
    tiers: Vec<TierHits>,
    /// Whether a gate refused writes to the last tier that are not worth their cost.
    gated: bool,
}

/// Sends the prompts through a block manager of `sizes[0]` blocks with tiers of the other sizes below it. Each tier
/// takes what falls out of the tier above, and the last tier is a log, as on disk.
///
/// # Errors
/// Fails if a manager refuses what it should not.
pub(super) fn replay(trace: &Trace, sizes: &[usize], gated: bool) -> Result<TiersFound, Refusal> {
    let num_blocks = sizes[0] + 1;
    let mut manager = BlockManager::new(KvConfig { num_blocks, block_size: 1, watermark: 0.0, ..KvConfig::default() })?;
    manager.name_contents(KeyChain::new([0; 32], [0; 32]));
    let mut below: Vec<Tier> =
        sizes[1..].iter().enumerate().map(|(index, &size)| tier(index + 2 == sizes.len(), size, gated)).collect();
    let mut found = vec![0u64; sizes.len()];
    let (root, mut tokens) = (ChainRoot::default(), Vec::new());
    for (number, request) in trace.requests().iter().enumerate() {
        let id = SequenceId(number as u64);
        tokens.clear();
        tokens.extend_from_slice(trace.blocks(request));
        tokens.push(ANSWER);
        let hashes = manager.hash_prefix(&root, &tokens);
        // A prompt that is larger than the first tier is a miss, and is not kept.
        let Ok(allocation) = manager.allocate(id, &tokens, &hashes) else { continue };
        found[0] += allocation.num_cached_tokens as u64;
        let mut fetched = 0;
        for &key in manager.missing_keys(id, &tokens).keys() {
            let Some(index) = below.iter().position(|tier| tier.find(key).is_some()) else {
                below.iter_mut().for_each(|tier| tier.looked_up(key));
                break;
            };
            // The tiers above learn too that the block was wanted.
            below[..=index].iter_mut().for_each(|tier| tier.looked_up(key));
            found[index + 1] += 1;
            fetched += 1;
        }
        if fetched > 0 {
            let because = |error| Refusal::because(format!("request {number} of the trace"), error);
            let fetch = manager.begin_fetch(id, fetched).map_err(because)?;
            manager.finish_fetch(fetch.id, fetched);
        }
        manager.commit(id, tokens.len() - 1);
        manager.free(id);
        manager.take_published();
        for evicted in manager.take_evicted() {
            push_down(&mut below, evicted.label.key, evicted.class);
        }
    }
    let tiers = sizes.iter().zip(found).enumerate().map(|(index, (&blocks, hits))| {
        let written =
            index.checked_sub(1).map_or(0, |index| below[index].counts().stored + below[index].counts().carried);
        TierHits { blocks, hits, written }
    });
    Ok(TiersFound { tiers: tiers.collect(), gated })
}

fn tier(last: bool, blocks: usize, gated: bool) -> Tier {
    let gate = Gate::new(if last && gated { Gate::LEAST_WORTH } else { 0.0 });
    let segment = blocks / SEGMENTS;
    if !last || segment < RECORD {
        return Tier::new(KvTierConfig::of_blocks(blocks as u32, gate));
    }
    let record_bytes = (0..=RECORD as u64).collect();
    let (num_segments, segment_bytes) = ((blocks / segment) as u32, segment as u64);
    Tier::new(KvTierConfig { num_segments, segment_bytes, segment_header: 0, record_bytes, spare_segments: 1, gate })
}

/// Passes `key`, which falls out of the tier above, to the first of `tiers`. What falls out of that tier goes on to the
/// next.
fn push_down(tiers: &mut [Tier], key: interbed_kv::BlockKey, class: u8) {
    let Some((tier, below)) = tiers.split_first_mut() else { return };
    if !tier.wants(key, class) {
        return;
    }
    let reclaimed = tier.reclaim();
    if let Some(reclaim) = reclaimed {
        for records in reclaim.carried.chunks(tier.config().blocks_per_record()) {
            let keys: Vec<_> = records.iter().map(|&(key, _)| key).collect();
            let contents: Vec<_> = keys.iter().map(|&key| (key, class)).collect();
            if let Some(record) = tier.reserve(&contents) {
                tier.written(record, &keys, true);
            }
        }
        if !reclaim.carried.is_empty() {
            tier.reclaimed(reclaim.segment);
        }
        for (key, class) in reclaim.dropped {
            push_down(below, key, class);
        }
    }
    if let Some(record) = tier.reserve(&[(key, class)]) {
        tier.written(record, &[key], true);
    }
}

impl TiersFound {
    fn hits(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.hits).sum()
    }

    /// Returns a table with one line for each tier.
    pub(super) fn report(&self, trace: &Trace, infinite: u64) -> String {
        let references = trace.references().len() as u64;
        let mut text = format!(
            "tiers, {}\n{:>10} {:>12} {:>8} {:>14} {:>16}\n",
            if self.gated { "with a gate before the last" } else { "everything stored" },
            "blocks",
            "hits",
            "share",
            "written",
            "written per hit",
        );
        for (index, TierHits { blocks, hits, written }) in self.tiers.iter().enumerate() {
            let per_hit = if index == 0 { "-".to_owned() } else { format!("{:.2}", share(*written, *hits)) };
            let shown = 100.0 * share(*hits, references);
            let _ = writeln!(text, "{blocks:>10} {hits:>12} {shown:>6.1} % {written:>14} {per_hit:>16}");
        }
        let (hits, of_infinite) = (self.hits(), share(self.hits(), infinite));
        let shown = 100.0 * share(hits, references);
        let _ = writeln!(
            text,
            "{:>10} {hits:>12} {shown:>6.1} %   {of_infinite:.3} of what an infinite cache finds",
            "all"
        );
        text
    }

    pub(super) fn json(&self, trace: &Trace, infinite: u64) -> String {
        let references = trace.references().len() as u64;
        let tiers: Vec<_> = self.tiers.iter().map(|&TierHits { blocks, hits, written }| {
            json!({"blocks": blocks, "hits": hits, "hit_rate": share(hits, references), "written": written})
        }).collect();
        let last = self.tiers.last().map_or(0.0, |last| share(last.written, last.hits));
        let value = json!({
            "name": "tiers", "gated": self.gated, "tiers": tiers, "hit_rate": share(self.hits(), references),
            "of_infinite": share(self.hits(), infinite), "written_per_hit": last,
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a trace of prompts, each of which comes again after `gap` others.
    fn trace(prompts: usize, gap: usize) -> Trace {
        let mut trace = Trace::default();
        for number in 0..prompts {
            for again in [number, number.saturating_sub(gap)] {
                let ids: Vec<u64> = (0..8).map(|block| (8 * again + block) as u64).collect();
                trace.push(0.0, 512 * ids.len(), 0, &ids);
            }
        }
        trace.finish();
        trace
    }

    #[test]
    fn each_tier_finds_what_those_above_have_lost() {
        let trace = trace(400, 100);
        let all = replay(&trace, &[40, 400, 4000], false).expect("a good manager");
        let alone = replay(&trace, &[40], false).expect("a good manager");
        // 100 prompts of 8 blocks are more than the second tier holds, and fit into the third.
        assert!(alone.hits() < 8 * 110, "{alone:?}");
        assert!(all.hits() > 8 * 390 && all.tiers[2].hits > 8 * 250, "{all:?}");
        assert_eq!(all, replay(&trace, &[40, 400, 4000], false).expect("a good manager"));
    }
}
