//! Bands: some whole rows of a matrix, the unit in which streamed weights are read, held and multiplied.

use std::ops::Range;
use std::sync::Arc;

use strata_device::HostBuffer;
use strata_kernels::{DType, Matrix};

/// Rows of a matrix, at hand for as long as this is held.
#[derive(Debug)]
pub struct Band {
    /// Which of a sweep's matrices, counted from 0 in the sweep's order.
    pub matrix: usize,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// Columns of the matrix.
    pub cols: usize,
    /// How elements are stored.
    pub dtype: DType,
    /// The memory that holds them.
    pub(crate) buffer: Arc<HostBuffer>,
    /// Where in it.
    pub(crate) range: Range<usize>,
    /// For the source, which band of its own this is.
    pub(crate) unit: u32,
}

impl Band {
    /// The rows' weights, `[rows, cols]`.
    pub fn weights(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, self.rows.len(), self.cols, &self.buffer.as_slice()[self.range.clone()])
    }
}
