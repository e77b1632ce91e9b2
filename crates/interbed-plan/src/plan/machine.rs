//! Describes the machine that is planned for, with the source of each figure.

use std::num::NonZeroUsize;
use std::sync::Arc;

use interbed_device::Bytes;
use interbed_io::DirectRead;
use interbed_kernels::DType;

use super::figure::{Figure, Origin, Reading};
use super::measure;
use crate::refusal::Refusal;

/// Rate that is assumed for a disk that is neither measured nor given, in bytes per second: that of a slow NVMe disk.
const DISK_ASSUMED: f64 = 2e9;

/// Number of bytes of a read if the disk was not tried. Reads of this size run at the full speed of most disks, and
/// keep the memory of slots small.
const CHUNK_BYTES: usize = 4 << 20;

/// Number of reads in flight at a time if the disk was not tried.
const DEPTH: usize = 4;

/// Known figures of a machine that may be elsewhere. Unknown figures are measured here, or the part does not exist.
#[derive(Debug, Clone, Default)]
pub struct KnownFigures {
    /// Bytes per second that the disk gives.
    pub disk_bw: Option<f64>,
    /// Bytes per second that the processor's cores read from memory.
    pub host_bw: Option<f64>,
    /// Operations per second of all cores together; a multiply-add counts as two.
    pub flops: Option<f64>,
    /// Bytes of the GPU's memory. A GPU needs `pcie_bw` and `hbm_bw` too.
    pub gpu_memory: Option<Bytes>,
    /// Bytes per second from the host to the GPU.
    pub pcie_bw: Option<f64>,
    /// Bytes per second that the GPU reads from its own memory.
    pub hbm_bw: Option<f64>,
    /// Operations per second of the GPU.
    pub gpu_flops: Option<f64>,
    /// Bytes of host memory that Interbed may use.
    pub memory: Option<Bytes>,
    /// Memory that this machine has, which is the default for `memory`.
    pub memory_here: Bytes,
}

impl KnownFigures {
    /// Measures the unknown figures of the cores on this machine, for weights of `dtype`, so that several plans need
    /// one measurement.
    ///
    /// # Errors
    /// Fails if there is no memory to measure with.
    pub fn with_measured_cores(self, threads: NonZeroUsize, dtype: DType) -> Result<Self, Refusal> {
        if self.host_bw.is_some() && self.flops.is_some() {
            return Ok(self);
        }
        let cores = measure::cores(threads, dtype)?;
        let (host_bw, flops) = (Some(cores.bandwidth.value), Some(cores.flops.value));
        Ok(Self { host_bw: self.host_bw.or(host_bw), flops: self.flops.or(flops), ..self })
    }
}

/// Figures of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gpu {
    /// Bytes of the GPU's memory.
    pub memory: Figure,
    /// Bytes per second from the host to the GPU; `B_p` in formulas.
    pub link: Figure,
    /// Bytes per second that the GPU reads from its memory; `B_d` in formulas.
    pub bandwidth: Figure,
    /// Operations per second of the GPU; `F` in formulas.
    pub flops: Option<Figure>,
}

/// Figures of the machine that is planned for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    /// Bytes per second that the disk gives; `B_s` in formulas.
    pub disk: Figure,
    pub reading: Reading,
    /// Bytes of memory that Interbed may use.
    pub memory: Figure,
    /// Bytes per second that the cores read from memory; `B_h` in formulas.
    pub bandwidth: Figure,
    /// Operations per second of all cores; `F` in formulas.
    pub flops: Figure,
    pub gpu: Option<Gpu>,
}

impl Machine {
    /// Returns the machine with the known figures. The other figures are measured here, on `files` and for weights of
    /// `dtype`.
    ///
    /// # Errors
    /// Fails if the disk or memory cannot be measured.
    pub fn find(
        known: &KnownFigures,
        threads: NonZeroUsize,
        files: &[Arc<dyn DirectRead>],
        dtype: DType,
    ) -> Result<Self, Refusal> {
        let untried = Reading { chunk_bytes: CHUNK_BYTES, depth: DEPTH, tried: false };
        let largest = files.iter().max_by_key(|file| file.len());
        let (disk, reading) = match (known.disk_bw, largest) {
            (Some(rate), _) => (given(rate, "--disk-bw"), untried),
            (None, Some(file)) => measure::disk(file)?,
            (None, None) => {
                let why = "there is no file of the model to measure with; give --disk-bw".to_owned();
                (Figure { value: DISK_ASSUMED, source: Origin::Assumed(why) }, untried)
            }
        };
        let memory = match known.memory {
            Some(size) => given(size.0 as f64, "--memory"),
            None => Figure {
                value: known.memory_here.0 as f64,
                source: Origin::Measured("what is available here; --memory chooses".into()),
            },
        };
        let (bandwidth, flops) = match (known.host_bw, known.flops) {
            (Some(rate), Some(flops)) => (given(rate, "--host-bw"), given(flops, "--flops")),
            (rate, flops) => {
                let measured = measure::cores(threads, dtype)?;
                (
                    rate.map_or(measured.bandwidth, |rate| given(rate, "--host-bw")),
                    flops.map_or(measured.flops, |flops| given(flops, "--flops")),
                )
            }
        };
        Ok(Self { disk, reading, memory, bandwidth, flops, gpu: gpu(known)? })
    }
}

fn gpu(known: &KnownFigures) -> Result<Option<Gpu>, Refusal> {
    let Some(memory) = known.gpu_memory else { return Ok(None) };
    let (Some(link), Some(bandwidth)) = (known.pcie_bw, known.hbm_bw) else {
        return Err(Refusal::advised(
            "--gpu-memory needs --pcie-bw and --hbm-bw",
            "a GPU cannot be measured yet; give both",
        ));
    };
    Ok(Some(Gpu {
        memory: given(memory.0 as f64, "--gpu-memory"),
        link: given(link, "--pcie-bw"),
        bandwidth: given(bandwidth, "--hbm-bw"),
        flops: known.gpu_flops.map(|flops| given(flops, "--gpu-flops")),
    }))
}

fn given(value: f64, flag: &'static str) -> Figure {
    Figure { value, source: Origin::Given(flag) }
}
