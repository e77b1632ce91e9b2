//! The data that commands hand to kernels beside numbers: tables, tokens, and weights in host memory. The data is put
//! in a ring of host memory that kernels read by address.

use std::collections::VecDeque;
use std::sync::Arc;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// Bytes of the ring, which suffice for some passes, so that the host can be ahead of the GPU.
const RING: usize = 32 << 20;

/// The most bytes that are put in the ring; longer data gets memory of its own.
pub(super) const PIECE_MAX: usize = RING / 4;

/// The alignment of every piece in bytes, which suffices for whatever kernels read at once.
const ALIGN: usize = 64;

/// A ring of host memory for the data that commands hand to kernels.
pub(super) struct Arguments {
    gpu: Arc<Gpu>,
    ring: Arc<GpuBuffer>,
    /// The bytes that were ever taken, and (`tail`) given back; the bytes between the two are in use.
    head: usize,
    tail: usize,
    pieces: VecDeque<Piece>,
    /// Bytes that were ever put.
    put: u64,
}

/// Some bytes that are in use up to `end`, until a submission is done.
struct Piece {
    end: usize,
    gpu_queue: usize,
    number: u64,
}

/// The place of bytes that were put in memory for the GPU.
pub(super) struct Put {
    /// The buffer with the bytes, which must be kept until the GPU is done with them.
    pub buffer: Arc<GpuBuffer>,
    pub offset: usize,
}

impl Put {
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }
}

impl Arguments {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let ring = Arc::new(GpuBuffer::new(gpu, Heap::Upload, RING)?);
        Ok(Self { gpu: Arc::clone(gpu), ring, head: 0, tail: 0, pieces: VecDeque::new(), put: 0 })
    }

    /// Lets `write` write `len` bytes, for submission `number` of a queue.
    pub fn put(
        &mut self,
        (gpu_queue, number): (usize, u64),
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<Put, GpuError> {
        self.put += len as u64;
        let Some(offset) = self.take(len) else {
            let buffer = Arc::new(GpuBuffer::new(&self.gpu, Heap::Upload, len)?);
            // SAFETY: nobody knows the buffer yet.
            write(unsafe { buffer.on_host(0..len) });
            return Ok(Put { buffer, offset: 0 });
        };
        match self.pieces.back_mut() {
            Some(last) if last.gpu_queue == gpu_queue && last.number == number => last.end = self.head,
            _ => self.pieces.push_back(Piece { end: self.head, gpu_queue, number }),
        }
        // SAFETY: these bytes are of no piece that is in use, and `write` returns before anybody gets to know them.
        write(unsafe { self.ring.on_host(offset..offset + len) });
        Ok(Put { buffer: Arc::clone(&self.ring), offset })
    }

    /// Returns the number of bytes that were ever put.
    pub fn bytes_put(&self) -> u64 {
        self.put
    }

    /// Returns whether much of the ring is in use.
    pub fn is_tight(&self) -> bool {
        self.head - self.tail > RING / 2
    }

    /// Returns the submission whose piece was put first among the pieces in use; `None` if no piece is in use.
    pub fn oldest(&self) -> Option<(usize, u64)> {
        self.pieces.front().map(|piece| (piece.gpu_queue, piece.number))
    }

    /// Gives the place of [`oldest`](Self::oldest) back, whose submission is done.
    pub fn give_back_oldest(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.tail = piece.end;
        }
    }

    /// Returns the offset of `len` bytes of the ring that are not in use.
    fn take(&mut self, len: usize) -> Option<usize> {
        let mut start = self.head.next_multiple_of(ALIGN);
        if start % RING + len > RING {
            start = start.next_multiple_of(RING);
        }
        let fits = len <= PIECE_MAX && start + len - self.tail <= RING;
        fits.then(|| {
            self.head = start + len;
            start % RING
        })
    }
}
