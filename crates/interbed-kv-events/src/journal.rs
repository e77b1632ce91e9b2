//! Keeps the last batches for subscribers that have missed some.

use std::collections::VecDeque;
use std::sync::Arc;

/// The most batches that are kept.
const BATCHES_MAX: usize = 10_000;
/// The most bytes of batches that are kept.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// A batch and its number. Numbers count from 0 without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) batch: Arc<[u8]>,
}

/// The last batches, by number.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    batches: VecDeque<Numbered>,
    bytes: usize,
    next: u64,
}

impl Journal {
    /// Gives `batch` the next number, and drops the oldest batches if there are too many. Returns the number.
    pub(crate) fn append(&mut self, batch: Vec<u8>) -> u64 {
        let numbered = Numbered { number: self.next, batch: batch.into() };
        self.next += 1;
        self.bytes += numbered.batch.len();
        self.batches.push_back(numbered);
        while self.batches.len() > BATCHES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.bytes -= oldest.batch.len();
        }
        self.next - 1
    }

    /// Returns the first kept batch whose number is `number` or more.
    pub(crate) fn from(&self, number: u64) -> Option<Numbered> {
        let first = self.batches.front()?.number;
        let index = usize::try_from(number.saturating_sub(first)).ok()?;
        self.batches.get(index).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batches_are_kept_and_numbered() {
        let mut journal = Journal::default();
        assert_eq!(journal.from(0), None);
        for number in 0..BATCHES_MAX as u64 + 5 {
            assert_eq!(journal.append(number.to_le_bytes().to_vec()), number);
        }
        // The oldest are gone: what comes next is told instead.
        assert_eq!(journal.from(0).unwrap().number, 5);
        assert_eq!(*journal.from(7).unwrap().batch, 7u64.to_le_bytes());
        assert_eq!(journal.from(BATCHES_MAX as u64 + 5), None);
        assert_eq!(journal.from(u64::MAX), None);
    }

    #[test]
    fn many_bytes_are_fewer_batches() {
        let mut journal = Journal::default();
        (0..100).for_each(|_| assert!(journal.append(vec![0; 1 << 20]) < 100));
        assert_eq!(journal.from(0).unwrap().number, 84);
        journal.append(vec![0; BYTES_MAX + 1]);
        assert_eq!((journal.from(0), journal.bytes), (None, 0));
        assert_eq!(journal.append(vec![1]), 101);
        assert_eq!(journal.from(0).unwrap().number, 101);
    }
}
