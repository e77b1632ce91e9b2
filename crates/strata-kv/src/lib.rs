//! Blocks, prefix index, eviction, block tables: pure logic, no device in sight.
//!
//! [`BlockManager`] decides which physical blocks hold the KV of which sequence; it moves no byte itself. The caller
//! computes into the slots that [`BlockManager::block_table`] names and reports, with [`BlockManager::commit`], what has
//! really been computed. Only then can other sequences find it.
//!
//! **Invariant:** every block is exactly one of *free* (no content), *cached* (findable content that no sequence holds),
//! *used* (held by at least one block table) and *withdrawn* (without memory, after [`BlockManager::set_usable`]). [`BlockManager::check`] proves it, with everything else that must hold.

mod block_list;
mod block_manager;
mod block_pool;
mod config;
mod eviction;
mod hash;
mod ids;
mod invariants;
mod prefix_index;
mod resize;
mod sequence;
mod stats;

pub use block_manager::{AllocError, AllocStatus, Allocation, BlockManager};
pub use config::{BLOCK_SIZE_MAX, BLOCKS_MAX, ConfigError, KvConfig};
pub use eviction::{
    Adaptive, Content, EvictionKind, EvictionPolicy, Lfu, Lru, S3Fifo, Slru, TwoQueue, UnknownEviction,
};
pub use hash::{BlockHash, ChainHasher, ChainRoot};
pub use ids::{BlockId, SequenceId, TokenId};
pub use invariants::InvariantViolation;
pub use resize::Resize;
pub use stats::KvStats;
