//! Finds the best way to read a disk, by short trials at startup.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bandwidth::{Walk, take_buffers};
use crate::trials::{Candidate, Trials};
use crate::{AlignedBuffer, DirectRead, EngineKind, IoError, ReadEngine};

/// The best settings that a probe has found for reading from a disk.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadSettings {
    /// The engine for background reads.
    pub engine: EngineKind,
    /// Number of reads in flight.
    pub depth: usize,
    /// Size of each read in bytes.
    pub chunk_bytes: usize,
    /// Whether reads bypass the page cache.
    pub direct: bool,
    /// Bandwidth in bytes per second that the probe measured.
    pub bytes_per_s: f64,
}

/// Limits of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeLimits {
    /// Maximum size of all buffers in bytes.
    pub memory_bytes: usize,
    /// Approximate maximum number of bytes that all trials together read.
    pub read_bytes: u64,
    /// Approximate time limit for the reads of all trials together. Reads that are in flight when the time expires are
    /// still completed.
    pub time: Duration,
}

impl Default for ProbeLimits {
    /// Returns limits of 64 MiB of memory, 512 MiB of reads, and half a second.
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, read_bytes: 512 << 20, time: Duration::from_millis(500) }
    }
}

/// Measures the bandwidth of reads from a range of a file with several settings, and returns the best settings. Among
/// settings with similar bandwidth, prefers [`EngineKind::Pread`], then about 4 reads in flight, and then reads of
/// about 4 MiB. Each trial continues where the previous one ended, so that caches of the storage device do not distort
/// the result.
///
/// # Errors
/// Fails with [`IoError::BadRequest`] if the range is empty or memory is lacking, and with [`IoError::Engine`] if no
/// thread can be started. Also fails if a read fails.
pub fn probe(file: &Arc<dyn DirectRead>, range: Range<u64>, limits: &ProbeLimits) -> Result<ReadSettings, IoError> {
    let mut began = Instant::now();
    let uring = file.direct_fd().is_some() && start(EngineKind::Uring, 1).is_ok();
    let mut trials = Trials::new(limits.memory_bytes, uring);
    let bytes_max = limits.read_bytes / Trials::COUNT_MAX as u64;
    let time_max = limits.time / Trials::COUNT_MAX;
    let mut walk: Option<Walk> = None;
    let mut buffers: Vec<AlignedBuffer> = Vec::new();
    while let Some(candidate) = trials.next() {
        let left = limits.time.saturating_sub(began.elapsed());
        if trials.seconds_at_least(candidate) > left.as_secs_f64() {
            continue;
        }
        let Candidate { engine, depth, chunk_bytes } = candidate;
        let walk = match &mut walk {
            Some(walk) => walk,
            None => walk.insert(Walk::new(Arc::clone(file), range.clone(), chunk_bytes)?),
        };
        let mut engine = start(engine, depth)?;
        if buffers.first().is_none_or(|buffer| buffer.as_slice().len() != chunk_bytes) {
            // The old buffers are dropped first, so that memory never exceeds the limit.
            buffers.clear();
        }
        buffers.truncate(depth);
        let missing = depth - buffers.len();
        let taking = Instant::now();
        buffers.extend(take_buffers(file.as_ref(), missing, chunk_bytes)?);
        // The time of allocating buffers does not count as time for reads.
        began += taking.elapsed();
        let sample = walk.measure(engine.as_mut(), &mut buffers, chunk_bytes, bytes_max, time_max)?;
        trials.record(candidate, sample);
    }
    let (Candidate { engine, depth, chunk_bytes }, bytes_per_s) = trials.choose();
    Ok(ReadSettings { engine, depth, chunk_bytes, direct: file.is_direct(), bytes_per_s })
}

impl fmt::Display for ReadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, depth, chunk_bytes, direct, bytes_per_s } = self;
        match engine {
            EngineKind::Pread => write!(f, "{depth} {engine}")?,
            EngineKind::Uring => write!(f, "{engine} of depth {depth}")?,
        }
        match chunk_bytes >> 20 {
            0 => write!(f, ", chunks of {} KiB", chunk_bytes >> 10)?,
            mebibytes => write!(f, ", chunks of {mebibytes} MiB")?,
        }
        let cache = if *direct { "O_DIRECT" } else { "through the page cache, dropped behind" };
        write!(f, ", {cache}, {:.2} GB/s", bytes_per_s / 1e9)
    }
}

fn start(engine: EngineKind, depth: usize) -> Result<Box<dyn ReadEngine<AlignedBuffer>>, IoError> {
    engine.start(depth)
}
