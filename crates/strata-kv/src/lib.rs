//! Blocks, prefix index, eviction, block tables: pure logic, no device in sight.
//!
//! [`BlockManager`] decides which physical blocks hold the KV of which sequence; it moves no byte itself. The caller
//! computes into the slots that [`BlockManager::block_table`] names and reports, with [`BlockManager::commit`], what has
//! really been computed. Only then can other sequences find it.
//!
//! **Invariant:** every block is exactly one of *free* (no content), *cached* (findable content that nobody holds),
//! *used* (held by at least one block table, or by a swap under way) and *withdrawn* (without memory, after
//! [`BlockManager::set_usable`]). [`BlockManager::check`] proves it, with everything else that must hold.

mod admission;
mod block_list;
mod block_manager;
mod block_pool;
mod block_table;
mod compact;
mod config;
mod error;
mod eviction;
mod fork;
mod hash;
mod ids;
mod invariant_violation;
mod invariants;
mod losses;
mod miss;
mod prefix_hashes;
mod prefix_index;
mod resize;
mod root_table;
mod sequence;
mod stats;
mod swap;
mod swap_pool;

pub use block_manager::{Allocation, BlockManager};
pub use compact::Fragmentation;
pub use config::{BLOCK_SIZE_MAX, BLOCKS_MAX, ConfigError, KvConfig};
pub use error::{AllocError, AllocStatus};
pub use eviction::{
    Adaptive, Content, EvictionKind, EvictionPolicy, Lfu, Lru, S3Fifo, Slru, TwoQueue, UnknownEviction,
};
pub use fork::BlockCopy;
pub use hash::{BlockHash, ChainHasher, ChainRoot};
pub use ids::{BlockId, SequenceId, SwapId, SwapSlot, TokenId};
pub use invariant_violation::InvariantViolation;
pub use miss::{Miss, MissReason};
pub use prefix_hashes::PrefixHashes;
pub use resize::Resize;
pub use sequence::{IdHasher, SequenceState};
pub use stats::KvStats;
pub use swap::{Swap, SwapCopy, SwapDirection, SwapOutcome};
