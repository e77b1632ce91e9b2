//! KV blocks on disk: a cache of prefixes that outlives the process and is bounded by the disk, not by memory.
//!
//! [`DiskTier`] is the driver of a [`Tier`](interbed_kv::Tier). The driver gathers blocks into records, has one thread
//! write records and other threads read them, and finds out at the start what an earlier process has left. Nothing
//! waits for a write. A block that is read back counts only if its record is whole, of the same model, and names the
//! wanted tokens and what they continue. Anything else is a miss.
//!
//! Sequences are swapped to the store too, as far as the store does not have their blocks already. Where there is no
//! store, [`DiskTier::unnamed`] takes them: a store in an unnamed file, which keeps nothing else.

mod ages;
mod directory;
mod disk_tier;
mod erase;
mod frames;
mod index_file;
mod job_queue;
mod jobs;
mod record;
mod recovery;
mod shape;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trial;
mod unnamed_space;
mod workers;

pub use directory::{Directory, DirectoryError, SegmentSpace};
pub use disk_tier::{DiskOptions, DiskTier, DiskTierError, SlotRoom, SwapShape};
pub use erase::{Erased, erase};
pub use recovery::Recovered;
pub use shape::RecordShape;
pub use trial::try_out;
