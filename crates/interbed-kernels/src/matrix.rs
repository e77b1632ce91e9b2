//! Weight matrices in the form that they have in files: row-major bytes of any alignment, read in place.

use std::ops::Range;

use half::f16;

use crate::quantized::dequantize;
use crate::{DType, Level, coded, fp8};

/// A weight matrix `[rows, cols]`, or a vector with one row. The bytes may start at any address.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Creates a view of `bytes` as `[rows, cols]` elements of `dtype`. Loaders check shapes before they call this.
    ///
    /// # Panics
    /// Panics if the length of `bytes` does not fit the shape and the type, or a row is not whole blocks.
    pub fn new(dtype: DType, rows: usize, cols: usize, bytes: &'a [u8]) -> Self {
        let expected = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        assert_eq!(Some(bytes.len()), expected, "[{rows}, {cols}] of {dtype}");
        Self { dtype, rows, cols, bytes }
    }

    /// Returns the storage type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the number of bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows.max(1)
    }

    /// Returns the elements' bytes, row-major.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes of row `row`.
    ///
    /// # Panics
    /// Panics if there is no such row.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows);
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// Returns a range of the elements of a vector of a plain type.
    ///
    /// # Panics
    /// Panics if the matrix has more than one row, is not of a plain type, or does not have these columns.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        assert!(self.rows == 1 && self.dtype.is_plain());
        let size = self.dtype.block_bytes();
        Self::new(self.dtype, 1, columns.len(), &self.bytes[columns.start * size..columns.end * size])
    }

    /// Returns all elements as one row, row after row.
    ///
    /// # Panics
    /// Panics if the matrix is not of a plain type.
    pub fn flat(&self) -> Self {
        assert!(self.dtype.is_plain());
        Self::new(self.dtype, 1, self.rows * self.cols, self.bytes)
    }

    /// Returns one element of a vector of a plain type.
    ///
    /// # Panics
    /// Panics if the matrix has more than one row, is not of a plain type, or does not have this element.
    pub fn element(&self, column: usize) -> f32 {
        let mut element = [0.0];
        self.columns(column..column + 1).widen_row(0, &mut element);
        element[0]
    }

    /// Converts row `row` to f32 and writes the result to `out`, `[cols]`.
    ///
    /// # Panics
    /// Panics if there is no such row, or `out` has another length.
    pub fn widen_row(&self, row: usize, out: &mut [f32]) {
        assert!(out.len() == self.cols);
        let bytes = self.row(row);
        match self.dtype {
            DType::F32 => widen(bytes, out, f32::from_le_bytes),
            DType::F16 => widen(bytes, out, |bits| f16::from_le_bytes(bits).to_f32()),
            DType::BF16 => widen(bytes, out, |bits| coded::widened(u16::from_le_bytes(bits))),
            DType::CodedBf16 { patches } => coded::widen_row(bytes, patches, out),
            DType::Fp8 => fp8::decode_columns(Level::PORTABLE, bytes, self.cols, 0..self.cols, out),
            quantised => dequantize(quantised, bytes, out),
        }
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, bits) in out.iter_mut().zip(elements) {
        *out = element(*bits);
    }
}
