//! Weights that an operation reads: where their bytes are, and how they are stored.

use std::ops::Range;
use std::sync::Arc;

use strata_kernels::{DType, Matrix};

use crate::HostBuffer;

/// A matrix `[rows, cols]` of weights in host memory, or a vector with one row. It keeps its memory alive, so that an
/// operation that a device executes later still finds it.
#[derive(Debug, Clone)]
pub struct Weights {
    dtype: DType,
    rows: usize,
    cols: usize,
    buffer: Arc<HostBuffer>,
    range: Range<usize>,
}

impl Weights {
    /// The bytes of `buffer` in `range`, as `[rows, cols]` elements of `dtype`.
    ///
    /// If the bytes are not exactly as many as the elements take: see [`Matrix::new`].
    /// If the bytes are not exactly that many: see [`Matrix::new`].
    pub fn new(dtype: DType, rows: usize, cols: usize, buffer: Arc<HostBuffer>, range: Range<usize>) -> Self {
        Matrix::new(dtype, rows, cols, &buffer.as_slice()[range.clone()]);
        Self { dtype, rows, cols, buffer, range }
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The matrix as kernels read it.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, self.rows, self.cols, &self.buffer.as_slice()[self.range.clone()])
    }
}
