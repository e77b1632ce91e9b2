//! Estimates how many blocks running sequences will want before they end. A sequence that is admitted beside them
//! should find room to grow; otherwise a sequence will be preempted. The estimate learns from sequences that have
//! ended.

/// The number of tokens that a request is expected to generate before any request has ended.
const FIRST_GUESS: f64 = 128.0;

/// The weight of the newest sequence in the running mean of generated tokens.
const NEWNESS: f64 = 0.1;

/// The share of the mean that a sequence is expected to generate once more when it has generated about the mean or
/// more. On loads of conversations, a share of 0.5 admits too few sequences, and 0.1 admits too many.
const OUTLIVED: f64 = 0.25;

/// The growth of one sequence, which adds a token in each step until it ends and then gives its blocks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Growth {
    /// The number of tokens still to come.
    pub(crate) tokens_left: usize,
    /// The number of empty slots in the sequence's last block.
    pub(crate) slots_empty: usize,
    /// The number of blocks that the sequence holds now, which are free once it has ended.
    pub(crate) blocks_held: usize,
}

/// Estimates how many more tokens sequences will generate.
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
    /// Records that a sequence ended after it had generated `generated` tokens.
    pub(crate) fn ended(&mut self, generated: usize) {
        self.generated_mean += (generated as f64 - self.generated_mean) * NEWNESS;
    }

    /// Returns the expected number of tokens still to come of a sequence that has generated `generated` tokens and may
    /// generate `left_max` more. A sequence that has generated about the mean or more is expected to generate a fixed
    /// share of the mean.
    pub(crate) fn tokens_left(&self, generated: usize, left_max: usize) -> usize {
        let left = (self.generated_mean - generated as f64).max(self.generated_mean * OUTLIVED);
        left_max.min(left.ceil() as usize)
    }
}

/// Returns the largest number of blocks that `sequences` will hold together, beyond what they hold now. Sorts
/// `sequences`.
pub(crate) fn blocks_wanted(sequences: &mut [Growth], block_size: usize) -> usize {
    sequences.sort_unstable_by_key(|growth| growth.tokens_left);
    let mut slots_empty: usize = sequences.iter().map(|growth| growth.slots_empty).sum();
    let (mut given_back, mut most) = (0, 0);
    for (index, growth) in sequences.iter().enumerate() {
        // Just before this sequence ends, the sequence and all that end later have grown by the same number of tokens.
        let growing = sequences.len() - index;
        let tokens = growing.saturating_mul(growth.tokens_left).saturating_sub(slots_empty);
        // Each growing sequence has begun a block that it has not filled; on average, half of that block is empty.
        let begun = if growth.tokens_left > 0 { growing * (block_size - 1) / 2 } else { 0 };
        let grown = tokens.saturating_add(begun).div_ceil(block_size);
        most = most.max(grown.saturating_sub(given_back));
        slots_empty -= growth.slots_empty;
        // The blocks by which the ended sequence has grown are not counted any more either.
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
        // This does not hold if the first sequence held too little.
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
