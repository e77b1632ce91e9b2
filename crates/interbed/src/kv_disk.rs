//! Prepares KV on disk: divides its memory, opens its directory, and opens the store in the directory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{Recompute, StoreMode, TierBelow, TierPolicy};
use interbed_io::{DIRECT_ALIGN, DiskTurns, IoError, SwapFile, disk_bytes_free};
use interbed_kernels::{KvLayout, STRETCH};
use interbed_kv::{Gate, KeyChain, LowerTier, SwapTrial};
use interbed_kv_disk::{Directory, DirectoryError, DiskOptions, DiskTier, RecordShape, SlotRoom, try_out};
use interbed_weights::Catalog;

use crate::failure::Advised;
use crate::options::{KvDiskOptions, LimitOptions};
use crate::report::report;
use crate::swap;
use crate::tier_kind::{OpenTier, PreparedTier, StoredKv, TierFound, TierKind};

/// The divisor for the default size of a store, which is one part in `DISK_SHARE` of the disk's free space, and at most
/// [`SIZE_DEFAULT`] bytes.
const DISK_SHARE: u64 = 8;
const SIZE_DEFAULT: u64 = 100 << 30;

/// Buffers take one part in `BUFFERS_SHARE` of the budget, at most `BUFFERS_MAX` bytes.
const BUFFERS_SHARE: u64 = 32;
const BUFFERS_MAX: u64 = 64 << 20;

/// The divisor for the memory of buffers if `--kv-memory` limits KV: buffers take at most one part in this many of it.
const KV_BUFFERS_SHARE: u64 = 8;

/// The inverse of the share of the buffers' bytes that are written and read to try out how fast the disk is.
const TRIAL_SHARE: usize = 4;

/// The minimum and maximum number of frames that are read ahead.
const FRAMES: (usize, usize) = (4, 12);

/// The time for which a conversation is idle before its KV is written to disk.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// KV on a disk.
pub const KV_DISK: TierKind = TierKind {
    is_wanted: |limits| limits.kv_disk.as_ref().is_some_and(|options| options.kv_disk.is_some()),
    memory,
    prepare,
};

/// Returns the memory for buffers and index of KV on disk, of a budget of `total` bytes.
fn memory(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> Bytes {
    let Some(options) = limits.kv_disk.as_ref() else { return Bytes(0) };
    let Some(directory) = &options.kv_disk else { return Bytes(0) };
    let shape = shape(stored);
    let index = DiskTier::index_bytes(&shape, size(options, directory).unwrap_or(SIZE_DEFAULT));
    let wanted = buffer_bytes(limits, total, BUFFERS_SHARE);
    Bytes(DiskTier::buffer_bytes(&shape, wanted, frames(stored.layout, wanted)) as u64 + index)
}

/// A directory that this process has locked, and the settings of the store that the directory is for.
struct DiskPlace {
    directory: Directory,
    path: PathBuf,
    shape: RecordShape,
    options: DiskOptions,
    mode: StoreMode,
}

/// Opens and locks the directory, if the options name one. Returns `None` with a warning if another server uses it.
///
/// # Errors
/// Fails if the directory cannot be used.
fn prepare(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> Result<TierFound> {
    let Some(options) = &limits.kv_disk else { return Ok(None) };
    let Some(path) = &options.kv_disk else { return Ok(None) };
    let directory = match Directory::open(path) {
        Ok(directory) => directory,
        Err(error @ DirectoryError::Busy { .. }) => {
            report!("warning: {error}; this one runs without");
            return Ok(None);
        }
        Err(error @ (DirectoryError::NotOurs { .. } | DirectoryError::Io(IoError::NotPrivate { .. }))) => {
            let hint =
                "name another --kv-disk, such as a folder that is yet to be made; it is made for this user alone";
            return Err(Advised::input(format!("cannot keep KV on disk: {error}"), hint));
        }
        Err(error) => return Err(refused(&error)),
    };
    let bytes = size(options, path).context("cannot tell how much room the disk has")?;
    let (num_slots, slot_bytes) = swap::slots_on_disk(limits, total, stored.layout);
    let buffer_bytes = buffer_bytes(limits, total, BUFFERS_SHARE);
    let mut place = DiskPlace {
        directory,
        path: path.clone(),
        shape: shape(stored),
        options: DiskOptions {
            bytes,
            buffer_bytes,
            frames: frames(stored.layout, buffer_bytes),
            writes_per_day: options.kv_disk_writes.map(|bytes| bytes.0),
            ttl: options.kv_disk_ttl,
            // If writes are limited, only KV that is likely to be needed again is written.
            gate: Gate::new(if options.kv_disk_writes.is_some() { Gate::LEAST_WORTH } else { 0.0 }),
            names: None,
            turns: Arc::default(),
            slots: SlotRoom { num_slots, bytes: slot_bytes, trial: SwapTrial::default() },
        },
        mode: options.kv_disk_mode.into(),
    };
    // A store that is too small is reported before the model is loaded.
    let slots = DiskTier::slots_within(&place.shape, &place.options).map_err(|error| refused(&error))?;
    place.options.slots.num_slots = slots;
    Ok(Some(Box::new(place)))
}

impl PreparedTier for DiskPlace {
    fn num_slots(&self) -> Option<usize> {
        Some(self.options.slots.num_slots)
    }

    fn long_tokens(&self) -> Result<usize> {
        DiskTier::tokens_within(&self.shape, &self.options).map_err(|error| refused(&error))
    }

    fn turns(&self, weights: &Catalog) -> Option<Arc<DiskTurns>> {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|data| data.dev());
        let directory = device(&self.path)?;
        let is_shared = weights.files().iter().any(|file| device(file.path()) == Some(directory));
        is_shared.then(|| Arc::clone(&self.options.turns))
    }

    fn open(self: Box<Self>, fingerprint: [u8; 32], names: &mut Option<KeyChain>) -> Result<OpenTier> {
        let Self { directory, path, shape, mut options, mode } = *self;
        if options.slots.num_slots > 0 {
            options.slots.trial = trial(&path, options.buffer_bytes / TRIAL_SHARE);
        }
        let secret = directory.secret();
        // Without names of a tier farther away, the directory's own secret generates them.
        let options = DiskOptions { names: names.clone(), ..options };
        let tier = DiskTier::open(Arc::new(directory), secret, fingerprint, shape, options);
        let tier = tier.map_err(|error| refused(&error))?;
        *names = Some(tier.key_chain().clone());
        let found = tier.recovered();
        let aside = if found.set_aside > 0 { ", the rest of it another model's" } else { "" };
        let held = format!("{} blocks ({}) are there{aside}", found.blocks, Bytes(found.bytes));
        report!("KV disk {:>10}  in {}; {held}", Bytes(tier.figures().bytes_total), path.display());
        let (recompute, idle_after, found) = (Recompute::Measured, Some(IDLE_AFTER), found.blocks);
        let policy = TierPolicy { mode, recompute, idle_after, drops_fresh: false };
        Ok(OpenTier { below: TierBelow { tier: Box::new(tier), policy }, found })
    }
}

/// Tries out how fast the disk of `directory` is, in a file that is removed again. If that cannot be found out, nothing
/// counts as measured, and preempted KV is computed again unless the options ask for swapping.
fn trial(directory: &Path, bytes: usize) -> SwapTrial {
    let len = (bytes / DIRECT_ALIGN * DIRECT_ALIGN).max(DIRECT_ALIGN) as u64;
    let tried = SwapFile::create(directory, len).map_err(anyhow::Error::from);
    let tried = tried.and_then(|file| Ok(try_out(&file, bytes)?));
    tried.unwrap_or_else(|error| {
        tracing::warn!("{error:#}; how fast the disk is, is not known");
        SwapTrial::default()
    })
}

/// Returns the shape of a store's records for this KV.
pub fn shape(&StoredKv { layout, together }: &StoredKv<'_>) -> RecordShape {
    let layers = (0..layout.num_layers()).map(|index| layout.layer(index).part_bytes());
    RecordShape::new(layout.block_size(), layers.collect()).with_stored_together(together)
}

fn size(options: &KvDiskOptions, directory: &Path) -> Result<u64> {
    if let Some(size) = options.kv_disk_size {
        return Ok(size.0);
    }
    // The directory may not exist yet.
    let there = directory.ancestors().find(|parent| parent.exists() && !parent.as_os_str().is_empty());
    let free = disk_bytes_free(there.unwrap_or(Path::new(".")))?;
    // The space that the store uses counts as free, or else the store would shrink with each start.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let taken: u64 = entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum();
    Ok(((free + taken) / DISK_SHARE).max(taken.min(SIZE_DEFAULT)).min(SIZE_DEFAULT))
}

/// Returns the maximum bytes of a tier's buffers, for a budget of `total` bytes of which they take one part in `share`.
pub fn buffer_bytes(limits: &LimitOptions, total: Bytes, share: u64) -> usize {
    let of_kv = limits.kv_memory.map_or(u64::MAX, |memory| memory.0 / KV_BUFFERS_SHARE);
    usize::try_from((total.0 / share).min(of_kv).min(BUFFERS_MAX)).unwrap_or(usize::MAX)
}

/// Returns the size of a frame in blocks, and the number of frames, if buffers should take `wanted` bytes. KV beyond
/// memory is streamed in frames.
fn frames(layout: &KvLayout, wanted: usize) -> (usize, usize) {
    let blocks = STRETCH.div_ceil(layout.block_size());
    let layers = (0..layout.num_layers()).map(|index| layout.layer(index).part_bytes());
    let bytes = blocks * layers.max().unwrap_or(0);
    (blocks, (wanted / bytes.max(1)).clamp(FRAMES.0, FRAMES.1))
}

fn refused(error: &dyn std::fmt::Display) -> anyhow::Error {
    let hint = "name another --kv-disk on a disk with more room, change --kv-disk-size, or leave both out";
    Advised::input(format!("cannot keep KV on disk: {error}"), hint)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use interbed_kernels::{KvDType, KvShape};
    use interbed_kv::{BlockKey, ChainRoot};

    use super::*;
    use crate::options::ModelOptions;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelOptions,
        #[command(flatten)]
        kv_disk: KvDiskOptions,
    }

    /// Opens a store in a new directory with `names`. Returns its key of some tokens, and its mark of a tenant.
    fn names_in_a_new_store(names: &mut Option<KeyChain>) -> [BlockKey; 2] {
        // The directory for temporary files may lie in memory, where no store is opened.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("kv");
        let line = Line::parse_from(["interbed", "--kv-disk", path.to_str().unwrap(), "--kv-disk-size", "64M"]);
        let limits = LimitOptions { kv_disk: Some(line.kv_disk), ..line.model.limits };
        let layout = KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 2, head_dim: 8 }]);
        let stored = StoredKv { layout: &layout, together: 1 };
        let place = prepare(&limits, Bytes(1 << 30), &stored).unwrap().unwrap();
        names_of(place.open([1; 32], names).unwrap().below.tier.key_chain())
    }

    fn names_of(chain: &KeyChain) -> [BlockKey; 2] {
        [chain.block(chain.root(&ChainRoot::default()), &[1, 2, 3]), chain.owner(Some(7))]
    }

    #[test]
    fn nearer_tiers_get_the_names_that_the_store_has() {
        let mut names = None;
        let first = names_in_a_new_store(&mut names);
        assert_eq!(names_of(names.as_ref().unwrap()), first);
        // A tier farther away determines the keys, but a store finds the blocks of a tenant by marks of its own.
        let second = names_in_a_new_store(&mut names);
        assert_eq!(names_of(names.as_ref().unwrap()), second);
        assert_eq!((second[0], second[1] == first[1]), (first[0], false));
        assert_ne!(names_in_a_new_store(&mut None)[0], first[0]);
    }
}
