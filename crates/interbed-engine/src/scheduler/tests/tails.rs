//! Sequences of models of which most layers see a window: how many find room at once.

use interbed_kv::{KeyChain, WantedPoint};

use super::*;

const BLOCK: usize = 16;
const TOKENS: usize = 32 << 10;

/// How the layers of a model keep the KV of tokens. All layers take the same bytes a token.
struct Layers {
    of_all_tokens: usize,
    of_window: usize,
    window: usize,
}

const GPT_OSS_20B: Layers = Layers { of_all_tokens: 12, of_window: 12, window: 128 };
const GEMMA_3_27B: Layers = Layers { of_all_tokens: 10, of_window: 52, window: 1024 };

impl Layers {
    /// Returns the configuration of memory that holds ten sequences of `TOKENS` tokens if all layers keep all tokens.
    fn memory_of_ten(&self, grouped: bool) -> KvConfig {
        let layers = self.of_all_tokens + self.of_window;
        let bytes = 10 * TOKENS / BLOCK * layers;
        let block_bytes = if grouped { self.of_all_tokens } else { layers };
        let window = TailConfig { keeps: Keeps::Window { tokens: self.window }, block_bytes: self.of_window, parts: 1 };
        KvConfig {
            num_blocks: bytes / block_bytes,
            block_size: BLOCK,
            tails: if grouped { vec![window] } else { Vec::new() },
            block_bytes,
            pass_tokens: 2048,
            watermark: 0.0,
            ..KvConfig::default()
        }
    }
}

/// Returns how many sequences of `TOKENS` tokens run at once, with all of their KV computed.
fn most_at_once(kv: KvConfig) -> usize {
    let config = Bench::config(128, 2048, PreemptionMode::Recompute);
    let mut bench = Bench::over(kv, config);
    for id in 0..80 {
        bench.scheduler.add(Arrival { max_tokens: 64, ..arrival(id * 100, TOKENS - 64) });
    }
    let mut most = 0;
    while bench.scheduler.has_sequences() && bench.scheduler.num_waiting() > 0 {
        bench.scheduler.schedule(&mut bench.plan);
        for entry in std::mem::take(&mut bench.plan.entries) {
            bench.scheduler.complete(&entry, 1);
            if entry.samples() && bench.scheduler.sequence(entry.id).len() < TOKENS {
                bench.scheduler.push_token(entry.id, 7);
            }
        }
        let running = bench.scheduler.queues.running();
        let is_whole = |id: &SequenceId| bench.scheduler.sequences[id].computed >= TOKENS - 64;
        most = most.max(running.clone().filter(is_whole).count());
        // Once nothing goes on, all that fit are there.
        if running.map(|id| bench.scheduler.sequences[&id].pending()).all(|pending| pending == 0) {
            break;
        }
    }
    bench.check();
    most
}

#[test]
fn windows_leave_room_for_more_sequences() {
    for (layers, least) in [(GPT_OSS_20B, 1.8), (GEMMA_3_27B, 4.0)] {
        let [before, now] = [false, true].map(|grouped| most_at_once(layers.memory_of_ten(grouped)));
        println!("{before} sequences if all layers keep all tokens, {now} if they keep what they see");
        assert_eq!(before, 10);
        assert!(now as f64 >= least * before as f64, "{now}");
    }
}

#[test]
fn the_bytes_of_a_window_do_not_grow_with_the_sequence() {
    let Layers { window, .. } = GPT_OSS_20B;
    let kv = GPT_OSS_20B.memory_of_ten(true);
    let mut bench = Bench::over(kv, Bench::config(1, 2048, PreemptionMode::Recompute));
    bench.scheduler.add(Arrival { max_tokens: TOKENS, ..arrival(0, 5000) });
    let mut most = 0;
    while bench.scheduler.sequence(SequenceId(0)).len() < 9000 {
        bench.step();
        let held = bench.scheduler.blocks().tail_stats().blocks_held();
        match bench.scheduler.sequence(SequenceId(0)).generated() {
            0 => assert!(held <= (window + 2048) / BLOCK + 2, "{held} blocks while a prompt is computed"),
            _ => most = most.max(held),
        }
    }
    assert!((window / BLOCK..=window / BLOCK + 2).contains(&most), "{most} blocks of a window of {window} tokens");
}

/// Returns the number of bytes that a tier below memory keeps of a conversation of one prompt of `tokens` tokens and
/// its answer.
fn bytes_below(kv: KvConfig, tokens: usize) -> usize {
    let (block_bytes, tails) = (kv.block_bytes, kv.tails.clone());
    let mut bench = Bench::over(kv, Bench::config(1, 2048, PreemptionMode::Recompute));
    bench.scheduler.name_contents(KeyChain::new([1; 32], [2; 32]), true);
    bench.scheduler.add(Arrival { max_tokens: 16, ..arrival(0, tokens - 16) });
    let (mut trunk, mut parts) = (HashSet::new(), HashSet::new());
    while bench.scheduler.has_sequences() {
        bench.scheduler.schedule(&mut bench.plan);
        for entry in std::mem::take(&mut bench.plan.entries) {
            bench.scheduler.complete(&entry, 1);
            if entry.samples() {
                bench.scheduler.push_token(entry.id, 7);
            }
            if bench.scheduler.sequence(entry.id).len() >= tokens {
                bench.scheduler.remove(entry.id);
            }
        }
        trunk.extend(bench.scheduler.take_computed().into_iter().flatten().map(|(_, key)| key));
        for WantedPoint { block, key, .. } in bench.scheduler.blocks_mut().take_wanted_points() {
            assert_eq!(bench.scheduler.blocks().key(block), Some(key));
            let of_point = bench.scheduler.blocks().point_parts(block).expect("it is a point");
            parts.extend(of_point.into_iter().map(|(label, _)| label.key));
        }
    }
    trunk.len() * block_bytes + parts.len() * tails.first().map_or(0, |tail| tail.block_bytes)
}

#[test]
fn tiers_below_keep_windows_where_hits_are_likely_to_end_alone() {
    for (tokens, most) in [(TOKENS, 0.52), (512, 0.65)] {
        let [before, now] = [false, true].map(|grouped| bytes_below(GPT_OSS_20B.memory_of_ten(grouped), tokens));
        let share = now as f64 / before as f64;
        println!("{tokens} tokens: {share:.3} of the bytes that all layers take if they keep all tokens");
        assert!(share <= most, "{share} at {tokens} tokens");
    }
}
