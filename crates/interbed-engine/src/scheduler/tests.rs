//! Tests the scheduler without an engine: what each step plans, and cases that have broken other schedulers.

mod admission;
mod drafts;
mod fairness;
mod groups;
mod load;
mod pacing;
mod searches;
mod swap;
mod tails;

use std::collections::HashSet;

use interbed_kv::{BlockManager, ChainRoot, Keeps, KvConfig, SequenceId, SwapId, TailConfig};

use super::*;
use crate::TenantId;
use crate::sequence::{GroupId, MAX_OVERTAKEN, MAX_PREEMPTIONS};

struct Bench {
    scheduler: Scheduler,
    plan: StepPlan,
    config: SchedulerConfig,
}

impl Bench {
    fn new(blocks: usize, max_num_seqs: usize, max_num_batched_tokens: usize) -> Self {
        let config = Self::config(max_num_seqs, max_num_batched_tokens, PreemptionMode::Recompute);
        Self::over(KvConfig { num_blocks: blocks, block_size: 4, watermark: 0.0, ..KvConfig::default() }, config)
    }

    fn config(max_num_seqs: usize, max_num_batched_tokens: usize, preemption: PreemptionMode) -> SchedulerConfig {
        SchedulerConfig { max_num_seqs, max_num_batched_tokens, preemption, max_token_gap: None }
    }

    fn over(kv: KvConfig, config: SchedulerConfig) -> Self {
        let scheduler = Scheduler::new(config, BlockManager::new(kv).unwrap());
        Self { scheduler, plan: StepPlan::default(), config }
    }

    /// Adds a sequence whose prompt shares nothing with those of other ids.
    fn add(&mut self, id: u64, length: usize) {
        self.add_with_priority(id, length, 0);
    }

    fn add_with_priority(&mut self, id: u64, length: usize, priority: i32) {
        let request = Requested { priority, ..requested(id) };
        self.scheduler.add(Arrival { request, ..arrival(id, length) });
    }

    /// Plans a step, checks what must hold of every plan, computes the plan, and appends a token to each sequence that
    /// sampled and is no beam.
    fn step(&mut self) -> Vec<(u64, usize)> {
        self.scheduler.schedule(&mut self.plan);
        let tokens: usize = self.plan.entries.iter().map(|entry| entry.count).sum();
        assert!(tokens <= self.config.max_num_batched_tokens && self.plan.entries.len() <= self.config.max_num_seqs);
        let ids: HashSet<_> = self.plan.entries.iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), self.plan.entries.len(), "one entry a sequence");
        for entry in &self.plan.entries {
            let sequence = self.scheduler.sequence(entry.id);
            assert!(entry.count > 0 && entry.start == sequence.computed);
            assert_eq!(entry.samples(), entry.start + entry.count == sequence.len());
            let blocks = self.scheduler.blocks().block_table(entry.id).expect("whoever computes holds blocks").len();
            assert!(
                blocks * self.scheduler.blocks().block_size() >= entry.start + entry.count,
                "every token has a slot"
            );
            assert!(self.scheduler.blocks().num_placed_tokens(entry.id) >= entry.start + entry.count - entry.drafts());
        }
        self.check();
        let entries = self.plan.entries.clone();
        for entry in &entries {
            self.scheduler.complete(entry, 1);
            if entry.samples() && self.scheduler.sequence(entry.id).search().is_none() {
                self.scheduler.push_token(entry.id, 7);
            }
        }
        self.check();
        entries.iter().map(|entry| (entry.id.0, entry.count)).collect()
    }

    fn check(&self) {
        self.scheduler.assert_sound();
    }
}

impl Bench {
    /// Changes the history of a waiting sequence, and moves the sequence to its new place in the queue.
    fn suffer(&mut self, id: u64, change: impl FnOnce(&mut Sequence)) {
        let sequence = self.scheduler.sequences.get_mut(&SequenceId(id)).unwrap();
        self.scheduler.queues.take(sequence);
        change(sequence);
        self.scheduler.queues.put(sequence);
    }
}

fn arrival(id: u64, length: usize) -> Arrival {
    Arrival {
        id: SequenceId(id),
        request: requested(id),
        continuation: None,
        prompt: (0..length).map(|i| (id * 1000) as u32 + i as u32).collect(),
        max_tokens: 0,
        root: ChainRoot::default(),
        beams: None,
    }
}

fn of_tenant(tenant: u128, id: u64, length: usize) -> Arrival {
    Arrival { request: Requested { tenant: Some(TenantId(tenant)), ..requested(id) }, ..arrival(id, length) }
}

fn requested(id: u64) -> Requested {
    Requested { group: GroupId(id), ..Requested::default() }
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
fn a_long_prompt_leaves_others_half_of_the_room() {
    let mut bench = Bench::new(200, 4, 20);
    bench.add(1, 200);
    assert_eq!(bench.step(), [(1, 20)]);
    assert_eq!(bench.step(), [(1, 20)], "alone it takes all");
    bench.add(2, 6);
    assert_eq!(bench.step(), [(1, 14), (2, 6)], "what the other does not need it gets");
    bench.add(3, 100);
    // The decode comes first, then half of the rest goes to each.
    assert_eq!(bench.step(), [(2, 1), (1, 10), (3, 9)]);
    bench.add(4, 4);
    assert_eq!(bench.step(), [(2, 1), (1, 10), (3, 5), (4, 4)]);
    // One that began behind them does not wait until they are done.
    assert_eq!(bench.step(), [(2, 1), (4, 1), (1, 9), (3, 9)]);
}

#[test]
fn a_prompt_whose_tokens_are_ranked_does_so_a_few_at_a_time_beside_others() {
    let mut bench = Bench::new(1000, 4, 500);
    let request = Requested { ranks_prompt: true, ..requested(1) };
    bench.scheduler.add(Arrival { request, ..arrival(1, 900) });
    assert_eq!(bench.step(), [(1, 500)], "alone it takes all");
    bench.add(2, 8);
    assert_eq!(bench.step(), [(1, 64), (2, 8)]);
    assert_eq!(bench.step(), [(2, 1), (1, 64)]);
    bench.scheduler.remove(SequenceId(2));
    assert_eq!(bench.step(), [(1, 272)]);
    // What it generates is not ranked.
    bench.add(3, 8);
    assert_eq!(bench.step(), [(1, 1), (3, 8)]);
}

#[test]
fn who_waits_in_vain_costs_a_long_prompt_nothing() {
    let mut bench = Bench::new(30, 2, 20);
    bench.add(1, 100);
    bench.step();
    // There are no blocks for this one, and no seat for the next but one.
    bench.add(2, 60);
    assert_eq!(bench.step(), [(1, 20)]);
    bench.add(3, 8);
    assert_eq!(bench.step(), [(1, 12), (3, 8)]);
    bench.add(4, 8);
    assert_eq!(bench.step(), [(3, 1), (1, 19)]);
}

#[test]
fn tokens_are_counted_net_of_what_the_cache_holds() {
    // A prefix hit must be known before tokens scheduled are counted.
    let mut bench = Bench::new(100, 4, 20);
    bench.add(1, 17);
    assert_eq!(bench.step(), [(1, 17)]);
    let prompt = bench.scheduler.sequence(SequenceId(1)).tokens()[..17].to_vec();
    for id in [2, 3] {
        bench.scheduler.add(Arrival { prompt: prompt.clone(), ..arrival(id, 0) });
    }
    assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1)]);
}

#[test]
fn a_prompt_that_can_never_fit_is_rejected_at_once_and_wedges_nothing() {
    let mut bench = Bench::new(4, 4, 64);
    bench.add(1, 17);
    bench.add(2, 8);
    assert_eq!(bench.step(), [(2, 8)]);
    let [Rejected { sequence, need: 5, limit: 4 }] = &bench.plan.rejected[..] else { panic!("{:?}", bench.plan) };
    assert_eq!(sequence.id, SequenceId(1));
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
fn who_was_refused_is_looked_at_again_when_what_it_shares_has_been_published() {
    let mut bench = Bench::new(10, 4, 12);
    bench.add(1, 20);
    bench.step();
    let mut longer = bench.scheduler.sequence(SequenceId(1)).tokens().to_vec();
    longer.extend(500..512);
    bench.scheduler.add(Arrival { prompt: longer, ..arrival(2, 0) });
    // Of its 8 blocks, 5 are there only when the first has computed them.
    assert_eq!(bench.step(), [(1, 8)]);
    assert_eq!(bench.step(), [(1, 1), (2, 11)]);
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
    bench.add_with_priority(2, 11, 5);
    bench.suffer(2, |sequence| sequence.past.preemptions = MAX_PREEMPTIONS);
    bench.add_with_priority(3, 11, -5);
    assert_eq!(bench.step(), [(2, 11), (3, 11)]);
    bench.step();
    assert_eq!(bench.step(), [(2, 1)]);
    assert_eq!(bench.plan.preempted, [SequenceId(3)]);
}

#[test]
fn who_was_preempted_often_comes_back_only_to_stay() {
    let mut bench = Bench::new(8, 4, 64);
    // Each may come to 20 tokens, which are 5 blocks.
    for id in [1, 2] {
        bench.scheduler.add(Arrival { max_tokens: 12, ..arrival(id, 8) });
        bench.suffer(id, |sequence| sequence.past.preemptions = MAX_PREEMPTIONS);
    }
    bench.add(3, 8);
    assert_eq!(bench.step(), [(1, 8)], "the second would not find room to its end, and keeps the third from passing");
    for _ in 0..12 {
        assert_eq!(bench.step(), [(1, 1)]);
    }
    bench.scheduler.remove(SequenceId(1));
    assert_eq!(bench.step(), [(2, 8), (3, 8)]);
}

#[test]
fn a_leak_is_found_counted_and_mended() {
    let mut bench = Bench::new(10, 4, 64);
    bench.add(1, 8);
    bench.step();
    // A bug: the sequence is forgotten, its blocks are not given back.
    bench.scheduler.sequences.clear();
    bench.scheduler.queues = Queues::default();
    bench.scheduler.tenants = Tenants::default();
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
    assert_eq!(bench.scheduler.queues.waiting().map(|id| id.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(bench.scheduler.sequence(SequenceId(2)).past.preemptions, 1);
    bench.scheduler.remove(SequenceId(1));
    // Its prompt and the token that it had generated are computed again, less the block that the cache still held.
    assert_eq!(bench.step(), [(2, 4), (3, 8)]);
}

#[test]
fn re_prefill_after_preemption_appends_at_a_block_boundary() {
    // Sequence 2 is preempted exactly when its next token opens a block.
    let mut bench = Bench::new(5, 4, 64);
    bench.add(1, 8);
    bench.add(2, 8);
    bench.step();
    bench.step();
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    bench.scheduler.remove(SequenceId(1));
    bench.step();
    let sequence = bench.scheduler.sequence(SequenceId(2));
    assert_eq!((sequence.len(), sequence.computed), (10, 9));
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
    bench.scheduler.complete(&entry, 1);
    bench.scheduler.push_token(SequenceId(1), 3);
    assert!(bench.scheduler.remove(SequenceId(1)).is_none());
    assert_eq!(bench.scheduler.recover_leaks(), 0);
    bench.check();
}
