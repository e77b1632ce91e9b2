//! Moves parts of swaps to slots in a file and back. Each slot holds one block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use interbed_io::{AlignedBuffer, DirectWrite};
use interbed_kv::{BlockSwap, SwapDirection, SwapId};
use xxhash_rust::xxh3::xxh3_64;

/// Part of a swap: as many blocks as fit into a buffer.
#[derive(Debug)]
pub(crate) struct SwapPart {
    pub(crate) swap: SwapId,
    pub(crate) direction: SwapDirection,
    /// Transfers in ascending order of slots, which is also the order in the buffer.
    pub(crate) transfers: Vec<BlockSwap>,
    /// Checksums of the blocks that are written, or expected checksums of the blocks that are read.
    pub(crate) sums: Vec<u64>,
}

/// A part whose move has ended, with its buffer and the outcome.
pub(crate) struct PartDone {
    pub(crate) part: SwapPart,
    pub(crate) buffer: AlignedBuffer,
    pub(crate) outcome: Result<(), String>,
}

/// Slots in a file. Each slot has `slot_bytes` bytes, and holds a block of `block_bytes` bytes.
pub(crate) struct Slots {
    file: Arc<dyn DirectWrite>,
    pub(crate) block_bytes: usize,
    pub(crate) slot_bytes: usize,
    is_closed: AtomicBool,
}

impl Slots {
    pub(crate) fn new(file: Arc<dyn DirectWrite>, block_bytes: usize, slot_bytes: usize) -> Self {
        Self { file, block_bytes, slot_bytes, is_closed: AtomicBool::new(false) }
    }

    /// Closes the slots: no part is begun from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Moves a part, unless the slots were closed, and reports its end on `done`.
    pub(crate) fn run(&self, mut part: SwapPart, mut buffer: AlignedBuffer, done: &Sender<PartDone>) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        // A bug in a file must not leave a swap pending for ever.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.move_part(&mut part, &mut buffer)))
            .unwrap_or_else(|_| Err(format!("moving {} blocks panicked", part.transfers.len())));
        // Nobody listens any more when swap space is being closed.
        let _ = done.send(PartDone { part, buffer, outcome });
    }

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
