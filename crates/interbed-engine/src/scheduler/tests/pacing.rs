//! Tests prefill beside sequences that generate.

use super::*;
use crate::pace::PREFILL_LEAST;

/// Returns the seconds that a pass takes on a machine that takes `pass` seconds per pass and `token` seconds per token.
fn seconds(pass: f64, token: f64, bench: &Bench) -> f64 {
    let work = bench.plan.work();
    pass + token * (work.tokens as f64 + work.positions / 10_000.0)
}

impl Bench {
    /// Creates a bench with 512 tokens in a pass, and a gap of half a second.
    fn paced(blocks: usize) -> Self {
        let max_token_gap = Some(Duration::from_millis(500));
        let config = SchedulerConfig { max_token_gap, ..Self::config(16, 512, PreemptionMode::Recompute) };
        Self::over(KvConfig { num_blocks: blocks, block_size: 4, ..KvConfig::default() }, config)
    }

    /// Runs a step on a machine that takes 50 ms for each pass and 8 ms for each token. Returns the plan and the
    /// seconds that the step took.
    fn timed_step(&mut self) -> (Vec<(u64, usize)>, f64) {
        let planned = self.step();
        let took = seconds(0.05, 0.008, self);
        self.scheduler.measured(&self.plan.work(), took);
        (planned, took)
    }
}

/// Returns the number of tokens of `id` in a pass.
fn of(planned: &[(u64, usize)], id: u64) -> usize {
    planned.iter().find(|entry| entry.0 == id).map_or(0, |entry| entry.1)
}

#[test]
fn who_generates_waits_no_longer_than_the_gap() {
    let mut bench = Bench::paced(4000);
    bench.add(1, 8);
    (0..10).for_each(|_| drop(bench.timed_step()));
    bench.add(2, 6000);
    let mut steps = Vec::new();
    while bench.scheduler.sequence(SequenceId(2)).generated() == 0 {
        let (planned, took) = bench.timed_step();
        assert_eq!(of(&planned, 1), 1, "it has a token in each pass");
        steps.push((of(&planned, 2), took));
    }
    assert!(steps.iter().all(|step| step.1 < 0.55), "{steps:?}");
    // Apart from the first, which are careful, and the last, passes are full.
    assert!(steps[5..steps.len() - 1].iter().all(|step| step.1 > 0.45), "{steps:?}");
    // Without anybody who generates, passes are whole.
    bench.scheduler.remove(SequenceId(1));
    bench.scheduler.remove(SequenceId(2));
    bench.add(3, 1100);
    assert_eq!([bench.step(), bench.step()], [[(3, 512)], [(3, 512)]]);
}

#[test]
fn several_prompts_share_the_time() {
    let mut bench = Bench::paced(4000);
    bench.add(1, 8);
    (0..10).for_each(|_| drop(bench.timed_step()));
    [2, 3, 4].into_iter().for_each(|id| bench.add(id, 1500));
    for step in 0..30 {
        let (planned, took) = bench.timed_step();
        assert!(took < 0.55, "{planned:?} took {took} s");
        let chunks = [2, 3, 4].map(|id| of(&planned, id));
        assert!(step < 4 || (chunks[0] >= chunks[1] && chunks[2] > 8), "{planned:?}");
    }
    // A small prompt that comes later does not wait for them.
    bench.add(5, 20);
    let steps = (0..).take_while(|_| of(&bench.timed_step().0, 5) != 1).count();
    assert!(steps <= 4, "{steps}");
}

#[test]
fn prompts_go_on_however_many_generate_and_however_slow_passes_are() {
    let mut bench = Bench::paced(4000);
    (0..12).for_each(|id| bench.add(id, 8));
    let slow = |bench: &mut Bench| {
        let planned = bench.step();
        bench.scheduler.measured(&bench.plan.work(), seconds(0.4, 0.2, bench));
        planned
    };
    (0..10).for_each(|_| drop(slow(&mut bench)));
    bench.add(20, 300);
    let mut steps = 0;
    while bench.scheduler.sequence(SequenceId(20)).generated() == 0 {
        let planned = slow(&mut bench);
        assert!(planned.len() == 13 && of(&planned, 20) > 0, "{planned:?}");
        steps += 1;
    }
    assert!(steps <= 300 / PREFILL_LEAST + 1, "{steps}");
}

#[test]
fn one_whose_whole_prompt_is_cached_begins_at_once() {
    let mut bench = Bench::paced(4000);
    bench.add(1, 17);
    bench.timed_step();
    let prompt = bench.scheduler.sequence(SequenceId(1)).tokens()[..17].to_vec();
    bench.add(2, 3000);
    bench.timed_step();
    bench.scheduler.add(Arrival { prompt, ..arrival(3, 0) });
    let (planned, _) = bench.timed_step();
    assert_eq!((of(&planned, 1), of(&planned, 3)), (1, 1));
}

#[test]
fn one_that_sits_out_a_pass_waits_for_it_all_the_same() {
    let mut bench = Bench::paced(4000);
    bench.add(1, 8);
    (0..10).for_each(|_| drop(bench.timed_step()));
    bench.add(2, 3000);
    bench.timed_step();
    // Its token of this pass is not sampled yet: what may come is not known.
    bench.scheduler.schedule(&mut bench.plan);
    for entry in bench.plan.entries.clone() {
        bench.scheduler.complete(&entry, 1);
    }
    bench.scheduler.schedule(&mut bench.plan);
    let [PlannedTokens { id: SequenceId(2), count, .. }] = bench.plan.entries[..] else { panic!("{:?}", bench.plan) };
    assert!(count < 100, "{count}");
}
