//! Remembers why contents are no longer there, to explain why a look-up missed.
//!
//! There are two tables of fixed size. The hash chooses the place of an entry, and a later entry overwrites an earlier
//! one. These tables only explain misses; they are never taken for data.

use crate::{hash::BlockHash, ids::SequenceId};

/// Minimum number of entries for lost contents, 16 bytes each. Larger pools have an entry for every four blocks, which
/// is 4 bytes a block.
const LOST_MIN: usize = 4096;
const FIRSTS: usize = 1024;

/// The reason why a content was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The content was evicted because this sequence needed the block.
    Evicted(SequenceId),
    /// The content was evicted or forgotten for no sequence in particular: because the pool became smaller, for a move
    /// or a promise, or because no hit could use the content.
    Withdrawn,
    /// The content was dropped by [`crate::BlockManager::reset_cache`].
    Reset,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lost {
    /// Half of the hash that does not choose the place.
    fingerprint: u32,
    /// Number of look-ups before the loss, in 32 bits; 0 marks an empty entry.
    when: u32,
    /// Encoded [`Loss`].
    what: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct First {
    tokens: u32,
    root: u32,
}

/// Remembers why contents were lost, and under which root the first block of a chain was published last.
#[derive(Debug)]
pub(crate) struct Losses {
    lookups: u32,
    lost: Box<[Lost]>,    // [lower half of the hash, scaled to the length]
    firsts: Box<[First]>, // [hash modulo length]
}

impl Losses {
    const WITHDRAWN: u64 = u64::MAX;
    const RESET: u64 = u64::MAX - 1;

    pub(crate) fn new(num_blocks: usize) -> Self {
        let num_lost = (num_blocks / 4).max(LOST_MIN);
        Self { lookups: 1, lost: vec![Lost::default(); num_lost].into(), firsts: vec![First::default(); FIRSTS].into() }
    }

    /// Counts one more look-up, since ages of losses are counted in look-ups.
    pub(crate) fn tick(&mut self) {
        // Zero marks empty entries.
        self.lookups = self.lookups.wrapping_add(1).max(1);
    }

    pub(crate) fn lose(&mut self, hash: BlockHash, loss: Loss) {
        let what = match loss {
            Loss::Evicted(id) => id.0,
            Loss::Withdrawn => Self::WITHDRAWN,
            Loss::Reset => Self::RESET,
        };
        let place = self.place(hash);
        self.lost[place] = Lost { fingerprint: (hash.0 >> 32) as u32, when: self.lookups, what };
    }

    /// Returns what happened to the content of `hash`, and how many look-ups ago, if that is remembered.
    pub(crate) fn loss(&self, hash: BlockHash) -> Option<(Loss, u32)> {
        let lost = self.lost[self.place(hash)];
        if lost.when == 0 || lost.fingerprint != (hash.0 >> 32) as u32 {
            return None;
        }
        let loss = match lost.what {
            Self::WITHDRAWN => Loss::Withdrawn,
            Self::RESET => Loss::Reset,
            id => Loss::Evicted(SequenceId(id)),
        };
        Some((loss, self.lookups.wrapping_sub(lost.when)))
    }

    fn place(&self, hash: BlockHash) -> usize {
        ((u64::from(hash.0 as u32) * self.lost.len() as u64) >> 32) as usize
    }

    /// Notes that the first block of a chain was published. `tokens` is the hash of the block's tokens alone, and
    /// `root` is the hash of the chain's root.
    pub(crate) fn note_first(&mut self, tokens: BlockHash, root: BlockHash) {
        self.firsts[tokens.0 as usize & (FIRSTS - 1)] = First { tokens: fold(tokens), root: fold(root) };
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.lost) + size_of_val(&*self.firsts)
    }

    /// Returns whether a first block with these tokens was last published under another root.
    pub(crate) fn other_root(&self, tokens: BlockHash, root: BlockHash) -> bool {
        let first = self.firsts[tokens.0 as usize & (FIRSTS - 1)];
        first.tokens == fold(tokens) && first.root != fold(root)
    }
}

/// Returns a fingerprint of 32 bits, which is never 0, because 0 marks empty entries.
fn fold(hash: BlockHash) -> u32 {
    ((hash.0 >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_loss_of_a_place_is_remembered_with_its_age() {
        let mut losses = Losses::new(1);
        // The lower half chooses the place; close values share one.
        let [first, second] = [BlockHash(5 << 32 | 7), BlockHash(6 << 32 | 8)];
        assert_eq!(losses.loss(first), None);
        losses.lose(first, Loss::Evicted(SequenceId(3)));
        losses.tick();
        losses.tick();
        assert_eq!(losses.loss(first), Some((Loss::Evicted(SequenceId(3)), 2)));
        assert_eq!(losses.loss(second), None);
        losses.lose(second, Loss::Reset);
        assert_eq!((losses.loss(first), losses.loss(second)), (None, Some((Loss::Reset, 0))));
        losses.lose(first, Loss::Withdrawn);
        assert_eq!(losses.loss(first), Some((Loss::Withdrawn, 0)));
    }

    #[test]
    fn an_age_is_right_when_the_clock_wraps() {
        let mut losses = Losses::new(1);
        losses.lookups = u32::MAX;
        losses.lose(BlockHash(1), Loss::Reset);
        losses.tick();
        // Zero is skipped, which counts as one look-up too many.
        assert_eq!((losses.lookups, losses.loss(BlockHash(1))), (1, Some((Loss::Reset, 2))));
    }

    #[test]
    fn a_first_block_is_known_under_its_latest_root() {
        let mut losses = Losses::new(1);
        let [tokens, alice, bob] = [7, 1 << 40, 2 << 40].map(BlockHash);
        assert!(!losses.other_root(tokens, alice));
        losses.note_first(tokens, alice);
        assert!(!losses.other_root(tokens, alice) && losses.other_root(tokens, bob));
        losses.note_first(tokens, bob);
        assert!(losses.other_root(tokens, alice) && !losses.other_root(tokens, bob));
    }
}
