//! Single rows of a matrix that stays on disk: the embedding, of which a pass needs a row a token.

use std::sync::Arc;

use strata_device::AllocError;
use strata_io::{DIRECT_ALIGN, DirectRead, IoError, ReadEngine, ReadRequest, ReaderPool};
use strata_kernels::{DType, Matrix};

use super::buffer::StreamBuffer;
use crate::error::WeightError;
use crate::source::UseRows;

/// Rows that are read at a time.
const ROWS: usize = 32;

/// Threads that read them; rows are small, so that what counts is how many are asked for at once.
const READERS: usize = 4;

/// How often a row's read is tried.
const ATTEMPTS: u32 = 3;

/// A matrix of which single rows are read.
#[derive(Clone)]
pub struct RowMatrix {
    pub file: Arc<dyn DirectRead>,
    /// Its first byte in the file.
    pub offset: u64,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
    pub row_bytes: usize,
}

/// Reads rows, some at a time, through buffers of its own.
pub struct RowReader {
    engine: ReaderPool<StreamBuffer>,
    free: Vec<StreamBuffer>,
    compact: Vec<u8>, // [ROWS, row_bytes]
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Reads that failed, tried again or not.
    pub reads_failed: u64,
}

/// Memory of one row's read: its bytes with what lies around them.
fn buffer_bytes(row_bytes: usize) -> usize {
    row_bytes.saturating_add(DIRECT_ALIGN).checked_next_multiple_of(DIRECT_ALIGN).unwrap_or(usize::MAX)
}

/// Bytes of memory that a reader of rows of `row_bytes` holds; the most that can be counted if it is more.
pub fn row_reader_memory(row_bytes: usize) -> usize {
    buffer_bytes(row_bytes).saturating_add(row_bytes).saturating_mul(ROWS)
}

impl RowReader {
    /// A reader for rows of up to `row_bytes`.
    ///
    /// # Errors
    /// The system has no memory or threads left.
    pub fn new(row_bytes: usize) -> Result<Self, WeightError> {
        let buffers = (0..ROWS).map(|_| StreamBuffer::new(buffer_bytes(row_bytes)));
        Ok(Self {
            engine: ReaderPool::new(READERS)?,
            free: buffers.collect::<Result<_, AllocError>>()?,
            compact: vec![0; ROWS * row_bytes],
            bytes_read: 0,
            reads_failed: 0,
        })
    }

    /// Hands the rows `wanted` to `use_rows`, some at a time.
    ///
    /// # Errors
    /// A row that could not be read.
    ///
    /// # Panics
    /// If the matrix has no such row: requests were checked at the door.
    pub fn with_rows(
        &mut self,
        matrix: &RowMatrix,
        wanted: &[u32],
        use_rows: &mut UseRows<'_>,
    ) -> Result<(), WeightError> {
        for start in (0..wanted.len()).step_by(ROWS) {
            let range = start..(start + ROWS).min(wanted.len());
            self.read(matrix, &wanted[range.clone()])?;
            let bytes = &self.compact[..range.len() * matrix.row_bytes];
            use_rows(range.clone(), Matrix::new(matrix.dtype, range.len(), matrix.cols, bytes), &|i| i);
        }
        Ok(())
    }

    /// Reads at most [`ROWS`] rows into `compact`. Every buffer is free again afterwards, whatever happened.
    fn read(&mut self, matrix: &RowMatrix, rows: &[u32]) -> Result<(), WeightError> {
        // All before the first read: a panic must leave nothing under way.
        assert!(rows.iter().all(|&row| (row as usize) < matrix.rows));
        (0..rows.len()).for_each(|tag| self.submit(matrix, rows, tag));
        let mut attempts = [1; ROWS];
        let mut failure: Option<IoError> = None;
        while let Some(done) = self.engine.wait() {
            let tag = done.tag as usize;
            self.reads_failed += u64::from(done.result.is_err());
            match done.result {
                Ok(()) => {
                    let (_, skip) = place(matrix, rows[tag]);
                    let bytes = &done.buffer.as_slice()[skip..skip + matrix.row_bytes];
                    self.compact[tag * matrix.row_bytes..][..matrix.row_bytes].copy_from_slice(bytes);
                    self.bytes_read += (skip + matrix.row_bytes).next_multiple_of(DIRECT_ALIGN) as u64;
                }
                Err(_) if attempts[tag] < ATTEMPTS && failure.is_none() => {
                    attempts[tag] += 1;
                    self.free.push(done.buffer);
                    self.submit(matrix, rows, tag);
                    continue;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
            self.free.push(done.buffer);
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn submit(&mut self, matrix: &RowMatrix, rows: &[u32], tag: usize) {
        let Some(buffer) = self.free.pop() else { unreachable!("there is a buffer for each row of a reading") };
        let (offset, skip) = place(matrix, rows[tag]);
        let needed = skip + matrix.row_bytes;
        let (file, len) = (Arc::clone(&matrix.file), needed.next_multiple_of(DIRECT_ALIGN));
        self.engine.submit(ReadRequest { tag: tag as u64, file, offset, needed, len, buffer });
    }
}

/// Where a row's read begins, and how many bytes of it lie before the row.
fn place(matrix: &RowMatrix, row: u32) -> (u64, usize) {
    let first = matrix.offset + u64::from(row) * matrix.row_bytes as u64;
    let skip = first % DIRECT_ALIGN as u64;
    (first - skip, skip as usize)
}
