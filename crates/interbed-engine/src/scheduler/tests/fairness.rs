//! Tests the shares of tenants, and the order of their sequences.

use std::collections::VecDeque;

use super::swap::TOOK;
use super::*;
use crate::KvDemand;
use crate::scheduler::wait::{Admission, Wait};

impl Bench {
    pub(super) fn set_seats(&mut self, seats: usize) {
        self.config.max_num_seqs = seats;
        self.scheduler.config = self.config;
    }

    fn add_of(&mut self, tenant: u128, id: u64, length: usize) {
        self.scheduler.add(of_tenant(tenant, id, length));
    }
}

#[test]
fn an_idle_tenants_share_is_others_to_use() {
    let mut bench = Bench::new(8, 8, 64);
    for id in 1..=4 {
        bench.add_of(1, id, 8);
    }
    assert_eq!(bench.step().len(), 4);
}

#[test]
fn the_tenant_that_holds_the_least_is_admitted_first() {
    let mut bench = Bench::new(8, 8, 64);
    for id in 1..=20 {
        bench.add_of(1, id, 8);
    }
    bench.add_of(2, 21, 8);
    bench.add_of(3, 22, 8);
    bench.add_of(2, 23, 8);
    assert_eq!(bench.step(), [(1, 8), (21, 8), (22, 8), (2, 8)]);
}

#[test]
fn a_tenant_that_holds_nothing_takes_from_one_above_its_share() {
    let mut bench = Bench::new(8, 8, 64);
    for id in 1..=4 {
        bench.add_of(1, id, 6);
    }
    bench.step();
    bench.add_of(2, 5, 7);
    bench.add_of(2, 6, 8);
    assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1), (5, 7)]);
    assert_eq!(bench.plan.preempted, [SequenceId(4)]);
    // It holds something now: it waits for more like everybody.
    assert_eq!(bench.step().len(), 4);
    assert!(bench.plan.preempted.is_empty());
}

#[test]
fn seats_are_shared_as_well() {
    let mut bench = Bench::new(80, 4, 64);
    for id in 1..=5 {
        bench.add_of(1, id, 6);
    }
    bench.step();
    bench.add_of(2, 6, 8);
    assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1), (6, 8)]);
}

#[test]
fn a_search_counts_for_all_its_seats_from_the_start() {
    let mut bench = Bench::with_swap(80, 80);
    bench.scheduler.add(Arrival { beams: Some(4), max_tokens: 8, ..of_tenant(1, 1, 6) });
    assert_eq!(bench.step(), [(1, 6)]);
    // Its tenant's share is two seats: it makes room before it has branched, and does not come back for the claim.
    bench.add_of(2, 2, 4);
    assert_eq!(bench.step(), []);
    assert_eq!(bench.plan.preempted, [SequenceId(1)]);
    bench.finish(Ok(TOOK));
    assert_eq!(bench.step(), [(2, 4)]);
    assert_eq!(bench.status(1), SequenceStatus::Swapped);
}

#[test]
fn a_tenant_above_its_share_makes_room_first() {
    let mut bench = Bench::new(8, 8, 64);
    for id in 1..=3 {
        bench.add_of(1, id, 5);
    }
    bench.add_of(2, 4, 8);
    assert_eq!(bench.step().len(), 4);
    // The one of the other tenant came last and needs a block more, but its tenant has less than its share.
    let mut planned = bench.step();
    planned.sort_unstable();
    assert_eq!(planned, [(1, 1), (2, 1), (4, 1)]);
    assert_eq!(bench.plan.preempted, [SequenceId(3)]);
}

#[test]
fn a_priority_counts_among_a_tenants_own_alone() {
    let mut bench = Bench::new(4, 8, 64);
    bench.add_of(2, 1, 8);
    for id in 2..=5 {
        let request = Requested { tenant: Some(TenantId(1)), priority: i32::MIN, ..requested(id) };
        bench.scheduler.add(Arrival { request, ..arrival(id, 8) });
    }
    let mut first: Vec<_> = bench.step().iter().map(|(id, _)| *id).collect();
    first.sort_unstable();
    assert_eq!(first, [1, 2]);
}

#[test]
fn no_tenants_large_request_is_starved_by_the_small_ones_of_another() {
    let mut bench = Bench::new(30, 4, 200);
    bench.add_of(1, 1, 20);
    bench.step();
    // More than a share: it takes nothing from others, but waits until they have gone.
    bench.add_of(2, 2, 110);
    let mut next = 3;
    for step in 0.. {
        assert!(step < 4 * MAX_OVERTAKEN, "it waits for ever");
        while bench.scheduler.num_waiting() < 3 {
            bench.add_of(1, next, 4);
            next += 1;
        }
        let planned = bench.step();
        if planned.iter().any(|(id, _)| *id == 2) {
            break;
        }
        for (id, count) in planned {
            if count == 4 || id == 1 {
                bench.scheduler.remove(SequenceId(id));
            }
        }
    }
}

#[test]
fn tenants_take_turns_where_seats_are_fewer() {
    for asks_during_a_turn in [false, true] {
        let mut bench = Bench::new(30, 1, 64);
        let (mut next, mut served) = (1, Vec::new());
        // The first tenant always has some waiting, the second asks again after it was answered.
        let mut ask = |bench: &mut Bench| {
            for (tenant, count) in [(1, 3), (2, 1)] {
                let of_tenant =
                    |bench: &Bench| bench.scheduler.tenants.of.get(&Some(TenantId(tenant))).map(|it| it.sequences);
                while of_tenant(bench).unwrap_or(0) < count {
                    bench.add_of(tenant, 10 * next + tenant as u64, 4);
                    next += 1;
                }
            }
        };
        ask(&mut bench);
        for _ in 0..12 {
            let planned = bench.step();
            let [(id, 4)] = planned[..] else { panic!("{planned:?}") };
            served.push(id % 10);
            if asks_during_a_turn {
                ask(&mut bench);
            }
            bench.scheduler.remove(SequenceId(id));
            if !asks_during_a_turn {
                ask(&mut bench);
            }
        }
        assert_eq!(served, [1, 2].repeat(6), "during a turn: {asks_during_a_turn}");
    }
}

#[test]
fn memory_comes_for_what_keeps_others_waiting_whosever_it_is() {
    let mut bench = Bench::new(200, 4, 200);
    bench.add_of(2, 1, 100);
    bench.suffer(1, |sequence| sequence.past.overtaken = MAX_OVERTAKEN);
    let mut next = 2;
    for step in 0.. {
        assert!(step < 10, "it waits for ever, and all but one of the others with it");
        while bench.scheduler.num_waiting() < 20 {
            bench.add_of(1, next, 4);
            next += 1;
        }
        let KvDemand { used, wanted, .. } = bench.scheduler.kv_demand();
        bench.scheduler.set_usable_blocks(used + wanted);
        let planned = bench.step();
        if planned.iter().any(|(id, _)| *id == 1) {
            break;
        }
        planned.iter().for_each(|(id, _)| drop(bench.scheduler.remove(SequenceId(*id))));
    }
}

#[test]
fn memory_comes_for_what_waits_where_those_swapped_out_give_way() {
    let mut bench = Bench::with_swap(40, 40);
    bench.set_seats(1);
    bench.add_of(1, 1, 16);
    bench.step();
    bench.scheduler.set_usable_blocks(4);
    assert_eq!(bench.step(), []);
    bench.finish(Ok(TOOK));
    // It gives way to a small one, which may not pass a large one.
    bench.add_of(2, 2, 4);
    bench.add_of(2, 3, 60);
    bench.suffer(3, |sequence| sequence.past.overtaken = MAX_OVERTAKEN);
    let KvDemand { used, wanted, .. } = bench.scheduler.kv_demand();
    bench.scheduler.set_usable_blocks(used + wanted);
    assert_eq!(bench.step().len() + bench.plan.swaps.len(), 1, "nobody comes");
}

#[test]
fn what_is_claimed_is_not_taken_back_by_who_was_swapped_out_for_it() {
    // First blocks are short, then seats are.
    for blocks in [8, 80] {
        let mut bench = Bench::with_swap(blocks, 80);
        bench.set_seats(if blocks == 8 { 8 } else { 4 });
        for id in 1..=4 {
            bench.add_of(1, id, 6);
        }
        bench.step();
        bench.add_of(2, 5, 7);
        assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(bench.plan.preempted, [SequenceId(4)]);
        bench.finish(Ok(TOOK));
        assert_eq!(bench.step(), [(1, 1), (2, 1), (3, 1), (5, 7)]);
        assert!(bench.plan.preempted.is_empty() && bench.plan.swaps.is_empty());
        assert_eq!(bench.status(4), SequenceStatus::Swapped);
        for id in [1, 2, 3, 5] {
            bench.scheduler.remove(SequenceId(id));
        }
        bench.step();
        bench.finish(Ok(TOOK));
        assert_eq!(bench.step(), [(4, 1)]);
    }
}

#[test]
fn who_is_swapped_out_is_not_starved_by_another_tenants_requests() {
    // Those that claim all they take, those of which there is always one, and small ones.
    for (length, at_once, lives) in [(36, 1, 1), (36, 1, 2), (4, 10, 1)] {
        let mut bench = Bench::with_swap(20, 20);
        bench.set_seats(16);
        bench.add_of(1, 1, 46);
        bench.step();
        bench.add_of(2, 2, 36);
        bench.step();
        assert_eq!(bench.plan.preempted, [SequenceId(1)], "it has 60 % of the blocks");
        bench.finish(Ok(TOOK));
        let (mut next, mut alive) = (3, VecDeque::new());
        for step in 0.. {
            assert!(step < 4 * MAX_OVERTAKEN, "it waits for ever");
            while bench.scheduler.num_waiting() < at_once {
                bench.add_of(2, next, length);
                next += 1;
            }
            let planned = bench.step();
            if bench.status(1) == SequenceStatus::Arriving {
                break;
            }
            alive.push_back(planned.into_iter().filter(|(_, count)| *count > 1));
            if alive.len() == lives {
                let old = alive.pop_front().into_iter().flatten();
                old.for_each(|(id, _)| drop(bench.scheduler.remove(SequenceId(id))));
            }
        }
        // It stays, although it has more than its share.
        bench.finish(Ok(TOOK));
        for _ in 0..3 {
            bench.step();
            for swap in std::mem::take(&mut bench.plan.swaps) {
                bench.scheduler.finish_swap(swap.id, Ok(TOOK));
            }
            assert_eq!(bench.status(1), SequenceStatus::Running(None));
        }
        assert_eq!(bench.scheduler.sequence(SequenceId(1)).past.preemptions, 1);
    }
}

#[test]
fn what_another_has_cached_within_its_share_is_left_as_long_as_one_can_wait() {
    let mut bench = Bench::new(16, 8, 64);
    let add = |bench: &mut Bench, tenant: u128, id: u64, length: usize| {
        let root = ChainRoot::default().of_tenant(Some(tenant));
        bench.scheduler.add(Arrival { root, ..of_tenant(tenant, id, length) });
    };
    // Half of the pool stays cached.
    add(&mut bench, 1, 1, 32);
    bench.step();
    bench.scheduler.remove(SequenceId(1));
    for id in 2..=6 {
        add(&mut bench, 2, id, 11);
    }
    assert_eq!(bench.step(), [(2, 11), (3, 11)], "the third would take what the other has cached");
    let first = bench.scheduler.sequence(SequenceId(4));
    let (shares, aged) = (bench.scheduler.shares(), bench.scheduler.aged_swapped(&bench.scheduler.shares()));
    assert_eq!(bench.scheduler.admission(first, &shares, &aged), Admission::Waits(Wait::Kept));
    assert_eq!(bench.scheduler.blocks().stats().evictions, 0);
    // The other's own finds it, beside them.
    let prompt: Vec<_> = (0..33).map(|i| 1000 + i as u32).collect();
    let root = ChainRoot::default().of_tenant(Some(1));
    bench.scheduler.add(Arrival { root, prompt, ..of_tenant(1, 7, 0) });
    assert!(bench.step().contains(&(7, 1)));
    for id in [2, 3, 7] {
        bench.scheduler.remove(SequenceId(id));
    }
    assert_eq!(bench.step(), [(4, 11), (5, 11)]);
    for id in [4, 5, 6] {
        bench.scheduler.remove(SequenceId(id));
    }
    // One that would wait for ever takes it.
    add(&mut bench, 2, 8, 60);
    assert_eq!(bench.step(), [(8, 60)]);
    assert!(bench.scheduler.blocks().stats().evictions > 0);
}
