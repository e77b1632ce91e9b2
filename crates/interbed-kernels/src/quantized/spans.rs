//! Provides whole spans of sixteen rows, for kernels that always read that many.

use std::arch::x86_64::__m512i;
use std::marker::PhantomData;

use super::formats::{Format, Q8_0};
use super::header::ROWS;
use super::job::ProductRows;
use crate::simd::{Avx512, load128};

/// The number of bytes of a span of the largest type.
const MAX_BYTES: usize = Q8_0::SPAN_BYTES;

/// The spans of sixteen rows, at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Spans<'a, F> {
    first: *const u8,
    stride: usize,
    spans: PhantomData<Span<'a, F>>,
}

/// The spans of four consecutive rows.
#[derive(Clone, Copy)]
pub(super) struct Quad<'a, F> {
    first: *const u8,
    stride: usize,
    spans: PhantomData<Span<'a, F>>,
}

/// A whole span of one row: [`Format::SPAN_BYTES`] readable bytes.
#[derive(Clone, Copy)]
pub(super) struct Span<'a, F> {
    at: *const u8,
    bytes: PhantomData<(&'a [u8], F)>,
}

/// A block of the type: [`Format::BYTES`] readable bytes.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, F> {
    at: *const u8,
    bytes: PhantomData<(&'a [u8], F)>,
}

impl<'a, F: Format> Spans<'a, F> {
    /// Returns span `span` of sixteen rows from row `first` on, in place. If there are fewer than sixteen rows, or the
    /// span is partial, returns a copy in `ragged`. In the copy, the last row is repeated and a partial span is padded
    /// with zeros.
    #[inline(always)]
    pub fn of(job: &ProductRows<'a>, first: usize, span: usize, ragged: &'a mut Ragged) -> Self {
        let whole = (span + 1) * F::SPAN_BYTES <= job.row_bytes;
        if whole && first + ROWS <= job.end {
            let at = first * job.row_bytes + span * F::SPAN_BYTES;
            // The bytes of all sixteen rows, up to the end of the last one's span.
            let bytes = &job.w[at..][..(ROWS - 1) * job.row_bytes + F::SPAN_BYTES];
            return Self { first: bytes.as_ptr(), stride: job.row_bytes, spans: PhantomData };
        }
        ragged.copy::<F>(job, first, span)
    }

    /// Returns spans in `bytes` that begin `stride` bytes apart.
    #[cfg(test)]
    pub fn every(stride: usize, bytes: &'a [u8]) -> Self {
        assert!(stride >= F::SPAN_BYTES && bytes.len() >= ROWS * stride);
        Self { first: bytes.as_ptr(), stride, spans: PhantomData }
    }

    /// Returns the span of row `row % 16`. This row always exists, so no check is needed.
    #[inline(always)]
    pub fn row(self, row: usize) -> Span<'a, F> {
        Span { at: self.first.wrapping_add(row % ROWS * self.stride), bytes: PhantomData }
    }

    /// Returns the spans of the four rows from row `4 * quad % 16` on.
    #[inline(always)]
    pub fn quad(self, quad: usize) -> Quad<'a, F> {
        Quad { first: self.row(4 * quad).at, stride: self.stride, spans: PhantomData }
    }

    /// Returns the spans of rows `row`, `row + 4`, `row + 8` and `row + 12`, each modulo 16.
    #[inline(always)]
    pub fn fourth(self, row: usize) -> [Span<'a, F>; 4] {
        [self.row(row), self.row(row + 4), self.row(row + 8), self.row(row + 12)]
    }
}

impl<'a, F: Format> Quad<'a, F> {
    /// Returns the span of row `row % 4` of the quad.
    #[inline(always)]
    pub fn row(self, row: usize) -> Span<'a, F> {
        Span { at: self.first.wrapping_add(row % 4 * self.stride), bytes: PhantomData }
    }
}

impl<'a, F: Format> Span<'a, F> {
    /// Returns one block of the type. The index `block` wraps around at the number of blocks in a span.
    #[inline(always)]
    pub fn block(self, block: usize) -> Block<'a, F> {
        let block = block % (F::SPAN_BYTES / F::BYTES);
        Block { at: self.at.wrapping_add(block * F::BYTES), bytes: PhantomData }
    }

    /// Returns `N` bytes of the span, from byte `at` on.
    ///
    /// # Panics
    /// Panics if the bytes extend beyond the span.
    #[inline(always)]
    pub fn bytes<const N: usize>(self, at: usize) -> &'a [u8; N] {
        assert!(N <= F::SPAN_BYTES && at <= F::SPAN_BYTES - N);
        // SAFETY: a span has this many readable bytes.
        unsafe { &*self.at.add(at).cast() }
    }

    /// Returns all bytes of the span.
    #[inline(always)]
    pub fn all(self) -> &'a [u8] {
        // SAFETY: a span has this many readable bytes.
        unsafe { std::slice::from_raw_parts(self.at, F::SPAN_BYTES) }
    }

    /// Returns the address of the span, for prefetching.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.at
    }
}

impl<'a, F: Format> Block<'a, F> {
    /// Returns `N` bytes of the block, from byte `at` on.
    ///
    /// # Panics
    /// Panics if the bytes extend beyond the block.
    #[inline(always)]
    pub fn bytes<const N: usize>(self, at: usize) -> &'a [u8; N] {
        assert!(N <= F::BYTES && at <= F::BYTES - N);
        // SAFETY: a block has this many readable bytes.
        unsafe { &*self.at.add(at).cast() }
    }
}

/// A buffer for copies of spans with fewer than sixteen rows, or of partial spans.
pub(super) struct Ragged([[u8; MAX_BYTES]; ROWS]);

impl Ragged {
    pub const NEW: Self = Self([[0; MAX_BYTES]; ROWS]);

    /// Copies span `span` of sixteen rows from `first` on. If there are fewer rows, the last row is repeated; a partial
    /// span is padded with zeros. This function is not inlined, so that the code of the common case stays small.
    #[inline(never)]
    fn copy<F: Format>(&mut self, job: &ProductRows<'_>, first: usize, span: usize) -> Spans<'_, F> {
        const { assert!(F::SPAN_BYTES <= MAX_BYTES) };
        for (row, to) in self.0.iter_mut().enumerate() {
            let from = job.span::<F>((first + row).min(job.end - 1), span);
            let (to, rest) = to[..F::SPAN_BYTES].split_at_mut(from.len());
            to.copy_from_slice(from);
            rest.fill(0);
        }
        Spans { first: self.0.as_ptr().cast(), stride: MAX_BYTES, spans: PhantomData }
    }
}

/// Loads four times 16 bytes.
#[inline(always)]
pub(super) fn load4(s: Avx512, parts: [&[u8; 16]; 4]) -> __m512i {
    let all = s._mm512_castsi128_si512(load128(parts[0]));
    let all = s._mm512_inserti32x4::<1>(all, load128(parts[1]));
    let all = s._mm512_inserti32x4::<2>(all, load128(parts[2]));
    s._mm512_inserti32x4::<3>(all, load128(parts[3]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::Columns;
    use crate::quantized::activations::{Activations, Group, Layout};
    use crate::quantized::formats::Q4_0;

    #[test]
    fn spans_are_whole_and_sixteen_in_place_or_as_copies() {
        const BYTES: usize = Q4_0::SPAN_BYTES;
        // Twenty rows have a span and three blocks each; a thread's share ends before the last row.
        let row_bytes = BYTES + 3 * Q4_0::BYTES;
        let (rows, end) = (20, 19);
        let weights: Vec<u8> = (0..rows * row_bytes).map(|i| (i % 251) as u8 + 1).collect();
        let x = Activations {
            layout: Layout::Rows,
            group: Group::Block,
            tokens: 0,
            blocks: 11,
            codes: &[],
            scales: &[],
            shifts: &[],
            pairs: &[],
            sums: &[],
            minima: &[],
        };
        let out = Columns::new(&mut [], rows).output();
        let job = ProductRows { x, w: &weights, row_bytes, first: 0, end, out };
        let mut ragged = Ragged([[0xff; MAX_BYTES]; ROWS]);
        // In this order, each copy is shorter than the one before.
        for (first, span, in_place) in
            [(0, 0, true), (3, 0, true), (4, 0, false), (18, 0, false), (0, 1, false), (18, 1, false)]
        {
            let spans = Spans::<Q4_0>::of(&job, first, span, &mut ragged);
            assert_eq!(weights.as_ptr_range().contains(&spans.row(0).as_ptr()), in_place, "row {first}, span {span}");
            for row in 0..ROWS {
                let got = spans.row(row).all();
                let mut want = job.span::<Q4_0>((first + row).min(end - 1), span).to_vec();
                want.resize(BYTES, 0);
                assert_eq!(got, want, "row {row} from {first} on, span {span}");
            }
        }
        let spans = Spans::<Q4_0>::of(&job, 3, 0, &mut ragged);
        assert_eq!(spans.fourth(1).map(Span::as_ptr), [1, 5, 9, 13].map(|row| spans.row(row).as_ptr()));
        assert_eq!(spans.quad(1).row(2).as_ptr(), spans.row(6).as_ptr());
    }
}
