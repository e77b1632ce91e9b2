//! Jobs that the threads of a store are given, and their results.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use interbed_io::{AlignedBuffer, BufferPart, IoError};
use interbed_kv::{BlockKey, BlockLabel, BlockPart, FetchId, RecordPlace, SwapId, TokenId};

use crate::record::Header;

/// A block that is to be written.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) label: BlockLabel,
    pub(crate) class: u8,
    pub(crate) bytes: Vec<u8>,
    /// Time when the block was first written, in seconds since 1970, if the block is written again.
    pub(crate) since: Option<u64>,
}

/// A record to write.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) record: RecordPlace,
    pub(crate) blocks: Blocks,
}

/// The blocks of a record that is to be written.
#[derive(Debug)]
pub(crate) enum Blocks {
    /// Blocks to be stored, each in a buffer of its own. The write is not urgent.
    Staged(Vec<Staged>),
    /// Blocks that are swapped out. `buffer` has the layout of a flat record, in which whole blocks follow the header
    /// one after the other.
    Swapped { id: SwapId, labels: Vec<BlockLabel>, buffer: AlignedBuffer },
}

impl Blocks {
    /// Returns the labels of the blocks, in order.
    pub(crate) fn labels(&self) -> Vec<&BlockLabel> {
        match self {
            Self::Staged(blocks) => blocks.iter().map(|block| &block.label).collect(),
            Self::Swapped { labels, .. } => labels.iter().collect(),
        }
    }

    /// Returns the number of blocks that look-ups can find.
    pub(crate) fn num_named(&self) -> u64 {
        self.labels().iter().filter(|label| label.key != BlockKey::NAMELESS).count() as u64
    }

    /// Returns when a record of the blocks was written, if it is written now, in seconds since 1970. The record is as
    /// old as the oldest of its blocks.
    pub(crate) fn written_at(&self) -> u64 {
        match self {
            Self::Staged(blocks) => blocks.iter().filter_map(|block| block.since).min().unwrap_or_else(now),
            Self::Swapped { .. } => now(),
        }
    }
}

/// Returns the present time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A block that is to be read: its index in the record, its name, and its content.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) index: u16,
    pub(crate) key: BlockKey,
    /// Key of the block before this one in its chain, and the tokens of this block; `None` if the block's key alone
    /// decides.
    pub(crate) content: Option<(BlockKey, Box<[TokenId]>)>,
}

/// A record to read.
pub(crate) struct ReadJob {
    pub(crate) record: RecordPlace,
    pub(crate) expected: Vec<Expected>,
    pub(crate) purpose: Purpose,
    pub(crate) buffer: AlignedBuffer,
}

/// Purpose for which a record is read.
pub(crate) enum Purpose {
    /// A fetch needs the record, for these parts of blocks.
    Fetch(FetchId, Vec<BlockPart>),
    /// Blocks of the record are read to swap them in. The tier copies them into the listed parts of memory.
    Slots(SwapId, Vec<BlockPart>),
    /// Blocks of the record are read in order to write them to another segment, because the record's segment is being
    /// emptied.
    Carry,
}

/// Blocks of a frame that lie in one record, side by side both in the frame and in the record.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) record: RecordPlace,
    /// Blocks of the piece, with their indices in the record and their expected contents.
    pub(crate) expected: Vec<Expected>,
    /// Hashes of the record's runs, once the record's header was read and found to be the expected one.
    pub(crate) sums: OnceLock<Box<[u64]>>,
}

impl Piece {
    /// Returns the index in the record of the block that would follow the piece.
    pub(crate) fn next_index(&self) -> usize {
        self.expected.last().map_or(0, |last| usize::from(last.index) + 1)
    }
}

/// The blocks of a frame, in order.
pub(crate) type Pieces = Arc<[Piece]>;

/// A job that reads one layer's part of a [`Piece`].
pub(crate) struct PieceJob {
    /// Number that the caller gave the frame.
    pub(crate) tag: u64,
    pub(crate) layer: usize,
    pub(crate) pieces: Pieces,
    /// Index of the piece in `pieces`.
    pub(crate) index: usize,
    pub(crate) part: BufferPart,
}

/// A read of any kind.
pub(crate) enum Read {
    /// A read of a part of a frame, which holds one layer's KV of several blocks. A forward pass waits for this read.
    Piece(PieceJob),
    /// A read of a whole record. A sequence may be waiting for this read.
    Record(ReadJob),
}

/// Result of a [`PieceJob`].
pub(crate) struct PieceDone {
    pub(crate) job: PieceJob,
    pub(crate) outcome: Result<(), String>,
}

/// Reason why a record was not written.
#[derive(Debug, Clone)]
pub(crate) enum WriteFailure {
    /// The disk has no room for the record's segment. The string is the error message.
    Full(String),
    /// The write failed for another reason, which the string says.
    Broken(String),
}

impl From<IoError> for WriteFailure {
    fn from(error: IoError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<&str> for WriteFailure {
    fn from(reason: &str) -> Self {
        Self::Broken(reason.to_owned())
    }
}

/// Result of a job.
pub(crate) enum Done {
    Written {
        job: WriteJob,
        outcome: Result<(), WriteFailure>,
    },
    /// A sync has ended. It covers all writes since the previous sync. If `well` is true, the sync succeeded, and these
    /// writes are on the disk. They contain `blocks` blocks that have a key.
    Synced {
        blocks: u64,
        well: bool,
    },
    Read {
        job: ReadJob,
        outcome: Result<Header, String>,
        seconds: f64,
    },
}
