//! Interface between the engine, which has KV blocks in memory, and the tiers below memory.

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

/// A tier below memory, which stores parts of blocks under their keys and brings them back. The engine's thread calls
/// the tier between passes; slow work continues during the passes. If a tier fails, its contents count as missed; it
/// never brings wrong KV.
pub trait LowerTier: Send {
    /// Returns the name under which figures of the tier are reported, such as `disk`.
    fn name(&self) -> &'static str;

    /// Returns the [`KeyChain`] that computes the keys of what the tier stores. All tiers of an engine give equal
    /// contents equal keys.
    fn key_chain(&self) -> &KeyChain;

    /// Returns how many of the missing contents `keys`, counted from the first, should be fetched from the tier: those
    /// that the tier has, up to the last one behind which a sequence [can go on](MissingKeys::usable). A tier that
    /// cannot know its contents before a fetch returns the number of all missing contents, or 0 if asking is not worth
    /// the wait. `computing` is the number of seconds in which the engine would compute the blocks of all `keys`, if
    /// that is known.
    fn look_up(&mut self, keys: &MissingKeys, computing: Option<f64>) -> usize;

    /// Returns whether [`look_up`](Self::look_up) counts only contents that the tier has.
    fn knows_contents(&self) -> bool;

    /// Returns the seconds that reading `blocks` parts takes, by the rate measured lately. Returns `None` if no rate
    /// was measured.
    fn read_seconds(&self, blocks: usize) -> Option<f64>;

    /// Begins to fill the parts of memory that `wanted` names with the contents that a [look-up](Self::look_up) has
    /// counted. With `tails`, the tier also fills tail blocks. Such a fetch brings the first contents of `wanted` up to
    /// a place for which the tier has all tails: behind the last content, or behind an earlier one. Without such a
    /// place, it brings nothing. [`poll`](Self::poll) reports the end of the fetch. Only calls that are given the
    /// memory of the blocks write to them: `poll`, and [`SlotTier::poll_swaps`] if the tier takes swaps too.
    /// `computing` is the number of seconds in which the engine would compute all of `wanted`, if that is known.
    fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, tails: Option<WantedTails>, computing: Option<f64>);

    /// Ends the fetch `id` with what has come, if it is in flight and the tier can end it early. [`poll`](Self::poll)
    /// then reports its end.
    fn give_up(&mut self, _id: FetchId) {}

    /// Returns whether the tier is reading, so that [`poll`](Self::poll) may have to wait for the end of a fetch.
    fn is_reading(&self) -> bool;

    /// Returns for how long the engine should put off a pass at most, until the tier has said whether it has what it
    /// was asked for. Returns `None` if the pass should not wait: because nothing was asked, because a look-up has
    /// given the answer already, or because the answer takes longer than a short wait.
    fn answer_wait(&self) -> Option<Duration> {
        None
    }

    /// Continues what is in flight, and fills `blocks` with what has come. Returns a fetch that has ended, if there is
    /// one. While fetches are in flight and none has ended, the call waits for one, up to `wait`.
    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded>;

    /// Returns whether the part with this key should be [staged](Self::stage) now. `class` is the
    /// [class](crate::EvictionPolicy::class) of its content.
    fn wants(&mut self, key: BlockKey, class: u8) -> bool;

    /// Returns whether the tier neither has a part with this key nor is about to write it, and accepts writes now. The
    /// tier's [`room`](Self::room) and budget of writes may still not allow it to be [staged](Self::stage).
    fn lacks(&self, key: BlockKey) -> bool;

    /// Returns how many parts can be staged now, by the number of free buffers.
    fn room(&self) -> usize;

    /// Returns how many parts can be staged at most, while nothing is being written.
    fn buffers(&self) -> usize;

    /// Copies `part` out of `blocks`, to be written soon under `label`. `class` is the
    /// [class](crate::EvictionPolicy::class) of its content. Nothing waits for the write. Returns whether the tier has
    /// taken the part. The tier then stores it, unless there is no room by then or the write fails. The tier does not
    /// take the part if no buffer is free, if the part cannot be read, or if the budget of writes is used up.
    fn stage(&mut self, label: BlockLabel, class: u8, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool;

    /// Begins to write the staged parts, instead of waiting until more parts can be written with them.
    fn flush(&mut self) {}

    /// Returns whether no part is staged, and no fetch or write is in flight.
    fn is_settled(&self) -> bool;

    /// Returns for how long a stopping engine goes on writing to the tier at most.
    fn last_writes(&self) -> Duration;

    /// Leaves behind what lets the next process begin sooner. The engine calls it last, when it stops.
    fn leave_index(&self) {}

    /// Returns figures of the tier since its start.
    fn figures(&self) -> TierFigures;

    /// Returns the tier as a place for sequences that are longer than memory, if it is one. The default is `None`.
    fn frames(&mut self) -> Option<&mut dyn FrameTier> {
        None
    }

    /// Returns the tier as a place to which sequences are swapped, if it is one. The default is `None`.
    fn slots(&mut self) -> Option<&mut dyn SlotTier> {
        None
    }
}

/// The report of a fetch that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchEnded {
    /// The id of the fetch.
    pub id: FetchId,
    /// Number of wanted contents, counted from the first, whose KV is now in their blocks. If tails were asked for and
    /// this is not 0, the tail blocks hold what a sequence needs to go on behind these contents.
    pub filled: usize,
    /// Number of contents that were asked for.
    pub wanted: usize,
    /// The number of bytes that the fetch read.
    pub bytes: u64,
    /// The number of seconds from the beginning of the fetch to its end.
    pub seconds: f64,
}
