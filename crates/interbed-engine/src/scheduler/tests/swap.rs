//! Tests swapping without any swap space: when a swap begins, and what follows from how it ends.

use interbed_kv::{SwapDirection, SwapFailure};

use super::flights::SWAP_STEPS_MAX;
use super::*;
use crate::{SwapTook, SwapTrial};

pub(super) const TOOK: SwapTook = SwapTook { bytes: 64, seconds: 1e-9 };

/// Returns the failure of a swap over a disk that is broken.
pub(super) fn broken() -> SwapFailure {
    SwapFailure::Broken("the disk is on fire".into())
}

impl Bench {
    pub(super) fn with_swap(blocks: usize, swap_blocks: usize) -> Self {
        let kv = KvConfig {
            num_blocks: blocks,
            block_size: 4,
            watermark: 0.0,
            num_swap_blocks: swap_blocks,
            ..KvConfig::default()
        };
        let preemption = PreemptionMode::Swap;
        Self::over(kv, Bench::config(4, 64, preemption))
    }

    /// Ends the swap that the last step began.
    pub(super) fn finish(&mut self, outcome: Result<SwapTook, SwapFailure>) {
        let swaps: Vec<_> = self.plan.swaps.iter().map(|swap| swap.id).collect();
        assert_eq!(swaps.len(), 1, "one swap at a time here");
        self.scheduler.finish_swap(swaps[0], outcome.as_ref().copied());
        self.check();
    }

    pub(super) fn status(&self, id: u64) -> SequenceStatus {
        self.scheduler.sequence(SequenceId(id)).status
    }
}

/// Returns a bench with two sequences of two blocks in a pool of four, the first of which has just made the second
/// leave.
pub(super) fn one_leaves_another(swap_blocks: usize) -> Bench {
    let mut bench = Bench::with_swap(4, swap_blocks);
    bench.add(1, 8);
    bench.add(2, 7);
    bench.add(3, 7);
    assert_eq!(bench.step(), [(1, 8), (2, 7)]);
    // The first crosses into its third block, and waits for one of those that are on their way out.
    assert_eq!(bench.step(), []);
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    bench
}

#[test]
fn blocks_on_their_way_out_are_waited_for_and_nobody_else_is_preempted() {
    let mut bench = one_leaves_another(8);
    assert_eq!((bench.status(2), bench.plan.swaps[0].transfers.len()), (SequenceStatus::Leaving, 2));
    let swap = bench.plan.swaps[0].id;
    for _ in 0..3 {
        assert_eq!(bench.step(), []);
        assert!(bench.plan.preempted.is_empty() && bench.plan.swaps.is_empty());
    }
    bench.scheduler.finish_swap(swap, Ok(TOOK));
    assert_eq!((bench.status(2), bench.scheduler.num_swapped()), (SequenceStatus::Swapped, 1));
    // It comes back before the third is admitted, and computes nothing again.
    assert_eq!(bench.step(), [(1, 1)]);
    assert!(bench.plan.admitted.is_empty() && bench.plan.swaps.is_empty(), "there is no room yet");
    bench.scheduler.remove(SequenceId(1));
    assert_eq!(bench.step(), [(3, 7)], "there is room for it too");
    assert_eq!(bench.status(2), SequenceStatus::Arriving);
    bench.finish(Ok(TOOK));
    assert_eq!(bench.scheduler.sequence(SequenceId(2)).computed, 7);
    assert_eq!(bench.step(), [(2, 1), (3, 1)]);
    let sequence = bench.scheduler.sequence(SequenceId(2));
    assert_eq!((sequence.past.preemptions, sequence.past.swaps), (1, 1));
    assert_eq!(bench.scheduler.preemptions(), PreemptionCounts { recompute: 0, swap: 1 });
}

#[test]
fn swaps_in_flight_come_first() {
    let mut bench = one_leaves_another(8);
    bench.scheduler.set_swap_trial(100, SwapTrial::default());
    let bytes_ahead = |bench: &Bench| bench.scheduler.effort(&[SequenceId(1)]).bytes_ahead;
    assert_eq!(bytes_ahead(&bench), 200, "two blocks are on their way out");
    bench.finish(Ok(TOOK));
    assert_eq!(bytes_ahead(&bench), 0);
}

#[test]
fn without_room_to_swap_to_kv_is_dropped_at_once() {
    // The destination is reserved first, or nothing is moved.
    let mut bench = Bench::with_swap(4, 1);
    bench.add(1, 8);
    bench.add(2, 7);
    bench.step();
    assert_eq!(bench.step(), [(1, 1)]);
    assert_eq!((bench.status(2), bench.scheduler.num_swaps()), (SequenceStatus::Waiting, 0));
    assert_eq!(bench.scheduler.preemptions(), PreemptionCounts { recompute: 1, swap: 0 });
}

/// Returns how a sequence of 23 tokens, 20 of which can be found by others, is preempted when another one needs a
/// block. The other sequence may generate `max_tokens_of_other` tokens. Swapping the 6 blocks takes 12 ms, and
/// computing a token takes 1 ms.
fn way_chosen(max_tokens_of_other: usize) -> PreemptionCounts {
    let kv = KvConfig { num_blocks: 10, block_size: 4, watermark: 0.0, num_swap_blocks: 10, ..KvConfig::default() };
    let preemption = PreemptionMode::Auto;
    let mut bench = Bench::over(kv, Bench::config(4, 64, preemption));
    bench.scheduler.set_swap_trial(1000, SwapTrial { bytes: 1_000_000, write_seconds: 1.0, read_seconds: 1.0 });
    bench.scheduler.prefilled(1000, 1.0);
    (0..100).for_each(|_| bench.scheduler.ended(0));
    bench.scheduler.add(Arrival { max_tokens: max_tokens_of_other, ..arrival(1, 15) });
    bench.add(2, 22);
    assert_eq!(bench.step().len(), 2);
    assert_eq!(bench.step().len(), 2);
    (0..100).for_each(|_| bench.scheduler.ended(1000));
    bench.step();
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    bench.scheduler.preemptions()
}

#[test]
fn what_the_prefix_cache_will_still_hold_is_not_counted_as_lost() {
    // The other one ends before it wants any of the blocks, so that three tokens would have to be computed.
    assert_eq!(way_chosen(2), PreemptionCounts { recompute: 1, swap: 0 });
    // It is going to take all of them.
    assert_eq!(way_chosen(1000), PreemptionCounts { recompute: 0, swap: 1 });
}

#[test]
fn what_others_hold_as_well_is_not_counted_as_lost() {
    let kv = KvConfig { num_blocks: 12, block_size: 4, watermark: 0.0, num_swap_blocks: 12, ..KvConfig::default() };
    let preemption = PreemptionMode::Auto;
    let mut bench = Bench::over(kv, Bench::config(4, 64, preemption));
    bench.scheduler.set_swap_trial(1000, SwapTrial { bytes: 1_000_000, write_seconds: 1.0, read_seconds: 1.0 });
    bench.scheduler.prefilled(1000, 1.0);
    (0..100).for_each(|_| bench.scheduler.ended(0));
    for (id, length) in [(1, 15), (2, 20)] {
        bench.scheduler.add(Arrival { max_tokens: 1000, ..arrival(id, length) });
    }
    assert_eq!(bench.step().len(), 2);
    let mut prompt = bench.scheduler.sequence(SequenceId(2)).tokens()[..20].to_vec();
    prompt.extend([500, 501]);
    bench.scheduler.add(Arrival { prompt, max_tokens: 1000, ..arrival(3, 0) });
    assert_eq!(bench.step().len(), 3);
    (0..100).for_each(|_| bench.scheduler.ended(1000));
    while bench.plan.preempted.is_empty() {
        bench.step();
    }
    assert_eq!(bench.plan.preempted, [SequenceId(3)]);
    // All but its last block stays with the second: to swap its blocks takes 12 ms, to compute that one 4 ms.
    assert_eq!(bench.scheduler.preemptions(), PreemptionCounts { recompute: 1, swap: 0 });
}

#[test]
fn blocks_that_others_hold_as_well_are_not_waited_for() {
    let mut bench = Bench::with_swap(8, 8);
    bench.add(3, 8);
    bench.step();
    let mut prompt = bench.scheduler.sequence(SequenceId(3)).tokens()[..8].to_vec();
    prompt.extend([500, 501, 502]);
    bench.add(1, 8);
    bench.add(2, 8);
    bench.scheduler.add(Arrival { prompt, ..arrival(4, 0) });
    assert_eq!(bench.step(), [(3, 1), (1, 8), (2, 8), (4, 3)]);
    // The first and the second want a block each. The fourth has three, but two of them are the third's as well.
    bench.step();
    assert_eq!(bench.plan.preempted, [SequenceId(4), SequenceId(2)]);
}

#[test]
fn a_failed_swap_is_a_miss() {
    let mut bench = one_leaves_another(8);
    bench.finish(Err(broken()));
    assert_eq!((bench.status(2), bench.scheduler.sequence(SequenceId(2)).computed), (SequenceStatus::Waiting, 0));
    assert_eq!(bench.step(), [(1, 1)]);
    bench.scheduler.remove(SequenceId(1));
    // All of it is computed again, less the block that the prefix cache holds.
    assert_eq!(bench.step()[0], (2, 4));
    // The same on the way in.
    let mut bench = one_leaves_another(8);
    bench.finish(Ok(TOOK));
    bench.scheduler.remove(SequenceId(1));
    bench.step();
    bench.finish(Err(broken()));
    assert_eq!((bench.status(2), bench.scheduler.sequence(SequenceId(2)).computed), (SequenceStatus::Waiting, 0));
    assert_eq!(bench.scheduler.blocks().stats().swap_slots_used, 0);
}

#[test]
fn an_abort_in_any_state_leaks_nothing_and_late_completions_are_harmless() {
    // A sequence may be aborted at each stage of its swap.
    for abort_at in [SequenceStatus::Leaving, SequenceStatus::Swapped, SequenceStatus::Arriving] {
        let mut bench = one_leaves_another(8);
        if abort_at != SequenceStatus::Leaving {
            bench.finish(Ok(TOOK));
        }
        bench.scheduler.remove(SequenceId(1));
        if abort_at == SequenceStatus::Arriving {
            bench.step();
        }
        assert_eq!((bench.status(2), bench.scheduler.num_swapped()), (abort_at, 1));
        bench.scheduler.remove(SequenceId(2));
        assert_eq!(bench.scheduler.num_swapped(), 0);
        bench.scheduler.remove(SequenceId(3));
        bench.check();
        if abort_at != SequenceStatus::Swapped {
            assert!(!bench.scheduler.is_idle(), "its blocks are still being copied");
            bench.finish(Ok(TOOK));
            bench.scheduler.finish_swap(bench.plan.swaps[0].id, Err(&broken()));
        }
        assert!(bench.scheduler.is_idle());
        assert_eq!(bench.scheduler.recover_leaks(), 0);
    }
}

#[test]
fn what_nobody_makes_room_for_any_more_is_computed_again() {
    let mut bench = one_leaves_another(8);
    bench.finish(Ok(TOOK));
    bench.scheduler.remove(SequenceId(1));
    bench.scheduler.remove(SequenceId(3));
    // Memory went elsewhere meanwhile.
    bench.scheduler.set_usable_blocks(1);
    bench.step();
    assert_eq!(bench.status(2), SequenceStatus::Waiting);
    bench.scheduler.set_usable_blocks(4);
    assert_eq!(bench.step().len(), 1);
}

#[test]
fn one_that_is_alone_comes_back_only_where_its_next_token_has_room() {
    let mut bench = Bench::with_swap(4, 4);
    bench.add(1, 8);
    bench.step();
    bench.scheduler.set_usable_blocks(2);
    assert_eq!(bench.step(), []);
    bench.finish(Ok(TOOK));
    // Its two blocks would be there, but no third.
    for _ in 0..10 {
        assert_eq!(bench.step(), []);
        assert_eq!((bench.scheduler.num_swaps(), bench.scheduler.sequence(SequenceId(1)).past.preemptions), (0, 1));
    }
    bench.scheduler.set_usable_blocks(4);
    assert_eq!(bench.step().len(), 1);
}

/// Checks that all other swaps end at once while the first swap of this direction never ends.
fn everybody_else_ends_beside_one_that_hangs(direction: SwapDirection) {
    let mut bench = Bench::with_swap(8, 20);
    (0..100).for_each(|_| bench.scheduler.ended(0));
    for id in 1..=6 {
        bench.scheduler.add(Arrival { max_tokens: 8, ..arrival(id, 6) });
    }
    let mut hangs = None;
    for _ in 0..2 * SWAP_STEPS_MAX {
        for (id, _) in bench.step() {
            if bench.scheduler.sequence(SequenceId(id)).len() >= 14 {
                bench.scheduler.remove(SequenceId(id));
            }
        }
        for swap in std::mem::take(&mut bench.plan.swaps) {
            if swap.direction == direction && *hangs.get_or_insert(swap.id) == swap.id {
                continue;
            }
            bench.scheduler.finish_swap(swap.id, Ok(TOOK));
        }
        bench.check();
    }
    assert!(hangs.is_some(), "the test needs a swap that hangs");
    let places: Vec<_> = bench.scheduler.sequences.values().map(|sequence| sequence.status).collect();
    let stuck = if direction == SwapDirection::Out { SequenceStatus::Leaving } else { SequenceStatus::Arriving };
    assert_eq!(places, [stuck]);
    assert!(bench.scheduler.sequences.values().all(|sequence| sequence.past.preemptions <= MAX_PREEMPTIONS));
}

#[test]
fn a_swap_that_never_ends_hangs_its_own_sequence_alone() {
    everybody_else_ends_beside_one_that_hangs(SwapDirection::Out);
    everybody_else_ends_beside_one_that_hangs(SwapDirection::In);
}

#[test]
fn while_a_swap_hangs_kv_is_computed_again() {
    let mut bench = one_leaves_another(8);
    for _ in 0..SWAP_STEPS_MAX {
        assert_eq!(bench.step(), []);
    }
    // No other sequence can make room, so it is preempted itself.
    bench.step();
    assert_eq!(bench.plan.preempted, [SequenceId(1)]);
    assert_eq!(bench.scheduler.preemptions(), PreemptionCounts { recompute: 1, swap: 1 });
}

#[test]
fn a_more_important_request_does_not_wait_for_one_that_was_swapped_out() {
    let mut bench = one_leaves_another(8);
    bench.finish(Ok(TOOK));
    bench.add_with_priority(4, 1, -1);
    bench.add_with_priority(5, 1, 1);
    // The first takes a block more, which leaves one: too little for the second, enough for the fourth and the fifth.
    assert_eq!(bench.step(), [(1, 1), (4, 1)]);
    assert_eq!((bench.status(2), bench.status(5)), (SequenceStatus::Swapped, SequenceStatus::Waiting));
}
