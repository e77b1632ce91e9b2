//! How a store on disk is kept, why it cannot be, and its figures.

use std::sync::Arc;
use std::time::Duration;

use interbed_io::{DiskTurns, IoError};
use interbed_kv::{Gate, KeyChain, TierCounts};
use thiserror::Error;

/// How a store is kept.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Bytes that it may take on the disk.
    pub bytes: u64,
    /// Bytes of memory for buffers, as far as a record that is read, and the blocks of one and a quarter, do not take
    /// more.
    pub buffer_bytes: usize,
    /// Bytes that may be written in a day.
    pub writes_per_day: Option<u64>,
    /// How long after it was written a block may be read.
    pub ttl: Option<Duration>,
    /// Which blocks are worth a write.
    pub gate: Gate,
    /// Blocks of a frame, and how many frames are read ahead; 0 where no KV is streamed.
    pub frames: (usize, usize),
    /// Who names contents, where another tier has to know them by the same names.
    pub names: Option<KeyChain>,
    /// Turns at the disk: what reads and writes give way to.
    pub turns: Arc<DiskTurns>,
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
pub enum DiskTierError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The system refused a thread.
    #[error("the threads that write and read KV could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// It holds too little to be of use.
    #[error("{got} bytes of disk are too few for KV: {least} or more are needed")]
    TooSmall {
        /// Bytes asked for.
        got: u64,
        /// Bytes needed.
        least: u64,
    },
    /// The system refused memory.
    #[error("there is no memory for buffers of {bytes} bytes to read KV into")]
    Memory {
        /// Bytes of each.
        bytes: usize,
    },
}

/// Figures since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DiskStats {
    /// Contents that can be read, or are being written.
    pub blocks: usize,
    /// Bytes of segments in use, and of all.
    pub bytes_used: u64,
    /// Bytes that the store may take.
    pub bytes_total: u64,
    /// See [`TierCounts`].
    pub counts: TierCounts,
    /// Bytes written, with headers and what was written again.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Blocks that were brought to the disk for sure.
    pub durable_blocks: u64,
    /// Blocks that were not stored for want of a buffer, of room, or of budget.
    pub refused_blocks: u64,
    /// Writes and syncs that have failed.
    pub write_errors: u64,
    /// Reads that have failed, or brought something else.
    pub read_errors: u64,
    /// Blocks that were forgotten since they were too old.
    pub expired_blocks: u64,
    /// Blocks that wait to be written, or are being written.
    pub queued_blocks: usize,
    /// Records that wait to be read, or are being read.
    pub queued_reads: usize,
    /// Frames that passes have read, and the seconds that they waited for them.
    pub frames: u64,
    /// See [`frames`](Self::frames).
    pub frame_seconds: f64,
    /// Whether writes are paused after a failure.
    pub paused: bool,
    /// Bytes a second at which fetches have read.
    pub read_rate: f64,
    /// Bytes that swaps did not have to write, since they are here.
    pub swap_spared_bytes: u64,
}
