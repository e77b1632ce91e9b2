//! Whole spans of sixteen rows, for kernels that read as many whatever there is.

use super::formats::Format;
use super::header::{ROWS, SPAN_BLOCKS};
use super::product::Job;

/// Bytes of a span of the largest type, which is Q8_0.
const MAX_BYTES: usize = SPAN_BLOCKS * 34;

/// Where the spans of sixteen rows lie: one behind the other, each as far behind the one before.
#[derive(Clone, Copy)]
pub(super) struct Spans {
    first: *const u8,
    stride: usize,
}

impl Spans {
    /// Span `span` of the rows from `first` on, in place; or a copy in `ragged`, if they are fewer than sixteen, which the
    /// last one makes up for, or the span is not whole, which zeros make up for.
    #[inline(always)]
    pub fn of<F: Format>(job: &Job<'_>, first: usize, span: usize, ragged: &mut Ragged) -> Self {
        let whole = (span + 1) * F::SPAN_BYTES <= job.row_bytes;
        if whole && first + ROWS <= job.end {
            return Self { first: job.span::<F>(first, span).as_ptr(), stride: job.row_bytes };
        }
        ragged.copy::<F>(job, first, span)
    }

    /// Spans of which each begins so many bytes behind the one before.
    #[cfg(test)]
    pub fn every(stride: usize, bytes: &[u8]) -> Self {
        Self { first: bytes.as_ptr(), stride }
    }

    /// The span of row `row`.
    #[inline(always)]
    pub fn row(self, row: usize) -> *const u8 {
        self.first.wrapping_add(row * self.stride)
    }

    /// Those of the four rows from row `row` on.
    #[inline(always)]
    pub fn from(self, row: usize) -> Self {
        Self { first: self.row(row), ..self }
    }

    /// Those of every fourth row from row `row` on.
    #[inline(always)]
    pub fn fourth(self, row: usize) -> [*const u8; 4] {
        [self.row(row), self.row(row + 4), self.row(row + 8), self.row(row + 12)]
    }
}

/// Copies of spans that are not sixteen or not whole.
pub(super) struct Ragged([[u8; MAX_BYTES]; ROWS]);

impl Ragged {
    pub const NEW: Self = Self([[0; MAX_BYTES]; ROWS]);

    /// Apart, so that the code around what is common stays small.
    #[cold]
    #[inline(never)]
    fn copy<F: Format>(&mut self, job: &Job<'_>, first: usize, span: usize) -> Spans {
        for (row, to) in self.0.iter_mut().enumerate() {
            let from = job.span::<F>((first + row).min(job.end - 1), span);
            let (to, rest) = to[..F::SPAN_BYTES].split_at_mut(from.len());
            to.copy_from_slice(from);
            rest.fill(0);
        }
        Spans { first: self.0.as_ptr().cast(), stride: MAX_BYTES }
    }
}
