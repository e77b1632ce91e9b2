//! A set of positions in the order that finds the nearest member before a given position.

/// Set of positions below a fixed bound, as a tree of 64-bit words. Each operation takes a step or two per level, and
/// none allocates. 100,000 positions take three levels.
#[derive(Debug)]
pub(super) struct PositionSet {
    /// Levels of the tree. `levels[0]` has a bit for each position. Every further level has a bit for each word of the
    /// level below, which is set if that word is not 0.
    levels: Vec<Vec<u64>>,
}

impl PositionSet {
    pub fn new(num_positions: usize) -> Self {
        let mut levels = vec![vec![0; num_positions.div_ceil(64).max(1)]];
        while let Some(words) = levels.last().map(Vec::len).filter(|&words| words > 1) {
            levels.push(vec![0; words.div_ceil(64)]);
        }
        Self { levels }
    }

    pub fn contains(&self, position: usize) -> bool {
        self.levels[0][position / 64] >> (position % 64) & 1 == 1
    }

    pub fn insert(&mut self, mut position: usize) {
        for level in &mut self.levels {
            level[position / 64] |= 1 << (position % 64);
            position /= 64;
        }
    }

    pub fn remove(&mut self, mut position: usize) {
        for level in &mut self.levels {
            level[position / 64] &= !(1 << (position % 64));
            if level[position / 64] != 0 {
                return;
            }
            position /= 64;
        }
    }

    /// Returns the nearest member before `position` in the cyclic order, where the last position comes before the
    /// first. A pass at `position` needs this member later than all other members. Returns `position` itself only if
    /// there is no other member, and `None` if the set is empty.
    pub fn last_before(&self, position: usize) -> Option<usize> {
        self.below(position).or_else(|| self.largest())
    }

    /// Returns the largest member below `bound`.
    fn below(&self, bound: usize) -> Option<usize> {
        let mut end = bound;
        for (height, level) in self.levels.iter().enumerate() {
            let within = end % 64;
            let word = level.get(end / 64).map_or(0, |word| word & ((1 << within) - 1));
            if word != 0 {
                let found = end / 64 * 64 + 63 - word.leading_zeros() as usize;
                return Some(self.largest_under(height, found));
            }
            end /= 64;
        }
        None
    }

    fn largest(&self) -> Option<usize> {
        let top = self.levels.len() - 1;
        let word = self.levels[top][0];
        (word != 0).then(|| self.largest_under(top, 63 - word.leading_zeros() as usize))
    }

    /// Returns the largest member in the subtree of bit `bit` of the level at `height`; the bit must be set.
    fn largest_under(&self, height: usize, bit: usize) -> usize {
        self.levels[..height].iter().rev().fold(bit, |bit, level| bit * 64 + 63 - level[bit].leading_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::PositionSet;

    proptest! {
        #[test]
        fn it_behaves_as_an_ordered_set(
            bound in prop::sample::select(vec![1_usize, 63, 64, 65, 4_096, 4_097, 300_000]),
            operations in prop::collection::vec((any::<bool>(), any::<u32>(), any::<u32>()), 0..200),
        ) {
            let mut set = PositionSet::new(bound);
            let mut model = BTreeSet::new();
            for (add, position, from) in operations {
                // Half of the positions lie close together, so that removals hit members.
                let position = position as usize % if position % 2 == 0 { bound } else { bound.min(70) };
                let from = from as usize % bound;
                if add {
                    set.insert(position);
                    model.insert(position);
                } else {
                    set.remove(position);
                    model.remove(&position);
                }
                prop_assert_eq!(set.contains(position), add);
                let expected = model.range(..from).next_back().or_else(|| model.iter().next_back()).copied();
                prop_assert_eq!(set.last_before(from), expected);
            }
        }
    }
}
