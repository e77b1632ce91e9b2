//! KV on disk: the memory that it takes, what tells one model's KV from another's, and the store itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use strata_device::Bytes;
use strata_engine::{KvDisk, KvDiskMode};
use strata_io::{RandomAccessFile, disk_bytes_free};
use strata_kernels::{KvLayout, Level};
use strata_kv::Gate;
use strata_kv_disk::{Directory, DirectoryError, DiskOptions, DiskTier, RecordShape};

use crate::failure::Advised;
use crate::model_dir::ModelDir;
use crate::options::LimitOptions;
use crate::report::report;

/// Without a size, a store takes at most one part in this many of the disk's free space, and at most so much.
const DISK_SHARE: u64 = 8;
const SIZE_DEFAULT: u64 = 100 << 30;

/// Buffers take one part in this many of the budget, up to so much.
const BUFFERS_SHARE: u64 = 32;
const BUFFERS_MAX: u64 = 64 << 20;

/// Places in each file of weights that are looked at, and bytes at each: files that differ, differ there.
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;

/// KV that is kept on disk.
#[derive(Debug, Clone, Args)]
pub struct KvDiskOptions {
    /// Directory on a disk in which KV is kept, so that prompts that were seen need not be computed again: more of them
    /// than memory holds, and after a restart. One server uses it at a time
    #[arg(long, value_name = "DIR", help_heading = "KV on disk")]
    pub kv_disk: Option<PathBuf>,

    /// Disk space that it may take. Without it: an eighth of what is free there, at most 100G
    #[arg(long, value_name = "SIZE", requires = "kv_disk", help_heading = "KV on disk")]
    pub kv_disk_size: Option<Bytes>,

    /// What is written: `evict`, what memory has no room for any more; `eager`, prompts as soon as they are computed as
    /// well; `mirror`, answers too
    #[arg(
        long,
        value_name = "MODE",
        default_value = "eager",
        requires = "kv_disk",
        help_heading = "KV on disk",
        hide_short_help = true
    )]
    pub kv_disk_mode: KvDiskModeOption,

    /// The most that is written in a day, such as 100G, so that the disk is not worn out; without it there is no limit
    #[arg(long, value_name = "SIZE", requires = "kv_disk", help_heading = "KV on disk", value_parser = per_day,
          hide_short_help = true)]
    pub kv_disk_writes: Option<Bytes>,

    /// How long KV is kept after it was written, such as 12h or 7d; without it, until its room is needed
    #[arg(long, value_name = "TIME", requires = "kv_disk", help_heading = "KV on disk", value_parser = duration,
          hide_short_help = true)]
    pub kv_disk_ttl: Option<Duration>,
}

/// See [`KvDiskMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDiskModeOption {
    /// What memory has no room for.
    Evict,
    /// Prompts, and what memory has no room for.
    Eager,
    /// Everything.
    Mirror,
}

impl From<KvDiskModeOption> for KvDiskMode {
    fn from(option: KvDiskModeOption) -> Self {
        match option {
            KvDiskModeOption::Evict => Self::Evict,
            KvDiskModeOption::Eager => Self::Eager,
            KvDiskModeOption::Mirror => Self::Mirror,
        }
    }
}

/// Memory that KV on disk takes of a budget of `total`: buffers and the index.
pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
    let Some(options) = limits.kv_disk.as_ref() else { return Bytes(0) };
    let Some(directory) = &options.kv_disk else { return Bytes(0) };
    let shape = shape(layout);
    let index = DiskTier::index_bytes(&shape, size(options, directory).unwrap_or(SIZE_DEFAULT));
    Bytes(DiskTier::buffer_bytes(&shape, buffer_bytes(total)) as u64 + index)
}

/// Opens the store for the KV of this model, if one was asked for. `None` too if another server has it: this one then
/// runs without.
///
/// # Errors
/// The directory cannot be used.
pub fn open(limits: &LimitOptions, total: Bytes, dir: &ModelDir, layout: &KvLayout) -> Result<Option<KvDisk>> {
    let Some(options) = &limits.kv_disk else { return Ok(None) };
    let Some(path) = &options.kv_disk else { return Ok(None) };
    let directory = match Directory::open(path) {
        Ok(directory) => directory,
        Err(error @ DirectoryError::Busy { .. }) => {
            report!("warning: {error}; this one runs without");
            return Ok(None);
        }
        Err(error) => return Err(refused(&error)),
    };
    let bytes = size(options, path).context("cannot tell how much room the disk has")?;
    let shape = shape(layout);
    let tier_options = DiskOptions {
        bytes,
        buffer_bytes: buffer_bytes(total),
        writes_per_day: options.kv_disk_writes.map(|bytes| bytes.0),
        ttl: options.kv_disk_ttl,
        gate: Gate::new(0.0),
    };
    let secret = directory.secret();
    let fingerprint = fingerprint(dir, layout)?;
    let tier = DiskTier::open(Arc::new(directory), secret, fingerprint, shape, tier_options);
    let tier = tier.map_err(|error| refused(&error))?;
    let found = tier.recovered();
    let stats = tier.stats();
    let aside = if found.set_aside > 0 { ", the rest of it another model's" } else { "" };
    let held = format!("{} blocks ({}) are there{aside}", found.blocks, Bytes(found.bytes));
    report!("KV disk {:>10}  in {}; {held}", Bytes(stats.bytes_total), path.display());
    Ok(Some(KvDisk { tier, mode: options.kv_disk_mode.into(), may_recompute: true }))
}

/// The shape of records for blocks of this layout.
fn shape(layout: &KvLayout) -> RecordShape {
    let layers = (0..layout.num_layers()).map(|index| layout.layer(index).part_bytes());
    RecordShape::new(layout.block_size(), layers.collect())
}

fn size(options: &KvDiskOptions, directory: &std::path::Path) -> Result<u64> {
    if let Some(size) = options.kv_disk_size {
        return Ok(size.0);
    }
    // The directory may be one that is yet to be made.
    let there = directory.ancestors().find(|parent| parent.exists() && !parent.as_os_str().is_empty());
    let free = disk_bytes_free(there.unwrap_or(std::path::Path::new(".")))?;
    // What the store has taken already counts as free, or it would shrink from start to start.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let taken: u64 = entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum();
    Ok(((free + taken) / DISK_SHARE).max(taken.min(SIZE_DEFAULT)).min(SIZE_DEFAULT))
}

fn buffer_bytes(total: Bytes) -> usize {
    usize::try_from((total.0 / BUFFERS_SHARE).min(BUFFERS_MAX)).unwrap_or(usize::MAX)
}

/// What tells the KV of this model, as this program computes it on this machine, from any other: the configuration, the
/// weights (by length, time of change and samples of each file), the layout, the instructions, the version.
fn fingerprint(dir: &ModelDir, layout: &KvLayout) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut field = |name: &str, value: &[u8]| {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
    };
    field("version", env!("CARGO_PKG_VERSION").as_bytes());
    field("level", Level::detect().name().as_bytes());
    field("configuration", format!("{:?}", dir.config).as_bytes());
    field("layout", format!("{layout:?}").as_bytes());
    for file in dir.catalog.files() {
        field("length", &file.len().to_le_bytes());
        let changed = std::fs::metadata(file.path()).ok().and_then(|data| data.modified().ok());
        let since = changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
        field("changed", &since.unwrap_or_default().as_nanos().to_le_bytes());
        field("samples", &samples(file.as_ref())?);
    }
    Ok(*hasher.finalize().as_bytes())
}

/// The hash of pieces that are spread over `file`.
fn samples(file: &dyn RandomAccessFile) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let last = file.len().saturating_sub(SAMPLE_BYTES);
    let mut piece = vec![0; SAMPLE_BYTES.min(file.len()) as usize];
    for sample in 0..SAMPLES {
        let offset = u128::from(last) * u128::from(sample) / u128::from(SAMPLES - 1);
        file.read_exact_at(&mut piece, offset as u64)?;
        hasher.update(&piece);
    }
    Ok(*hasher.finalize().as_bytes())
}

fn refused(error: &dyn std::fmt::Display) -> anyhow::Error {
    let hint = "name another --kv-disk on a disk with more room, change --kv-disk-size, or leave both out";
    Advised::input(format!("cannot keep KV on disk: {error}"), hint)
}

/// Bytes, with or without "/day".
fn per_day(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let size = text.strip_suffix("/day").unwrap_or(text);
    size.parse().map_err(|error: strata_device::BadSize| error.to_string())
}

/// A number of seconds, minutes, hours or days.
fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(format!("{unit:?} is no unit of time; give s, m, h or d")),
    };
    let number = number.trim().parse::<u64>().ok().filter(|&number| number > 0);
    let total = number.and_then(|number| number.checked_mul(seconds));
    total.map(Duration::from_secs).ok_or_else(|| "expected a whole number above 0 and a unit, such as 12h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_read() {
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration(" 90 s "), Ok(Duration::from_secs(90)));
        assert_eq!(duration("15"), Ok(Duration::from_secs(15)));
        for wrong in ["", "h", "0d", "-1h", "3 weeks", "99999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(per_day("100G/day"), Ok(Bytes(100 << 30)));
        assert_eq!(per_day("2M"), Ok(Bytes(2 << 20)));
        assert!(per_day("fast").is_err());
    }
}
