//! What an earlier process has left: the headers of all records, read again.

use strata_io::{AlignedBuffer, DIRECT_ALIGN, SegmentWrite};
use strata_kv::{BlockKey, KvTierConfig, RecordPlace, Tier};

use crate::directory::SegmentSpace;
use crate::record::{NotAHeader, Seal};
use crate::shape::RecordShape;
use crate::workers::now;

/// What was found at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Blocks that can be read again.
    pub blocks: usize,
    /// Bytes of their records.
    pub bytes: u64,
    /// Segments of another model, or of another version; they are overwritten first.
    pub set_aside: usize,
}

/// A segment's records in order, each with the names of its blocks, and where the last ends.
struct Found {
    segment: u32,
    generation: u64,
    records: Vec<(RecordPlace, Vec<BlockKey>)>,
    end: u64,
}

/// Brings what is in `space` into `tier`, which is empty. Segments that do not fit into it are removed; what cannot be
/// read is forgotten. Records older than `ttl` seconds are left out.
pub(crate) fn recover(
    space: &dyn SegmentSpace,
    shape: &RecordShape,
    seal: &Seal,
    ttl: Option<u64>,
    tier: &mut Tier,
) -> Result<Recovered, strata_io::IoError> {
    let config = tier.config().clone();
    let mut recovered = Recovered::default();
    let (mut found, mut foreign) = (Vec::new(), Vec::new());
    let mut existing = space.existing()?;
    existing.sort_unstable();
    for segment in existing {
        let file = space.open(segment);
        let fits = |file: &dyn SegmentWrite| segment < config.num_segments && file.len() == config.segment_bytes;
        match file {
            Ok(file) if fits(file.as_ref()) => match scan(file.as_ref(), segment, &config, shape, seal, ttl) {
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
    for Found { segment, generation, records, end } in found {
        let blocks = records.iter().map(|(_, keys)| keys.len());
        recovered.blocks += blocks.sum::<usize>();
        recovered.bytes += end.saturating_sub(config.segment_header);
        tier.restore(segment, generation, &records, end);
    }
    recovered.set_aside = foreign.len();
    foreign.into_iter().rev().for_each(|segment| tier.set_aside(segment, 0));
    Ok(recovered)
}

fn scan(
    file: &dyn SegmentWrite,
    segment: u32,
    config: &KvTierConfig,
    shape: &RecordShape,
    seal: &Seal,
    ttl: Option<u64>,
) -> Result<Found, NotAHeader> {
    let longest = shape.header_bytes(shape.blocks_per_record());
    let mut buffer = AlignedBuffer::new_zeroed(longest).ok_or(NotAHeader::Damaged)?;
    let mut read = |offset: u64, len: usize| -> Result<AlignedBytes, NotAHeader> {
        let left = usize::try_from(config.segment_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left) / DIRECT_ALIGN * DIRECT_ALIGN;
        let bytes = &mut buffer.as_mut()[..len];
        file.read_aligned_at(bytes, offset, len).map_err(|_| NotAHeader::Damaged)?;
        Ok(bytes.to_vec())
    };
    let generation = seal.read_segment_header(&read(0, DIRECT_ALIGN)?)?;
    let (mut records, mut end) = (Vec::new(), config.segment_header);
    let oldest = ttl.map_or(0, |ttl| now().saturating_sub(ttl));
    while end < config.segment_bytes {
        // Whatever comes after the last whole header was written before, or not wholly.
        let Ok(header) = read(end, longest).and_then(|bytes| seal.read_header(shape, &bytes)) else { break };
        let count = header.labels.len();
        let bytes = shape.record_bytes(count) as u64;
        if header.generation != generation || end + bytes > config.segment_bytes {
            break;
        }
        let record = RecordPlace { segment, generation, offset: end, count: count as u16 };
        let keys = header.labels.iter().map(|label| label.key).collect();
        end += bytes;
        if header.written_at >= oldest {
            records.push((record, keys));
        }
    }
    Ok(Found { segment, generation, records, end })
}

type AlignedBytes = Vec<u8>;
