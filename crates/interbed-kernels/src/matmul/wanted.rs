//! Prefetches panels that are needed soon, line by line, while others are multiplied.

use std::ops::Range;

use super::vector::Unit;
use crate::{DType, Matrix, coded, fp8};

/// The number of bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The cache lines of a panel that is read soon. The lines need not be readable.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub first: *const u8,
    pub row_bytes: usize,
    pub rows: usize,
    /// The number of cache lines in each row.
    pub lines: usize,
}

impl Wanted {
    /// Returns the cache lines that contain the weights of `rows` in the next `U::CHAIN` columns from `column` on. Rows
    /// that do not exist are left out.
    #[inline(always)]
    pub fn of<U: Unit>(weights: Matrix<'_>, rows: Range<usize>, column: usize) -> Self {
        let columns = column..(column + U::CHAIN).min(weights.cols());
        let bytes = match weights.dtype() {
            DType::CodedBf16 { patches } => coded::bytes_of(columns, patches),
            DType::Fp8 => fp8::bytes_of(columns, weights.cols()),
            _ => columns.start * size_of::<U::W>()..columns.end * size_of::<U::W>(),
        };
        let row_bytes = weights.row_bytes();
        Self {
            first: weights.bytes().as_ptr().wrapping_add(rows.start * row_bytes + bytes.start),
            row_bytes,
            rows: rows.end.min(weights.rows()).saturating_sub(rows.start),
            // A row need not begin at a line.
            lines: (bytes.len() + LINE - 2) / LINE + 1,
        }
    }

    /// Splits each row's lines into `count` parts, and returns part `i`.
    #[inline(always)]
    pub fn part(self, i: usize, count: usize) -> Self {
        let lines = self.lines * i / count..self.lines * (i + 1) / count;
        Self { first: self.first.wrapping_add(lines.start * LINE), lines: lines.len(), ..self }
    }

    /// Returns the number of cache lines of `row`, which is 0 if there is no such row.
    #[inline(always)]
    pub fn lines_of(self, row: usize) -> usize {
        if row < self.rows { self.lines } else { 0 }
    }

    /// Returns the address of cache line `line` of `row`.
    #[inline(always)]
    pub fn at(self, row: usize, line: usize) -> *const u8 {
        self.first.wrapping_add(row * self.row_bytes + line * LINE)
    }
}
