//! A small seeded generator (splitmix64), so that every run can be replayed.

#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number that is uniform in `0..end` (for the small ends used here).
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a number that is uniform in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// Returns true once in `of` times.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}
