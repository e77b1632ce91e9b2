//! Options and errors of a store on disk.

use std::sync::Arc;
use std::time::Duration;

use interbed_io::{DiskTurns, IoError};
use interbed_kv::{Gate, KeyChain, SwapTrial};
use thiserror::Error;

/// Options that say how a store of KV on disk is kept.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Number of bytes that the store may take on the disk.
    pub bytes: u64,
    /// Number of bytes of memory for buffers. The store takes more if a record that is read, and the blocks of one
    /// record and a quarter, take more.
    pub buffer_bytes: usize,
    /// Number of bytes that may be written in a day; `None` for no limit.
    pub writes_per_day: Option<u64>,
    /// Time after its writing for which a block may be read; `None` for no limit.
    pub ttl: Option<Duration>,
    /// Gate that decides which blocks return often enough to be written at all.
    pub gate: Gate,
    /// Number of blocks in a frame, and number of frames that are read ahead. A frame is the part of a sequence's KV
    /// that is streamed at once. Both numbers are 0 if no KV is streamed.
    pub frames: (usize, usize),
    /// Key chain that computes the keys of contents, if another tier must know them by equal keys.
    pub names: Option<KeyChain>,
    /// Turns at the disk, by which reads and writes give way to other users of the disk.
    pub turns: Arc<DiskTurns>,
    /// Room for swapped blocks.
    pub slots: SlotRoom,
}

/// Room that a store has for blocks that are swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SlotRoom {
    /// Number of slots; 0 if nothing is swapped to the store.
    pub num_slots: usize,
    /// Number of bytes of the segments that may not be emptied because swapped blocks lie in them, rounded up to whole
    /// segments; `None` for a quarter of the store.
    pub bytes: Option<u64>,
    /// Time that the disk took in a trial.
    pub trial: SwapTrial,
}

/// Reason why a store cannot be used.
#[derive(Debug, Error)]
pub enum DiskTierError {
    /// The system refused a call.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The system refused to start a thread.
    #[error("the threads that write and read KV could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The store would have too few bytes to be of use.
    #[error("{got} bytes of disk are too few for KV: {least} or more are needed")]
    TooSmall {
        /// Number of bytes that were asked for.
        got: u64,
        /// Number of bytes that are needed.
        least: u64,
    },
    /// The file has no room for a single block.
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
