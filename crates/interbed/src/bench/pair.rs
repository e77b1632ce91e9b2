//! Two numbers that are measured side by side, such as a time and its bound, because a shared machine's speed varies.

use anyhow::Result;
use indicatif::ProgressBar;

use super::median;

/// Two numbers that were measured one right after the other, several times.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The median of the first number.
    pub first: f64,
    /// The median of the second number.
    pub second: f64,
    /// The median of the ratios of the second number to the first.
    pub ratio: f64,
    /// The sum of the first numbers.
    pub sum: f64,
}

impl Pair {
    /// Summarises pairs, of which there must be at least one.
    pub fn of(pairs: &[[f64; 2]]) -> Self {
        let median = |of: fn(&[f64; 2]) -> f64| median(pairs.iter().map(of).collect());
        let (first, second, ratio) = (median(|pair| pair[0]), median(|pair| pair[1]), median(|pair| pair[1] / pair[0]));
        Self { first, second, ratio, sum: pairs.iter().map(|pair| pair[0]).sum() }
    }

    /// Measures `repeat` pairs, and advances the bar after each. `measure` gets the number of the repetition.
    ///
    /// # Errors
    /// Fails like `measure`.
    pub fn measured(
        repeat: usize,
        bar: &ProgressBar,
        mut measure: impl FnMut(usize) -> Result<[f64; 2]>,
    ) -> Result<Self> {
        let pairs = (0..repeat).map(|number| measure(number).inspect(|_| bar.inc(1)));
        Ok(Self::of(&pairs.collect::<Result<Vec<_>>>()?))
    }
}
