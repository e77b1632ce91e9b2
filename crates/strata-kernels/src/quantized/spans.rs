//! Whole spans of sixteen rows, for kernels that read as many whatever there is.

use std::arch::x86_64::*;

use super::formats::{Format, Q8_0};
use super::header::ROWS;
use super::job::Job;

/// Bytes of a span of the largest type.
const MAX_BYTES: usize = Q8_0::SPAN_BYTES;

/// Where the spans of sixteen rows lie, or of those of them from some row on: each as far behind the one before.
/// Readable as long as the weights are, and until the next ones are made with the same [`Ragged`].
#[derive(Clone, Copy)]
pub(super) struct Spans {
    first: *const u8,
    stride: usize,
}

impl Spans {
    /// Span `span` of the rows from `first` on, in place; or a copy in `ragged`, if they are fewer than sixteen, which
    /// the last one makes up for, or the span is not whole, which zeros make up for.
    #[inline(always)]
    pub fn of<F: Format>(job: &Job<'_>, first: usize, span: usize, ragged: &mut Ragged) -> Self {
        let whole = (span + 1) * F::SPAN_BYTES <= job.row_bytes;
        if whole && first + ROWS <= job.end {
            let at = first * job.row_bytes + span * F::SPAN_BYTES;
            return Self { first: job.w[at..].as_ptr(), stride: job.row_bytes };
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

    /// Those of the rows from row `row` on.
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

    /// Copies span `span` of sixteen rows from `first` on, of the last one instead of those that there are not, with
    /// zeros up to a whole span. Apart, so that the code around what is common stays small.
    #[inline(never)]
    fn copy<F: Format>(&mut self, job: &Job<'_>, first: usize, span: usize) -> Spans {
        const { assert!(F::SPAN_BYTES <= MAX_BYTES) };
        for (row, to) in self.0.iter_mut().enumerate() {
            let from = job.span::<F>((first + row).min(job.end - 1), span);
            let (to, rest) = to[..F::SPAN_BYTES].split_at_mut(from.len());
            to.copy_from_slice(from);
            rest.fill(0);
        }
        Spans { first: self.0.as_ptr().cast(), stride: MAX_BYTES }
    }
}

/// 16 bytes of each of four spans, from `at` on.
///
/// # Safety
/// They are readable; AVX-512 F exists.
#[inline(always)]
pub(super) unsafe fn load4(spans: [*const u8; 4], at: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let part = |span: usize| _mm_loadu_si128(spans[span].add(at).cast());
        let all = _mm512_castsi128_si512(part(0));
        let all = _mm512_inserti32x4::<1>(all, part(1));
        let all = _mm512_inserti32x4::<2>(all, part(2));
        _mm512_inserti32x4::<3>(all, part(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::Columns;
    use crate::quantized::activations::{Activations, Layout};
    use crate::quantized::formats::Q4_0;

    #[test]
    fn spans_are_whole_and_sixteen_in_place_or_as_copies() {
        const BYTES: usize = Q4_0::SPAN_BYTES;
        // Twenty rows of a span and three blocks; a thread's share ends before the last one.
        let row_bytes = BYTES + 3 * Q4_0::BYTES;
        let (rows, end) = (20, 19);
        let weights: Vec<u8> = (0..rows * row_bytes).map(|i| (i % 251) as u8 + 1).collect();
        let x = Activations { layout: Layout::Rows, tokens: 0, blocks: 11, codes: &[], scales: &[], sums: &[] };
        let out = Columns::new(&mut [], rows).output();
        let job = Job { x, w: &weights, row_bytes, first: 0, end, out };
        let mut ragged = Ragged([[0xff; MAX_BYTES]; ROWS]);
        // In this order, what was copied before is longer.
        for (first, span, in_place) in
            [(0, 0, true), (3, 0, true), (4, 0, false), (18, 0, false), (0, 1, false), (18, 1, false)]
        {
            let spans = Spans::of::<Q4_0>(&job, first, span, &mut ragged);
            assert_eq!(weights.as_ptr_range().contains(&spans.row(0)), in_place, "row {first}, span {span}");
            for row in 0..ROWS {
                // SAFETY: the spans are whole.
                let got = unsafe { std::slice::from_raw_parts(spans.row(row), BYTES) };
                let mut want = job.span::<Q4_0>((first + row).min(end - 1), span).to_vec();
                want.resize(BYTES, 0);
                assert_eq!(got, want, "row {row} from {first} on, span {span}");
            }
        }
        let spans = Spans::of::<Q4_0>(&job, 3, 0, &mut ragged);
        assert_eq!(spans.fourth(1), [1, 5, 9, 13].map(|row| spans.row(row)));
        assert_eq!(spans.from(4).row(2), spans.row(6));
    }
}
