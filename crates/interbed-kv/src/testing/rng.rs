//! A small seeded generator (splitmix64), so that every run can be replayed.

/// The state of the generator, which is initially the seed.
#[derive(Debug, Default)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number that is uniform in `0..end` (for the small ends used here).
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true with probability 1 in `of`.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// Mixes all bits of `value`, so that each bit of the result depends on every bit of `value`.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
