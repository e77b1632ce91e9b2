//! Weights that an operation reads: where their bytes lie, and what they mean.

use std::ops::Range;
use std::sync::Arc;

use strata_kernels::{DType, Matrix};

use crate::HostBuffer;

/// A matrix `[rows, cols]` of weights in host memory, or a vector with one row. It holds on to its memory, so an
/// operation that a device has not yet executed still finds it.
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
    /// # Panics
    /// If the bytes are not exactly that many: see [`Matrix::new`].
    pub fn new(dtype: DType, rows: usize, cols: usize, buffer: Arc<HostBuffer>, range: Range<usize>) -> Self {
        Matrix::new(dtype, rows, cols, &buffer.as_slice()[range.clone()]);
        Self { dtype, rows, cols, buffer, range }
    }

    /// How elements are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// What kernels read.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, self.rows, self.cols, &self.buffer.as_slice()[self.range.clone()])
    }
}
