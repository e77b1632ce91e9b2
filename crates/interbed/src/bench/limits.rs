//! The machine's limits at this moment, and the bound on the time of some work that follows from them.

use anyhow::{Context, Result};
use interbed_device::{Bytes, Cpu, HostBuffer, HostMemory};
use interbed_kernels::{Level, Unit, peak, read_bandwidth};

use super::median;
use super::work::Work;

/// The minimum memory that a sweep reads: a few pages for each thread.
const SWEEP_MIN: Bytes = Bytes(1 << 20);

/// The number of measured rounds for units that the model's products do not use. The results of these units are only
/// shown.
const OTHER_ROUNDS: usize = 20;

/// Measures the limits of the machine: memory bandwidth and arithmetic speed.
pub struct MachineLimits {
    /// The memory that read sweeps read.
    sweep: HostBuffer,
    /// The arithmetic unit that multiplies the model's weights.
    unit: Unit,
    level: Level,
    threads: usize,
    bandwidths: Vec<f64>,
    peaks: Vec<f64>,
    /// The number of operations per second of the machine's other arithmetic units.
    others: Vec<(Unit, f64)>,
}

/// The limits of the machine, as medians of the measurements.
pub struct Summary {
    pub level: Level,
    pub threads: usize,
    /// The bandwidth at which the cores read memory, in bytes per second.
    pub read_bandwidth: f64,
    /// The size of the memory that one bandwidth measurement reads.
    pub sweep: Bytes,
    /// The operations per second of each arithmetic unit. The unit that multiplies the model's weights comes first.
    pub peaks: Vec<(Unit, f64)>,
}

/// The minimum time of some [`Work`], and what limits it.
#[derive(Clone, Copy)]
pub struct Bound {
    pub seconds: f64,
    /// The name that reports show.
    pub limit: &'static str,
}

impl Bound {
    /// Returns the bound that several limits set together: the longest of their times. `times` must not be empty.
    pub fn longest<const N: usize>(times: [(&'static str, f64); N]) -> Self {
        let longest = times.into_iter().fold(times[0], |most, time| if time.1 > most.1 { time } else { most });
        Self { seconds: longest.1, limit: longest.0 }
    }

    /// Returns the median of `bounds`, which must not be empty. For an even number of bounds, returns the lower of the
    /// two middle ones.
    pub fn median(mut bounds: Vec<Self>) -> Self {
        bounds.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        bounds.swap_remove((bounds.len() - 1) / 2)
    }
}

impl MachineLimits {
    /// Allocates `sweep` bytes for bandwidth measurements, or half of the free memory if that is less. Logs a warning
    /// in the second case, because memory seems faster than it is if the data fits into caches.
    ///
    /// `unit` is the arithmetic unit that multiplies the model's weights. This function measures all other units, and
    /// [`bound`](Self::bound) measures `unit`.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated, or the machine does not have `unit`.
    pub fn new(cpu: &Cpu, unit: Unit, sweep: Bytes) -> Result<Self> {
        // The weights may leave less memory than `sweep`.
        let memory = HostMemory::read();
        let bytes = sweep.0.min(memory.usable().saturating_sub(memory.resident) / 2).max(SWEEP_MIN.0);
        if bytes < sweep.0 {
            tracing::warn!(
                "the read sweep covers {}, not {sweep}, as there is no more memory beside the model; if the \
                 caches hold that much, memory seems faster than it is: free some memory or choose a smaller model",
                Bytes(bytes)
            );
        }
        let mut sweep = HostBuffer::new_zeroed(usize::try_from(bytes)?)?;
        // All untouched pages are one page of zeroes, which would stay in the cache.
        sweep.as_mut_slice().fill(1);
        peak(&cpu.pool, cpu.level, unit, 1)
            .with_context(|| format!("this machine has no {unit} unit at level {}", cpu.level.name()))?;
        let others = Unit::ALL
            .into_iter()
            .filter(|&other| other != unit)
            .filter_map(|other| Some((other, peak(&cpu.pool, cpu.level, other, OTHER_ROUNDS)?)))
            .collect();
        let (level, threads) = (cpu.level, cpu.pool.threads());
        Ok(Self { sweep, unit, level, threads, bandwidths: Vec::new(), peaks: Vec::new(), others })
    }

    /// Measures the machine, and returns the minimum time that `work` takes on it at this moment.
    pub fn bound(&mut self, cpu: &Cpu, work: Work) -> Bound {
        let bandwidth = read_bandwidth(&cpu.pool, cpu.level, self.sweep.as_slice(), 1);
        // `new` has checked that the unit exists.
        let peak = peak(&cpu.pool, cpu.level, self.unit, 1).unwrap_or(f64::INFINITY);
        self.bandwidths.push(bandwidth);
        self.peaks.push(peak);
        Bound::longest([("memory", work.bytes / bandwidth), ("arithmetic", work.flops / peak)])
    }

    /// Returns the medians of the measurements so far. At least one measurement must have been made.
    pub fn summary(&self) -> Summary {
        let mut peaks = vec![(self.unit, median(self.peaks.clone()))];
        peaks.extend(&self.others);
        Summary {
            level: self.level,
            threads: self.threads,
            read_bandwidth: median(self.bandwidths.clone()),
            sweep: Bytes(self.sweep.as_slice().len() as u64),
            peaks,
        }
    }
}
