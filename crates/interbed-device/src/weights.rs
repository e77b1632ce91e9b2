//! Weights that an operation reads: where their bytes are, and how they are stored.

use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::{DType, Matrix};

use crate::{GpuBuffer, HostBuffer, ReferenceBytes};

/// Memory that holds weights.
#[derive(Debug, Clone)]
pub enum PlacedBytes {
    /// Host memory.
    Host(Arc<HostBuffer>),
    /// Memory of a GPU: only that GPU reads them.
    Gpu(Arc<GpuBuffer>),
    /// Memory of the device that finds missing waits.
    Reference(Arc<ReferenceBytes>),
}

impl PlacedBytes {
    /// Returns the number of bytes in the memory.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.len(),
            Self::Gpu(buffer) => buffer.len(),
            Self::Reference(bytes) => bytes.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a number that tells this memory from all others, if the memory is a device's own, which commands write.
    pub fn number(&self) -> Option<usize> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(buffer) => Some(Arc::as_ptr(buffer).addr()),
            Self::Reference(bytes) => Some(Arc::as_ptr(bytes).addr()),
        }
    }
}

impl From<Arc<HostBuffer>> for PlacedBytes {
    fn from(buffer: Arc<HostBuffer>) -> Self {
        Self::Host(buffer)
    }
}

/// A matrix `[rows, cols]` of weights, or a vector with one row. It keeps its memory alive, so that an operation that a
/// device executes later still finds it.
#[derive(Debug, Clone)]
pub struct Weights {
    dtype: DType,
    rows: usize,
    cols: usize,
    memory: PlacedBytes,
    range: Range<usize>,
}

impl Weights {
    /// Creates weights of the bytes of `memory` in `range`, which are `[rows, cols]` elements of `dtype`.
    ///
    /// # Panics
    /// Panics if the bytes are not exactly as many as the elements take, or lie beyond the memory.
    pub fn new(dtype: DType, rows: usize, cols: usize, memory: impl Into<PlacedBytes>, range: Range<usize>) -> Self {
        let memory = memory.into();
        let expected = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        assert_eq!(Some(range.len()), expected, "[{rows}, {cols}] of {dtype}");
        assert!(range.end <= memory.len(), "{range:?} of {} bytes", memory.len());
        Self { dtype, rows, cols, memory, range }
    }

    /// Returns some columns of a vector of a plain type.
    ///
    /// # Panics
    /// Panics if the matrix has more than one row, is quantised, or has no such columns.
    pub fn columns(&self, columns: Range<usize>) -> Self {
        assert!(self.rows == 1 && self.dtype.is_plain() && columns.end <= self.cols);
        let (start, size) = (self.range.start, self.dtype.block_bytes());
        let range = start + columns.start * size..start + columns.end * size;
        Self { cols: columns.len(), range, memory: self.memory.clone(), ..*self }
    }

    /// Returns a vector as a matrix of several rows, one after the other.
    ///
    /// # Panics
    /// Panics if the matrix has more than one row, is quantised, or cannot be divided so.
    pub fn in_rows(&self, rows: usize) -> Self {
        assert!(self.rows == 1 && self.dtype.is_plain() && self.cols.is_multiple_of(rows));
        Self { rows, cols: self.cols / rows, range: self.range.clone(), memory: self.memory.clone(), ..*self }
    }

    /// Returns the type in which the elements are stored.
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

    /// Returns the matrix in the form in which kernels of the processor read it.
    ///
    /// # Panics
    /// Panics if the matrix is in a device's own memory.
    pub fn matrix(&self) -> Matrix<'_> {
        match &self.memory {
            PlacedBytes::Host(buffer) => {
                Matrix::new(self.dtype, self.rows, self.cols, &buffer.as_slice()[self.range.clone()])
            }
            _ => panic!("weights in a device's own memory are used by the processor"),
        }
    }

    /// Returns the memory in which the matrix lies, and the range of its bytes there.
    pub fn place(&self) -> (&PlacedBytes, Range<usize>) {
        (&self.memory, self.range.clone())
    }
}
