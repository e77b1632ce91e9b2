//! Options and errors of a store on disk.

use std::sync::Arc;
use std::time::Duration;

use interbed_io::{DiskTurns, IoError};
use interbed_kv::{Gate, KeyChain, SwapTrial};
use thiserror::Error;

/// Options of a store of KV on disk.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Maximum number of bytes that the store takes on the disk.
    pub bytes: u64,
    /// Number of bytes of memory for buffers. One half is for blocks that wait to be written. The other half is for
    /// records that are being read; a record is a header and the blocks that are written together with it. The first
    /// half must have room for the blocks of 1.25 full records, and the second half for one full record. If a half is
    /// smaller than that, the store takes more memory.
    pub buffer_bytes: usize,
    /// Maximum write rate, in bytes per day; `None` for no limit.
    pub writes_per_day: Option<u64>,
    /// Time from the first write of a block to this store until the block expires; `None` for no limit. A block that
    /// shares a record with an older block expires with that block. The store does not read an expired block, except to
    /// swap it in.
    pub ttl: Option<Duration>,
    /// Gate that decides which blocks are worth writing. Blocks with similar use form a class. The blocks of a class
    /// are worth writing if blocks of this class are looked up again often enough.
    pub gate: Gate,
    /// Number of blocks per frame, and number of frames that are read ahead. If the KV of a sequence does not fit in
    /// memory, it is streamed from disk in frames. Each frame holds the KV of one layer for the given number of blocks.
    /// Both numbers are 0 if no KV is streamed.
    pub frames: (usize, usize),
    /// Key chain of another tier. A key chain computes the keys of blocks. With `Some`, the store uses this key chain,
    /// so a block has the same key in both tiers. With `None`, the store creates a key chain from its own secret.
    pub names: Option<KeyChain>,
    /// Counter of urgent disk accesses, which this store shares with other users of the disk. Less urgent reads and
    /// writes wait, up to a time limit, until all urgent accesses have ended.
    pub turns: Arc<DiskTurns>,
    /// Room in the store for blocks that are swapped out.
    pub slots: SlotRoom,
}

/// Room in a store for blocks that are swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SlotRoom {
    /// Number of slots, each for one block; 0 if nothing is swapped to the store.
    pub num_slots: usize,
    /// Maximum total size, in bytes, of the segments that contain swapped blocks. The store cannot empty a segment
    /// while the segment contains swapped blocks. The maximum is rounded up to whole segments. `None` stands for a
    /// quarter of the store.
    pub bytes: Option<u64>,
    /// Result of a trial that measured how long the disk takes to write and read. All numbers are 0 if there was no
    /// trial.
    pub trial: SwapTrial,
}

/// Reason why a store cannot be used.
#[derive(Debug, Error)]
pub enum DiskTierError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The operating system refused to start a thread that communicates with the store.
    #[error("the threads that write and read KV could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The options give the store fewer bytes than it needs.
    #[error("{got} bytes of disk are too few for KV: {least} or more are needed")]
    TooSmall {
        /// Number of bytes that were asked for.
        got: u64,
        /// Number of bytes that are needed.
        least: u64,
    },
    /// The file that was given to [`DiskTier::unnamed`](crate::DiskTier::unnamed) is too small for even one block.
    #[error("{got} bytes of disk hold no KV block, which takes {slot}")]
    NoBlock {
        /// Number of bytes of the file.
        got: u64,
        /// Number of bytes that a block takes.
        slot: usize,
    },
    /// The system refused memory for buffers.
    #[error("there is no memory for buffers of {bytes} bytes to read KV into")]
    Memory {
        /// Number of bytes of each buffer.
        bytes: usize,
    },
}
