//! Tests the pace on simulated machines, whose pass durations are computed and whose prefill must fit the gap.

use super::*;

/// A simulated machine, described by the seconds that its passes take.
#[derive(Debug)]
struct Machine {
    /// The seconds that each pass takes to read weights, unless computing takes longer.
    sweep: f64,
    /// The seconds that are added to each pass.
    fixed: f64,
    token: f64,
    position: f64,
}

/// A machine with its weights in memory. It takes 8 ms for a prompt token and 80 ms for a pass with one token. At
/// 12,000 positions, attention costs as much as all else.
const RESIDENT: Machine = Machine { sweep: 0.08, fixed: 0.01, token: 0.008, position: 0.008 / 12_000.0 };
/// A machine whose passes read weights for 5 s, in which time it computes 500 tokens.
const STREAMED: Machine = Machine { sweep: 5.0, fixed: 0.0, token: 0.01, position: 0.0 };

impl Machine {
    fn seconds(&self, work: &Work) -> f64 {
        self.fixed + self.sweep.max(self.token * work.tokens as f64 + self.position * work.positions)
    }
}

/// Returns a factor of noise of up to 5 % in either direction, which depends on `number`.
fn noise(number: usize) -> f64 {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    0.95 + 0.1 * mixed as f64 / f64::from(1 << 24)
}

const GAP: f64 = 0.5;

fn pace() -> Pace {
    Pace::new(Duration::from_secs_f64(GAP))
}

/// Measures `count` passes in which one sequence decodes alone.
fn decode(pace: &mut Pace, machine: &Machine, count: usize) {
    for i in 0..count {
        let mut work = Work::default();
        work.add(100 + i, 1, false);
        pace.measured(&work, machine.seconds(&work) * noise(i));
    }
}

/// Computes a prompt of the given positions beside a sequence that decodes. Returns the chunk and the seconds of each
/// pass. `delay` returns the seconds that are added to a pass, by its number.
fn prefill(
    pace: &mut Pace,
    machine: &Machine,
    positions: std::ops::Range<usize>,
    delay: impl Fn(usize) -> f64,
) -> Vec<(usize, f64)> {
    let (mut at, mut passes) = (positions.start, Vec::new());
    while at < positions.end {
        let mut work = Work::default();
        work.add(200 + passes.len(), 1, false);
        let count = pace.allowance(&work).tokens(at).min(positions.end - at).min(512);
        assert!(count > 0, "prefill goes on");
        work.add(at, count, true);
        let seconds = machine.seconds(&work) * noise(passes.len()) + delay(passes.len());
        pace.measured(&work, seconds);
        passes.push((count, seconds));
        at += count;
    }
    passes
}

/// Returns the number of seconds below which 99 % of the passes stay.
fn p99(passes: &[(usize, f64)]) -> f64 {
    let mut seconds: Vec<_> = passes.iter().map(|pass| pass.1).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[(seconds.len() * 99 / 100).min(seconds.len() - 1)]
}

fn mean(passes: &[(usize, f64)]) -> f64 {
    passes.iter().map(|pass| pass.1).sum::<f64>() / passes.len() as f64
}

#[test]
fn a_long_prompt_keeps_to_the_gap_and_uses_it() {
    let mut pace = pace();
    decode(&mut pace, &RESIDENT, 20);
    let passes = prefill(&mut pace, &RESIDENT, 0..20_000, |_| 0.0);
    assert!(p99(&passes) < 1.15 * GAP, "{passes:?}");
    // Tokens cost nearly three times as much at the end, and the chunks follow.
    let (early, late) = (&passes[6..40], &passes[passes.len() - 40..passes.len() - 1]);
    for part in [early, late] {
        assert!((0.9..1.05).contains(&(mean(part) / GAP)), "{part:?}");
    }
    assert!(early[0].0 > 2 * late[0].0, "{passes:?}");
}

#[test]
fn it_begins_carefully_and_soon_takes_all() {
    let mut pace = pace();
    let passes = prefill(&mut pace, &RESIDENT, 0..1000, |_| 0.0);
    let counts: Vec<_> = passes.iter().map(|pass| pass.0).collect();
    assert_eq!(counts[..2], [PREFILL_LEAST, 2 * PREFILL_LEAST], "nothing was known");
    assert!(counts[4] > 50 && passes.iter().all(|pass| pass.1 < 1.2 * GAP), "{passes:?}");
}

#[test]
fn what_a_prompt_alone_took_is_known_beside_others() {
    let mut pace = pace();
    let mut work = Work::default();
    work.add(0, 512, true);
    pace.measured(&work, RESIDENT.seconds(&work));
    let passes = prefill(&mut pace, &RESIDENT, 0..3000, |_| 0.0);
    assert!(passes.iter().all(|pass| pass.1 < 1.2 * GAP) && passes[1].0 > 40, "{passes:?}");
    // One behind a prefix that was found is not taken for one at the beginning.
    let passes = prefill(&mut pace, &RESIDENT, 16_000..17_000, |_| 0.0);
    assert!(passes[0].1 < 1.6 * GAP && passes[5..].iter().all(|pass| pass.1 < 1.2 * GAP), "{passes:?}");
}

#[test]
fn a_first_pass_that_reads_its_weights_in_is_soon_forgotten() {
    let mut pace = pace();
    let mut work = Work::default();
    work.add(0, 512, true);
    pace.measured(&work, 8.0 * RESIDENT.seconds(&work));
    let passes = prefill(&mut pace, &RESIDENT, 0..2000, |_| 0.0);
    assert!(mean(&passes[8..passes.len() - 1]) > 0.85 * GAP, "{passes:?}");
    assert!(p99(&passes) < 1.3 * GAP, "{passes:?}");
}

#[test]
fn single_jumps_change_nothing_and_lasting_ones_are_followed() {
    let mut pace = pace();
    decode(&mut pace, &RESIDENT, 5);
    let jumpy = prefill(&mut pace, &RESIDENT, 0..6000, |number| if number % 10 == 9 { 3.0 } else { 0.0 });
    let calm: Vec<_> = jumpy.iter().copied().filter(|pass| pass.1 < 2.0).collect();
    assert!((0.9..1.05).contains(&(mean(&calm[8..calm.len() - 1]) / GAP)), "{jumpy:?}");
    // From now on all takes three times as long: another program has come.
    let slow = Machine { sweep: 0.24, fixed: 0.03, token: 0.024, position: 0.002 / 1000.0 };
    let passes = prefill(&mut pace, &slow, 0..4000, |_| 0.0);
    assert!(passes[12..].iter().all(|pass| pass.1 < 1.25 * GAP), "{passes:?}");
    // And it goes again.
    let passes = prefill(&mut pace, &RESIDENT, 0..4000, |_| 0.0);
    assert!(mean(&passes[12..passes.len() - 1]) > 0.85 * GAP, "{passes:?}");
}

#[test]
fn where_each_pass_sweeps_the_disk_chunks_do_not_shrink() {
    let mut pace = pace();
    decode(&mut pace, &STREAMED, 5);
    let passes = prefill(&mut pace, &STREAMED, 0..8000, |_| 0.0);
    // No pass takes more than twice one without prefill, and nearly all are as large as they may be.
    assert!(passes.iter().all(|pass| pass.1 < 2.2 * STREAMED.sweep), "{passes:?}");
    assert!(passes.len() < 8000 / 512 + 8, "{passes:?}");
}

#[test]
fn a_fixed_cost_that_comes_later_is_found() {
    let mut pace = pace();
    decode(&mut pace, &RESIDENT, 20);
    prefill(&mut pace, &RESIDENT, 0..4000, |_| 0.0);
    // Weights have made room for KV: now each pass reads some.
    let swept = Machine { fixed: 3.0, ..RESIDENT };
    let passes = prefill(&mut pace, &swept, 4000..12_000, |_| 0.0);
    let late = &passes[passes.len() / 2..passes.len() - 1];
    assert!(late.iter().all(|pass| pass.0 > 100 && pass.1 < 2.3 * 3.0), "{passes:?}");
}

#[test]
fn no_error_keeps_prefill_at_its_least_for_good() {
    // Whatever it believes at first: a pass costs 3 s, and tokens hardly anything.
    let swept = Machine { sweep: 0.0, fixed: 3.0, token: 0.001, position: 0.0 };
    for costs in [[0.0, 12.0, 0.0], [0.0, 0.0, 800.0], [0.1, 6.0, 400.0]] {
        let mut pace = pace();
        decode(&mut pace, &RESIDENT, 50);
        (pace.costs, pace.largest) = (costs, 512);
        let passes = prefill(&mut pace, &swept, 0..12_000, |_| 0.0);
        assert!(passes.len() < 100, "{costs:?}: {passes:?}");
    }
}

#[test]
fn a_slow_machine_still_computes_prompts() {
    // Decodes alone take nine tenths of the gap.
    let slow = Machine { sweep: 0.45, fixed: 0.0, token: 0.1, position: 0.0 };
    let mut pace = pace();
    decode(&mut pace, &slow, 20);
    let passes = prefill(&mut pace, &slow, 0..2000, |_| 0.0);
    assert!(passes.iter().rev().skip(1).all(|pass| pass.0 >= PREFILL_LEAST), "{passes:?}");
}

#[test]
fn any_machine_is_learned() {
    let mut state = 7u64;
    let mut random = |low: f64, high: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Evenly over orders of magnitude.
        low * (high / low).powf((state >> 40) as f64 / f64::from(1 << 24))
    };
    for round in 0..400 {
        let token = random(0.0002, 0.02);
        let machine = Machine {
            sweep: random(0.005, 3.0),
            fixed: random(0.0005, 0.1),
            token,
            position: token / random(3_000.0, 100_000.0),
        };
        let mut pace = pace();
        if round % 3 > 0 {
            decode(&mut pace, &machine, 30);
        }
        if round % 2 > 0 {
            let mut work = Work::default();
            work.add(0, 512, true);
            pace.measured(&work, machine.seconds(&work) * random(1.0, 5.0));
        }
        let passes = prefill(&mut pace, &machine, 0..6000, |_| 0.0);
        let base = {
            let mut work = Work::default();
            work.add(300, 1, false);
            machine.seconds(&work)
        };
        let told = || format!("round {round}: {machine:?}, without prefill {base} s: {passes:?}");
        // Where the gap is kept, it is kept but for noise, and for the least prefill.
        let least = machine.fixed + machine.token * 17.0 * 3.0;
        let bound = if base < GAP { GAP.max(1.25 * base) } else { 2.0 * base };
        let late = passes.iter().filter(|pass| pass.1 > 1.2 * bound + least).count();
        assert!(late <= 2 + passes.len() / 50, "{late} are late; {}", told());
        // And time is used once the machine is known, unless passes are as large as they may be.
        let known = &passes[passes.len().min(10)..passes.len().saturating_sub(1).max(passes.len().min(10))];
        let used = known.iter().map(|&(count, seconds)| if count == 512 { bound } else { seconds }).sum::<f64>();
        let aim = if base < GAP { GAP } else { base };
        assert!(used >= 0.8 * aim * known.len() as f64, "{}", told());
    }
}

#[test]
fn many_decodes_leave_less() {
    let mut pace = pace();
    decode(&mut pace, &RESIDENT, 20);
    prefill(&mut pace, &RESIDENT, 0..4000, |_| 0.0);
    let beside = |decodes: usize| {
        let mut work = Work::default();
        (0..decodes).for_each(|_| work.add(100, 1, false));
        pace.allowance(&work).tokens(0)
    };
    assert!(beside(1) > beside(20) && beside(20) >= beside(40) && beside(40) >= PREFILL_LEAST);
}

#[test]
fn senseless_measurements_change_nothing() {
    let mut pace = pace();
    decode(&mut pace, &RESIDENT, 20);
    let before = format!("{pace:?}");
    let mut work = Work::default();
    pace.measured(&work, 1.0);
    work.add(0, 10, true);
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        pace.measured(&work, seconds);
    }
    assert_eq!(format!("{pace:?}"), before);
}
