//! Tracks the progress of a direct read. This has no I/O, so that pread and io_uring continue short reads by the same
//! rules.

use std::io;
use std::path::Path;

use crate::{DIRECT_ALIGN, IoError};

/// A read in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    offset: u64,
    needed: usize,
    /// The number of bytes to read: the whole buffer, or as much of it as the file had when it was opened.
    expected: usize,
    /// Number of bytes read so far.
    done: usize,
    ended: bool,
}

impl Progress {
    /// Starts a read of `len` bytes at `offset`, of which the first `needed` are required.
    pub(crate) fn new(len: usize, offset: u64, needed: usize, len_at_open: u64) -> Self {
        let left_in_file = usize::try_from(len_at_open.saturating_sub(offset)).unwrap_or(usize::MAX);
        Self { offset, needed, expected: left_in_file.max(needed).min(len), done: 0, ended: false }
    }

    /// Returns the offset in the buffer at which the next read begins, which is on a block; `None` if nothing is left
    /// to read.
    pub(crate) fn next(&self) -> Option<usize> {
        (!self.ended && self.done < self.expected).then_some(self.done / DIRECT_ALIGN * DIRECT_ALIGN)
    }

    /// Records that a read to offset `from` of the buffer returned `count` bytes. A read that adds no bytes has reached
    /// the end.
    pub(crate) fn advance(&mut self, from: usize, count: usize) {
        let total = from.saturating_add(count);
        self.ended = total <= self.done;
        self.done = self.done.max(total);
    }

    /// Returns the result of the read, once nothing is left to read.
    pub(crate) fn finish(&self, path: &Path, len_at_open: u64) -> Result<(), IoError> {
        if self.done >= self.needed {
            return Ok(());
        }
        let (path, offset, wanted, got) = (path.to_owned(), self.offset, self.needed, self.done);
        Err(IoError::Ended { path, offset, wanted, got, len_at_open })
    }

    /// Returns the error of the read, if the system failed.
    pub(crate) fn failed(&self, path: &Path, source: io::Error) -> IoError {
        let (path, offset, wanted, got) = (path.to_owned(), self.offset, self.needed, self.done);
        IoError::Read { path, offset, wanted, got, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = DIRECT_ALIGN;

    /// Simulates a file of `file_len` bytes that limits each read to the next of `answers`, and then returns full
    /// reads.
    fn play(len: usize, offset: u64, needed: usize, at_open: u64, file_len: u64, answers: &[usize]) -> (usize, usize) {
        let mut answers = answers.iter();
        let mut progress = Progress::new(len, offset, needed, at_open);
        let mut reads = 0;
        while let Some(from) = progress.next() {
            assert!(from.is_multiple_of(BLOCK) && from < len, "a read begins on a block inside the buffer: {from}");
            let left = usize::try_from(file_len.saturating_sub(offset + from as u64)).unwrap();
            progress.advance(from, left.min(len - from).min(answers.next().copied().unwrap_or(usize::MAX)));
            reads += 1;
            assert!(reads < 100, "{progress:?} does not come to an end");
        }
        assert_eq!(progress.finish(Path::new("f"), at_open).is_ok(), progress.done >= needed);
        (progress.done, reads)
    }

    #[test]
    fn short_reads_go_on_at_a_block() {
        let len = 4 * BLOCK;
        let long = 100 * BLOCK as u64;
        assert_eq!(play(len, 0, len, long, long, &[]), (len, 1));
        assert_eq!(play(len, 0, len, long, long, &[BLOCK, 2 * BLOCK]), (len, 3));
        // A partly read block is read again as a whole.
        assert_eq!(play(len, 0, len, long, long, &[BLOCK + 100, BLOCK + 1]), (len, 3));
        // The rest of the buffer is wanted too, though it is not needed.
        assert_eq!(play(len, 0, 10, long, long, &[100]), (len, 2));
        assert_eq!(play(0, 0, 0, long, long, &[]), (0, 0));
    }

    #[test]
    fn the_end_of_the_file_is_the_end_of_the_read() {
        let len = 4 * BLOCK;
        let file = 2 * BLOCK as u64 + 10;
        // The tail is short, and no second read checks whether there is more.
        assert_eq!(play(len, 0, 2 * BLOCK + 10, file, file, &[]), (2 * BLOCK + 10, 1));
        assert_eq!(play(len, BLOCK as u64, 1, file, file, &[]), (BLOCK + 10, 1));
        // More bytes are needed than the file has, by the caller's mistake or because the file shrank.
        assert_eq!(play(len, 0, 3 * BLOCK, file, file, &[]), (2 * BLOCK + 10, 2));
        assert_eq!(play(len, 0, len, 9 * file, file, &[]), (2 * BLOCK + 10, 2));
        assert_eq!(play(len, 0, len, 9 * file, 0, &[]), (0, 1));
        assert_eq!(play(len, 9 * file / BLOCK as u64 * BLOCK as u64, 1, file, file, &[]), (0, 1));
    }
}
