//! Finds the blocks of least worth among those offered.

/// Maximum number of blocks that are kept.
const LEAST_MAX: usize = 16;

/// A few distinct blocks, ordered by worth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Least {
    entries: [(f32, u32); LEAST_MAX],
    len: usize,
}

impl Least {
    pub(super) fn new() -> Self {
        Self { entries: [(0.0, 0); LEAST_MAX], len: 0 }
    }

    /// Adds `block`, unless it is already kept, or the list is full of blocks that are worth no more.
    pub(super) fn offer(&mut self, worth: f32, block: u32) {
        let full = self.len == LEAST_MAX;
        if full && worth >= self.entries[LEAST_MAX - 1].0 || self.blocks().any(|other| other == block) {
            return;
        }
        let mut at = if full { LEAST_MAX - 1 } else { self.len };
        while at > 0 && worth < self.entries[at - 1].0 {
            self.entries[at] = self.entries[at - 1];
            at -= 1;
        }
        self.entries[at] = (worth, block);
        self.len = (self.len + 1).min(LEAST_MAX);
    }

    /// Returns the block of this rank and its worth; rank 0 is the block of least worth.
    pub(super) fn get(&self, rank: usize) -> Option<(f32, u32)> {
        self.entries[..self.len].get(rank).copied()
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.entries[..self.len].iter().map(|&(_, block)| block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_are_kept_in_order() {
        let mut least = Least::new();
        for number in (0..100).chain(0..100) {
            least.offer((number * 37 % 100) as f32, number);
        }
        assert!((0..LEAST_MAX).all(|rank| least.get(rank).is_some_and(|(worth, _)| worth == rank as f32)));
        assert_eq!(least.get(LEAST_MAX), None);
    }
}
