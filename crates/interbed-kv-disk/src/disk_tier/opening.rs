//! Opens a store, and says beforehand what it takes and what it has room for.

use std::sync::Arc;
use std::time::Instant;

use interbed_io::{AlignedBuffer, DIRECT_ALIGN};
use interbed_kv::{KeyChain, KvTierConfig, Tier, TierFigures, WriteBudget};

use super::fetches::Fetches;
use super::kept_slots::KeptSlots;
use super::reads::Reads;
use super::staging::Staging;
use super::swaps::Swaps;
use super::writes::Writes;
use super::{DiskOptions, DiskTier, DiskTierError};
use crate::ages::Ages;
use crate::directory::SegmentSpace;
use crate::frames::Frames;
use crate::record::Seal;
use crate::recovery::recover;
use crate::shape::RecordShape;
use crate::store::Store;
use crate::workers::Workers;

/// Number of threads that read.
const READERS: usize = 6;

/// Number of bytes of a segment of a large store.
const SEGMENT_BYTES: u64 = 256 << 20;

/// Minimum number of segments of a store.
const SEGMENTS_MIN: u64 = 4;
/// Minimum number of records that a segment holds.
const RECORDS_MIN: u64 = 2;

/// Number of segments that ordinary records leave free, so that blocks that are carried over always find room.
const SPARE_SEGMENTS: u32 = 1;

/// The inverse of the share of the store's segments that swapped blocks may hold, unless the options name a size.
const SLOTS_SHARE: u32 = 4;

/// What distinguishes a store with a name from one without.
pub(super) struct Setup {
    pub(super) shape: RecordShape,
    pub(super) config: KvTierConfig,
    /// Number of blocks that can be staged, and of records that can be read, at a time.
    pub(super) num_buffers: (usize, usize),
    /// Number of threads that read.
    pub(super) readers: usize,
    /// Maximum number of segments that swapped blocks hold.
    pub(super) segments_max: usize,
}

impl DiskTier {
    /// Opens a store in `space` for the KV blocks of one model. `fingerprint` identifies the model, and `shape` is the
    /// layout of the records. `secret` is the [secret of the directory](crate::Directory::secret). The store recovers
    /// the blocks of this model that an earlier process left in `space`.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`DiskTierError`].
    pub fn open(
        space: Arc<dyn SegmentSpace>,
        secret: [u8; 32],
        fingerprint: [u8; 32],
        shape: RecordShape,
        options: DiskOptions,
    ) -> Result<Self, DiskTierError> {
        let (config, segments_max) = tier_config(&shape, &options)?;
        let num_buffers = Self::num_buffers(&shape, options.buffer_bytes);
        let setup = Setup { shape, config, num_buffers, readers: READERS, segments_max };
        Self::set_up(space, Seal { secret, fingerprint }, setup, options)
    }

    /// Opens a store in `space`, and starts its threads.
    pub(super) fn set_up(
        space: Arc<dyn SegmentSpace>,
        seal: Seal,
        Setup { shape, config, num_buffers: (num_block_buffers, num_record_buffers), readers, segments_max }: Setup,
        options: DiskOptions,
    ) -> Result<Self, DiskTierError> {
        let (segment_bytes, has_headers) = (config.segment_bytes, config.segment_header > 0);
        let bytes_total = u64::from(config.num_segments) * segment_bytes;
        let mut tier = Tier::new(config);
        let ttl = options.ttl.map(|ttl| ttl.as_secs());
        let mut ages = Ages::new(ttl);
        let recovered = recover(space.as_ref(), &shape, &seal, &mut tier, &mut ages)?;
        let mut budget = WriteBudget::new(options.writes_per_day, Instant::now());
        // A restart is not a new day.
        budget.spend(recovered.recent_bytes);
        let bytes = shape.record_bytes(shape.blocks_per_record());
        let record_buffers: Option<Vec<_>> =
            (0..num_record_buffers).map(|_| AlignedBuffer::new_zeroed(bytes)).collect();
        let record_buffers = record_buffers.ok_or(DiskTierError::Memory { bytes })?;
        let chain = match options.names {
            // Owners stay the directory's, so that what is theirs is found when it is to be erased.
            Some(names) => names.owned_under(seal.secret),
            None => KeyChain::new(seal.secret, seal.fingerprint),
        };
        let store = Arc::new(Store::new(space, (shape, seal), (segment_bytes, has_headers), ttl));
        let (workers, frames_done) = Workers::start(&store, options.turns, readers)?;
        let (frame_blocks, num_frames) = options.frames;
        let frames = Frames::new(frames_done, &store.shape, frame_blocks, num_frames);
        let bytes = Frames::bytes(&store.shape, frame_blocks);
        Ok(Self {
            chain,
            tier,
            workers,
            staging: Staging::new(num_block_buffers, store.shape.block_bytes()),
            // A store that takes nothing but swaps has no fetches.
            reads: Reads::new(record_buffers, num_block_buffers > 0),
            fetches: Fetches::default(),
            carrying: None,
            frames: frames.ok_or(DiskTierError::Memory { bytes })?,
            swaps: Swaps::new(KeptSlots::new(options.slots.num_slots, segments_max), options.slots.trial),
            writes: Writes::new(budget),
            ages,
            figures: TierFigures { bytes_total, ..TierFigures::default() },
            recovered,
            store,
        })
    }

    /// Returns the number of bytes of memory that a store takes for all of its buffers. `wanted` is the value of
    /// [`DiskOptions::buffer_bytes`], and `frames` that of [`DiskOptions::frames`].
    pub fn buffer_bytes(shape: &RecordShape, wanted: usize, frames: (usize, usize)) -> usize {
        let (blocks, records) = Self::num_buffers(shape, wanted);
        let frames = frames.1 * Frames::bytes(shape, frames.0);
        // One more record is put together by the thread that writes.
        let records = (records + 1) * shape.record_bytes(shape.blocks_per_record());
        blocks * shape.block_bytes() + records + frames + READERS * shape.room_to_read()
    }

    /// Returns the number of bytes of memory that a store takes for each slot, which stands for one swapped block. The
    /// store uses this memory to remember where the slot's block is on disk. `block_size` is the number of tokens in a
    /// block, or 0 if the store cannot find blocks by their keys.
    pub fn slot_bytes(block_size: usize) -> usize {
        KeptSlots::slot_bytes(block_size)
    }

    /// Returns the number of bytes of memory that a full store takes for its index, which maps the keys of blocks to
    /// their locations on disk. `bytes` is the size of the store on disk.
    pub fn index_bytes(shape: &RecordShape, bytes: u64) -> u64 {
        // A hash map's entry of 64 bytes, at most 8/7 of which are in use and which doubles when it grows; and the list
        // of each segment's keys.
        const ENTRY: u64 = 2 * 64 + 2 * 16;
        bytes / shape.block_bytes() as u64 * ENTRY
    }

    /// Returns how many blocks can be staged, and how many records read, at a time.
    fn num_buffers(shape: &RecordShape, wanted: usize) -> (usize, usize) {
        let record = shape.record_bytes(shape.blocks_per_record());
        let each = wanted / 2;
        let least = shape.blocks_per_record().max(shape.stored_together());
        let blocks = (each / shape.block_bytes()).max(least + least.div_ceil(4));
        (blocks, (each / record).clamp(1, 16))
    }

    /// Returns the number of slots, each for one swapped block, in a store with this shape and these options. This
    /// number is [`SlotRoom::num_slots`](super::SlotRoom::num_slots), or less if the segments that may contain swapped
    /// blocks have room for fewer blocks.
    ///
    /// # Errors
    /// Fails with [`DiskTierError::TooSmall`] if the options give the store too few bytes.
    pub fn slots_within(shape: &RecordShape, options: &DiskOptions) -> Result<usize, DiskTierError> {
        let (config, segments_max) = tier_config(shape, options)?;
        Ok(options.slots.num_slots.min(segments_max * config.blocks_per_segment()))
    }

    /// Returns the length, in tokens, of the longest sequence whose KV is guaranteed to fit in a store with this shape
    /// and these options.
    ///
    /// # Errors
    /// Fails with [`DiskTierError::TooSmall`] if the options give the store too few bytes.
    pub fn tokens_within(shape: &RecordShape, options: &DiskOptions) -> Result<usize, DiskTierError> {
        let (config, segments_max) = tier_config(shape, options)?;
        Ok(capacity_tokens(&config, segments_max, shape))
    }
}

/// Returns the number of tokens of a sequence that are sure to find room in a store.
pub(super) fn capacity_tokens(config: &KvTierConfig, segments_max: usize, shape: &RecordShape) -> usize {
    let segments = (config.num_segments as usize).saturating_sub(4 + segments_max);
    segments * config.blocks_per_segment() * shape.block_size()
}

/// Returns the size and shape of a store, and the maximum number of segments that swapped blocks hold.
fn tier_config(shape: &RecordShape, options: &DiskOptions) -> Result<(KvTierConfig, usize), DiskTierError> {
    let record_bytes = shape.sizes();
    let largest = record_bytes.last().copied().unwrap_or_default();
    let (segment_header, align) = (DIRECT_ALIGN as u64, DIRECT_ALIGN as u64);
    let smallest = segment_header + RECORDS_MIN * largest;
    let wanted = SEGMENT_BYTES.min(options.bytes / (2 * SEGMENTS_MIN)).max(smallest);
    let segment_bytes = wanted / align * align;
    let num_segments = options.bytes / segment_bytes;
    if num_segments < SEGMENTS_MIN {
        return Err(DiskTierError::TooSmall { got: options.bytes, least: SEGMENTS_MIN * smallest });
    }
    let num_segments = u32::try_from(num_segments).unwrap_or(u32::MAX);
    let held = options.slots.bytes.map_or(num_segments / SLOTS_SHARE, |bytes| {
        // One segment is written to, and one is emptied.
        u32::try_from(bytes.div_ceil(segment_bytes)).unwrap_or(u32::MAX).min(num_segments - SPARE_SEGMENTS - 2)
    });
    let segments_max = if options.slots.num_slots == 0 { 0 } else { held as usize };
    let (gate, spare_segments) = (options.gate.clone(), SPARE_SEGMENTS);
    Ok((KvTierConfig { num_segments, segment_bytes, segment_header, record_bytes, spare_segments, gate }, segments_max))
}
