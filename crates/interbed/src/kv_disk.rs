//! KV on disk: the memory that it takes, the directory, and the store in it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{KvDisk, KvDiskMode, Recompute};
use interbed_io::{DiskTurns, IoError, disk_bytes_free};
use interbed_kernels::{KvLayout, STRETCH};
use interbed_kv::{Gate, KeyChain};
use interbed_kv_disk::{Directory, DirectoryError, DiskOptions, DiskTier, RecordShape};
use interbed_weights::Catalog;

use crate::failure::Advised;
use crate::options::{KvDiskOptions, LimitOptions};
use crate::report::report;

/// Without a size, a store takes at most one part in this many of the disk's free space, and at most so much.
const DISK_SHARE: u64 = 8;
const SIZE_DEFAULT: u64 = 100 << 30;

/// Buffers take one part in this many of the budget, up to so much.
const BUFFERS_SHARE: u64 = 32;
const BUFFERS_MAX: u64 = 64 << 20;

/// Where KV has a budget of its own, they take one part in this many of it.
const KV_BUFFERS_SHARE: u64 = 8;

/// Frames that are read ahead, at the least and at the most.
const FRAMES: (usize, usize) = (4, 12);

/// How long conversations are idle until their KV goes to disk.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// Memory that KV on disk takes of a budget of `total`: buffers and the index.
pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
    let Some(options) = limits.kv_disk.as_ref() else { return Bytes(0) };
    let Some(directory) = &options.kv_disk else { return Bytes(0) };
    let shape = shape(layout);
    let index = DiskTier::index_bytes(&shape, size(options, directory).unwrap_or(SIZE_DEFAULT));
    let wanted = buffer_bytes(limits, total);
    Bytes(DiskTier::buffer_bytes(&shape, wanted, frames(layout, wanted)) as u64 + index)
}

/// A directory that is there for this process alone, and how a store is kept in it.
pub struct DiskPlace {
    directory: Directory,
    path: PathBuf,
    shape: RecordShape,
    options: DiskOptions,
    mode: KvDiskMode,
}

/// Takes the directory, if one was asked for. `None` too if another server has it: this one then runs without.
///
/// # Errors
/// The directory cannot be used.
pub fn prepare(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Result<Option<DiskPlace>> {
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
    let place = DiskPlace {
        directory,
        path: path.clone(),
        shape: shape(layout),
        options: DiskOptions {
            bytes,
            buffer_bytes: buffer_bytes(limits, total),
            frames: frames(layout, buffer_bytes(limits, total)),
            writes_per_day: options.kv_disk_writes.map(|bytes| bytes.0),
            ttl: options.kv_disk_ttl,
            // Where writes are limited, they go to what is likely to be found again.
            gate: Gate::new(if options.kv_disk_writes.is_some() { Gate::LEAST_WORTH } else { 0.0 }),
            names: None,
            turns: Arc::default(),
        },
        mode: options.kv_disk_mode.into(),
    };
    // Whatever cannot be is told before the model is loaded.
    place.capacity_tokens()?;
    Ok(Some(place))
}

impl DiskPlace {
    /// Tokens that the store will have room for.
    ///
    /// # Errors
    /// It would be too small.
    pub fn capacity_tokens(&self) -> Result<usize> {
        DiskTier::tokens_within(&self.shape, &self.options).map_err(|error| refused(&error))
    }

    /// Turns at the disk that KV and weights share, if they do.
    pub fn turns(&self, weights: &Catalog) -> Option<Arc<DiskTurns>> {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|data| data.dev());
        let directory = device(&self.path)?;
        let is_shared = weights.files().iter().any(|file| device(file.path()) == Some(directory));
        is_shared.then(|| Arc::clone(&self.options.turns))
    }

    /// Opens the store for the KV that `fingerprint` identifies. `names` names contents, if it is not the directory
    /// that does.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub fn open(self, fingerprint: [u8; 32], names: Option<KeyChain>) -> Result<KvDisk> {
        let Self { directory, path, shape, options, mode } = self;
        let secret = directory.secret();
        let tier = DiskTier::open(Arc::new(directory), secret, fingerprint, shape, DiskOptions { names, ..options });
        let tier = tier.map_err(|error| refused(&error))?;
        let found = tier.recovered();
        let aside = if found.set_aside > 0 { ", the rest of it another model's" } else { "" };
        let held = format!("{} blocks ({}) are there{aside}", found.blocks, Bytes(found.bytes));
        report!("KV disk {:>10}  in {}; {held}", Bytes(tier.stats().bytes_total), path.display());
        Ok(KvDisk { tier, mode, recompute: Recompute::Measured, idle_after: IDLE_AFTER })
    }
}

/// The shape of records for blocks of this layout.
pub fn shape(layout: &KvLayout) -> RecordShape {
    let layers = (0..layout.num_layers()).map(|index| layout.layer(index).part_bytes());
    RecordShape::new(layout.block_size(), layers.collect())
}

fn size(options: &KvDiskOptions, directory: &Path) -> Result<u64> {
    if let Some(size) = options.kv_disk_size {
        return Ok(size.0);
    }
    // The directory may be one that is yet to be made.
    let there = directory.ancestors().find(|parent| parent.exists() && !parent.as_os_str().is_empty());
    let free = disk_bytes_free(there.unwrap_or(Path::new(".")))?;
    // What the store has taken already counts as free, or it would shrink from start to start.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let taken: u64 = entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum();
    Ok(((free + taken) / DISK_SHARE).max(taken.min(SIZE_DEFAULT)).min(SIZE_DEFAULT))
}

/// Bytes that buffers should take, of a budget of `total`.
fn buffer_bytes(limits: &LimitOptions, total: Bytes) -> usize {
    let of_kv = limits.kv_memory.map_or(u64::MAX, |memory| memory.0 / KV_BUFFERS_SHARE);
    usize::try_from((total.0 / BUFFERS_SHARE).min(of_kv).min(BUFFERS_MAX)).unwrap_or(usize::MAX)
}

/// The frames in which KV beyond memory is streamed: blocks of each, and how many there are, where buffers should take
/// `wanted` bytes.
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
