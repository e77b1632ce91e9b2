//! What is remembered of content: how often it was found, and how soon again.

/// Steps of a count, in powers of two: 0, 1, 2, to 4, to 8, to 16, to 64, more.
const LEVELS: usize = 8;
/// Levels of the time between uses, an octave each.
const GAPS: usize = 8;
/// How sure the time between uses is: known once, two or three times, more often.
const CERTAINTIES: usize = 3;
/// Contents of one class are expected to be used again alike.
pub(super) const CLASSES: usize = 2 * LEVELS + CERTAINTIES * GAPS;
/// Classes of one group resemble each other more than those of others.
pub(super) const GROUPS: usize = 1 + CERTAINTIES;

/// Fits two bytes, since one is kept for every block and every sampled content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Past {
    /// Below twice `LEVELS`: never found; twice the level of what comes before it, and whether it ended its chain.
    /// From there on: how often it was found.
    kind: u8,
    /// Eight times the logarithm of the mean time between uses.
    gap: u8,
}

const FOUND: u8 = 2 * LEVELS as u8 - 1;

impl Past {
    /// Of content that nobody has found yet and that continues `parent`: a chain that has been continued often is likely
    /// to be continued again.
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

    /// The same, let go of as the last of its chain: where a prompt ends, another seldom goes on in the same way.
    pub(super) fn at_the_end(self) -> Self {
        if self.is_fresh() { Self { kind: self.kind | 1, ..self } } else { self }
    }

    /// Once it is used again after `age`.
    pub(super) fn used_after(self, age: u32) -> Self {
        let gap = log2_in_eighths(age);
        match self.is_fresh() {
            true => Self { kind: FOUND + 1, gap },
            false => Self { kind: self.kind.saturating_add(1), gap: self.gap.midpoint(gap) },
        }
    }

    /// In a pool of `num_blocks`.
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
