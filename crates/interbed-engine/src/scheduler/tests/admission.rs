//! Tests each reason for which a sequence has to wait, and that the sequence no longer waits once the reason has gone.

use super::swap::{TOOK, one_leaves_another};
use super::*;
use crate::scheduler::wait::{Admission, Wait};

impl Bench {
    fn admission(&self, id: u64) -> Admission {
        let (sequence, shares) = (self.scheduler.sequence(SequenceId(id)), self.scheduler.shares());
        match sequence.status {
            SequenceStatus::Waiting => {
                self.scheduler.admission(sequence, &shares, &self.scheduler.aged_swapped(&shares))
            }
            _ => self.scheduler.return_of(SequenceId(id), &shares, &self.scheduler.claimants(&shares)),
        }
    }

    /// Checks that sequence `id` waits for `wait`, and that it is admitted when `others` have gone.
    fn waits(&mut self, id: u64, wait: Wait, others: &[u64]) {
        assert_eq!(self.admission(id), Admission::Waits(wait));
        others.iter().for_each(|&other| drop(self.scheduler.remove(SequenceId(other))));
        assert_eq!(self.admission(id), Admission::Now, "{wait:?} has gone");
    }
}

#[test]
fn for_seats() {
    let mut bench = Bench::new(100, 2, 64);
    bench.add(1, 8);
    bench.step();
    bench.scheduler.add(Arrival { beams: Some(2), ..arrival(2, 8) });
    bench.add(3, 8);
    assert_eq!(bench.admission(3), Admission::Now);
    bench.waits(2, Wait::BeamSeats, &[1]);
    bench.step();
    bench.waits(3, Wait::Seats, &[2]);
}

#[test]
fn for_blocks() {
    let mut bench = Bench::new(10, 4, 64);
    bench.add(1, 20);
    bench.step();
    bench.add(2, 36);
    bench.add(3, 41);
    assert_eq!(bench.admission(3), Admission::Never { need: 11, limit: 10 });
    assert_eq!(bench.scheduler.first_wait(), Some(Wait::Blocks));
    bench.waits(2, Wait::Blocks, &[1]);
    assert_eq!(bench.scheduler.first_wait(), None);
}

#[test]
fn for_blocks_to_grow() {
    let mut bench = Bench::new(10, 4, 64);
    let grows = |id| Arrival { max_tokens: 30, ..arrival(id, 8) };
    bench.scheduler.add(grows(1));
    bench.step();
    bench.scheduler.add(grows(2));
    bench.waits(2, Wait::Growth, &[1]);
}

#[test]
fn for_blocks_to_the_very_end() {
    let mut bench = Bench::new(8, 4, 64);
    for id in [1, 2] {
        bench.scheduler.add(Arrival { max_tokens: 12, ..arrival(id, 8) });
        bench.suffer(id, |sequence| sequence.past.preemptions = MAX_PREEMPTIONS);
    }
    bench.step();
    bench.waits(2, Wait::VeryEnd, &[1]);
}

#[test]
fn for_a_prefix_that_another_computes() {
    let mut bench = Bench::new(100, 4, 10);
    bench.add(1, 25);
    bench.step();
    let prompt = bench.scheduler.sequence(SequenceId(1)).tokens().to_vec();
    bench.scheduler.add(Arrival { prompt, ..arrival(2, 0) });
    bench.waits(2, Wait::Prefix, &[1]);
}

#[test]
fn for_one_that_is_swapped_out() {
    let mut bench = one_leaves_another(8);
    bench.finish(Ok(TOOK));
    bench.scheduler.remove(SequenceId(1));
    assert_eq!(bench.admission(3), Admission::Waits(Wait::SwappedFirst));
    // Past one that has aged not even an important one comes.
    bench.add_with_priority(4, 1, -1);
    assert_eq!(bench.admission(4), Admission::Now);
    bench.suffer(2, |sequence| sequence.past.overtaken = MAX_OVERTAKEN);
    bench.waits(4, Wait::AgedFirst, &[2]);
    assert_eq!(bench.admission(3), Admission::Now);
}

#[test]
fn for_a_swap_that_hangs() {
    let mut bench = one_leaves_another(8);
    let swap = bench.plan.swaps[0].clone();
    bench.finish(Ok(TOOK));
    bench.scheduler.remove(SequenceId(1));
    bench.scheduler.flights.depart(Vec::new(), &swap);
    (0..=flights::SWAP_STEPS_MAX).for_each(|_| bench.scheduler.flights.tick());
    assert_eq!(bench.admission(2), Admission::Waits(Wait::SwapHangs));
    bench.scheduler.flights.land(swap.id);
    assert_eq!(bench.admission(2), Admission::Now);
}

#[test]
fn for_what_another_tenant_claims() {
    let mut bench = Bench::with_swap(80, 80);
    (1..=4).for_each(|id| bench.scheduler.add(of_tenant(1, id, 6)));
    bench.step();
    bench.scheduler.add(of_tenant(2, 5, 6));
    bench.step();
    bench.finish(Ok(TOOK));
    bench.waits(4, Wait::Claimed, &[5]);
}
