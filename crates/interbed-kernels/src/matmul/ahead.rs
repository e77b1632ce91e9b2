//! Prefetches weights that are needed soon while others are multiplied, so that memory is never idle.

use crate::Matrix;

/// The rows that are read next, one for each row that is being multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    first: *const u8,
    row_bytes: usize,
    /// The approximate number of bytes of 8 columns.
    step_bytes: usize,
    /// Whether the prefetched rows are later rows of the same matrix. [`Ahead::further`] sets how much later.
    in_place: bool,
}

impl Ahead {
    /// Creates a prefetch for weights that are read in place. [`Ahead::further`] then sets the first row to prefetch.
    pub fn in_place(w: Matrix<'_>) -> Self {
        Self { in_place: true, ..Self::decoded_next(w, 0) }
    }

    /// Creates a prefetch for weights that are decoded before use. The rows from `row` on, which are decoded next, are
    /// prefetched. These rows need not exist.
    pub fn decoded_next(w: Matrix<'_>, row: usize) -> Self {
        let row_bytes = w.row_bytes();
        let first = w.bytes().as_ptr().wrapping_add(row * row_bytes);
        Self { first, row_bytes, step_bytes: row_bytes * 8 / w.cols(), in_place: false }
    }

    /// Creates a prefetch of a line that is in the cache already. This prefetch costs less than a decision whether to
    /// prefetch.
    pub fn nothing<T>(cached: *const T) -> Self {
        Self { first: cached.cast(), row_bytes: 0, step_bytes: 0, in_place: false }
    }

    /// Returns whether the weights are read in place.
    #[inline(always)]
    pub fn is_in_place(self) -> bool {
        self.in_place
    }

    /// Returns a prefetch that begins `row` rows later.
    #[inline(always)]
    pub fn from(self, row: usize) -> Self {
        Self { first: self.first.wrapping_add(row * self.row_bytes), ..self }
    }

    /// Returns a prefetch that begins `rows` rows later if the weights are read in place. Otherwise returns this
    /// prefetch unchanged.
    #[inline(always)]
    pub fn further(self, rows: usize) -> Self {
        if self.in_place { self.from(rows) } else { self }
    }

    /// Returns the approximate address of column `col` in row `row`, counted from the first prefetched row. The address
    /// need not be readable.
    #[inline(always)]
    pub fn at(&self, row: usize, col: usize) -> *const u8 {
        self.first.wrapping_add(row * self.row_bytes + col / 8 * self.step_bytes)
    }
}
