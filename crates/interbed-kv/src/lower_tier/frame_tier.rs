//! Interface to the tier that holds the KV of sequences which are longer than memory.
//!
//! A *frame* is one layer's part of a fixed number of blocks. A sequence has the tier *keep* its blocks, frame by
//! frame; the tier gives up none of them until they are released. A pass says which frames it will ask for, in order,
//! so that they are read ahead.

use std::sync::Arc;

use super::LowerTier;
use crate::{
    block_bytes::BlockBytes,
    ids::{BlockId, TokenId},
    key::{BlockKey, BlockLabel},
};

/// A tier that keeps the KV of sequences which are longer than memory, and streams it through passes.
pub trait FrameTier: LowerTier {
    /// Returns the number of tokens of a sequence that are sure to find room.
    fn capacity_tokens(&self) -> usize;

    /// Returns whether the tier has `key`, or is about to have it.
    fn has(&self, key: BlockKey) -> bool;

    /// Copies a block that a sequence cannot go on without, to be written soon. The budget of writes does not keep the
    /// block from being written, unlike in [`stage`](LowerTier::stage). Returns whether the block will be written; if
    /// not, there is no buffer now, the block cannot be read, or writes are [paused](crate::TierFigures::paused_until).
    fn stage_needed(&mut self, label: BlockLabel, block: BlockId, blocks: &mut dyn BlockBytes) -> bool;

    /// Keeps the blocks with these contents, as many as a frame has, as the next frame of `owner`. A content is given
    /// by the parent's key, its own key, and its tokens. Returns `false`, and keeps nothing, if the tier lacks one of
    /// the blocks.
    fn keep_frame(&mut self, owner: u64, contents: &[(BlockKey, BlockKey, Box<[TokenId]>)]) -> bool;

    /// Returns the number of frames that `owner` keeps.
    fn kept_frames(&self, owner: u64) -> usize;

    /// Releases all frames that `owner` keeps.
    fn release_frames(&mut self, owner: u64);

    /// Begins a pass that will ask for `frames`, in this order. Frames that an earlier pass has not asked for are
    /// forgotten.
    fn begin_frames(&mut self, frames: &mut dyn Iterator<Item = FrameOf>);

    /// Waits for the next frame and returns it. The frame's memory is used again when nobody holds the frame any more.
    ///
    /// # Errors
    /// Fails if the frame could not be read, or is not what was written; the blocks to blame are forgotten.
    fn next_frame(&mut self) -> Result<FrameBytes, FrameLost>;
}

/// Identifies one layer's part of one of the frames that a sequence keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameOf {
    /// A number, chosen by the caller, for the sequence that keeps the frame.
    pub owner: u64,
    /// Index of the frame among the owner's frames.
    pub frame: usize,
    /// Index of the layer.
    pub layer: usize,
}

/// A buffer, and its used length in bytes. The used bytes are one layer's parts of the frame's blocks, in order.
pub type FrameBytes = (Arc<dyn AsRef<[u8]> + Send + Sync>, usize);

/// A frame that could not be read, or is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameLost {
    /// Frame that could not be read.
    pub of: FrameOf,
    /// Reason why the frame cannot be used.
    pub reason: String,
}
