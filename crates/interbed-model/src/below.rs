//! Describes KV that is below memory, and comes up piece by piece while a pass computes.

use std::ops::Range;

use interbed_device::KvFrame;
use interbed_kernels::STRETCH;
use thiserror::Error;

/// Names the keys and values of [`STRETCH`] positions of a sequence in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    /// The sequence's index in the batch.
    pub sequence: usize,
    /// The index of the layer among the layers that keep KV.
    pub layer: usize,
    /// The index of the stretch, which begins at position `stretch * STRETCH`.
    pub stretch: usize,
}

/// The error that KV could not be brought up. The pass cannot be computed.
#[derive(Debug, Clone, Error)]
#[error("KV that is below memory could not be read: {reason}")]
pub struct KvLost {
    /// The index in the batch of the sequence that has lost KV.
    pub sequence: usize,
    /// Describes what happened.
    pub reason: String,
}

/// Brings KV up from below memory.
pub trait KvBelow {
    /// Begins a pass, which will ask for all of `frames`, in this order. Frames that an earlier pass left over are
    /// forgotten.
    fn begin(&mut self, frames: &[FrameId]);

    /// Waits until the next of the frames is in memory, and returns it. The frame's memory is reused once all its
    /// owners have dropped it.
    ///
    /// # Errors
    /// Fails if the frame could not be read, or differs from what was written.
    fn next(&mut self) -> Result<KvFrame, KvLost>;
}

/// The implementation of [`KvBelow`] for passes whose KV is all in memory.
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
