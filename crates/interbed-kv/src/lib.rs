//! Manages KV blocks: contents, locations, prefix look-up, eviction and block tables. This is pure logic, without any
//! device.
//!
//! [`BlockManager`] decides which physical blocks hold the KV of which sequence; it moves no byte itself. The caller
//! computes into the blocks that [`BlockManager::block_table`] names and reports, with [`BlockManager::commit`], what
//! has really been computed. Only then can other sequences find it.
//!
//! What the KV *is* (a content, which has tokens and continues another content) is kept apart from where it *lies* (in
//! a block, in a slot one tier below, or in both). A move or a swap ([`BlockCopy`], [`BlockSwap`]) changes a location
//! and no content; a copy on write begins a new content with the same tokens.
//!
//! **Invariant:** every trunk block is exactly one of *free* (no content), *cached* (findable content that nothing
//! holds), *used* (held by at least one block table, or by a transfer in flight) and *withdrawn* (without memory, after
//! [`BlockManager::set_usable`], or because tail blocks took its memory). [`BlockManager::check`] checks this, with
//! everything else that must hold.
//!
//! # Terms
//!
//! The docs of this crate use these words in these meanings only. Later terms build on earlier ones.
//!
//! - **Memory** is where passes find KV; slower **tiers** that also store KV (host memory beside a GPU, a disk, a
//!   shared store) lie **below memory**.
//! - A **pass** is one run through the model with tokens of several sequences; a **step** plans a pass, runs it and
//!   takes its results.
//! - The **caller** is the code on the engine's thread that calls this crate, runs the passes and carries out the
//!   transfers.
//! - A **block** is a piece of memory for the KV of [`KvConfig::block_size`] consecutive tokens of a sequence; a
//!   **place** is the room for one token in a block (vLLM, and some names of this crate, call it a slot).
//! - The **trunk** is the KV of those layers that need the KV of all tokens; **trunk blocks** hold it, and have the ids
//!   below [`KvConfig::num_blocks`] (if no layer needs it, they take no memory and only number contents).
//! - A **tail** is what other layers need of a sequence to compute its next token: a **window**, which is the KV of the
//!   last tokens, or a **state** of fixed size.
//! - A **tail group** is a set of layers whose tails are kept alike, described by one [`TailConfig`]; its **tail
//!   blocks** each hold `block_size` tokens of a window, or one state.
//! - A **unit** is the amount of memory in which the pool is counted: one trunk block, or one block of the first tail
//!   group if [`KvConfig::block_bytes`] is 0.
//! - A **part** is what a tier below memory stores under one key: a whole trunk block, or one of [`TailConfig::parts`]
//!   pieces of a tail block; all parts take equally many bytes below memory.
//! - A **slot** is the right to keep one part below memory while a sequence is swapped out; the tier decides where the
//!   bytes of a slot lie.
//! - A **content** is the KV of the tokens of one trunk block; it is identified by these tokens and by the content
//!   before it, its **parent**, which it **continues**.
//! - A **chain** is a row of contents each of which continues the one before; a chain's first content continues a
//!   **chain root** ([`ChainRoot`]), and chains of different roots share nothing.
//! - A **tenant** is a client, or a set of clients, that shares its chains with no other tenant; the chain root names
//!   it by a number.
//! - An **owner** is a tenant that has blocks in memory, under a small number ([`OwnerId`]) of this process; an **owner
//!   mark** is a keyed hash that stands for a tenant below memory.
//! - A **salt** is a text in the chain root: chains of different salts share nothing, even within a tenant; a
//!   **namespace** is a number there that stands for whatever else changes KV for equal tokens, such as an adapter.
//! - A content is **findable** while a look-up can return it, from when it is published until it is evicted or
//!   forgotten; all that time it is full, computed and in a trunk block, and its parent is findable or a chain root.
//! - To **publish** a content, or its block, is to make it findable; [`BlockManager::commit`] does that.
//! - A **hit** is what a look-up returns for a sequence: the longest row of findable contents that equals the beginning
//!   of its tokens, up to a resume point if the model has tails.
//! - A **leaf** is a cached block whose content no findable content continues; only leaves are evicted.
//! - A **holder** keeps a block or a slot from being used for something else: a sequence's table, or a transfer in
//!   flight.
//! - A **transfer** is a copy between blocks, a **swap** of sequences between blocks and slots, or a **fetch**, which
//!   fills a sequence's blocks from a tier below memory.
//! - A **swap group** is a set of sequences that are swapped out and in together.
//! - A **key** ([`BlockKey`]) is the name of a part below memory; a **label** ([`BlockLabel`]) is what a tier stores
//!   beside a part, so that a reader can check what was read.
//! - A **class** is a number that the eviction policy gives to contents of similar use, so that a tier can learn which
//!   are worth a write.
//! - A sequence **goes on behind** a content, or behind its first blocks, if everything up to there is computed and it
//!   computes the next token.
//! - A **resume point** is a findable content for which memory has the tails that a sequence needs to go on behind it;
//!   only there can a hit end if the model has tails.
//! - A resume point is **passing** as long as nothing says that hits will end there, and **lasting** from then on; a
//!   lasting point is **wanted** if tiers below memory should keep its tails too.

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
pub use stats::{KvStats, KvUse, TailGroupStats, TailStats};
pub use strips::{Hiding, Mapped, Mapping, StripConfig, StripMapper, StripPlace, StripPlan, StripUse};
pub use tables::IdHasher;
pub use tail_parts::TailParts;
pub use tier::{Gate, KvTierConfig, NoRecords, Reclaim, RecordPlace, Tier, TierCounts, TierPlace, WriteBudget};
pub use tier_figures::TierFigures;
pub use transfer::{BlockCopy, BlockSwap, Fetch, Swap, SwapDirection, SwapOutcome};
pub use wanted::{Wanted, WantedTails};
