//! A thread's buffer for rows that are decoded before they are multiplied.

use std::ops::Range;

use super::decode::decode_row;
use crate::{DType, Level, Matrix, fp8};

/// The maximum number of bf16 rows that are decoded at a time: as many as the largest tile takes.
const PANEL_ROWS: usize = 32;

/// The number of bytes of a cache line.
const LINE: usize = 64;

/// Returns the maximum number of rows of type `weights` that are decoded at a time.
pub(crate) const fn panel_rows(weights: DType) -> usize {
    PANEL_ROWS * size_of::<u16>() / weights.decoded().block_bytes()
}

/// Returns the number of elements of f32 that a [`Panel`] for rows of `cols` needs, including room to align it to a
/// cache line.
pub(crate) const fn panel_len(cols: usize) -> usize {
    (PANEL_ROWS * cols * size_of::<u16>() + LINE).div_ceil(size_of::<f32>())
}

/// A thread's buffer for decoded rows, of unspecified content.
pub(crate) struct Panel<'a> {
    numbers: &'a mut [u16],
    cols: usize,
}

impl<'a> Panel<'a> {
    /// Creates a panel in `area`, which has [`panel_len`] elements.
    pub(crate) fn new(area: &'a mut [f32], cols: usize) -> Self {
        let line = area.as_ptr().align_offset(LINE);
        let (_, area) = area.split_at_mut(line);
        Self { numbers: &mut bytemuck::cast_slice_mut(area)[..PANEL_ROWS * cols], cols }
    }

    /// Decodes `rows` of `weights`, which must be at most [`panel_rows`] rows.
    pub(crate) fn decode(&mut self, level: Level, weights: Matrix<'_>, rows: Range<usize>) -> Matrix<'_> {
        let count = rows.len();
        if weights.dtype() == DType::Fp8 {
            let numbers: &mut [f32] = &mut bytemuck::cast_slice_mut(self.numbers)[..count * self.cols];
            for (row, out) in rows.zip(numbers.chunks_exact_mut(self.cols)) {
                fp8::decode_columns(level, weights.row(row), self.cols, 0..self.cols, out);
            }
            return Matrix::new(DType::F32, count, self.cols, bytemuck::cast_slice(numbers));
        }
        let numbers = &mut self.numbers[..count * self.cols];
        decode_rows(level, weights, rows, numbers);
        Matrix::new(DType::BF16, count, self.cols, bytemuck::cast_slice(numbers))
    }
}

/// Decodes `rows` of a coded matrix into `out`, `[rows, cols]` in bf16.
///
/// # Panics
/// Panics if the matrix is not coded, has no such rows, or `out` has another length.
fn decode_rows(level: Level, weights: Matrix<'_>, rows: Range<usize>, out: &mut [u16]) {
    let DType::CodedBf16 { patches } = weights.dtype() else { panic!("{} is not coded", weights.dtype()) };
    let (cols, row_bytes) = (weights.cols(), weights.row_bytes());
    assert!(rows.end <= weights.rows() && out.len() == rows.len() * cols);
    let coded = &weights.bytes()[rows.start * row_bytes..rows.end * row_bytes];
    for (row, out) in coded.chunks_exact(row_bytes).zip(out.chunks_exact_mut(cols)) {
        decode_row(level, row, patches, out);
    }
}
