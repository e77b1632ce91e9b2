//! How many prompt tokens a pass may compute beside sequences that generate. A planner: durations of passes come in, a
//! number of tokens comes out.
//!
//! Each token of a sequence that generates waits for a whole pass, with all the prefill that is in it. The rule:
//!
//! 1. A pass takes as much prefill as is expected to keep it within the gap, the longest time between two tokens.
//! 2. Where a pass without any prefill already takes longer than the gap, because weights or KV come from disk, a pass
//!    with prefill may take twice the time of one without. Smaller chunks would help nobody: each pass costs the same
//!    reads, and decodes wait for these in any case.
//! 3. Prefill always goes on: it gets at least a quarter of the time that a pass without it takes, and at least
//!    [`PREFILL_LEAST`] tokens.
//! 4. A pass has at most twice the prefill of the one before it, or half of the largest lately: beyond that, nothing
//!    was measured that tells what a token costs.
//! 5. Where passes take more than twice the gap with [`PREFILL_LEAST`] tokens, every [`TRIAL`]th has twice as many: it
//!    tells whether tokens cost that time, or the pass itself does.
//!
//! What a pass is expected to take is the sum of a fixed cost (the weights are read once), a cost for each token, and a
//! cost for each position that a token attends to; so a token at the end of a long prompt costs more than one at its
//! beginning. The three are estimated from the passes that were measured, the latest of which count most. A pass that
//! takes more than twice as long as expected is ignored, since something else was in the way (a disk, another process);
//! the third in a row is believed, and so is every pass that is faster than expected.

use std::time::Duration;

/// Least prefill of a pass, in tokens: what kernels multiply with at once.
pub(crate) const PREFILL_LEAST: usize = 16;

/// Tokens, and positions attended to, that count as one unit of [`Work::units`]: about what costs as much as the fixed
/// part of a pass where weights are in memory. They say where a first measurement is attributed to, not where the
/// estimates end.
const TOKENS: f64 = 64.0;
const POSITIONS: f64 = 64.0 * 4096.0;

/// How much a measurement differs from the truth, as a share of it.
const NOISE: f64 = 0.1;

/// What each cost may be before anything is known, as a multiple of the first pass's duration. That the first took long
/// is put down to its tokens rather than to the fixed part, so that the next is not too large.
const PRIOR: [f64; 3] = [1.0, 4.0, 4.0];

/// How much each cost may change from one pass to the next, as a share of the pass's duration.
const DRIFT: f64 = 0.02;

/// A pass that takes less than this share of the time expected tells that the machine is another.
const FAST: f64 = 0.7;

/// Passes in a row that may take more than twice the time expected before that is believed.
const SURPRISES_MAX: u32 = 2;

/// Passes with the least prefill after which one has more; see the rules.
const TRIAL: u32 = 16;

/// What a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// Tokens, prompt and others together.
    pub(crate) tokens: usize,
    /// Those of them that are prefill.
    pub(crate) prefill: usize,
    /// Positions that they attend to, summed over the tokens.
    pub(crate) positions: f64,
}

impl Work {
    /// Adds `count` tokens of one sequence from position `start` on.
    pub(crate) fn add(&mut self, start: usize, count: usize, is_prefill: bool) {
        self.tokens += count;
        self.prefill += if is_prefill { count } else { 0 };
        self.positions += count as f64 * (start as f64 + count as f64 / 2.0);
    }

    /// What the three costs are multiplied by.
    fn units(&self) -> [f64; 3] {
        [1.0, self.tokens as f64 / TOKENS, self.positions / POSITIONS]
    }
}

/// Estimates what passes take. Recursive least squares (a Kalman filter whose state drifts) over the three costs.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Seconds between two tokens of a sequence that generates.
    gap: f64,
    /// Seconds for each unit of [`Work::units`].
    costs: [f64; 3],
    /// Their covariance.
    doubt: [[f64; 3]; 3],
    /// Whether anything was measured.
    is_measured: bool,
    /// Passes in a row that took more than twice the time expected.
    surprises: u32,
    /// Prefill of the latest pass that had some, and the most of those before it; that fades.
    latest: usize,
    largest: usize,
    /// Passes in a row that took more than twice the gap with the least prefill.
    cramped: u32,
}

impl Pace {
    pub(crate) fn new(gap: Duration) -> Self {
        let gap = gap.as_secs_f64();
        Self {
            gap,
            costs: [0.0; 3],
            doubt: [[0.0; 3]; 3],
            is_measured: false,
            surprises: 0,
            latest: 0,
            largest: 0,
            cramped: 0,
        }
    }

    /// Records that a pass of this `work` took so many `seconds`.
    pub(crate) fn measured(&mut self, work: &Work, seconds: f64) {
        // A clock that stands still, or an empty pass, says nothing.
        if work.tokens == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        if work.prefill > 0 {
            let is_cramped = work.prefill <= PREFILL_LEAST && seconds > 2.0 * self.gap;
            self.cramped = if is_cramped { self.cramped + 1 } else { 0 };
        }
        let expected = self.seconds(work);
        let is_slow = self.is_measured && seconds > 2.0 * expected && self.is_known(work);
        self.surprises = if is_slow { self.surprises + 1 } else { 0 };
        if is_slow && self.surprises <= SURPRISES_MAX {
            return;
        }
        // Whatever was believed of this machine is in doubt where a pass tells of another.
        if is_slow || !self.is_measured || seconds < FAST * expected {
            let longest = seconds.max(expected);
            let doubt = |i: usize| match self.is_measured {
                false => PRIOR[i] * longest,
                true => self.costs[i].max(longest),
            };
            self.doubt = std::array::from_fn(|i| std::array::from_fn(|j| if i == j { doubt(i).powi(2) } else { 0.0 }));
        }
        self.is_measured = true;
        if work.prefill > 0 {
            self.latest = work.prefill;
            self.largest = work.prefill.max(self.largest * 3 / 4);
        }
        self.learn(&work.units(), seconds);
        self.surprises = 0;
    }

    /// What a pass may have beside `decodes`: its tokens other than prefill.
    pub(crate) fn allowance(&self, decodes: &Work) -> Allowance {
        let base = self.seconds(decodes);
        let longest = if base < self.gap { self.gap } else { 2.0 * base };
        let least = if self.cramped >= TRIAL { 2 * PREFILL_LEAST } else { PREFILL_LEAST };
        Allowance {
            least,
            seconds: (longest - base).max(base / 4.0),
            token: self.costs[1] / TOKENS,
            position: self.costs[2] / POSITIONS,
            most: (2 * self.latest).max(self.largest / 2).max(least),
        }
    }

    /// Seconds that a pass of this `work` is expected to take.
    fn seconds(&self, work: &Work) -> f64 {
        dot(&self.costs, &work.units())
    }

    /// Whether the latest pass had about as much prefill, or more: what nobody knows is no surprise.
    fn is_known(&self, work: &Work) -> bool {
        work.prefill <= self.latest * 3 / 2
    }

    fn learn(&mut self, units: &[f64; 3], seconds: f64) {
        for (i, prior) in PRIOR.into_iter().enumerate() {
            // Doubt grows with time, up to that of a first measurement.
            let limit = (prior * seconds).max(self.costs[i]).powi(2);
            self.doubt[i][i] += (DRIFT * seconds).powi(2);
            if self.doubt[i][i] > limit {
                let factor = (limit / self.doubt[i][i]).sqrt();
                for j in 0..3 {
                    self.doubt[i][j] *= factor;
                    self.doubt[j][i] *= factor;
                }
            }
        }
        let along: [f64; 3] = std::array::from_fn(|i| dot(&self.doubt[i], units));
        let variance = dot(&along, units) + (NOISE * seconds).powi(2);
        let error = seconds - dot(&self.costs, units);
        (0..3).for_each(|i| self.costs[i] += along[i] / variance * error);
        for i in 0..3 {
            (0..3).for_each(|j| self.doubt[i][j] -= along[i] * along[j] / variance);
        }
        // No cost is below zero: one that seems so is zero, and the others change as they do together with it.
        for i in 0..3 {
            if self.costs[i] < 0.0 && self.doubt[i][i] > 0.0 {
                let share = -self.costs[i] / self.doubt[i][i];
                (0..3).for_each(|j| self.costs[j] += share * self.doubt[i][j]);
            }
        }
        self.costs.iter_mut().for_each(|cost| *cost = cost.max(0.0));
    }
}

/// The prefill that one pass may have: time, in which the tokens of several prompts fit at their costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Allowance {
    /// Seconds for all prefill of the pass.
    seconds: f64,
    /// Seconds for a token.
    token: f64,
    /// Seconds for each position that a token attends to.
    position: f64,
    /// Tokens that prefill has at least, and at most.
    least: usize,
    most: usize,
}

impl Allowance {
    /// Tokens of a prompt from position `start` on that may be computed if the whole allowance is theirs. At least
    /// [`PREFILL_LEAST`].
    pub(crate) fn tokens(&self, start: usize) -> usize {
        // n tokens cost token * n + position * (start * n + n * n / 2): solved for n.
        let (each, growth) = (self.token + self.position * start as f64, 2.0 * self.position);
        let tokens = 2.0 * self.seconds / (each + (each * each + growth * self.seconds).sqrt());
        // Without any cost it is no number, or infinite; the conversion saturates.
        if tokens.is_nan() { self.most } else { (tokens as usize).clamp(self.least, self.most) }
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
