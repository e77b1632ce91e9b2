//! Interface between the owner of KV blocks and the tiers below memory.

mod frame_tier;
mod slot_tier;

use std::time::Duration;

use crate::{
    block_bytes::{BlockBytes, BlockPart},
    ids::FetchId,
    key::{BlockKey, BlockLabel, KeyChain},
    missing_keys::MissingKeys,
    tier_figures::TierFigures,
    wanted::{Wanted, WantedTails},
};
pub use frame_tier::{FrameBytes, FrameLost, FrameOf, FrameTier};
pub use slot_tier::{SlotTier, SwapEnded, SwapFailure, SwapTook, SwapTrial};

/// A tier below memory, which stores KV blocks and brings them back. The engine's thread calls it between passes; slow
/// work continues during the passes. If a tier fails, its contents count as missed; it never brings wrong KV.
pub trait LowerTier: Send {
    /// Returns the name under which figures of the tier are reported, such as `disk`.
    fn name(&self) -> &'static str;

    /// Returns the chain that computes the keys of the tier's contents. All tiers of an engine give equal contents
    /// equal keys.
    fn key_chain(&self) -> &KeyChain;

    /// Returns how many of the missing contents, from the first on, should be fetched from the tier: those that the
    /// tier has, up to the last one behind which a sequence [can go on](MissingKeys::usable). A tier that cannot know
    /// its contents before a fetch returns the number of all missing contents, or 0 if asking is not worth the wait.
    /// Computing the blocks of all `keys` takes `computing` seconds, if that is known.
    fn look_up(&mut self, keys: &MissingKeys, computing: Option<f64>) -> usize;

    /// Returns whether look-ups name only contents that the tier has.
    fn knows_contents(&self) -> bool;

    /// Returns the seconds that reading `blocks` blocks takes, by the rate measured lately. Returns `None` if no rate
    /// was measured.
    fn read_seconds(&self, blocks: usize) -> Option<f64>;

    /// Begins to bring `wanted`, which a [look-up](Self::look_up) has named, into their blocks. Where `tails` are
    /// given, the tier brings them too, and blocks are of use only up to a place for which it brings all tails: the
    /// last of `wanted`, or an earlier one. Without such a place, it brings nothing. [`poll`](Self::poll) reports the
    /// end of the fetch. Only calls that are given the memory of the blocks write to them: `poll`, and
    /// [`SlotTier::poll_swaps`] if the tier takes swaps too. Computing all of `wanted` takes `computing` seconds, if
    /// that is known.
    fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, tails: Option<WantedTails>, computing: Option<f64>);

    /// Ends a fetch with what has come, if the fetch is in flight and the tier can end it early; [`poll`](Self::poll)
    /// reports it.
    fn give_up(&mut self, _id: FetchId) {}

    /// Returns whether the tier is reading, so that [`poll`](Self::poll) may have to wait for a fetch.
    fn is_reading(&self) -> bool;

    /// Returns the longest time for which a pass should be put off until the tier has said whether it has what it was
    /// asked for. Returns `None` if the pass should not wait: because nothing was asked, because a look-up has said it
    /// already, or because the answer takes longer than a short wait.
    fn answer_wait(&self) -> Option<Duration> {
        None
    }

    /// Continues what is in flight, and fills `blocks` with what has come. Returns a fetch that has ended, if there is
    /// one. The call waits for a fetch up to `wait` while any is in flight.
    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded>;

    /// Returns whether a block of this key should be [staged](Self::stage) now. `class` stands for what memory knows
    /// of the block's use.
    fn wants(&mut self, key: BlockKey, class: u8) -> bool;

    /// Returns whether the tier neither has a part with this key nor will write it, and could [stage](Self::stage) it
    /// now.
    fn lacks(&self, key: BlockKey) -> bool;

    /// Returns how many parts can be staged now.
    fn room(&self) -> usize;

    /// Returns how many parts can be staged while nothing is being written.
    fn buffers(&self) -> usize;

    /// Copies `part` out of `blocks`, to be written soon under `label`. `class` is as in [`wants`](Self::wants).
    /// Nothing waits for the write: if no buffer is free, or the budget of writes is used up, the part is not stored.
    /// Returns whether the part will be stored, unless the write fails.
    fn stage(&mut self, label: BlockLabel, class: u8, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool;

    /// Begins to write the staged blocks, instead of waiting until more blocks can be written with them.
    fn flush(&mut self) {}

    /// Returns whether nothing is staged or in flight.
    fn is_settled(&self) -> bool;

    /// Returns the longest time for which a stopping engine goes on writing to the tier.
    fn last_writes(&self) -> Duration;

    /// Leaves behind what lets the next process begin sooner. This is the last call, when the engine stops.
    fn leave_index(&self) {}

    /// Returns figures of the tier since its start.
    fn figures(&self) -> TierFigures;

    /// Returns the tier as a place for sequences that are longer than memory, if it is one.
    fn frames(&mut self) -> Option<&mut dyn FrameTier> {
        None
    }

    /// Returns the tier as a place to which sequences are swapped, if it is one.
    fn slots(&mut self) -> Option<&mut dyn SlotTier> {
        None
    }
}

/// The report of a fetch that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchEnded {
    /// The id of the fetch.
    pub id: FetchId,
    /// Number of blocks, counted from the first, that hold the KV that was asked for. If tails were asked for and this
    /// is not 0, their blocks hold what a sequence needs to go on behind these blocks.
    pub filled: usize,
    /// Number of blocks that were asked for.
    pub wanted: usize,
    /// The number of bytes that the fetch read.
    pub bytes: u64,
    /// The seconds from the beginning of the fetch to its end.
    pub seconds: f64,
}
