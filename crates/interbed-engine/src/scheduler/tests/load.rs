//! Tests many sequences over many steps: random sequences, and sequences with lengths that real requests have.

use std::collections::HashMap;

use super::searches::Searches;
use super::swap::broken;
use super::*;
use crate::{BeamParams, KvDemand, Limits};
use crate::{SwapTook, SwapTrial};

/// The SplitMix64 generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }

    /// Returns a number from an approximately normal distribution.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
    }
}

/// Swaps that end some steps after they began; now and then one fails.
#[derive(Default)]
struct Swaps(Vec<(SwapId, u64)>);

impl Swaps {
    fn pass(&mut self, bench: &mut Bench, random: &mut Random, failures: bool) {
        let begun = bench.plan.swaps.iter().map(|swap| (swap.id, random.below(4)));
        self.0.extend(begun);
        bench.plan.swaps.clear();
        self.0.retain_mut(|(id, steps)| {
            if *steps > 0 {
                *steps -= 1;
                return true;
            }
            let failed = failures && random.below(10) == 0;
            let outcome = if failed { Err(broken()) } else { Ok(SwapTook { bytes: 64, seconds: 1e-6 }) };
            bench.scheduler.finish_swap(*id, outcome.as_ref().copied());
            false
        });
    }
}

/// Returns the tokens that each of `width` beams may generate after a prompt of `prompt_len` tokens, by the check of
/// requests.
fn beam_tokens(prompt_len: usize, width: usize, kv: &KvConfig) -> usize {
    let kv_capacity_tokens = kv.num_blocks * kv.block_size;
    let tail_bytes = kv.tails.iter().map(|tail| match tail.keeps {
        Keeps::Window { tokens } => ((tokens + kv.pass_tokens).div_ceil(kv.block_size) + 1) * tail.block_bytes,
        Keeps::State => 2 * tail.block_bytes,
    });
    let limits = Limits {
        vocab_size: usize::MAX,
        max_model_len: kv_capacity_tokens,
        model_context: kv_capacity_tokens,
        kv_capacity_tokens,
        kv_block_tokens: kv.block_size,
        kv_blocks_beside: tail_bytes.sum::<usize>().div_ceil(kv.block_bytes),
        max_logprobs: 0,
        max_beam_width: width,
        max_waiting: usize::MAX,
    };
    BeamParams { width, ..BeamParams::default() }.max_tokens(prompt_len, &limits)
}

/// The way in which the number of usable blocks changes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    /// The number changes now and then, to any value.
    Wavers,
    /// The number follows the demand exactly.
    Follows,
}

#[test]
fn random_loads_always_progress_and_leave_nothing_behind() {
    let mut random = Random(12345);
    let mut searches_spared = 0;
    for round in 0..90 {
        let preemption = [PreemptionMode::Recompute, PreemptionMode::Swap, PreemptionMode::Auto][round % 3];
        let memory = [Memory::Wavers, Memory::Follows][round / 3 % 2];
        let blocks = 6 + random.below(30) as usize;
        let max_num_seqs = 1 + random.below(6) as usize;
        let max_num_batched_tokens = max_num_seqs + random.below(20) as usize;
        let window = TailConfig { keeps: Keeps::Window { tokens: 9 }, block_bytes: 2, parts: 1 };
        let state = TailConfig { keeps: Keeps::State, block_bytes: 5, parts: 1 };
        let kv = KvConfig {
            num_blocks: blocks,
            block_size: 4,
            num_swap_blocks: random.below(40) as usize,
            tails: [vec![], vec![], vec![window], vec![window, state]][round % 4].clone(),
            block_bytes: 3,
            pass_tokens: max_num_batched_tokens,
            ..KvConfig::default()
        };
        // Where decodes bound prefill, passes are of a machine that needs 10 ms for each token and for each pass.
        let max_token_gap = (round % 2 == 1).then(|| Duration::from_millis(10 + random.below(100)));
        let config = SchedulerConfig { max_num_seqs, max_num_batched_tokens, preemption, max_token_gap };
        let mut bench = Bench::over(kv.clone(), config);
        // As many tokens as fit beside everything that a sequence keeps besides them.
        let fits = |tokens: &usize| bench.scheduler.blocks().num_blocks_alone(*tokens) <= blocks;
        let tokens_max = (1..=blocks * 4).rev().find(fits).unwrap_or(0);
        if tokens_max < 4 {
            continue;
        }
        bench.scheduler.prefilled(1, 1.0);
        bench.scheduler.set_swap_trial(64, SwapTrial { bytes: 64, write_seconds: 1.0, read_seconds: 1.0 });
        let (mut swaps, mut searches) = (Swaps::default(), Searches::default());
        // How long each sequence becomes in all; at most what the pool holds.
        let mut ends = HashMap::new();
        let (mut next, mut idle) = (0u64, 0);
        for step in 0..30_000 {
            if step < 500 && random.below(3) == 0 {
                let prompt = 1 + random.below((tokens_max - 2) as u64) as usize;
                let tenant = (round % 4 < 2).then(|| TenantId(u128::from(random.below(3))));
                let request = Requested { priority: random.below(3) as i32, tenant, ..requested(next) };
                let arrival = Arrival { request, ..arrival(next, prompt) };
                let width = 1 + random.below(max_num_seqs as u64) as usize;
                let most = if random.below(3) == 0 { beam_tokens(prompt, width, &kv) } else { 0 };
                if most > 0 {
                    let max_tokens = 1 + random.below(most.min(16) as u64) as usize;
                    searches.add(&mut bench, Arrival { max_tokens, ..arrival }, width);
                } else {
                    let end = (prompt + 1 + random.below(12) as usize).min(tokens_max);
                    let max_tokens = end - prompt + random.below(5) as usize;
                    bench.scheduler.add(Arrival { max_tokens, ..arrival });
                    ends.insert(next, end);
                }
                next += 1;
            }
            if random.below(20) == 0
                && let Some(&id) = bench.scheduler.sequences.keys().min()
            {
                if ends.remove(&id.0).is_some() {
                    bench.scheduler.remove(id);
                } else {
                    searches.remove(&mut bench, id);
                }
            }
            match memory {
                Memory::Follows => {
                    let KvDemand { used, wanted, .. } = bench.scheduler.kv_demand();
                    bench.scheduler.set_usable_blocks(used + wanted);
                }
                // But for what those were promised that are not to make room again.
                Memory::Wavers if random.below(10) == 0 && !bench.scheduler.holders().any(Sequence::is_spared) => {
                    let usable = if step < 500 { 1 + random.below(blocks as u64) as usize } else { blocks };
                    bench.scheduler.set_usable_blocks(usable);
                }
                Memory::Wavers => {}
            }
            let planned = bench.step();
            let work = bench.plan.work();
            bench.scheduler.measured(&work, 0.01 * (1.0 + work.tokens as f64));
            let moved = !planned.is_empty() || !bench.plan.preempted.is_empty() || bench.scheduler.num_swaps() > 0;
            searches.retire(&mut bench, &mut |end| random.below(end));
            swaps.pass(&mut bench, &mut random, round % 5 == 3);
            let may_wait = memory == Memory::Wavers && bench.scheduler.blocks().usable() < blocks;
            idle = if moved || may_wait || !bench.scheduler.has_sequences() { 0 } else { idle + 1 };
            assert!(idle < 2, "round {round}, step {step}: work waits, but nothing was planned");
            let most = bench.scheduler.sequences.values().map(|sequence| sequence.past.preemptions).max();
            assert!(most <= Some(MAX_PREEMPTIONS), "round {round}: one was preempted {most:?} times");
            let spared = |one: &&Sequence| one.search().is_some() && one.is_spared();
            searches_spared += bench.scheduler.sequences.values().filter(spared).count();
            for (id, _) in planned {
                if let Some(&end) = ends.get(&id)
                    && bench.scheduler.sequence(SequenceId(id)).len() >= end
                {
                    let sequence = bench.scheduler.remove(SequenceId(id)).unwrap();
                    bench.scheduler.ended(sequence.generated());
                    ends.remove(&id);
                }
            }
            if step > 500 && bench.scheduler.is_idle() {
                break;
            }
        }
        let left = ends.len() + searches.len();
        assert!(bench.scheduler.is_idle(), "round {round}: {left} requests never ended");
        assert_eq!(bench.scheduler.recover_leaks(), 0);
    }
    assert!(searches_spared > 0, "the test needs searches that were preempted often to mean anything");
}

/// The figures of a load that was served.
struct Served {
    preemptions_most: u32,
    preemptions: u64,
    steps: u64,
    /// The share of the slots of used blocks that held no token.
    fragmentation: f64,
}

/// Serves requests whose lengths are distributed as those of conversations are, with a mean of about 1,150 tokens in
/// and 210 out. The requests come faster than KV for `kv_tokens` tokens can serve them. With `surprise`, all answers
/// are longer than any before.
fn serve_conversations(preemption: PreemptionMode, kv_tokens: usize, requests: u64, surprise: bool) -> Served {
    let (block_size, max_num_seqs) = (16, 64);
    let kv = KvConfig {
        num_blocks: kv_tokens / block_size,
        block_size,
        num_swap_blocks: kv_tokens / block_size,
        ..KvConfig::default()
    };
    let config = SchedulerConfig { max_num_seqs, max_num_batched_tokens: 512, preemption, max_token_gap: None };
    let mut bench = Bench::over(kv, config);
    bench.scheduler.prefilled(1000, 1.0);
    bench.scheduler.set_swap_trial(1 << 16, SwapTrial { bytes: 1 << 30, write_seconds: 1.0, read_seconds: 1.0 });
    if surprise {
        (0..100).for_each(|_| bench.scheduler.ended(0));
    }
    let (mut random, mut delays) = (Random(0xa2), Random(0xa3));
    let mut swaps = Swaps::default();
    let mut ends = HashMap::new();
    let mut served = Served { preemptions_most: 0, preemptions: 0, steps: 0, fragmentation: 0.0 };
    let (mut next, mut slots, mut empty) = (0, 0, 0);
    while next < requests || bench.scheduler.has_sequences() {
        while next < requests && bench.scheduler.num_waiting() < 16 {
            let length = |random: &mut Random, median: f64, spread: f64, most: usize| {
                ((median * (spread * random.normal()).exp()) as usize).clamp(1, most)
            };
            let prompt = length(&mut random, 700.0, 1.0, 4000);
            let output = length(&mut random, 130.0, 1.0, 1000);
            bench.scheduler.add(Arrival { max_tokens: 1000, ..arrival(next, prompt) });
            ends.insert(next, prompt + output);
            next += 1;
        }
        bench.scheduler.schedule(&mut bench.plan);
        served.steps += 1;
        assert!(
            !bench.plan.entries.is_empty() || bench.scheduler.num_swaps() > 0,
            "work waits, but nothing was planned"
        );
        for entry in std::mem::take(&mut bench.plan.entries) {
            bench.scheduler.complete(&entry, 1);
            if entry.samples() {
                bench.scheduler.push_token(entry.id, 7);
            }
            if bench.scheduler.sequence(entry.id).len() >= ends[&entry.id.0] {
                let sequence = bench.scheduler.remove(entry.id).unwrap();
                bench.scheduler.ended(if surprise { 0 } else { sequence.generated() });
                served.preemptions_most = served.preemptions_most.max(sequence.past.preemptions);
            }
        }
        swaps.pass(&mut bench, &mut delays, false);
        if served.steps.is_multiple_of(64) {
            bench.check();
            let stats = bench.scheduler.blocks().stats();
            slots += stats.slots_allocated;
            empty += stats.slots_empty;
        }
    }
    let counts = bench.scheduler.preemptions();
    served.preemptions = counts.recompute + counts.swap;
    served.fragmentation = empty as f64 / slots.max(1) as f64;
    served
}

#[test]
fn nobody_is_preempted_more_than_four_times_by_a_load_of_conversations() {
    for preemption in [PreemptionMode::Recompute, PreemptionMode::Swap, PreemptionMode::Auto] {
        for (kv_tokens, surprise) in [(8_000, false), (30_000, false), (8_000, true), (30_000, true)] {
            let served = serve_conversations(preemption, kv_tokens, 600, surprise);
            let Served { preemptions_most, preemptions, steps, fragmentation } = served;
            println!(
                "{preemption:?}, {kv_tokens} tokens, surprise {surprise}: {preemptions} preemptions, at most \
                 {preemptions_most} of one; \
                 {steps} steps, fragmentation {:.2} %",
                100.0 * fragmentation
            );
            assert!(preemptions_most <= MAX_PREEMPTIONS);
            assert!(fragmentation < 0.05);
        }
    }
}

/// Measures the time of a step. The time is a figure to look at and not to test, because machines differ.
#[test]
#[ignore = "a measurement: run it in release, with --nocapture, when the machine is quiet"]
fn time_of_a_step_over_256_decodes() {
    for waiting in [0, 100] {
        let kv = KvConfig { num_blocks: 1 << 15, ..KvConfig::default() };
        let config = SchedulerConfig {
            max_num_seqs: 256,
            max_num_batched_tokens: 1 << 20,
            preemption: PreemptionMode::Auto,
            max_token_gap: None,
        };
        let mut bench = Bench::over(kv, config);
        for id in 0..256 + waiting {
            bench.scheduler.add(Arrival { max_tokens: 2000, ..arrival(id, 900 + id as usize) });
        }
        let mut times = Vec::new();
        for _ in 0..1500 {
            let begin = std::time::Instant::now();
            bench.scheduler.schedule(&mut bench.plan);
            times.push(begin.elapsed().as_nanos());
            for entry in std::mem::take(&mut bench.plan.entries) {
                bench.scheduler.complete(&entry, 1);
                bench.scheduler.push_token(entry.id, 7);
            }
        }
        let times = &mut times[10..];
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize] as f64 / 1e3;
        println!("{waiting} waiting: median {:.1} us, 99 % {:.1} us, most {:.1} us", at(0.5), at(0.99), at(0.9999));
    }
}
