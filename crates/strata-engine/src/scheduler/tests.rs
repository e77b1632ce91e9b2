//! The scheduler without an engine: what each step plans, and the bugs that others had (`lessons.md`, "Scheduling").

use std::collections::HashSet;

use strata_kv::{BlockManager, ChainRoot, KvConfig, SequenceId};

use super::*;
use crate::sequence::{MAX_OVERTAKEN, MAX_PREEMPTIONS};

struct Bench {
    scheduler: Scheduler,
    plan: StepPlan,
    config: SchedulerConfig,
}

impl Bench {
    fn new(blocks: usize, max_num_seqs: usize, max_num_batched_tokens: usize) -> Self {
        let kv = KvConfig { num_blocks: blocks, block_size: 4, watermark: 0.0, seed: 1, ..KvConfig::default() };
        let config = SchedulerConfig { max_num_seqs, max_num_batched_tokens };
        let scheduler = Scheduler::new(config, BlockManager::new(kv).unwrap());
        Self { scheduler, plan: StepPlan::default(), config }
    }

    /// A prompt that shares nothing with those of other ids.
    fn add(&mut self, id: u64, length: usize) {
        self.add_with_priority(id, length, 0);
    }

    fn add_with_priority(&mut self, id: u64, length: usize, priority: i32) {
        let prompt = (0..length).map(|i| (id * 1000) as u32 + i as u32).collect();
        self.scheduler.add(SequenceId(id), prompt, ChainRoot::default(), priority);
    }

    /// Plans a step, checks what must hold of every plan, computes it, and appends a token to whoever sampled.
    fn step(&mut self) -> Vec<(u64, usize)> {
        self.scheduler.schedule(&mut self.plan);
        let tokens: usize = self.plan.entries.iter().map(|entry| entry.count).sum();
        assert!(tokens <= self.config.max_num_batched_tokens && self.plan.entries.len() <= self.config.max_num_seqs);
        let ids: HashSet<_> = self.plan.entries.iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), self.plan.entries.len(), "one entry a sequence");
        for entry in &self.plan.entries {
            let sequence = self.scheduler.sequence(entry.id);
            assert!(entry.count > 0 && entry.start == sequence.computed);
            assert_eq!(entry.samples, entry.start + entry.count == sequence.tokens.len());
            let blocks = self.scheduler.blocks().block_table(entry.id).expect("whoever computes holds blocks").len();
            assert!(blocks * 4 >= entry.start + entry.count, "every token has a slot");
        }
        let entries = self.plan.entries.clone();
        for entry in &entries {
            self.scheduler.complete(entry);
            if entry.samples {
                self.scheduler.push_token(entry.id, 7);
            }
        }
        self.check();
        entries.iter().map(|entry| (entry.id.0, entry.count)).collect()
    }

    fn check(&self) {
        self.scheduler.blocks.check().unwrap();
        let held: HashSet<_> = self.scheduler.blocks.sequences().collect();
        let running: HashSet<_> = self.scheduler.running.values().copied().collect();
        assert_eq!(held, running, "exactly the running sequences hold blocks");
        assert_eq!(running.len() + self.scheduler.waiting.len(), self.scheduler.sequences.len());
    }
}

#[test]
fn decodes_and_chunks_share_a_pass() {
    let mut bench = Bench::new(100, 4, 10);
    bench.add(1, 4);
    bench.add(2, 25);
    assert_eq!(bench.step(), [(1, 4), (2, 6)]);
    assert_eq!(bench.step(), [(1, 1), (2, 9)]);
    assert_eq!(bench.step(), [(1, 1), (2, 9)]);
    assert_eq!(bench.step(), [(1, 1), (2, 1)]);
}

#[test]
fn tokens_are_counted_net_of_what_the_cache_holds() {
    // nano-vllm#211: tokens scheduled were counted before the prefix hits were known.
    let mut bench = Bench::new(100, 4, 20);
    bench.add(1, 17);
    assert_eq!(bench.step(), [(1, 17)]);
    let prompt = bench.scheduler.sequence(SequenceId(1)).tokens[..17].to_vec();
    for id in [2, 3] {
        bench.scheduler.add(SequenceId(id), prompt.clone(), ChainRoot::default(), 0);
    }
    assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1)]);
}

#[test]
fn a_prompt_that_can_never_fit_is_rejected_at_once_and_wedges_nothing() {
    let mut bench = Bench::new(4, 4, 64);
    bench.add(1, 17);
    bench.add(2, 8);
    assert_eq!(bench.step(), [(2, 8)]);
    assert_eq!(bench.plan.rejected, [(SequenceId(1), 5, 4)]);
    assert_eq!(bench.scheduler.num_waiting(), 0);
}

#[test]
fn one_that_does_not_fit_yet_does_not_stop_those_behind_it() {
    let mut bench = Bench::new(10, 4, 64);
    bench.add(1, 20);
    bench.add(2, 36);
    bench.add(3, 8);
    assert_eq!(bench.step(), [(1, 20), (3, 8)]);
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let mut bench = Bench::new(30, 4, 200);
    bench.add(1, 20);
    bench.step();
    // Never fits while the first one runs.
    bench.add(2, 116);
    for small in 3..3 + u64::from(MAX_OVERTAKEN) {
        bench.add(small, 4);
        assert_eq!(bench.step(), [(1, 1), (small, 4)]);
        bench.scheduler.remove(SequenceId(small));
    }
    // Enough have passed: the next one waits behind it.
    bench.add(1000, 4);
    assert_eq!(bench.step(), [(1, 1)]);
    bench.scheduler.remove(SequenceId(1));
    assert_eq!(bench.step(), [(2, 116), (1000, 4)]);
}

#[test]
fn important_requests_cannot_starve_the_others() {
    let mut bench = Bench::new(30, 1, 200);
    bench.add_with_priority(1, 4, 100);
    for important in 2..2 + u64::from(MAX_OVERTAKEN) {
        bench.add_with_priority(important, 4, i32::MIN);
        assert_eq!(bench.step(), [(important, 4)]);
        bench.scheduler.remove(SequenceId(important));
    }
    bench.add_with_priority(1000, 4, i32::MIN);
    assert_eq!(bench.step(), [(1, 4)]);
}

#[test]
fn who_was_preempted_often_is_spared() {
    let mut bench = Bench::new(6, 2, 64);
    bench.add(1, 4);
    bench.step();
    bench.scheduler.sequences.get_mut(&SequenceId(1)).unwrap().priority = 0;
    bench.scheduler.remove(SequenceId(1));
    bench.add_with_priority(2, 11, 5);
    bench.scheduler.sequences.get_mut(&SequenceId(2)).unwrap().preemptions = MAX_PREEMPTIONS;
    // Its place in the queue follows from its history.
    let (&key, _) = bench.scheduler.waiting.first_key_value().unwrap();
    bench.scheduler.waiting.remove(&key);
    let key = bench.scheduler.sequence(SequenceId(2)).waiting_key();
    bench.scheduler.waiting.insert(key, SequenceId(2));
    bench.add_with_priority(3, 11, -5);
    assert_eq!(bench.step(), [(2, 11), (3, 11)]);
    bench.step();
    assert_eq!(bench.step(), [(2, 1)]);
    assert_eq!(bench.plan.preempted, [SequenceId(3)]);
}

#[test]
fn a_leak_is_found_counted_and_mended() {
    let mut bench = Bench::new(10, 4, 64);
    bench.add(1, 8);
    bench.step();
    // A bug: the sequence is forgotten, its blocks are not given back.
    bench.scheduler.sequences.clear();
    bench.scheduler.running.clear();
    assert_eq!(bench.scheduler.recover_leaks(), 2);
    assert_eq!(bench.scheduler.recover_leaks(), 0);
    bench.add(2, 40);
    assert_eq!(bench.step(), [(2, 40)]);
}

#[test]
fn the_last_come_is_preempted_to_the_front_of_the_queue() {
    let mut bench = Bench::new(4, 4, 64);
    bench.add(1, 8);
    bench.add(2, 7);
    bench.add(3, 8);
    assert_eq!(bench.step(), [(1, 8), (2, 7)]);
    // The first crosses into its third block, and there is none.
    assert_eq!(bench.step(), [(1, 1)]);
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    assert_eq!(bench.scheduler.waiting.values().map(|id| id.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(bench.scheduler.sequence(SequenceId(2)).preemptions, 1);
    bench.scheduler.remove(SequenceId(1));
    // Its prompt and the token that it had generated are computed again, less the block that the cache still held.
    assert_eq!(bench.step(), [(2, 4), (3, 8)]);
}

#[test]
fn re_prefill_after_preemption_appends_at_a_block_boundary() {
    // nano-vllm#217. Sequence 2 is preempted exactly when its next token opens a block.
    let mut bench = Bench::new(5, 4, 64);
    bench.add(1, 8);
    bench.add(2, 8);
    bench.step();
    bench.step();
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    bench.scheduler.remove(SequenceId(1));
    bench.step();
    let sequence = bench.scheduler.sequence(SequenceId(2));
    assert_eq!((sequence.tokens.len(), sequence.computed), (10, 9));
    assert_eq!(bench.step(), [(2, 1)]);
}

#[test]
fn lower_priority_values_run_first_and_are_preempted_last() {
    let mut bench = Bench::new(4, 1, 64);
    bench.add_with_priority(1, 8, 5);
    bench.add_with_priority(2, 8, -1);
    assert_eq!(bench.step(), [(2, 8)]);
    let mut bench = Bench::new(5, 2, 64);
    bench.add_with_priority(1, 8, 5);
    bench.step();
    bench.add_with_priority(2, 7, -1);
    bench.step();
    bench.step();
    // The second, though it came last, crosses into its third block at the first one's cost.
    assert_eq!(bench.step(), [(2, 1)]);
    assert_eq!(bench.plan.preempted, [SequenceId(1)]);
}

#[test]
fn a_late_completion_of_an_aborted_request_is_harmless() {
    let mut bench = Bench::new(10, 4, 64);
    bench.add(1, 8);
    bench.scheduler.schedule(&mut bench.plan);
    let entry = bench.plan.entries[0];
    assert!(bench.scheduler.remove(SequenceId(1)).is_some());
    bench.scheduler.complete(&entry);
    bench.scheduler.push_token(SequenceId(1), 3);
    assert!(bench.scheduler.remove(SequenceId(1)).is_none());
    assert_eq!(bench.scheduler.recover_leaks(), 0);
    bench.check();
}

#[test]
fn random_loads_always_progress_and_leave_nothing_behind() {
    let mut state = 12345u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..60 {
        let blocks = 6 + random(30) as usize;
        let max_num_seqs = 1 + random(6) as usize;
        let mut bench = Bench::new(blocks, max_num_seqs, max_num_seqs + random(20) as usize);
        // How long each sequence becomes in all; at most what the pool holds.
        let mut ends = std::collections::HashMap::new();
        let (mut next, mut idle) = (0u64, 0);
        for step in 0..30_000 {
            if step < 500 && random(3) == 0 {
                let prompt = 1 + random((blocks * 4 - 2) as u64) as usize;
                let end = (prompt + 1 + random(12) as usize).min(blocks * 4);
                bench.add_with_priority(next, prompt, random(3) as i32);
                ends.insert(next, end);
                next += 1;
            }
            if random(20) == 0
                && let Some(&id) = bench.scheduler.sequences.keys().next()
            {
                bench.scheduler.remove(id);
                ends.remove(&id.0);
            }
            let planned = bench.step();
            idle = if planned.is_empty() && !bench.scheduler.is_idle() && bench.plan.preempted.is_empty() {
                idle + 1
            } else {
                0
            };
            assert!(idle < 2, "round {round}: work waits, but nothing was planned");
            for (id, _) in planned {
                if bench.scheduler.sequence(SequenceId(id)).tokens.len() >= ends[&id] {
                    bench.scheduler.remove(SequenceId(id));
                    ends.remove(&id);
                }
            }
            if step > 500 && bench.scheduler.is_idle() {
                break;
            }
        }
        assert!(bench.scheduler.is_idle(), "round {round}: {} sequences never ended", ends.len());
        assert_eq!(bench.scheduler.recover_leaks(), 0);
    }
}
