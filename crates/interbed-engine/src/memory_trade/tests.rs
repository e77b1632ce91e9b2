//! Tests the trade with simulated weights that give up memory late, and with simulated KV whose blocks are in use.

use proptest::prelude::*;

use super::*;

const LIMITS: TradeLimits = TradeLimits {
    total: 64_000,
    weights_least: 10_000,
    weights_most: 100_000,
    block: 100,
    blocks_start: 40,
    blocks_max: 10_000,
};

/// Simulated weights and KV that carry out the plan.
struct Sim {
    trade: MemoryTrade,
    limits: TradeLimits,
    budget: u64,
    /// The bytes that weights hold. They exceed the budget for a while after it was lowered, and are below it after it
    /// was raised.
    held: u64,
    present: usize,
    used: usize,
    /// The number of blocks that nobody holds any more and that the cache can find.
    cached: usize,
    /// The seconds that computing a block again takes.
    recompute: Option<f64>,
    /// The seconds by which each byte of weights shortens a pass.
    worth: f64,
}

impl Sim {
    fn new(limits: TradeLimits) -> Self {
        let trade = MemoryTrade::new(limits);
        let present = trade.blocks_start();
        let budget = limits.total - present as u64 * limits.block;
        Self {
            trade,
            limits,
            budget,
            held: budget.min(limits.weights_most),
            present,
            used: 0,
            cached: 0,
            recompute: None,
            worth: 0.0,
        }
    }

    /// Simulates one turn of the engine. After the turn, sequences use `used` blocks, if there are so many. Weights
    /// move up to `moved` bytes towards their budget.
    fn turn(&mut self, used: usize, moved: u64) -> KvGrant {
        let wanted = used.saturating_sub(self.used);
        let Sim { present, used: held, cached, recompute, .. } = *self;
        self.budget = self.trade.plan(KvDemand { present, used: held, cached, wanted, recompute }, self.worth);
        assert!((self.limits.weights_least..=self.limits.weights_most).contains(&self.budget));
        self.move_weights(moved);
        let grant = self.trade.grant(self.held.max(self.budget));
        self.present = grant.blocks.max(self.used);
        self.check();
        // The pass: who waits is admitted as far as there are blocks, who ends lets go of them.
        let left = self.used.saturating_sub(used);
        self.used = used.min(self.present);
        self.present = grant.blocks.max(self.used).min(self.present);
        self.cached = (self.cached + left).min(self.present - self.used);
        self.check();
        self.move_weights(moved);
        self.check();
        grant
    }

    fn move_weights(&mut self, moved: u64) {
        self.held = match self.held > self.budget {
            true => self.held.saturating_sub(moved).max(self.budget),
            false => self.held.saturating_add(moved).min(self.budget),
        };
    }

    fn check(&self) {
        let kv = self.present as u64 * self.limits.block;
        assert!(self.held + kv <= self.limits.total, "weights hold {}, KV {kv}", self.held);
        assert!(self.present <= self.trade.blocks_max());
    }
}

#[test]
fn kv_gets_what_it_needs_and_gives_it_back() {
    let mut sim = Sim::new(LIMITS);
    assert_eq!((sim.trade.blocks_start(), sim.trade.blocks_max()), (40, 540));
    assert_eq!(sim.turn(10, u64::MAX), KvGrant { blocks: 40, settled: true });
    // A step is 10 blocks.
    assert_eq!(sim.turn(100, u64::MAX).blocks, 110);
    assert_eq!((sim.used, sim.budget), (100, 64_000 - 11_000));
    // All of it, but never what weights need at least.
    for _ in 0..3 {
        sim.turn(100_000, u64::MAX);
    }
    assert_eq!((sim.used, sim.budget, sim.held), (540, 10_000, 10_000));
    // Idle: back to the start within some steps.
    sim.turn(0, u64::MAX);
    let calm = (0..).find(|_| sim.turn(0, u64::MAX).settled).unwrap();
    assert!((100..1000).contains(&calm), "{calm}");
    assert_eq!((sim.present, sim.budget, sim.held), (40, 60_000, 60_000));
}

#[test]
fn kv_waits_for_weights_to_give_up_memory() {
    let mut sim = Sim::new(LIMITS);
    // Twice a turn, weights give up five blocks' worth.
    let grants: Vec<_> = (0..6).map(|_| sim.turn(60, 500).blocks).collect();
    assert_eq!(grants, [45, 55, 65, 70, 70, 70]);
}

#[test]
fn demand_that_wavers_by_less_than_a_step_changes_nothing() {
    let mut sim = Sim::new(LIMITS);
    sim.turn(100, u64::MAX);
    let budget = sim.budget;
    for turn in 0..10 * PATIENCE as usize {
        sim.turn(101 + turn * 7 % 9, u64::MAX);
        assert_eq!(sim.budget, budget);
    }
    // Nor does a lull that is shorter than the patience.
    for turn in 0..100 {
        sim.turn(if turn % PATIENCE == 0 { 105 } else { 0 }, u64::MAX);
        assert_eq!(sim.budget, budget);
    }
}

#[test]
fn cached_blocks_stay_until_they_have_cost_what_computing_them_again_would() {
    let mut sim = Sim::new(LIMITS);
    sim.recompute = Some(0.02);
    sim.turn(300, u64::MAX);
    sim.turn(300, u64::MAX);
    sim.turn(0, u64::MAX);
    assert_eq!((sim.used, sim.cached, sim.present), (0, 300, 310));
    // What nobody can find goes as it always did.
    (0..PATIENCE).for_each(|_| {
        sim.turn(0, u64::MAX);
    });
    assert_eq!(sim.present, 300);
    // On an idle engine passes wait for nothing.
    assert!((0..1000).all(|_| sim.turn(0, u64::MAX).blocks == 300 && sim.trade.calm == 0));
    // 260 blocks are more than at the start. All of them cost 26 ms a pass; a step of ten is computed in 200 ms.
    sim.worth = 1e-6;
    let mut rent = 0.0;
    while sim.present > 40 {
        rent += (sim.present - 40) as f64 * LIMITS.block as f64 * sim.worth;
        sim.turn(0, u64::MAX);
    }
    let computed_again = 260.0 * 0.02;
    assert!((computed_again - 0.2..computed_again + 0.2).contains(&rent), "{rent} s, {computed_again} s");
    // Whoever needs blocks has them at once, and what is worth nothing does not stay.
    sim.turn(300, u64::MAX);
    sim.turn(300, u64::MAX);
    assert_eq!(sim.used, 300);
    (sim.recompute, sim.cached) = (Some(0.0), 0);
    sim.turn(0, u64::MAX);
    assert!((0..1000).any(|_| sim.turn(0, u64::MAX).settled));
    assert_eq!(sim.present, 40);
}

#[test]
fn what_weights_have_no_use_for_is_kvs() {
    let trade = MemoryTrade::new(TradeLimits { weights_most: 50_000, ..LIMITS });
    assert_eq!(trade.blocks_start(), 140);
    // Blocks that give nothing back are not traded.
    let trade = MemoryTrade::new(TradeLimits { block: 0, ..LIMITS });
    assert_eq!((trade.blocks_start(), trade.blocks_max()), (40, 40));
}

/// Weights make room until blocks fit where they were, and get it back when KV shrinks.
#[test]
fn what_blocks_do_not_fit_into_is_taken_from_weights() {
    let mut trade = MemoryTrade::new(LIMITS);
    let demand = |present: usize, used: usize| KvDemand { present, used, ..KvDemand::default() };
    let before = trade.plan(demand(40, 300), 0.0);
    let wanted = trade.grant(before).blocks;
    assert!(wanted >= 300);
    // Only 250 blocks found memory.
    trade.lacks(wanted - 250);
    let after = trade.plan(demand(250, 300), 0.0);
    assert_eq!(before - after, (wanted - 250) as u64 * LIMITS.block);
    assert_eq!(trade.grant(after).blocks, wanted, "they are to come all the same");
    // However much is lost, weights keep their least.
    (0..100).for_each(|_| trade.lacks(1000));
    assert_eq!(trade.plan(demand(250, 300), 0.0), LIMITS.weights_least);
    let idle = (0..1000).map(|_| trade.plan(demand(40, 0), 0.0)).last();
    assert_eq!(idle, Some(LIMITS.total - 40 * LIMITS.block));
}

proptest! {
    #[test]
    fn never_above_the_budget_and_whoever_waits_gets_blocks(
        block in 1u64..3000,
        weights_least in 0u64..50_000,
        weights_more in 0u64..100_000,
        blocks_start in 1usize..200,
        blocks_max in 1usize..1000,
        load in prop::collection::vec((0usize..1500, 1u64..5000), 1..300),
        recompute in prop::option::of(0.0..1.0),
        worth in 1e-6..1e-3,
    ) {
        let limits = TradeLimits {
            total: 64_000, weights_least, weights_most: weights_least + weights_more, block, blocks_start, blocks_max,
        };
        let mut sim = Sim::new(limits);
        sim.recompute = recompute;
        for (turn, (used, moved)) in load.into_iter().enumerate() {
            sim.worth = if turn % 3 == 0 { 0.0 } else { worth };
            sim.turn(used, moved);
        }
        (sim.recompute, sim.worth) = (recompute.map(|seconds| seconds * 1e-3), 1e-3);
        // Demand that stays is met, as far as the maximum allows, and idleness ends at the start.
        for used in [sim.trade.blocks_max() / 2, sim.trade.blocks_max(), 7] {
            let wanted = used.min(sim.trade.blocks_max());
            let turns = (0..200).find(|_| { sim.turn(wanted, 1000); sim.used == wanted });
            prop_assert!(turns.is_some(), "{} of {} blocks", sim.used, wanted);
        }
        sim.turn(0, 1000);
        // What is cached may be worth its rent for a while.
        let turns = (0..4_000).find(|_| sim.turn(0, 1000).settled && sim.present == sim.trade.blocks_start());
        prop_assert!(turns.is_some(), "{} blocks are there, {} at the start", sim.present, sim.trade.blocks_start());
        prop_assert_eq!(sim.budget, sim.trade.weights_budget());
    }
}
