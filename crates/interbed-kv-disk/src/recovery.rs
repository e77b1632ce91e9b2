//! Recovers what an earlier process has left: reads its index, and the headers of all records that are not in the
//! index.

use std::collections::HashMap;

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, SegmentWrite};
use interbed_kv::{BlockKey, KvTierConfig, RecordPlace, Tier};

use crate::ages::Ages;
use crate::directory::SegmentSpace;
use crate::index_file::{self, Listed};
use crate::jobs::now;
use crate::record::{NotAHeader, Seal};
use crate::shape::RecordShape;

/// Statistics about the data that a store found on disk when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Number of blocks that the store found on disk and can read.
    pub blocks: usize,
    /// Total size, in bytes, of the records that the store found, including records that are too old to be read by
    /// [`DiskOptions::ttl`](crate::DiskOptions::ttl).
    pub bytes: u64,
    /// Number of segments that belong to another model or format version. The store overwrites these segments before it
    /// overwrites segments whose blocks it can read.
    pub set_aside: usize,
    /// Number of record headers that the store read because the index from the previous process did not list their
    /// records.
    pub headers_read: usize,
    /// Total size, in bytes, of the readable records that were written in the hour before the store was opened. These
    /// bytes count against the limit in [`DiskOptions::writes_per_day`](crate::DiskOptions::writes_per_day).
    pub recent_bytes: u64,
}

/// Records of a segment in order, each with the names of its blocks, and the offset where the last record ends.
struct Found {
    segment: u32,
    generation: u64,
    records: Vec<Listed>,
    end: u64,
    headers_read: usize,
}

/// Parameters that hold for all segments.
struct Scan<'a> {
    config: KvTierConfig,
    shape: &'a RecordShape,
    seal: &'a Seal,
    /// Earliest time of writing, in seconds since 1970, of records that may still be read.
    oldest: u64,
    /// Records of each segment that an index has named.
    listed: HashMap<u32, Vec<Listed>>,
}

/// Brings the records in `space` into `tier`, which must be empty, and into `ages`. Segments whose number or length
/// does not fit the configuration of `tier` are removed, and segments that cannot be read are forgotten. Records that
/// are too old by `ages` are left out.
pub(crate) fn recover(
    space: &dyn SegmentSpace,
    shape: &RecordShape,
    seal: &Seal,
    tier: &mut Tier,
    ages: &mut Ages,
) -> Result<Recovered, interbed_io::IoError> {
    const HOUR: u64 = 3600;
    let (config, time) = (tier.config().clone(), now());
    let mut listed: HashMap<u32, Vec<Listed>> = HashMap::new();
    let left = space.take_index().and_then(|bytes| index_file::decode(&bytes, seal));
    left.into_iter().flatten().for_each(|record| listed.entry(record.record.segment).or_default().push(record));
    let mut scan = Scan { config: config.clone(), shape, seal, oldest: ages.oldest(), listed };
    let mut recovered = Recovered::default();
    let (mut found, mut foreign) = (Vec::new(), Vec::new());
    let mut existing = space.existing()?;
    existing.sort_unstable();
    for segment in existing {
        let file = space.open(segment);
        let fits = |file: &dyn SegmentWrite| segment < config.num_segments && file.len() == config.segment_bytes;
        match file {
            Ok(file) if fits(file.as_ref()) => match scan.segment(file.as_ref(), segment) {
                Ok(segment) => found.push(segment),
                Err(NotAHeader::Foreign) => foreign.push(segment),
                // It was never written to, or no one can say what it is: it is free.
                Err(NotAHeader::Damaged) => {}
            },
            // The store has become smaller, or segments another length.
            Ok(_) => space.remove(segment)?,
            Err(error) => tracing::warn!("{error}; what it holds is forgotten"),
        }
    }
    found.sort_unstable_by_key(|segment| segment.generation);
    let mut times = Vec::new();
    for Found { segment, generation, records, end, headers_read } in found {
        recovered.blocks += records.iter().map(|listed| listed.keys.len()).sum::<usize>();
        recovered.bytes += end.saturating_sub(config.segment_header);
        recovered.headers_read += headers_read;
        times.extend(records.iter().map(|listed| (listed.record, listed.written_at)));
        let records: Vec<_> = records.into_iter().map(|listed| (listed.record, listed.keys)).collect();
        tier.restore(segment, generation, &records, end);
    }
    for (record, written_at) in times {
        ages.add(record, written_at, tier);
        let is_recent = written_at + HOUR > time;
        recovered.recent_bytes += u64::from(is_recent) * shape.record_bytes(record.count.into()) as u64;
    }
    recovered.set_aside = foreign.len();
    foreign.into_iter().rev().for_each(|segment| tier.set_aside(segment, 0));
    Ok(recovered)
}

impl Scan<'_> {
    fn segment(&mut self, file: &dyn SegmentWrite, segment: u32) -> Result<Found, NotAHeader> {
        let Self { config, shape, seal, .. } = self;
        let longest = shape.header_bytes(shape.blocks_per_record());
        let mut buffer = AlignedBuffer::new_zeroed(longest).ok_or(NotAHeader::Damaged)?;
        let mut read = |offset: u64, len: usize| -> Result<Vec<u8>, NotAHeader> {
            let left = usize::try_from(config.segment_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = len.min(left) / DIRECT_ALIGN * DIRECT_ALIGN;
            let bytes = &mut buffer.as_mut()[..len];
            file.read_aligned_at(bytes, offset, len).map_err(|_| NotAHeader::Damaged)?;
            Ok(bytes.to_vec())
        };
        let generation = seal.read_segment_header(&read(0, DIRECT_ALIGN)?)?;
        let fits = |Listed { record, .. }: &Listed| {
            let bytes = config.record_bytes.get(usize::from(record.count));
            let end = bytes.map(|bytes| record.offset.saturating_add(*bytes));
            record.generation == generation && end.is_some_and(|end| end <= config.segment_bytes)
        };
        // Of a segment that was used again, nothing is left.
        let mut records = self.listed.remove(&segment).filter(|all| all.iter().all(fits)).unwrap_or_default();
        let end_of = |listed: &Listed| listed.record.offset + shape.record_bytes(listed.record.count.into()) as u64;
        let (mut end, mut headers_read) = (records.iter().map(end_of).max().unwrap_or(config.segment_header), 0);
        while end < config.segment_bytes {
            // Whatever comes after the last whole header was written before, or not wholly.
            let Ok(header) = read(end, longest).and_then(|bytes| seal.read_header(shape, &bytes)) else { break };
            let count = header.labels.len();
            let bytes = shape.record_bytes(count) as u64;
            if header.generation != generation || end + bytes > config.segment_bytes {
                break;
            }
            headers_read += 1;
            let record = RecordPlace { segment, generation, offset: end, count: count as u16 };
            // Of what was erased, nothing can be found.
            let named = (0..).zip(&header.labels).filter(|(_, label)| label.key != BlockKey::default());
            let keys = named.map(|(index, label)| (index, label.key)).collect();
            end += bytes;
            records.push(Listed { record, written_at: header.written_at, keys });
        }
        records.retain(|listed| listed.written_at >= self.oldest);
        Ok(Found { segment, generation, records, end, headers_read })
    }
}
