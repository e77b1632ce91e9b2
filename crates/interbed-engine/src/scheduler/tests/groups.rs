//! Tests sequences of one prompt: forks, and beams that keep their seats and make room together.

use super::swap::TOOK;
use super::*;

const TRUNK: SequenceId = SequenceId(1);

impl Bench {
    fn add_beams(&mut self, id: u64, length: usize, width: usize) {
        self.scheduler.add(Arrival { max_tokens: 40, beams: Some(width), ..arrival(id, length) });
    }

    /// Branches the beams of sequence 1, which has come to its prompt's end.
    fn branch(&mut self, width: usize) -> Vec<SequenceId> {
        let children = (100..99 + width as u64).map(SequenceId);
        let beams: Vec<_> = std::iter::once(TRUNK).chain(children).collect();
        beams[1..].iter().for_each(|&child| self.scheduler.branch(TRUNK, child));
        self.scheduler.share_seats(&beams, width);
        for (&beam, token) in beams.iter().zip(50..) {
            self.scheduler.extend(beam, [token]);
        }
        self.check();
        beams
    }

    /// Computes what is pending, without a new token.
    fn compute(&mut self) -> Vec<u64> {
        self.scheduler.schedule(&mut self.plan);
        self.plan.entries.iter().for_each(|entry| self.scheduler.complete(entry, 1));
        self.check();
        self.plan.entries.iter().map(|entry| entry.id.0).collect()
    }
}

#[test]
fn a_search_runs_when_all_its_beams_may_and_keeps_their_seats() {
    let mut bench = Bench::new(100, 4, 64);
    (2..4).for_each(|id| bench.add(id, 4));
    assert_eq!(bench.step().len(), 2);
    bench.add_beams(1, 6, 3);
    bench.add(4, 4);
    // Two seats are free, which is one too few; who came later may have one.
    assert_eq!(bench.step(), [(2, 1), (3, 1), (4, 4)]);
    (2..4).for_each(|id| drop(bench.scheduler.remove(SequenceId(id))));
    assert_eq!(bench.compute(), [4, 1]);
    bench.add(5, 4);
    // The search has one sequence, but no seat to spare.
    bench.scheduler.remove(SequenceId(4));
    bench.add(6, 4);
    assert_eq!(bench.compute(), [5]);
    let beams = bench.branch(3);
    assert_eq!(bench.compute(), [1, 100, 101]);
    // One beam goes, and another takes its place: there is still no seat to spare.
    bench.scheduler.branch(beams[2], SequenceId(200));
    bench.scheduler.remove(TRUNK);
    let beams = [beams[1], beams[2], SequenceId(200)];
    bench.scheduler.share_seats(&beams, 3);
    assert!(bench.compute().is_empty());
    beams.iter().for_each(|&id| drop(bench.scheduler.remove(id)));
    assert_eq!(bench.compute(), [6]);
}

#[test]
fn a_beam_that_waits_for_others_is_left_alone() {
    let mut bench = Bench::new(100, 4, 64);
    bench.add_beams(1, 6, 2);
    bench.compute();
    let beams = bench.branch(2);
    bench.scheduler.extend(beams[1], [7, 8]);
    assert_eq!(bench.compute(), [1, 100]);
    // The first has nothing to compute until the search goes on.
    assert_eq!((bench.compute(), bench.compute()), (vec![], vec![]));
    bench.scheduler.extend(beams[1], [9]);
    assert_eq!(bench.compute(), [100]);
}

#[test]
fn beams_make_room_together_and_share_again_what_they_have_in_common() {
    let mut bench = Bench::new(8, 4, 64);
    // Short answers are expected, so that more is admitted than can grow.
    (0..100).for_each(|_| bench.scheduler.ended(0));
    bench.add(2, 8);
    bench.compute();
    bench.add_beams(1, 10, 3);
    assert_eq!(bench.compute(), [1]);
    let beams = bench.branch(3);
    // Two blocks of the prompt, and one for each beam's own end; the other sequence has two, and wants a third.
    assert_eq!(bench.compute(), [1, 100, 101]);
    assert_eq!(bench.scheduler.blocks().stats().blocks_used, 2 + 2 + 3);
    bench.scheduler.extend(SequenceId(2), [1, 2, 3, 4, 5]);
    assert_eq!(bench.compute(), [2]);
    let preempted = bench.plan.preempted.clone();
    assert!(!preempted.is_empty() && preempted.iter().all(|id| beams.contains(id)));
    // One of them waits in the place of all.
    assert!(beams.iter().filter(|&&id| bench.scheduler.get_mut(id).is_some()).eq([&TRUNK]));
    let trunk = bench.scheduler.sequence(TRUNK);
    assert_eq!((trunk.len(), trunk.seats(), trunk.past.preemptions, trunk.status), (10, 3, 1, SequenceStatus::Waiting));
    assert_eq!(bench.scheduler.num_waiting(), 1);
    bench.scheduler.remove(SequenceId(2));
    assert_eq!(bench.compute(), [1]);
    bench.branch(3);
    assert_eq!(bench.compute(), [1, 100, 101]);
    assert_eq!(bench.scheduler.blocks().stats().blocks_used, 2 + 3);
}

#[test]
fn beams_that_cannot_come_back_are_not_admitted_one_by_one() {
    let mut bench = Bench::with_swap(8, 8);
    (0..100).for_each(|_| bench.scheduler.ended(0));
    bench.add(2, 8);
    bench.compute();
    bench.add_beams(1, 10, 3);
    bench.compute();
    let beams = bench.branch(3);
    bench.compute();
    bench.scheduler.extend(SequenceId(2), [1, 2, 3, 4, 5]);
    bench.compute();
    bench.finish(Ok(TOOK));
    assert!(beams.iter().all(|id| bench.status(id.0) == SequenceStatus::Swapped));
    bench.scheduler.remove(SequenceId(2));
    // Enough for one of them.
    bench.scheduler.set_usable_blocks(4);
    assert!(bench.compute().is_empty());
    assert_eq!(
        (bench.status(1), bench.scheduler.num_waiting(), bench.scheduler.num_swapped()),
        (SequenceStatus::Waiting, 1, 0)
    );
}

#[test]
fn a_search_that_was_preempted_often_needs_no_more_than_is_asked_for() {
    let mut bench = Bench::new(200, 8, 64);
    bench.scheduler.add(Arrival { max_tokens: 10, beams: Some(8), ..arrival(1, 40) });
    bench.suffer(1, |sequence| sequence.past.preemptions = MAX_PREEMPTIONS);
    // Ten blocks of the prompt, and of each beam three.
    let demand = bench.scheduler.kv_demand();
    assert_eq!(demand.used + demand.wanted, 34);
    bench.scheduler.set_usable_blocks(34);
    assert_eq!(bench.compute(), [1]);
    let beams = bench.branch(8);
    for _ in 1..9 {
        assert_eq!(bench.compute().len(), 8);
        beams.iter().for_each(|&beam| bench.scheduler.extend(beam, [beam.0 as u32]));
    }
    assert_eq!((bench.compute().len(), bench.plan.preempted.len()), (8, 0));
    assert_eq!(bench.scheduler.blocks().stats().blocks_used, 34);
}

#[test]
fn beams_that_are_to_stay_wait_for_blocks_on_their_way_out() {
    let mut bench = Bench::with_swap(11, 11);
    bench.set_seats(5);
    (0..100).for_each(|_| bench.scheduler.ended(0));
    // It may need all blocks: three full ones for the prompt, and two for each beam.
    bench.scheduler.add(Arrival { max_tokens: 5, beams: Some(4), ..arrival(1, 14) });
    bench.suffer(1, |sequence| sequence.past.preemptions = MAX_PREEMPTIONS);
    bench.add(2, 8);
    assert_eq!(bench.compute(), [1, 2]);
    let beams = bench.branch(4);
    beams.iter().for_each(|&beam| bench.scheduler.extend(beam, [8, 9]));
    bench.scheduler.extend(SequenceId(2), [7]);
    // Two beams are short of two blocks each, three leave, and the last beam needs no copy of what it alone holds.
    assert_eq!(bench.compute(), [1, 100]);
    assert_eq!(bench.plan.preempted, [SequenceId(2)]);
    bench.finish(Ok(TOOK));
    assert_eq!((bench.compute(), bench.plan.preempted.len()), (vec![101, 102], 0));
}

#[test]
fn a_fork_waits_in_its_parents_place_and_has_been_through_nothing() {
    let mut bench = Bench::new(16, 1, 64);
    bench.scheduler.add(Arrival { max_tokens: 3, ..arrival(1, 10) });
    bench.suffer(1, |sequence| (sequence.past.preemptions, sequence.past.swaps) = (MAX_PREEMPTIONS, 1));
    bench.compute();
    bench.add(2, 4);
    bench.scheduler.fork(TRUNK, SequenceId(100), 7, None);
    bench.scheduler.fork(TRUNK, SequenceId(101), 8, None);
    bench.check();
    let fork = bench.scheduler.sequence(SequenceId(100));
    assert_eq!((fork.status, fork.past.preemptions, fork.past.swaps), (SequenceStatus::Waiting, 0, 0));
    // No more memory than it may come to need.
    assert_eq!(fork.capacity(), 13);
    for expected in [100, 101, 2] {
        let runs = bench.scheduler.queues.running().next().expect("one runs");
        bench.scheduler.remove(runs);
        assert_eq!(bench.compute(), [expected]);
    }
}

#[test]
fn forks_run_where_there_is_room_and_else_wait() {
    let mut bench = Bench::new(8, 3, 64);
    bench.add(1, 10);
    bench.compute();
    for id in [100, 101, 102] {
        bench.scheduler.fork(TRUNK, SequenceId(id), id as u32, None);
    }
    bench.check();
    // There are three seats.
    assert_eq!((bench.scheduler.num_running(), bench.scheduler.num_waiting()), (3, 1));
    bench.scheduler.push_token(TRUNK, 1);
    assert_eq!(bench.compute(), [1, 100, 101]);
    assert_eq!(bench.scheduler.blocks().stats().blocks_used, 2 + 3);
    bench.scheduler.remove(TRUNK);
    // The prefix cache has all but the end of what it waits with.
    assert_eq!(bench.step(), [(102, 3)]);
}

#[test]
fn children_have_been_overtaken_by_nobody() {
    let mut bench = Bench::new(100, 3, 64);
    bench.add(1, 8);
    bench.suffer(1, |sequence| sequence.past.overtaken = MAX_OVERTAKEN);
    bench.compute();
    bench.add(2, 4);
    // The last child finds no seat.
    for (id, runs) in [(100, true), (101, true), (102, false)] {
        assert_eq!(bench.scheduler.fork(TRUNK, SequenceId(id), 7, None), runs);
        assert!(!bench.scheduler.sequence(SequenceId(id)).is_urgent(), "{id}");
    }
    assert!(bench.scheduler.sequence(TRUNK).is_urgent());
    bench.check();
}

#[test]
fn what_has_lost_its_end_is_looked_up_under_what_follows_now() {
    let mut bench = Bench::new(100, 4, 64);
    let hashes = |bench: &Bench, tokens: &[TokenId]| bench.scheduler.blocks.hash_prefix(&ChainRoot::default(), tokens);
    let [prompt, other] = [[7; 16].as_slice(), &[8; 8]].map(|end| [[6; 10].as_slice(), end].concat());
    let mut sequence = Sequence::new(SequenceId(9), requested(9), prompt.clone(), hashes(&bench, &prompt));
    sequence.lose_kv(10);
    assert_eq!(sequence.hashes.num_blocks(), 2);
    sequence.extend([8; 8]);
    sequence.lose_kv(18);
    bench.scheduler.add(Arrival { prompt: other.clone(), ..arrival(1, 0) });
    bench.compute();
    assert_eq!(bench.scheduler.blocks.look_up(sequence.tokens(), &sequence.hashes).num_cached_tokens, 16);
}
