//! Describes KV that is below memory, and comes up piece by piece while a pass computes.

use std::ops::Range;

use interbed_device::KvFrame;
use interbed_kernels::STRETCH;
use thiserror::Error;

/// Identifies a frame: the keys and values of one layer for one stretch of a sequence. A stretch is [`STRETCH`]
/// successive positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    /// The index of the sequence in the batch.
    pub sequence: usize,
    /// The index of the layer, counting only layers that keep KV.
    pub layer: usize,
    /// The index of the stretch. The stretch begins at position `stretch * STRETCH`.
    pub stretch: usize,
}

/// The error that occurs when KV cannot be read back into memory. The forward pass cannot be completed.
#[derive(Debug, Clone, Error)]
#[error("KV that is below memory could not be read: {reason}")]
pub struct KvLost {
    /// The index, in the batch, of the sequence whose KV was lost.
    pub sequence: usize,
    /// Describes why the KV could not be read.
    pub reason: String,
}

/// Reads KV that is not in memory, such as KV on disk, into memory during a forward pass.
pub trait KvBelow {
    /// Begins a forward pass. The forward pass will get all of `frames` from [`KvBelow::next`], in this order. If an
    /// earlier forward pass did not get all of its frames, the remaining ones are discarded.
    fn begin(&mut self, frames: &[FrameId]);

    /// Waits until the next frame is in memory, and returns it. The frame's memory is reused once all owners of the
    /// frame have dropped it.
    ///
    /// # Errors
    /// Fails if the frame could not be read, or differs from what was written.
    fn next(&mut self) -> Result<KvFrame, KvLost>;
}

/// The implementation of [`KvBelow`] for forward passes whose KV is all in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct NothingBelow;

impl KvBelow for NothingBelow {
    fn begin(&mut self, frames: &[FrameId]) {
        assert!(frames.is_empty(), "KV is said to be below memory, where nothing is");
    }

    fn next(&mut self) -> Result<KvFrame, KvLost> {
        Err(KvLost { sequence: 0, reason: "nothing was kept there".to_owned() })
    }
}

/// Returns the stretches below position `below` that a token at `position`, or a later token, sees through `window`.
pub(crate) fn stretches_below(position: usize, below: usize, window: Option<usize>) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let end = below / STRETCH;
    (first / STRETCH).min(end)..end
}
