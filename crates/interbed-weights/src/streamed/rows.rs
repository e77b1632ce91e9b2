//! Reads single rows of a matrix that stays on disk: the embedding, of which a pass needs one row for each token.

use std::sync::Arc;

use interbed_device::{AllocError, HostBuffer, Weights};
use interbed_io::{DIRECT_ALIGN, DirectRead, IoError, ReadEngine, ReadRequest, ReaderPool};
use interbed_kernels::DType;

use super::buffer::StreamBuffer;
use crate::error::WeightError;
use crate::partition::{ROWS_AT_A_TIME as ROWS, row_buffer_bytes};
use crate::source::Rows;

/// Row numbers in the table that a read returns, which are 0, 1, 2 and so on.
static NUMBERS: [u32; ROWS] = {
    let mut numbers = [0; ROWS];
    let mut row = 0;
    while row < ROWS {
        numbers[row] = row as u32;
        row += 1;
    }
    numbers
};

/// Number of threads that read rows. Rows are small, so the number of reads in flight decides how fast rows come.
const READERS: usize = 4;

/// Maximum number of times that the read of a row is tried.
const ATTEMPTS: u32 = 3;

/// A matrix in a file, from which single rows are read.
#[derive(Clone)]
pub struct RowMatrix {
    pub file: Arc<dyn DirectRead>,
    /// Offset of the matrix's first byte in the file.
    pub offset: u64,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
    pub row_bytes: usize,
}

/// Reads up to [`ROWS`] rows of a matrix per call.
pub struct RowReader {
    engine: ReaderPool<StreamBuffer>,
    free: Vec<StreamBuffer>,
    /// Rows that the last call read, `[ROWS, row_bytes]`.
    compact: Arc<HostBuffer>,
    /// Number of bytes read so far.
    pub bytes_read: u64,
    /// Number of failed reads, including reads that were tried again.
    pub reads_failed: u64,
}

impl RowReader {
    /// Creates a reader for rows of up to `row_bytes` bytes.
    ///
    /// # Errors
    /// Fails if memory could not be allocated, or if a thread could not be started.
    pub fn new(row_bytes: usize) -> Result<Self, WeightError> {
        let buffers = (0..ROWS).map(|_| StreamBuffer::new(row_buffer_bytes(row_bytes)));
        Ok(Self {
            engine: ReaderPool::new(READERS)?,
            free: buffers.collect::<Result<_, AllocError>>()?,
            compact: Arc::new(HostBuffer::new_zeroed(ROWS * row_bytes)?),
            bytes_read: 0,
            reads_failed: 0,
        })
    }

    /// Reads the rows whose numbers are in `wanted`, but only the first [`ROWS`] of them.
    ///
    /// # Errors
    /// Fails if a row could not be read, or if memory could not be allocated.
    ///
    /// # Panics
    /// Panics if one of these row numbers is too large for the matrix.
    pub fn read(&mut self, matrix: &RowMatrix, wanted: &[u32]) -> Result<Rows<'static>, WeightError> {
        let wanted = &wanted[..wanted.len().min(ROWS)];
        if Arc::get_mut(&mut self.compact).is_none() {
            // A caller that still computes with the last rows keeps their memory.
            self.compact = Arc::new(HostBuffer::new_zeroed(self.compact.len())?);
        }
        self.read_all(matrix, wanted)?;
        let bytes = 0..wanted.len() * matrix.row_bytes;
        let table = Weights::new(matrix.dtype, wanted.len(), matrix.cols, Arc::clone(&self.compact), bytes);
        Ok(Rows { table, numbers: &NUMBERS[..wanted.len()] })
    }

    /// Reads at most [`ROWS`] rows into `compact`. Every buffer is free again afterwards, even if a read fails.
    fn read_all(&mut self, matrix: &RowMatrix, rows: &[u32]) -> Result<(), WeightError> {
        // Check all rows before the first read: a panic must leave no read in flight.
        assert!(rows.iter().all(|&row| (row as usize) < matrix.rows));
        let Self { engine, free, compact, bytes_read, reads_failed } = self;
        let submit = |engine: &mut ReaderPool<StreamBuffer>, free: &mut Vec<StreamBuffer>, tag: usize| {
            let Some(buffer) = free.pop() else { unreachable!("there is a buffer for each row of a reading") };
            let (offset, skip) = place(matrix, rows[tag]);
            let needed = skip + matrix.row_bytes;
            let (file, len) = (Arc::clone(&matrix.file), needed.next_multiple_of(DIRECT_ALIGN));
            engine.submit(ReadRequest { tag: tag as u64, file, offset, needed, len, buffer });
        };
        (0..rows.len()).for_each(|tag| submit(engine, free, tag));
        let mut attempts = [1; ROWS];
        let mut failure: Option<IoError> = None;
        let compact = Arc::get_mut(compact).expect("nobody else has what is read into").as_mut_slice();
        while let Some(done) = engine.wait() {
            let tag = done.tag as usize;
            *reads_failed += u64::from(done.result.is_err());
            match done.result {
                Ok(()) => {
                    let (_, skip) = place(matrix, rows[tag]);
                    let bytes = &done.buffer.as_slice()[skip..skip + matrix.row_bytes];
                    compact[tag * matrix.row_bytes..][..matrix.row_bytes].copy_from_slice(bytes);
                    *bytes_read += (skip + matrix.row_bytes).next_multiple_of(DIRECT_ALIGN) as u64;
                }
                Err(_) if attempts[tag] < ATTEMPTS && failure.is_none() => {
                    attempts[tag] += 1;
                    free.push(done.buffer);
                    submit(engine, free, tag);
                    continue;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
            free.push(done.buffer);
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Returns the offset in the file at which the read of a row begins, and how many bytes of the read lie before the row.
fn place(matrix: &RowMatrix, row: u32) -> (u64, usize) {
    let first = matrix.offset + u64::from(row) * matrix.row_bytes as u64;
    let skip = first % DIRECT_ALIGN as u64;
    (first - skip, skip as usize)
}
