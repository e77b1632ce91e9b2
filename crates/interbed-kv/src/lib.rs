//! Manages KV blocks: contents, places, prefix look-up, eviction and block tables. This is pure logic, without any
//! device.
//!
//! [`BlockManager`] decides which physical blocks hold the KV of which sequence; it moves no byte itself. The caller
//! computes into the slots that [`BlockManager::block_table`] names and reports, with [`BlockManager::commit`], what
//! has really been computed. Only then can other sequences find it.
//!
//! What the KV *is* (a content, which has tokens and continues another content) is kept apart from where it *lies* (in
//! a block, in a slot one tier below, or in both). A transfer ([`BlockCopy`], [`BlockSwap`]) changes a location and no
//! content.
//!
//! **Invariant:** every block is exactly one of *free* (no content), *cached* (findable content that nothing holds),
//! *used* (held by at least one block table, or by a transfer in flight) and *withdrawn* (without memory, after
//! [`BlockManager::set_usable`]). [`BlockManager::check`] checks this, with everything else that must hold.

mod block_bytes;
mod block_manager;
mod blocks;
mod cache;
mod changes;
mod config;
mod contents;
mod error;
mod eviction;
mod hash;
mod ids;
mod invariant_violation;
mod key;
mod losses;
mod lower_tier;
mod miss;
mod missing_keys;
mod names;
mod owners;
mod pause;
mod prefix_hashes;
mod resume_points;
mod root_table;
mod sequence_state;
mod slots;
mod stats;
mod strips;
mod tables;
mod tail_parts;
mod tail_pool;
mod tail_table;
mod tails;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tier;
mod tier_figures;
mod transfer;
mod wanted;

pub use block_bytes::{BlockBytes, BlockPart};
pub use block_manager::{Allocation, BlockManager, BlockUse, Foreseen, KeptTails, LookUp, TailPlace};
pub use blocks::{Fragmentation, Resize};
pub use changes::{CacheChange, CacheChanges, CacheWatcher};
pub use config::{Keeps, KvConfig, KvConfigError, TailConfig};
pub use error::{AllocStatus, BlockError};
pub use eviction::{Adaptive, Content, EvictionKind, EvictionPolicy};
pub use hash::{BlockHash, ChainHasher, ChainRoot};
pub use ids::{BLOCK_SIZE_MAX, BLOCKS_MAX, BlockId, FetchId, SequenceId, SwapId, SwapSlot, TokenId};
pub use invariant_violation::InvariantViolation;
pub use key::{BlockKey, BlockLabel, KEY_BYTES, KeyChain};
pub use lower_tier::{
    FetchEnded, FrameBytes, FrameLost, FrameOf, FrameTier, LowerTier, SlotTier, SwapEnded, SwapFailure, SwapTook,
    SwapTrial,
};
pub use miss::{Miss, MissReason};
pub use missing_keys::MissingKeys;
pub use names::{Evicted, WantedPoint};
pub use owners::OwnerId;
pub use pause::Pause;
pub use prefix_hashes::PrefixHashes;
pub use sequence_state::SequenceState;
pub use stats::{KvStats, KvUse, TailStats};
pub use strips::{Hiding, Mapped, Mapping, StripConfig, StripMapper, StripPlace, StripPlan, StripUse};
pub use tables::IdHasher;
pub use tail_parts::TailParts;
pub use tier::{Gate, KvTierConfig, NoRecords, Reclaim, RecordPlace, Tier, TierCounts, TierPlace, WriteBudget};
pub use tier_figures::TierFigures;
pub use transfer::{BlockCopy, BlockSwap, Fetch, Swap, SwapDirection, SwapOutcome};
pub use wanted::{Wanted, WantedTails};
