//! Weights that are wanted soon: asked for while others are multiplied, so that memory is never idle.

use crate::Matrix;

/// Rows that will be read after those that are being multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    first: *const u8,
    row_bytes: usize,
    /// Bytes of 8 columns, about.
    step_bytes: usize,
}

impl Ahead {
    /// Those of `w` from `row` on, of which there may be none.
    pub fn of(w: Matrix<'_>, row: usize) -> Self {
        let row_bytes = w.row_bytes();
        let first = w.bytes().as_ptr().wrapping_add(row * row_bytes);
        Self { first, row_bytes, step_bytes: row_bytes * 8 / w.cols() }
    }

    /// Where the part of row `row` (counted from the first) begins that corresponds to column `col`. It need not be readable.
    #[inline(always)]
    pub fn at(&self, row: usize, col: usize) -> *const u8 {
        self.first.wrapping_add(row * self.row_bytes + col / 8 * self.step_bytes)
    }
}
