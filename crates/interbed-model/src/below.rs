//! KV that is below memory, and comes up piece by piece while a pass computes.

use std::ops::Range;

use interbed_device::KvFrame;
use interbed_kernels::STRETCH;
use thiserror::Error;

/// One layer's keys and values of [`STRETCH`] positions of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    /// The sequence's index in the batch.
    pub sequence: usize,
    /// The layer's index among those that keep KV.
    pub layer: usize,
    /// Which positions: those from `stretch * STRETCH` on.
    pub stretch: usize,
}

/// KV that could not be brought up. The pass cannot be computed.
#[derive(Debug, Clone, Error)]
#[error("KV that is below memory could not be read: {reason}")]
pub struct KvLost {
    /// The index in the batch of the sequence whose KV it is.
    pub sequence: usize,
    /// What happened.
    pub reason: String,
}

/// Brings KV up from below memory.
pub trait KvBelow {
    /// A pass begins, which will ask for all of `frames`, in this order. Whatever an earlier pass left is forgotten.
    fn begin(&mut self, frames: &[FrameId]);

    /// The next of the frames, once it is in memory. Its memory is used again when nobody has the frame any more.
    ///
    /// # Errors
    /// It could not be read, or is not what was written.
    fn next(&mut self) -> Result<KvFrame, KvLost>;
}

/// Where all KV is in memory.
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

/// The stretches below position `below` that a token at `position`, or one after it, sees.
pub(crate) fn stretches_below(position: usize, below: usize, window: Option<usize>) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let end = below / STRETCH;
    (first / STRETCH).min(end)..end
}
