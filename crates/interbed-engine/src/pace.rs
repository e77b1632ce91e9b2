//! Decides how many prompt tokens a pass may compute beside sequences that generate. This is a planner: it takes the
//! durations of passes, and returns a number of tokens.
//!
//! Each token of a sequence that generates waits for a whole pass, with all the prefill that is in the pass. The rules
//! are:
//!
//! 1. A pass takes as much prefill as is expected to keep it within the gap, which is the longest time between two
//!    tokens.
//! 2. If a pass without any prefill already takes longer than the gap, because weights or KV come from disk, a pass
//!    with prefill may take twice as long. Smaller chunks would help nobody: each pass costs the same reads, and
//!    decodes wait for these reads in any case.
//! 3. Prefill always goes on. It gets at least a quarter of the time that a pass without prefill takes, and at least
//!    [`PREFILL_LEAST`] tokens.
//! 4. A pass has at most twice the prefill of the one before it, or half of the largest recent prefill. No measurement
//!    tells what tokens beyond that cost.
//! 5. If passes with [`PREFILL_LEAST`] tokens take more than twice the gap [`TRIAL`] times in a row, the next pass has
//!    twice as many tokens. This tells whether the tokens cost the time, or the pass itself does.
//!
//! The expected time of a pass is the sum of a fixed cost (the weights are read once), a cost for each token, and a
//! cost for each position that a token attends to. A token at the end of a long prompt therefore costs more than one at
//! its beginning. The three costs are estimated from the measured passes, of which the latest count most. A pass that
//! takes more than twice as long as expected is ignored, since something else (a disk, another process) probably slowed
//! it down. The third such pass in a row is believed, and so is every pass that is faster than expected.

use std::time::Duration;

/// The least prefill of a pass, in tokens. Kernels multiply this many tokens at once.
pub(crate) const PREFILL_LEAST: usize = 16;

/// The tokens, and the positions attended to, that count as one unit of [`Work::units`]. A unit costs about as much as
/// the fixed part of a pass whose weights are in memory. The units decide which cost a first measurement is attributed
/// to, not which costs the estimates reach in the end.
const TOKENS: f64 = 64.0;
const POSITIONS: f64 = 64.0 * 4096.0;

/// The standard error of a measurement, as a share of its value.
const NOISE: f64 = 0.1;

/// The standard error of each cost before anything is known, as a multiple of the first pass's duration. If the first
/// pass took long, its tokens are blamed rather than the fixed part, so that the next pass is not too large.
const PRIOR: [f64; 3] = [1.0, 4.0, 4.0];

/// The amount by which each cost may change from one pass to the next, as a share of the pass's duration.
const DRIFT: f64 = 0.02;

/// The share of the expected time below which a pass tells that the machine has become faster.
const FAST: f64 = 0.7;

/// The number of passes in a row that may take more than twice the expected time before such a pass is believed.
const SURPRISES_MAX: u32 = 2;

/// The number of slow passes in a row with the least prefill after which a pass gets more prefill, by rule 5 of this
/// module.
const TRIAL: u32 = 16;

/// The amount of work in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// The number of tokens, prefill and others together.
    pub(crate) tokens: usize,
    /// The number of tokens that are prefill.
    pub(crate) prefill: usize,
    /// The number of positions attended to, summed over the tokens.
    pub(crate) positions: f64,
}

impl Work {
    /// Adds `count` tokens of one sequence from position `start` on.
    pub(crate) fn add(&mut self, start: usize, count: usize, is_prefill: bool) {
        self.tokens += count;
        self.prefill += if is_prefill { count } else { 0 };
        self.positions += count as f64 * (start as f64 + count as f64 / 2.0);
    }

    /// Returns the factors by which the three costs are multiplied.
    fn units(&self) -> [f64; 3] {
        [1.0, self.tokens as f64 / TOKENS, self.positions / POSITIONS]
    }
}

/// Estimates what passes take, by recursive least squares (a Kalman filter whose state drifts) over the three costs.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The seconds between two tokens of a sequence that generates.
    gap: f64,
    /// The seconds for each unit of [`Work::units`].
    costs: [f64; 3],
    /// The covariance of the three costs.
    doubt: [[f64; 3]; 3],
    /// Whether a pass was measured.
    is_measured: bool,
    /// The number of passes in a row that took more than twice the expected time.
    surprises: u32,
    /// The prefill tokens of the latest pass that had some.
    latest: usize,
    /// The largest prefill of the passes lately, in tokens; it fades with each pass.
    largest: usize,
    /// The number of passes in a row that took more than twice the gap with the least prefill.
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
        // If the clock stood still or the pass was empty, the measurement says nothing.
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
        // If a pass shows that the machine has changed, all earlier estimates are in doubt.
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

    /// Returns the prefill that a pass may have beside `decodes`, which is its work without prefill.
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

    /// Returns the seconds that a pass of this `work` is expected to take.
    fn seconds(&self, work: &Work) -> f64 {
        dot(&self.costs, &work.units())
    }

    /// Returns whether the pass had at most 1.5 times the prefill of the latest one. A slow pass with more prefill is
    /// no surprise, because its cost was not known.
    fn is_known(&self, work: &Work) -> bool {
        work.prefill <= self.latest * 3 / 2
    }

    fn learn(&mut self, units: &[f64; 3], seconds: f64) {
        for (i, prior) in PRIOR.into_iter().enumerate() {
            // The doubt grows with time, up to the doubt of a first measurement.
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
        // No cost is below zero. A cost whose estimate is negative becomes zero, and the others change as far as they
        // are correlated with it.
        for i in 0..3 {
            if self.costs[i] < 0.0 && self.doubt[i][i] > 0.0 {
                let share = -self.costs[i] / self.doubt[i][i];
                (0..3).for_each(|j| self.costs[j] += share * self.doubt[i][j]);
            }
        }
        self.costs.iter_mut().for_each(|cost| *cost = cost.max(0.0));
    }
}

/// The prefill that one pass may have. It is given as time, which the tokens of several prompts share at their costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Allowance {
    /// The seconds for all prefill of the pass.
    seconds: f64,
    /// The seconds for a token.
    token: f64,
    /// The seconds for each position that a token attends to.
    position: f64,
    /// The least number of prefill tokens.
    least: usize,
    /// The largest number of prefill tokens.
    most: usize,
}

impl Allowance {
    /// Returns how many tokens of a prompt, from position `start` on, may be computed if they get the whole allowance.
    /// Returns at least [`PREFILL_LEAST`].
    pub(crate) fn tokens(&self, start: usize) -> usize {
        // n tokens cost token * n + position * (start * n + n * n / 2); the code solves this for n.
        let (each, growth) = (self.token + self.position * start as f64, 2.0 * self.position);
        let tokens = 2.0 * self.seconds / (each + (each * each + growth * self.seconds).sqrt());
        // If all costs are zero, the result is infinite or NaN. The conversion to an integer saturates.
        if tokens.is_nan() { self.most } else { (tokens as usize).clamp(self.least, self.most) }
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
