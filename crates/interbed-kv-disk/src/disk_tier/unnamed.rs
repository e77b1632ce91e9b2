//! A store without a name, which keeps nothing but swapped blocks, for as long as the process runs.

use std::sync::Arc;

use interbed_io::{DIRECT_ALIGN, DirectWrite};
use interbed_kv::{BLOCKS_MAX, Gate, KvTierConfig};

use super::opening::Setup;
use super::{DiskOptions, DiskTier, DiskTierError, SlotRoom};
use crate::record::Seal;
use crate::shape::RecordShape;
use crate::trial::{PART_BYTES, try_out};
use crate::unnamed_space::UnnamedSpace;

/// Maximum number of segments. The smaller they are, the sooner the room of blocks that are back is used again.
const SEGMENTS_MAX: u64 = 1024;

/// Minimum number of buffers: one is filled while another is written.
const BUFFERS_MIN: usize = 2;

/// Number of threads that read. Nothing is asked of them but swaps.
const READERS: usize = 2;

/// Size of the KV blocks that a [`DiskTier::unnamed`] store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapShape {
    /// Number of tokens in a block.
    pub block_size: usize,
    /// Number of bytes in a block.
    pub block_bytes: usize,
}

impl SwapShape {
    /// Returns the number of bytes on disk of a record that holds one block.
    pub fn slot_bytes(&self) -> usize {
        self.records_of(1).record_bytes(1)
    }

    /// Returns the number of bytes on disk that `blocks` blocks take if they are stored in full records. A last record
    /// that is not full counts as a full one.
    pub fn bytes_of(&self, blocks: usize) -> u64 {
        let records = self.records();
        let count = blocks.div_ceil(records.blocks_per_record()) as u64;
        count.saturating_mul(records.record_bytes(records.blocks_per_record()) as u64)
    }

    /// Returns the number of bytes of memory that a store takes for its buffers if the caller asks for about `wanted`
    /// bytes. A store has at least two buffers, and each buffer has room for one full record.
    pub fn buffer_bytes(&self, wanted: usize) -> usize {
        let (size, count) = self.buffers(&self.records(), wanted);
        size * count
    }

    /// Returns the maximum number of blocks that fit in a file of `bytes` bytes. Fewer fit if records are not full.
    pub fn slots_within(&self, bytes: u64) -> usize {
        let Some((segment_bytes, records)) = self.divide(bytes) else { return 0 };
        let segments = usize::try_from(bytes / segment_bytes).unwrap_or(usize::MAX);
        segments.saturating_mul(blocks_within(&records, segment_bytes)).min(BLOCKS_MAX)
    }

    fn records_of(&self, blocks: usize) -> RecordShape {
        RecordShape::flat(self.block_size, self.block_bytes, blocks)
    }

    /// Returns the shape of records where there is room enough.
    fn records(&self) -> RecordShape {
        self.records_of(PART_BYTES / self.block_bytes)
    }

    /// Returns the length of segments within `bytes` bytes, and the shape of records in them; `None` if there is no
    /// room for a single block.
    fn divide(&self, bytes: u64) -> Option<(u64, RecordShape)> {
        let largest = self.records();
        let mut counts = (1..=largest.blocks_per_record()).rev();
        let blocks = counts.find(|&count| largest.record_bytes(count) as u64 <= bytes)?;
        let (records, align) = (self.records_of(blocks), DIRECT_ALIGN as u64);
        let least = records.record_bytes(blocks) as u64;
        let segments = (bytes / least.max(bytes / SEGMENTS_MAX)).max(1);
        Some((bytes / segments / align * align, records))
    }

    /// Returns the number of bytes of each buffer, and the number of buffers.
    fn buffers(&self, records: &RecordShape, wanted: usize) -> (usize, usize) {
        let size = records.record_bytes(records.blocks_per_record());
        (size, (wanted / size).max(BUFFERS_MIN))
    }
}

impl DiskTier {
    /// Creates a store in `file` that holds only swapped blocks, and measures how fast `file` can be written and read.
    /// The measurement overwrites the content of `file`. Only this store may read or write `file`. The store uses about
    /// `buffer_bytes` bytes of memory for buffers. `secret` is a secret that the caller chooses for this process.
    ///
    /// # Errors
    /// Fails if the file has no room for a block, if the system refuses memory or a thread, or if the measurement
    /// fails.
    pub fn unnamed(
        file: Arc<dyn DirectWrite>,
        shape: SwapShape,
        buffer_bytes: usize,
        secret: [u8; 32],
    ) -> Result<Self, DiskTierError> {
        let bytes = file.len();
        let no_block = DiskTierError::NoBlock { got: bytes, slot: shape.slot_bytes() };
        let (segment_bytes, records) = shape.divide(bytes).ok_or(no_block)?;
        let config = config(segment_bytes, bytes, &records);
        let (_, num_record_buffers) = shape.buffers(&records, buffer_bytes);
        let trial = try_out(file.as_ref(), shape.buffer_bytes(buffer_bytes))?;
        let options = DiskOptions {
            bytes,
            buffer_bytes,
            writes_per_day: None,
            ttl: None,
            gate: config.gate.clone(),
            frames: (0, 0),
            names: None,
            turns: Arc::default(),
            slots: SlotRoom { num_slots: shape.slots_within(bytes), bytes: None, trial },
        };
        let segments_max = config.num_segments as usize;
        let space = Arc::new(UnnamedSpace::new(file, segment_bytes));
        let (num_buffers, readers) = ((0, num_record_buffers), READERS);
        let seal = Seal { secret, fingerprint: secret };
        Self::set_up(space, seal, Setup { shape: records, config, num_buffers, readers, segments_max }, options)
    }
}

/// Returns the number of blocks for which a segment has room.
fn blocks_within(records: &RecordShape, segment_bytes: u64) -> usize {
    let most = records.blocks_per_record();
    let bytes = |count: usize| records.record_bytes(count) as u64;
    let (full, rest) = (segment_bytes / bytes(most), segment_bytes % bytes(most));
    full as usize * most + (1..most).rev().find(|&count| bytes(count) <= rest).unwrap_or(0)
}

fn config(segment_bytes: u64, bytes: u64, records: &RecordShape) -> KvTierConfig {
    KvTierConfig {
        num_segments: u32::try_from(bytes / segment_bytes).unwrap_or(u32::MAX),
        segment_bytes,
        // No later process looks for records.
        segment_header: 0,
        record_bytes: records.sizes(),
        // Nothing is carried over.
        spare_segments: 0,
        gate: Gate::new(0.0),
    }
}
