//! Interface to the tier that holds the KV of sequences which are longer than memory.
//!
//! A *stretch* is a fixed number of consecutive trunk blocks of a sequence. A sequence has the tier *keep* its blocks,
//! stretch by stretch; the tier gives up none of them until they are released. A *frame* is one layer's KV of a
//! stretch, which a pass reads at a time.
//!
//! A pass announces the frames that it will ask for, in order, so that the tier reads ahead.

use std::sync::Arc;

use super::LowerTier;
use crate::{
    block_bytes::{BlockBytes, BlockPart},
    ids::TokenId,
    key::{BlockKey, BlockLabel},
};

/// A tier that keeps the KV of sequences which are longer than memory, and streams it through passes.
pub trait FrameTier: LowerTier {
    /// Returns the length, in tokens, of the longest sequence whose KV is sure to find room.
    fn capacity_tokens(&self) -> usize;

    /// Returns whether the tier has the block with this key, or is about to have it.
    fn has(&self, key: BlockKey) -> bool;

    /// Copies a part of a block that a sequence cannot go on without, to be written soon under `label`. Unlike in
    /// [`stage`](LowerTier::stage), the budget of writes does not keep the part from being written. Returns whether the
    /// tier has taken the part. The tier then stores it, unless there is no room by then or the write fails. The tier
    /// does not take the part if no buffer is free now, if the part cannot be read, or if writes are
    /// [paused](crate::TierFigures::paused_until).
    fn stage_needed(&mut self, label: BlockLabel, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool;

    /// Keeps the blocks of `contents`, as many as a stretch has, as the next stretch of `owner`. Each content is given
    /// by its parent's key, its own key, and its tokens. `owner` is a number that the caller chooses for the sequence.
    /// Returns `false`, and keeps nothing, if the tier lacks one of the blocks.
    fn keep_frame(&mut self, owner: u64, contents: &[(BlockKey, BlockKey, Box<[TokenId]>)]) -> bool;

    /// Returns the number of stretches that `owner` keeps.
    fn kept_frames(&self, owner: u64) -> usize;

    /// Releases all stretches that `owner` keeps, so that the tier may forget their blocks.
    fn release_frames(&mut self, owner: u64);

    /// Begins a pass that will ask for `frames`, in this order. What was announced earlier and not asked for is no
    /// longer waited for; sequences still keep the stretches.
    fn begin_frames(&mut self, frames: &mut dyn Iterator<Item = FrameOf>);

    /// Waits for the next announced frame and returns it. The tier uses the frame's memory again when nobody holds the
    /// frame any more.
    ///
    /// # Errors
    /// Fails with the frame and the reason if the frame could not be read, or is not what was written. The tier forgets
    /// the blocks to blame.
    fn next_frame(&mut self) -> Result<FrameBytes, FrameLost>;
}

/// Identifies a frame: one layer's KV of one of the stretches that a sequence keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameOf {
    /// The number that the caller chose for the sequence that keeps the stretch.
    pub owner: u64,
    /// Index of the stretch among those that this sequence keeps.
    pub frame: usize,
    /// Index of the layer among the layers whose KV is in trunk blocks.
    pub layer: usize,
}

/// A frame's buffer, and the number of its leading bytes that are used. The used bytes are one layer's KV of the
/// stretch's blocks, in the order of the tokens.
pub type FrameBytes = (Arc<dyn AsRef<[u8]> + Send + Sync>, usize);

/// A frame that could not be read, or is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameLost {
    /// The frame that could not be read.
    pub of: FrameOf,
    /// The reason why the frame cannot be used.
    pub reason: String,
}
