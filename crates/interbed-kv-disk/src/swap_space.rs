//! Moves KV blocks between memory and a file of slots, in pieces, while passes compute.
//!
//! The engine's thread copies blocks into buffers, or out of them, between passes. The threads that write and read KV
//! on disk move the buffers meanwhile. Only the engine's thread ever touches the blocks, and a pass that is being
//! computed shares no memory with a swap. The copies cost some percent of the time that the disk takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DirectWrite, IoError};
use interbed_kv::{BlockBytes, SlotThreads, Swap, SwapDirection, SwapEnded, SwapId, SwapStore, SwapTook, SwapTrial};
use thiserror::Error;

use crate::slots::{PartDone, Slots, SwapPart};
use crate::workers::Workers;

/// Maximum number of bytes that one part of a swap moves, unless a single block is larger.
const PART_BYTES: usize = 1 << 20;

/// Minimum number of buffers: one is filled while another is written.
const BUFFERS_MIN: usize = 2;

/// Reason why swap space could not be set up.
#[derive(Debug, Error)]
pub enum SwapSpaceError {
    /// The system refused a thread.
    #[error("the thread that swaps could not be started: {0}")]
    Thread(std::io::Error),
    /// The system refused memory.
    #[error("there is no memory for {count} buffers of {bytes} bytes to swap through; lower --memory or --swap-space")]
    Memory {
        /// Number of buffers.
        count: usize,
        /// Number of bytes of each buffer.
        bytes: usize,
    },
    /// The file has no room for a single block.
    #[error("swap space of {got} bytes holds no KV block, which takes {slot}; give --swap-space {slot} or more, or 0")]
    TooSmall {
        /// Number of bytes of the file.
        got: u64,
        /// Number of bytes of a slot.
        slot: usize,
    },
    /// The trial of the file failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Swap space in a file of slots, each of which holds one block.
pub struct SwapSpace {
    slots: Arc<Slots>,
    /// Checksums of the blocks that the slots hold. [slot]
    sums: Vec<u64>,
    /// Swaps in flight, in the order in which they began.
    swaps: VecDeque<UnderWay>,
    /// Parts that wait for a buffer, in order.
    parts: VecDeque<SwapPart>,
    buffers: Vec<AlignedBuffer>,
    ended: VecDeque<SwapEnded>,
    /// Times at which the last swap out, and the last swap in, that moved anything have ended.
    last_ends: [Instant; 2],
    done: Receiver<PartDone>,
    sender: Sender<PartDone>,
    threads: Arc<dyn SlotThreads>,
    /// Threads of this swap space; `None` if a store's threads do the work.
    own: Option<Workers>,
    trial: SwapTrial,
}

struct UnderWay {
    id: SwapId,
    direction: SwapDirection,
    started: Instant,
    bytes: u64,
    /// Number of parts whose move has not ended.
    parts_left: usize,
    failed: Option<String>,
}

impl SwapSpace {
    /// Returns the number of bytes that a slot takes in the file, for blocks of `block_bytes` bytes.
    pub fn slot_bytes(block_bytes: usize) -> usize {
        block_bytes.max(1).next_multiple_of(DIRECT_ALIGN)
    }

    /// Returns the number of bytes that buffers take if about `wanted` bytes may be used. There are at least two
    /// buffers, each with room for a block.
    pub fn buffer_bytes(block_bytes: usize, wanted: usize) -> usize {
        let (size, count) = buffers(block_bytes, wanted);
        size * count
    }

    /// Takes `file` as slots for blocks of `block_bytes` bytes, moved through about `buffer_bytes` bytes of memory, and
    /// tries out how fast the file is.
    ///
    /// # Errors
    /// Fails if the file is too small, if the system refuses memory or a thread, or if the trial fails.
    pub fn new(file: Arc<dyn DirectWrite>, block_bytes: usize, buffer_bytes: usize) -> Result<Self, SwapSpaceError> {
        let slot_bytes = Self::slot_bytes(block_bytes);
        let num_slots = usize::try_from(file.len() / slot_bytes as u64).unwrap_or(usize::MAX);
        if num_slots == 0 {
            return Err(SwapSpaceError::TooSmall { got: file.len(), slot: slot_bytes });
        }
        let (size, count) = buffers(block_bytes, buffer_bytes);
        let buffers: Option<Vec<_>> = (0..count).map(|_| AlignedBuffer::new_zeroed(size)).collect();
        let mut buffers = buffers.ok_or(SwapSpaceError::Memory { count, bytes: size })?;
        let trial = try_out(file.as_ref(), &mut buffers)?;
        let workers = Workers::for_slots().map_err(SwapSpaceError::Thread)?;
        let (sender, done) = channel();
        Ok(Self {
            slots: Arc::new(Slots::new(file, block_bytes, slot_bytes)),
            sums: vec![0; num_slots],
            swaps: VecDeque::new(),
            parts: VecDeque::new(),
            buffers,
            ended: VecDeque::new(),
            last_ends: [Instant::now(); 2],
            done,
            sender,
            threads: Arc::new(workers.threads()),
            own: Some(workers),
            trial,
        })
    }

    fn blocks_a_part(&self) -> usize {
        (PART_BYTES / self.slots.slot_bytes).max(1)
    }

    /// Hands parts to the threads while there are buffers.
    fn feed(&mut self, blocks: &mut dyn BlockBytes) {
        while !self.parts.is_empty()
            && let Some(mut buffer) = self.buffers.pop()
        {
            let part = self.parts.pop_front().expect("some part waits");
            if part.direction == SwapDirection::Out {
                let slots = buffer.as_mut().chunks_exact_mut(self.slots.slot_bytes);
                let read = slots.zip(&part.transfers).try_for_each(|(bytes, transfer)| {
                    blocks.read(transfer.block, &mut bytes[..self.slots.block_bytes])
                });
                if let Err(reason) = read {
                    // It ends as if it could not be written. The receiver is this store's own.
                    let _ = self.sender.send(PartDone { part, buffer, outcome: Err(reason) });
                    continue;
                }
            }
            let (slots, done, direction) = (Arc::clone(&self.slots), self.sender.clone(), part.direction);
            let job = Box::new(move || slots.run(part, buffer, &done));
            match direction {
                SwapDirection::Out => self.threads.write_slots(job),
                SwapDirection::In => self.threads.read_slots(job),
            }
        }
    }

    fn take(&mut self, done: PartDone, blocks: &mut dyn BlockBytes) {
        let PartDone { part, buffer, outcome } = done;
        let swap = self.swaps.iter_mut().find(|swap| swap.id == part.swap);
        let swap = swap.expect("a swap is known until its last part has come back");
        swap.parts_left -= 1;
        match outcome {
            Ok(()) if part.direction == SwapDirection::Out => {
                for (transfer, sum) in part.transfers.iter().zip(&part.sums) {
                    self.sums[transfer.slot.index()] = *sum;
                }
            }
            // A swap that has failed elsewhere moves no more bytes.
            Ok(()) if swap.failed.is_none() => {
                for (bytes, transfer) in buffer.as_ref().chunks_exact(self.slots.slot_bytes).zip(&part.transfers) {
                    let bytes = &bytes[..self.slots.block_bytes];
                    blocks.fill(transfer.block, &mut |block| block.copy_from_slice(bytes));
                }
            }
            Ok(()) => {}
            Err(reason) => {
                swap.failed.get_or_insert(reason);
                let before = self.parts.len();
                self.parts.retain(|waiting| waiting.swap != part.swap);
                swap.parts_left -= before - self.parts.len();
            }
        }
        self.buffers.push(buffer);
        self.settle();
    }

    /// Reports the swaps that have no part left.
    fn settle(&mut self) {
        let now = Instant::now();
        while let Some(index) = self.swaps.iter().position(|swap| swap.parts_left == 0) {
            let Some(swap) = self.swaps.remove(index) else { return };
            let last_end = &mut self.last_ends[usize::from(swap.direction == SwapDirection::In)];
            let seconds = now.saturating_duration_since(swap.started.max(*last_end)).as_secs_f64();
            // One without copies ends past those that the disk is still at.
            if swap.bytes > 0 {
                *last_end = now;
            }
            let outcome = swap.failed.map_or(Ok(SwapTook { bytes: swap.bytes, seconds }), Err);
            self.ended.push_back(SwapEnded { id: swap.id, outcome });
        }
    }
}

impl SwapStore for SwapSpace {
    fn num_slots(&self) -> usize {
        self.sums.len()
    }

    fn trial(&self) -> SwapTrial {
        self.trial
    }

    fn share_threads(&mut self, threads: Arc<dyn SlotThreads>) {
        debug_assert!(self.swaps.is_empty(), "threads change before the first swap");
        self.threads = threads;
        // Its threads have nothing to do, and end.
        self.own = None;
    }

    fn start(&mut self, swap: &Swap) {
        let mut transfers = swap.transfers.clone();
        // Neighbours in the file are written, and read, at once.
        transfers.sort_unstable_by_key(|transfer| transfer.slot);
        let bytes = (transfers.len() as u64).saturating_mul(self.slots.block_bytes as u64);
        let before = self.parts.len();
        for transfers in transfers.chunks(self.blocks_a_part()) {
            let sums = transfers.iter().map(|transfer| self.sums[transfer.slot.index()]).collect();
            let transfers = transfers.to_vec();
            self.parts.push_back(SwapPart { swap: swap.id, direction: swap.direction, transfers, sums });
        }
        let parts_left = self.parts.len() - before;
        let (id, direction) = (swap.id, swap.direction);
        self.swaps.push_back(UnderWay { id, direction, started: Instant::now(), bytes, parts_left, failed: None });
        // One of shared blocks alone has nothing to move.
        self.settle();
    }

    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<SwapEnded> {
        let deadline = Instant::now() + wait;
        loop {
            while let Ok(done) = self.done.try_recv() {
                self.take(done, blocks);
            }
            self.feed(blocks);
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.swaps.is_empty() {
                return None;
            }
            let done = self.done.recv_timeout(left).ok()?;
            self.take(done, blocks);
        }
    }
}

impl Drop for SwapSpace {
    fn drop(&mut self) {
        // At most the parts in flight are still moved.
        self.slots.close();
    }
}

/// Returns the number of bytes of each buffer, and the number of buffers.
fn buffers(block_bytes: usize, wanted: usize) -> (usize, usize) {
    let slot = SwapSpace::slot_bytes(block_bytes);
    let size = (PART_BYTES / slot).max(1) * slot;
    (size, (wanted / size).max(BUFFERS_MIN))
}

/// Writes and reads as many bytes as the buffers hold, as far as the file has room for them, and measures the time. The
/// slots must not hold anything yet.
fn try_out(file: &dyn DirectWrite, buffers: &mut [AlignedBuffer]) -> Result<SwapTrial, SwapSpaceError> {
    let blocks = file.len() / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
    let part = |offset: u64, len: usize| len.min(usize::try_from(blocks - offset).unwrap_or(usize::MAX));
    let mut bytes = 0;
    let began = Instant::now();
    for buffer in buffers.iter().map(AlignedBuffer::as_slice) {
        let len = part(bytes, buffer.len());
        file.write_aligned_at(&buffer[..len], bytes)?;
        bytes += len as u64;
    }
    let written = Instant::now();
    let mut offset = 0;
    for buffer in buffers.iter_mut().map(AlignedBuffer::as_mut) {
        let len = part(offset, buffer.len());
        file.read_aligned_at(&mut buffer[..len], offset, len)?;
        offset += len as u64;
    }
    Ok(SwapTrial {
        bytes,
        write_seconds: (written - began).as_secs_f64(),
        read_seconds: written.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests;
