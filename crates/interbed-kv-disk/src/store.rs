//! Opens the segments of a store, and reads records and checks them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, IoError, SegmentWrite};
use interbed_kv::{BlockKey, BlockLabel, RecordPlace, TokenId};
use xxhash_rust::xxh3::xxh3_64;

use crate::directory::SegmentSpace;
use crate::index_file::{self, Listed};
use crate::jobs::{Expected, PieceJob, Purpose, ReadJob, now};
use crate::record::{Header, Seal, nameless_parent};
use crate::shape::RecordShape;

/// Maximum number of segments that are kept open.
const OPEN_MAX: usize = 64;

/// What is wrong with a record that was not written wholly, or has changed.
const DAMAGED: &str = "is damaged";

/// Data of a store that all its threads share.
pub(crate) struct Store {
    space: Arc<dyn SegmentSpace>,
    pub(crate) shape: RecordShape,
    pub(crate) seal: Seal,
    segment_bytes: u64,
    /// Whether segments have headers, by which a later process finds their records.
    pub(crate) has_headers: bool,
    open: Mutex<HashMap<u32, Arc<dyn SegmentWrite>>>,
    /// Age in seconds above which records are not read; `None` for no limit.
    ttl: Option<u64>,
}

impl Store {
    pub(crate) fn new(
        space: Arc<dyn SegmentSpace>,
        (shape, seal): (RecordShape, Seal),
        (segment_bytes, has_headers): (u64, bool),
        ttl: Option<u64>,
    ) -> Self {
        Self { space, shape, seal, segment_bytes, has_headers, open: Mutex::default(), ttl }
    }

    /// Leaves an index of `records` for the next process.
    pub(crate) fn leave_index(&self, records: &[Listed]) -> Result<(), IoError> {
        self.space.leave_index(&index_file::encode(records, &self.seal))
    }

    /// Returns a segment, which is opened unless it is open, and created if need be and `create` says so.
    pub(crate) fn segment(&self, number: u32, create: bool) -> Result<Arc<dyn SegmentWrite>, IoError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = match create {
            true => self.space.create(number, self.segment_bytes)?,
            false => self.space.open(number)?,
        };
        if open.len() >= OPEN_MAX
            && let Some(&other) = open.keys().next()
        {
            open.remove(&other);
        }
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    /// Reads a record, and checks that it is the one that was wanted.
    pub(crate) fn read(&self, job: &mut ReadJob) -> Result<Header, String> {
        let ReadJob { record, expected, purpose, buffer } = job;
        // Blocks of slots may be older than others may become.
        let ttl = self.ttl.filter(|_| !matches!(purpose, Purpose::Slots(..)));
        let count = usize::from(record.count);
        let bytes = buffer.as_mut().get_mut(..self.shape.record_bytes(count)).ok_or("the record is too long")?;
        let file = self.segment(record.segment, false).map_err(|error| error.to_string())?;
        let len = bytes.len();
        file.read_aligned_at(bytes, record.offset, len).map_err(|error| error.to_string())?;
        let header = self.header(bytes, *record, expected, ttl).and_then(|header| {
            let is_whole = header.runs_are_whole(&self.shape, bytes);
            if is_whole { Ok(header) } else { Err(DAMAGED) }
        });
        header.map_err(|reason| wrong(file.as_ref(), *record, reason))
    }

    /// Reads one layer's part of a piece, and checks it. `area` is memory to read into if the part cannot be read in
    /// place.
    pub(crate) fn read_piece(&self, job: &mut PieceJob, area: &mut Option<AlignedBuffer>) -> Result<(), String> {
        let PieceJob { layer, pieces, index, part: into, .. } = job;
        let (piece, layer, into) = (&pieces[*index], *layer, into.as_mut());
        let (record, count) = (piece.record, usize::from(piece.record.count));
        let file = self.segment(record.segment, false).map_err(|error| error.to_string())?;
        let (begin, part) = self.shape.runs(count).nth(layer).ok_or("there is no such layer")?;
        let area = memory(area, self.shape.room_to_read()).ok_or("there is no memory to read into")?;
        let wrong = |reason: &str| wrong(file.as_ref(), record, reason);
        if piece.sums.get().is_none() {
            let header = self.shape.header_bytes(count);
            let bytes = &mut area[..header];
            file.read_aligned_at(bytes, record.offset, header).map_err(|error| error.to_string())?;
            let header = self.header(bytes, record, &piece.expected, self.ttl).map_err(wrong)?;
            let _ = piece.sums.set(header.into_sums());
        }
        let sum = piece.sums.get().and_then(|sums| sums.get(layer)).ok_or("there is no such layer")?;
        let (whole, used) = ((count * part).next_multiple_of(DIRECT_ALIGN), count * part);
        let offset = record.offset + begin as u64;
        let is_aligned = into.as_ptr().addr().is_multiple_of(DIRECT_ALIGN);
        if piece.expected.len() == count && whole == used && is_aligned {
            file.read_aligned_at(into, offset, used).map_err(|error| error.to_string())?;
            return if xxh3_64(into) == *sum { Ok(()) } else { Err(wrong(DAMAGED)) };
        }
        let run = &mut area[..whole];
        file.read_aligned_at(run, offset, used).map_err(|error| error.to_string())?;
        if xxh3_64(&run[..used]) != *sum {
            return Err(wrong(DAMAGED));
        }
        let first = piece.expected.first().map_or(0, |expected| usize::from(expected.index)) * part;
        into.copy_from_slice(&run[first..first + into.len()]);
        Ok(())
    }

    /// Returns the header at the beginning of `bytes`, if it is that of the record that was wanted, and not older than
    /// `ttl` seconds. The error says what is wrong with the record.
    fn header(
        &self,
        bytes: &[u8],
        record: RecordPlace,
        expected: &[Expected],
        ttl: Option<u64>,
    ) -> Result<Header, &'static str> {
        let header = self.seal.read_header(&self.shape, bytes).map_err(|_| DAMAGED)?;
        if header.generation != record.generation || header.labels.len() != usize::from(record.count) {
            return Err("was overwritten");
        }
        if ttl.is_some_and(|ttl| now().saturating_sub(header.written_at) > ttl) {
            return Err("is too old");
        }
        let is_there = |Expected { index, key, content }: &Expected| {
            let is_it = |label: &&BlockLabel| {
                label.key == *key && (*key != BlockKey::NAMELESS || label.parent == nameless_parent(record))
            };
            let label = header.labels.get(usize::from(*index)).filter(is_it);
            let same = |(parent, tokens): &(BlockKey, Box<[TokenId]>)| {
                label.is_some_and(|label| label.parent == *parent && label.tokens == *tokens)
            };
            label.is_some() && content.as_ref().is_none_or(same)
        };
        if expected.iter().all(is_there) { Ok(header) } else { Err("holds other tokens") }
    }
}

/// Says what is wrong with a record.
fn wrong(file: &dyn SegmentWrite, record: RecordPlace, reason: &str) -> String {
    format!("the record at {} of {} {reason}", record.offset, file.path().display())
}

/// Returns memory of `len` bytes, which is allocated when it is first needed; `None` if the system refuses it.
pub(crate) fn memory(memory: &mut Option<AlignedBuffer>, len: usize) -> Option<&mut [u8]> {
    if memory.is_none() {
        *memory = AlignedBuffer::new_zeroed(len);
    }
    memory.as_mut().map(|memory| memory.as_mut())
}
