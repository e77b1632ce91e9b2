//! How many blocks running sequences will want before they end: whoever is admitted beside them should find room to
//! grow, or somebody will be preempted for it. A planner: it learns from what has ended.

/// Tokens that a request is taken to generate before any has ended.
const FIRST_GUESS: f64 = 128.0;

/// Share of the newest in the running mean of generated tokens.
const NEWNESS: f64 = 0.1;

/// Share of the mean for which sequences are taken to go on that have generated more than that. On loads of
/// conversations, half of it admits too few, and a tenth too many.
const OUTLIVED: f64 = 0.25;

/// One sequence that grows by a token in each step until it ends, and gives its blocks back then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Tokens still to come.
    pub(crate) tokens_left: usize,
    /// Slots that its last block still has.
    pub(crate) slots_empty: usize,
    /// Blocks that are free once it has ended.
    pub(crate) blocks_held: usize,
}

/// Guesses how much sequences will still generate.
#[derive(Debug)]
pub(crate) struct Forecast {
    generated_mean: f64,
}

impl Default for Forecast {
    fn default() -> Self {
        Self { generated_mean: FIRST_GUESS }
    }
}

impl Forecast {
    /// A sequence has ended after generating so many tokens.
    pub(crate) fn ended(&mut self, generated: usize) {
        self.generated_mean += (generated as f64 - self.generated_mean) * NEWNESS;
    }

    /// Tokens that a sequence will still generate, which has generated so many and may generate `left_max` more. Those
    /// that have outlived the mean go on for a part of it: the longer something has lasted, the longer it will.
    pub(crate) fn tokens_left(&self, generated: usize, left_max: usize) -> usize {
        let left = (self.generated_mean - generated as f64).max(self.generated_mean * OUTLIVED);
        left_max.min(left.ceil() as usize)
    }
}

/// The most blocks that `sequences` will hold together beyond those that they hold now. Sorts them.
pub(crate) fn blocks_wanted(sequences: &mut [Growth], block_size: usize) -> usize {
    sequences.sort_unstable_by_key(|growth| growth.tokens_left);
    let mut slots_empty: usize = sequences.iter().map(|growth| growth.slots_empty).sum();
    let (mut given_back, mut most) = (0, 0);
    for (index, growth) in sequences.iter().enumerate() {
        // Just before this one ends it and all that end later have grown by as many tokens.
        let growing = sequences.len() - index;
        let tokens = growing.saturating_mul(growth.tokens_left).saturating_sub(slots_empty);
        // Each has begun a block which it has not filled: half of one on average.
        let begun = if growth.tokens_left > 0 { growing * (block_size - 1) / 2 } else { 0 };
        let grown = tokens.saturating_add(begun).div_ceil(block_size);
        most = most.max(grown.saturating_sub(given_back));
        slots_empty -= growth.slots_empty;
        // What it has grown by is not counted any more either.
        given_back += growth.blocks_held;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(sequences: &[(usize, usize, usize)], block_size: usize) -> usize {
        let growth = |&(tokens_left, slots_empty, blocks_held)| Growth { tokens_left, slots_empty, blocks_held };
        blocks_wanted(&mut sequences.iter().map(growth).collect::<Vec<_>>(), block_size)
    }

    #[test]
    fn the_worst_moment_counts() {
        assert_eq!(wanted(&[], 1), 0);
        assert_eq!(wanted(&[(0, 0, 9)], 1), 0);
        assert_eq!(wanted(&[(10, 0, 5)], 1), 10);
        assert_eq!(wanted(&[(10, 0, 5), (10, 0, 5)], 1), 20);
        // At 4, both have grown by 4; the second then finds what the first held, and needs no more.
        assert_eq!(wanted(&[(4, 0, 5), (10, 0, 5)], 1), 8);
        // Unless that was too little.
        assert_eq!(wanted(&[(4, 0, 1), (20, 0, 5)], 1), 19);
        assert_eq!(wanted(&[(20, 0, 5), (4, 0, 1)], 1), 19);
    }

    #[test]
    fn slots_that_are_there_are_filled_first() {
        assert_eq!(wanted(&[(4, 4, 1)], 16), 1, "where exactly a block ends is not looked at");
        assert_eq!(wanted(&[(32, 0, 1)], 16), 3);
        assert_eq!(wanted(&[(usize::MAX, 3, 1), (usize::MAX, 0, 1)], 16), usize::MAX.div_ceil(16));
    }

    #[test]
    fn what_has_ended_says_what_will() {
        let mut forecast = Forecast::default();
        assert_eq!((forecast.tokens_left(0, 20), forecast.tokens_left(0, 1000)), (20, 128));
        for _ in 0..100 {
            forecast.ended(10);
        }
        assert_eq!(forecast.tokens_left(0, 1000), 11);
        assert_eq!(forecast.tokens_left(400, 1000), 3);
        assert_eq!(forecast.tokens_left(400, 0), 0);
    }
}
