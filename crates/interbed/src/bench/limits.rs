//! What the machine allows at this moment, and the bound that follows for a piece of work.

use anyhow::{Context, Result};
use interbed_device::{Bytes, Cpu, HostBuffer, HostMemory};
use interbed_kernels::{Unit, peak, read_bandwidth};

use super::median;
use super::work::Work;

/// The least memory that a sweep walks through: some pages a thread.
const SWEEP_MIN: Bytes = Bytes(1 << 20);

/// Rounds of the units that the model's products do not use; they are shown for comparison.
const OTHER_ROUNDS: usize = 20;

/// The machine's limits, measured repeatedly.
pub struct MachineLimits {
    /// The memory that read sweeps read.
    sweep: HostBuffer,
    /// The unit that multiplies the model's weights.
    unit: Unit,
    bandwidths: Vec<f64>,
    peaks: Vec<f64>,
    /// Operations per second of the other units of this machine.
    others: Vec<(Unit, f64)>,
}

/// Medians of what was measured.
pub struct Summary {
    /// Bytes a second.
    pub read_bandwidth: f64,
    /// Bytes that each sweep read.
    pub sweep: Bytes,
    /// Operations a second of each unit, first that of the model's products.
    pub peaks: Vec<(Unit, f64)>,
}

/// The least time that a piece of work takes.
#[derive(Clone, Copy)]
pub struct Bound {
    pub seconds: f64,
    pub limit: Limit,
}

/// What sets a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Arithmetic,
}

impl Limit {
    /// For reports and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        }
    }
}

impl Bound {
    /// The bound in the middle, of one or more; of an even number the lower of the two, as a bound has one cause.
    pub fn median(mut bounds: Vec<Self>) -> Self {
        bounds.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        bounds.swap_remove((bounds.len() - 1) / 2)
    }
}

impl MachineLimits {
    /// Allocates `sweep`, or half of the free memory if that is less, and measures the units that the model does not
    /// use. Says so on stderr if it takes less: data in the caches is read faster than memory.
    ///
    /// # Errors
    /// There is no memory for the sweep, or the machine lacks `unit`.
    pub fn new(cpu: &Cpu, unit: Unit, sweep: Bytes) -> Result<Self> {
        // The weights may leave less room.
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
        // Untouched pages are all one page of zeroes, which the cache holds.
        sweep.as_mut_slice().fill(1);
        peak(&cpu.pool, cpu.level, unit, 1)
            .with_context(|| format!("this machine has no {unit} unit at level {}", cpu.level.name()))?;
        let others = Unit::ALL
            .into_iter()
            .filter(|&other| other != unit)
            .filter_map(|other| Some((other, peak(&cpu.pool, cpu.level, other, OTHER_ROUNDS)?)))
            .collect();
        Ok(Self { sweep, unit, bandwidths: Vec::new(), peaks: Vec::new(), others })
    }

    /// The least time that `work` takes on this machine at this moment.
    pub fn bound(&mut self, cpu: &Cpu, work: Work) -> Bound {
        let bandwidth = read_bandwidth(&cpu.pool, cpu.level, self.sweep.as_slice(), 1);
        // `new` has seen that the unit exists.
        let peak = peak(&cpu.pool, cpu.level, self.unit, 1).unwrap_or(f64::INFINITY);
        self.bandwidths.push(bandwidth);
        self.peaks.push(peak);
        let (memory, arithmetic) = (work.bytes / bandwidth, work.flops / peak);
        match memory >= arithmetic {
            true => Bound { seconds: memory, limit: Limit::Memory },
            false => Bound { seconds: arithmetic, limit: Limit::Arithmetic },
        }
    }

    /// The measurements so far, of which there must be at least one.
    pub fn summary(&self) -> Summary {
        let mut peaks = vec![(self.unit, median(self.peaks.clone()))];
        peaks.extend(&self.others);
        Summary {
            read_bandwidth: median(self.bandwidths.clone()),
            sweep: Bytes(self.sweep.as_slice().len() as u64),
            peaks,
        }
    }
}
