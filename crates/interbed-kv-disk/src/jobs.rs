//! What the threads of a store are given to do, and give back.

use std::sync::{Arc, OnceLock};

use interbed_io::{AlignedBuffer, BufferPart};
use interbed_kv::{BlockKey, BlockLabel, RecordPlace, TokenId};

use crate::record::Header;

/// A block that is to be written.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) label: BlockLabel,
    pub(crate) class: u8,
    pub(crate) bytes: Vec<u8>,
    /// When its record was first written, if it is written again.
    pub(crate) since: Option<u64>,
}

/// A record to write.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) record: RecordPlace,
    pub(crate) blocks: Vec<Staged>,
}

/// A block that is to be read: which of the record it is, and what it must be.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) index: u16,
    pub(crate) key: BlockKey,
    /// `None` if whatever has this name will do.
    pub(crate) content: Option<(BlockKey, Box<[TokenId]>)>,
}

/// A record to read.
pub(crate) struct ReadJob {
    /// The caller's number for it.
    pub(crate) tag: u64,
    pub(crate) record: RecordPlace,
    pub(crate) expected: Vec<Expected>,
    pub(crate) buffer: AlignedBuffer,
}

/// Blocks of a frame that lie in one record, side by side in both.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) record: RecordPlace,
    /// The blocks: which of the record, and what they must be.
    pub(crate) expected: Vec<Expected>,
    /// The hashes of the record's runs, once its header was read and found to be what is expected.
    pub(crate) sums: OnceLock<Box<[u64]>>,
}

impl Piece {
    /// Which block of the record would be the next.
    pub(crate) fn next_index(&self) -> usize {
        self.expected.last().map_or(0, |last| usize::from(last.index) + 1)
    }
}

/// The blocks of a frame, in order.
pub(crate) type Pieces = Arc<[Piece]>;

/// One layer's part of a piece to read: see [`Piece`].
pub(crate) struct PieceJob {
    /// The caller's number for the frame.
    pub(crate) tag: u64,
    pub(crate) layer: usize,
    pub(crate) pieces: Pieces,
    /// Which of the pieces.
    pub(crate) index: usize,
    pub(crate) part: BufferPart,
}

/// What became of a piece.
pub(crate) struct PieceDone {
    pub(crate) job: PieceJob,
    pub(crate) outcome: Result<(), String>,
}

/// What became of a job.
pub(crate) enum Done {
    Written {
        job: WriteJob,
        outcome: Result<(), String>,
    },
    /// Everything that was written before this is on the disk, or may not be.
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
