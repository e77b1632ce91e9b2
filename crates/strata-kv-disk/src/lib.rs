//! KV blocks on disk: a cache of prefixes that outlives the process and is bounded by the disk, not by memory.
//!
//! [`DiskTier`] is the driver of a [`Tier`](strata_kv::Tier): it gathers blocks into records, has a thread write them
//! and others read them, and finds out at the start what an earlier process has left. Nothing waits for a write. What
//! is read back counts only if the record is whole, of the same model, and names the wanted tokens and what they
//! continue; anything else is a miss.

mod ages;
mod directory;
mod disk_tier;
mod erase;
mod frames;
mod index_file;
mod jobs;
mod read_queue;
mod record;
mod recovery;
mod shape;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workers;
mod write_budget;

pub use directory::{Directory, DirectoryError, SegmentSpace};
pub use disk_tier::{BlockBytes, DiskOptions, DiskStats, DiskTier, DiskTierError, FetchEnded, Wanted};
pub use erase::{Erased, erase};
pub use frames::{FrameBytes, FrameLost, FrameOf};
pub use recovery::Recovered;
pub use shape::RecordShape;
pub use write_budget::WriteBudget;
