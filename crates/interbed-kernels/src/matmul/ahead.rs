//! Weights that are wanted soon: asked for while others are multiplied, so that memory is never idle.

use crate::Matrix;

/// The rows that are read next, one for each row that is being multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    first: *const u8,
    row_bytes: usize,
    /// Bytes of 8 columns, about.
    step_bytes: usize,
    /// Whether they are later rows of the same matrix: [`Ahead::further`] says how much later.
    in_place: bool,
}

impl Ahead {
    /// For weights that are read in place; [`Ahead::further`] then sets the first row to ask for.
    pub fn in_place(w: Matrix<'_>) -> Self {
        Self { in_place: true, ..Self::decoded_next(w, 0) }
    }

    /// For weights that are decoded first: those from row `row` on are decoded next, of which there may be none.
    pub fn decoded_next(w: Matrix<'_>, row: usize) -> Self {
        let row_bytes = w.row_bytes();
        let first = w.bytes().as_ptr().wrapping_add(row * row_bytes);
        Self { first, row_bytes, step_bytes: row_bytes * 8 / w.cols(), in_place: false }
    }

    /// Nothing but a line that is in the cache, to ask for which costs less than to decide.
    pub fn nothing<T>(cached: *const T) -> Self {
        Self { first: cached.cast(), row_bytes: 0, step_bytes: 0, in_place: false }
    }

    /// Whether these are weights that are read in place.
    #[inline(always)]
    pub fn is_in_place(self) -> bool {
        self.in_place
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub fn from(self, row: usize) -> Self {
        Self { first: self.first.wrapping_add(row * self.row_bytes), ..self }
    }

    /// The rows `rows` further on, if weights are read in place; decoded ones are left as they are.
    #[inline(always)]
    pub fn further(self, rows: usize) -> Self {
        if self.in_place { self.from(rows) } else { self }
    }

    /// Where the part of row `row` (counted from the first) begins that corresponds to column `col`. It need not be
    /// readable.
    #[inline(always)]
    pub fn at(&self, row: usize, col: usize) -> *const u8 {
        self.first.wrapping_add(row * self.row_bytes + col / 8 * self.step_bytes)
    }
}
