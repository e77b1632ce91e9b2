//! KV blocks on disk: a cache of prefixes that outlives the process and is bounded by the disk, not by memory.
//!
//! [`DiskTier`] is the driver of a [`Tier`](interbed_kv::Tier). The driver gathers blocks into records, has one thread
//! write records and other threads read them, and finds out at the start what an earlier process has left. Nothing
//! waits for a write. A block that is read back counts only if its record is whole, of the same model, and names the
//! wanted tokens and what they continue. Anything else is a miss.
//!
//! [`SwapSpace`] is the driver of swaps. Blocks are swapped to slots in an unnamed file, and moved by the threads of
//! the store if there is one. A block that the store has need not be written to a slot.

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
mod slots;
mod swap_space;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workers;
mod write_queue;

pub use directory::{Directory, DirectoryError, SegmentSpace};
pub use disk_tier::{DiskOptions, DiskTier, DiskTierError};
pub use erase::{Erased, erase};
pub use recovery::Recovered;
pub use shape::RecordShape;
pub use swap_space::{SwapSpace, SwapSpaceError};
