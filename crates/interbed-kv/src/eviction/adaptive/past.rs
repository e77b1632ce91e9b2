//! Remembers how often a content was found, and at what intervals.

/// Number of levels of a count, which are roughly powers of two: 0, 1, 2, to 4, to 8, to 16, to 64, more.
const LEVELS: usize = 8;
/// Number of levels of the time between uses, one octave each.
const GAPS: usize = 8;
/// Number of levels of certainty of the time between uses: seen once, two or three times, or more often.
const CERTAINTIES: usize = 3;
/// Number of classes. Contents of one class are expected to be used again at the same rates.
pub(super) const CLASSES: usize = 2 * LEVELS + CERTAINTIES * GAPS;
/// Number of groups of classes. Classes of one group resemble each other more than classes of other groups.
pub(super) const GROUPS: usize = 1 + CERTAINTIES;

/// Past of a content. A past takes two bytes, since one is kept for every block and every sampled content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Past {
    /// Number of times that the content was found, plus `FOUND`. If the content was never found, this is at most
    /// `FOUND`: twice the level of the content before it in its chain, plus 1 if it ended its chain.
    kind: u8,
    /// Eight times the binary logarithm of the mean time between uses.
    gap: u8,
}

const FOUND: u8 = 2 * LEVELS as u8 - 1;

impl Past {
    /// Returns the past of a content that was never found and that continues `parent`. A chain that has been continued
    /// often is likely to be continued again.
    pub(super) fn fresh(parent: Option<Self>) -> Self {
        let level = match parent {
            None => 0,
            Some(parent) if parent.is_fresh() => parent.kind / 2,
            Some(parent) => level(parent.kind - FOUND),
        };
        Self { kind: 2 * level, gap: 0 }
    }

    pub(super) fn is_fresh(self) -> bool {
        self.kind <= FOUND
    }

    /// Returns this past for a content that was released as the last of its chain. Where a prompt ends, another seldom
    /// continues in the same way.
    pub(super) fn at_the_end(self) -> Self {
        if self.is_fresh() { Self { kind: self.kind | 1, ..self } } else { self }
    }

    /// Returns this past after one more use, `age` uses of blocks after the last.
    pub(super) fn used_after(self, age: u32) -> Self {
        let gap = log2_in_eighths(age);
        match self.is_fresh() {
            true => Self { kind: FOUND + 1, gap },
            // The plain mean up to the fourth interval; from then on each new one has a weight of a quarter.
            false => {
                let weight = u16::from(self.kind - FOUND + 1).min(4);
                let mean = (u16::from(self.gap) * (weight - 1) + u16::from(gap) + weight / 2) / weight;
                Self { kind: self.kind.saturating_add(1), gap: mean as u8 }
            }
        }
    }

    /// Returns the class of this past in a pool of `num_blocks` blocks.
    pub(super) fn class(self, num_blocks: u32) -> usize {
        if self.is_fresh() {
            return self.kind.into();
        }
        let certainty = match self.kind - FOUND {
            1 => 0,
            2..=3 => 1,
            _ => 2,
        };
        let gap = self.gap.saturating_sub(log2_in_eighths(num_blocks / 16)) / 8;
        2 * LEVELS + certainty * GAPS + usize::from(gap).min(GAPS - 1)
    }
}

pub(super) fn group(class: usize) -> usize {
    class.checked_sub(2 * LEVELS).map_or(0, |found| 1 + found / GAPS)
}

fn level(count: u8) -> u8 {
    match count {
        0..=2 => count,
        3..=4 => 3,
        5..=8 => 4,
        9..=16 => 5,
        17..=64 => 6,
        65.. => 7,
    }
}

fn log2_in_eighths(age: u32) -> u8 {
    (((age.max(1) as f32).to_bits() - 1f32.to_bits()) >> 20).min(u8::MAX.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_past_has_a_class_and_a_group() {
        let mut seen = [false; CLASSES];
        for age in (0..32).map(|bit| 1u32 << bit) {
            let mut past = Past::fresh(None);
            for _ in 0..300 {
                let fresh = Past::fresh(Some(past));
                for past in [past, past.at_the_end(), fresh, fresh.at_the_end()] {
                    let class = past.class(1000);
                    seen[class] = true;
                    assert!(group(class) < GROUPS);
                }
                past = past.used_after(age);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn steady_gaps_are_kept_and_changed_ones_followed() {
        let steady = |age: u32, times: usize, from: Past| (0..times).fold(from, |past, _| past.used_after(age));
        let slow = steady(5000, 9, Past::fresh(None));
        assert_eq!(slow.gap, log2_in_eighths(5000));
        let fast = steady(50, 20, slow);
        assert!(fast.gap.abs_diff(log2_in_eighths(50)) <= 2, "{}", fast.gap);
    }
}
