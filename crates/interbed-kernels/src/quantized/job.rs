//! A thread's part of a product, in the form in which kernels receive it.

use super::activations::Activations;
use super::formats::Format;
use crate::matmul::Output;

/// A thread's part of a product.
pub(super) struct ProductRows<'a> {
    pub x: Activations<'a>,
    pub w: &'a [u8],
    /// The number of bytes of a row of `w`.
    pub row_bytes: usize,
    pub first: usize,
    pub end: usize,
    pub out: Output,
}

impl ProductRows<'_> {
    /// Returns the bytes of span `span` of row `row`. The last span of a row may be shorter than the others.
    #[inline(always)]
    pub fn span<F: Format>(&self, row: usize, span: usize) -> &[u8] {
        let row = &self.w[row * self.row_bytes..][..self.row_bytes];
        let first = span * F::SPAN_BYTES;
        &row[first..self.row_bytes.min(first + F::SPAN_BYTES)]
    }

    /// Stores the result of `row` for `token`.
    ///
    /// # Safety
    /// The conditions of [`super::rows`] hold.
    #[inline(always)]
    pub unsafe fn store(&self, token: usize, row: usize, value: f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { *self.out.at(token, row) = value };
    }
}
