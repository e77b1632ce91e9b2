//! KV takes memory from weights and gives it back, over the simulated model: never above the budget, and no request
//! notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use interbed_engine::{
    Engine, KvDemand, KvGrant, KvMemory, MemoryTrade, PassError, PreemptionMode, Request, Runner, RunnerMemory,
    TradeLimits,
};
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits};
use proptest::prelude::*;

use crate::passes_on::passes_on;
use crate::sim::{
    Shape, SimRunner, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, prompt, start_over,
    teach_short_answers,
};

/// A simulated model whose weights hold memory, and give it up or take it a little at a time. It panics, and fails
/// every request, when both together are above the budget, or when the engine reads a block that it gave back.
struct TradingRunner {
    sim: SimRunner,
    trade: MemoryTrade,
    limits: TradeLimits,
    budget: u64,
    held: u64,
    /// Bytes that weights move in each call.
    pace: u64,
    /// Seconds by which each byte of weights would shorten a pass, and passes since they were last valued.
    worth: f64,
    passes: u32,
    /// Blocks that may be written to.
    present: usize,
    seen: Arc<Seen>,
}

/// What a test wants to know afterwards.
#[derive(Default)]
struct Seen {
    blocks_most: AtomicUsize,
    weights_least: AtomicUsize,
    settled: AtomicBool,
}

impl TradingRunner {
    fn move_weights(&mut self) {
        self.held = match self.held > self.budget {
            true => self.held.saturating_sub(self.pace).max(self.budget),
            false => self.held.saturating_add(self.pace).min(self.budget),
        };
        self.seen.weights_least.fetch_min(self.held as usize, Ordering::Relaxed);
        self.check();
    }

    fn check(&self) {
        let TradeLimits { total, block, .. } = self.limits;
        let promised = self.present as u64 * block;
        assert!(self.held + promised <= total, "weights hold {}, KV may take {promised} of {total}", self.held);
        assert!(self.sim.blocks_written() <= self.present, "more blocks were written than there are");
    }
}

impl Runner for TradingRunner {
    passes_on!(sim: copy_blocks, block_bytes, cache_namespace, strips);

    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        self.move_weights();
        self.sim.forward(batch, below, sink)?;
        self.passes += 1;
        self.move_weights();
        Ok(())
    }

    fn resize_blocks(&mut self, _came: &[u32], left: &[u32]) {
        self.sim.forget(left);
    }

    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        Some(self)
    }

    fn memory(&mut self) -> RunnerMemory {
        let [weights, kv_block] = [self.held, self.limits.block].map(interbed_device::Bytes);
        RunnerMemory { weights, kv_block, device: None }
    }
}

impl KvMemory for TradingRunner {
    fn blocks_at_start(&mut self) -> usize {
        self.trade.blocks_start()
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        assert!(demand.present <= self.present && demand.used <= demand.present, "{demand:?}");
        self.present = demand.present;
        self.check();
        self.budget = self.trade.plan(demand, f64::from(std::mem::take(&mut self.passes)) * self.worth);
        self.move_weights();
        let grant = self.trade.grant(self.held.max(self.budget));
        self.present = self.present.max(grant.blocks);
        self.seen.blocks_most.fetch_max(self.present, Ordering::Relaxed);
        self.check();
        let settled = grant.settled && self.held == self.budget;
        self.seen.settled.store(settled, Ordering::Relaxed);
        KvGrant { settled, ..grant }
    }
}

/// Weights are worth more than whatever is cached.
fn start(shape: Shape, limits: TradeLimits, pace: u64) -> (Engine, TradeLimits, Arc<Seen>) {
    start_worth(1.0, shape, limits, pace)
}

fn start_worth(worth: f64, mut shape: Shape, mut limits: TradeLimits, pace: u64) -> (Engine, TradeLimits, Arc<Seen>) {
    let trade = MemoryTrade::new(limits);
    (limits.blocks_start, limits.blocks_max) = (trade.blocks_start(), trade.blocks_max());
    shape.blocks = limits.blocks_max;
    let present = limits.blocks_start;
    let held = limits.total - present as u64 * limits.block;
    let seen = Arc::new(Seen::default());
    seen.weights_least.store(held as usize, Ordering::Relaxed);
    let (sim, controls) = SimRunner::new(shape.block_size);
    let (budget, passes, seen_too) = (held, 0, seen.clone());
    let runner = TradingRunner { sim, trade, limits, budget, held, pace, worth, passes, present, seen: seen_too };
    (start_over(shape, Box::new(runner), &controls), limits, seen)
}

/// Memory that only keeps what is cached goes back as soon as somebody waits for weights, which takes some turns. What
/// they themselves leave behind may stay.
fn assert_given_back(engine: &Engine, limits: &TradeLimits) {
    run_all(engine, &[greedy(prompt(77, 8), 2)]);
    assert_idle_and_whole(engine);
    let bytes = limits.blocks_start as u64 * limits.block;
    eventually(engine, "memory is given back", |status| {
        status.kv_bytes() <= bytes + 5 * limits.block && status.memory.weights.0 == limits.total - status.kv_bytes()
    });
}

fn run_all(engine: &Engine, requests: &[Request]) {
    let streams: Vec<_> = requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
    }
}

const LIMITS: TradeLimits = TradeLimits {
    total: 100_000,
    weights_least: 20_000,
    weights_most: 100_000,
    block: 1000,
    blocks_start: 10,
    blocks_max: 1000,
};

#[test]
fn kv_grows_at_the_cost_of_weights_and_both_go_back() {
    let (engine, limits, seen) = start(Shape { max_num_seqs: 64, ..Shape::default() }, LIMITS, 1500);
    assert_eq!(limits.blocks_max, 80);
    for _ in 0..2 {
        run_all(&engine, &(0..40).map(|seed| greedy(prompt(seed, 12), 20)).collect::<Vec<_>>());
        assert_eq!(seen.blocks_most.load(Ordering::Relaxed), 80);
        assert_eq!(seen.weights_least.load(Ordering::Relaxed), 20_000);
        assert_given_back(&engine, &limits);
    }
}

#[test]
fn a_prompt_that_needs_more_than_there_is_at_first_is_served() {
    let shape = Shape { max_model_len: 80 * 4, ..Shape::default() };
    let (engine, limits, seen) = start(shape, LIMITS, 700);
    run_all(&engine, &[greedy(prompt(1, 300), 20)]);
    assert!(seen.blocks_most.load(Ordering::Relaxed) == 80);
    assert_given_back(&engine, &limits);
}

#[test]
fn a_conversation_that_pauses_finds_its_kv() {
    let shape = Shape { max_model_len: 80 * 4, ..Shape::default() };
    let (engine, limits, seen) = start_worth(1e-12, shape, LIMITS, 700);
    let found = || {
        assert_idle_and_whole(&engine);
        let status = engine.handle().status();
        assert!(status.kv_bytes() > 70 * limits.block, "{status:?}");
        status.cached_tokens
    };
    run_all(&engine, &[greedy(prompt(1, 300), 20)]);
    assert_eq!(found(), 0);
    // It pauses until nothing changes any more, and others come who need little.
    eventually(&engine, "the division is settled", |_| seen.settled.load(Ordering::Relaxed));
    (2..6).for_each(|seed| run_all(&engine, &[greedy(prompt(seed, 8), 4)]));
    let before = found();
    run_all(&engine, &[greedy(prompt(1, 300), 20)]);
    assert!(found() >= before + 200, "{} of 300 tokens were found", found() - before);
}

#[test]
fn who_needs_no_more_than_there_is_takes_nothing() {
    let (engine, limits, seen) = start(Shape::default(), LIMITS, 1000);
    for seed in 0..10 {
        run_all(&engine, &[greedy(prompt(seed, 20), 10)]);
    }
    assert_eq!(seen.blocks_most.load(Ordering::Relaxed), limits.blocks_start);
    assert_eq!(seen.weights_least.load(Ordering::Relaxed), 90_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever comes, in whatever bursts, all tokens are those of ample memory.
    #[test]
    fn any_load_under_any_budget(
        total in 20_000u64..200_000,
        weights_share in 1u64..10,
        block in 300u64..2000,
        blocks_start in 1usize..30,
        pace in 100u64..20_000,
        max_num_seqs in 1usize..24,
        crowded in any::<bool>(),
        swap_blocks in 0usize..100,
        extra_budget in 0usize..100,
        bursts in prop::collection::vec(prop::collection::vec((0u32..6, 1usize..90, 1usize..30), 1..20), 1..4),
    ) {
        let limits = TradeLimits {
            total, weights_least: total * weights_share / 12, weights_most: total, block, blocks_start, blocks_max: 300,
        };
        let shape = Shape {
            max_num_seqs, max_num_batched_tokens: max_num_seqs + extra_budget, max_model_len: 100, swap_blocks,
            preemption: PreemptionMode::Swap, ..Shape::default()
        };
        let (engine, limits, _) = start(shape, limits, pace);
        if crowded {
            teach_short_answers(&engine);
        }
        let context = 100.min(limits.blocks_max * 4);
        for burst in bursts {
            let request = |(family, length, max_tokens): (u32, usize, usize)| {
                let length = length.min(context - 1);
                greedy(prompt(family, length), max_tokens.min(context - length))
            };
            run_all(&engine, &burst.into_iter().map(request).collect::<Vec<_>>());
        }
        assert_idle_and_whole(&engine);
    }
}
