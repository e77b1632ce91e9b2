//! Measures for about two seconds what this machine achieves.

use std::num::NonZeroUsize;
use std::sync::Arc;

use interbed_device::{Bytes, Cpu, HostBuffer, HostMemory};
use interbed_io::{DirectRead, ProbeLimits, probe};
use interbed_kernels::{DType, Unit, peak, read_bandwidth};

use super::figure::{Figure, Origin, Reading};
use crate::refusal::Refusal;

/// Number of bytes of memory that are read to measure its rate: much more than caches hold.
const SWEEP_BYTES: u64 = 1 << 30;

/// Minimum number of bytes that gives a meaningful result.
const SWEEP_LEAST: u64 = 1 << 20;

/// Number of times that the memory is read; the fastest counts.
const SWEEPS: usize = 3;

/// Number of times that arithmetic is measured; the fastest counts.
const ROUNDS: usize = 5;

/// Rates that the cores achieve.
pub(super) struct Cores {
    pub bandwidth: Figure,
    pub flops: Figure,
}

/// Measures the disk that a file of the model lies on.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn disk(file: &Arc<dyn DirectRead>) -> Result<(Figure, Reading), Refusal> {
    let settings = probe(file, 0..file.len(), &ProbeLimits::default())?;
    let reading = Reading { chunk_bytes: settings.chunk_bytes, depth: settings.depth, tried: true };
    let how = settings.to_string();
    // The rate stands in a column of its own.
    let how = how.rsplit_once(", ").map_or(how.as_str(), |(how, _)| how).to_owned();
    Ok((Figure { value: settings.bytes_per_s, source: Origin::Measured(how) }, reading))
}

/// Measures the rate of memory, and of the unit that multiplies weights of `dtype`.
///
/// # Errors
/// Fails if there is no memory to read.
pub(super) fn cores(threads: NonZeroUsize, dtype: DType) -> Result<Cores, Refusal> {
    let cpu = Cpu::new(threads);
    let memory = HostMemory::read();
    let free = memory.usable().saturating_sub(memory.resident) / 2;
    let bytes = SWEEP_BYTES.min(free).max(SWEEP_LEAST);
    let mut sweep = HostBuffer::new_zeroed(usize::try_from(bytes)?)?;
    // Untouched pages are all one page of zeroes, which the cache holds.
    sweep.as_mut_slice().fill(1);
    let bandwidth = read_bandwidth(&cpu.pool, cpu.level, sweep.as_slice(), SWEEPS);
    let unit = Unit::of(cpu.level, dtype);
    let flops = peak(&cpu.pool, cpu.level, unit, ROUNDS)
        .ok_or_else(|| Refusal::new(format!("this machine has no {unit} unit at level {}", cpu.level.name())))?;
    let threads = if threads.get() == 1 { "1 thread".into() } else { format!("{threads} threads") };
    Ok(Cores {
        bandwidth: Figure { value: bandwidth, source: Origin::Measured(format!("{threads} over {}", Bytes(bytes))) },
        flops: Figure { value: flops, source: Origin::Measured(format!("{threads}, {unit}")) },
    })
}
