//! The thread that writes parts of swaps to the file, and reads them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use strata_io::{AlignedBuffer, DirectWrite};
use strata_kv::{BlockSwap, SwapDirection, SwapId};
use xxhash_rust::xxh3::xxh3_64;

/// So many blocks of a swap as fit into a buffer.
#[derive(Debug)]
pub(super) struct SwapPart {
    pub(super) swap: SwapId,
    pub(super) direction: SwapDirection,
    /// In ascending order of slots, which is that of the buffer.
    pub(super) transfers: Vec<BlockSwap>,
    /// Checksums of the blocks: taken of what is written, expected of what is read.
    pub(super) sums: Vec<u64>,
}

/// A part that was moved, or not, with the buffer that it came with.
pub(super) struct PartDone {
    pub(super) part: SwapPart,
    pub(super) buffer: AlignedBuffer,
    pub(super) outcome: Result<(), String>,
}

/// Works off parts in the order in which they came. Dropping it waits for the one in flight, and drops the others.
pub(super) struct SwapWorker {
    parts: Option<Sender<(SwapPart, AlignedBuffer)>>,
    done: Option<Receiver<PartDone>>,
    thread: Option<JoinHandle<()>>,
}

impl SwapWorker {
    pub(super) fn start(file: Arc<dyn DirectWrite>, block_bytes: usize, slot_bytes: usize) -> std::io::Result<Self> {
        let (parts, waiting) = channel::<(SwapPart, AlignedBuffer)>();
        let (sender, done) = channel();
        let slots = Slots { file, block_bytes, slot_bytes };
        let thread = std::thread::Builder::new().name("strata-swap".into()).spawn(move || {
            while let Ok((mut part, mut buffer)) = waiting.recv() {
                // A bug in a file must not leave a swap pending for ever.
                let outcome = catch_unwind(AssertUnwindSafe(|| slots.move_part(&mut part, &mut buffer)))
                    .unwrap_or_else(|_| Err(format!("moving {} blocks panicked", part.transfers.len())));
                if sender.send(PartDone { part, buffer, outcome }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { parts: Some(parts), done: Some(done), thread: Some(thread) })
    }

    pub(super) fn submit(&self, part: SwapPart, buffer: AlignedBuffer) {
        // The worker ends only after this sender is gone.
        let _ = self.parts.as_ref().map(|parts| parts.send((part, buffer)));
    }

    /// A part that is done, if there is one within `wait`.
    pub(super) fn done(&self, wait: Duration) -> Option<PartDone> {
        let done = self.done.as_ref()?;
        if wait.is_zero() { done.try_recv().ok() } else { done.recv_timeout(wait).ok() }
    }

    /// From now on nothing comes back, and at most one part is still moved.
    pub(super) fn close(&mut self) {
        // Parts that were submitted would still be received: the thread ends because the receiver of the one in flight
        // is gone.
        self.done = None;
        self.parts = None;
    }
}

impl Drop for SwapWorker {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Blocks of a size, at multiples of another in a file.
struct Slots {
    file: Arc<dyn DirectWrite>,
    block_bytes: usize,
    slot_bytes: usize,
}

impl Slots {
    fn move_part(&self, part: &mut SwapPart, buffer: &mut AlignedBuffer) -> Result<(), String> {
        if part.direction == SwapDirection::Out {
            part.sums = self.sums(part, buffer).collect();
        }
        let mut rest = buffer.as_mut();
        for run in part.transfers.chunk_by(|one, next| one.slot.index() + 1 == next.slot.index()) {
            let (bytes, after) = rest.split_at_mut(run.len() * self.slot_bytes);
            let offset = run[0].slot.index() as u64 * self.slot_bytes as u64;
            match part.direction {
                SwapDirection::Out => self.file.write_aligned_at(bytes, offset),
                SwapDirection::In => self.file.read_aligned_at(bytes, offset, bytes.len()),
            }
            .map_err(|error| error.to_string())?;
            rest = after;
        }
        if part.direction == SwapDirection::In
            && let Some(at) = self.sums(part, buffer).zip(&part.sums).position(|(sum, expected)| sum != *expected)
        {
            let (slot, path) = (part.transfers[at].slot.index(), self.file.path().display());
            return Err(format!("slot {slot} of {path} does not hold what was written to it"));
        }
        Ok(())
    }

    fn sums<'b>(&'b self, part: &'b SwapPart, buffer: &'b AlignedBuffer) -> impl Iterator<Item = u64> + 'b {
        let slots = buffer.as_slice().chunks_exact(self.slot_bytes).take(part.transfers.len());
        slots.map(|slot| xxh3_64(&slot[..self.block_bytes]))
    }
}
