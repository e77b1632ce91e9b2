//! The machine that is planned for, each figure with where it comes from.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use strata_device::Bytes;
use strata_io::DirectRead;
use strata_kernels::DType;

use super::measure;
use crate::failure::Advised;
use crate::load::default_budget;

/// What a disk is taken for where it can be neither measured nor is given, in bytes a second: NVMe of the slower kind.
const DISK_ASSUMED: f64 = 2e9;

/// Reads as large as this run at the full speed of most disks, and keep the memory of slots small.
const CHUNK_BYTES: usize = 4 << 20;

/// Reads under way at a time where the disk was not tried.
const DEPTH: usize = 4;

/// A machine that may be elsewhere.
#[derive(Debug, Clone, Args)]
pub struct MachineOptions {
    /// Bytes a second that the disk gives, as in 4.45e9 or 4.45G (1G = 1e9 here). Without it, it is measured on a file of
    /// the model
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine")]
    pub disk_bw: Option<f64>,

    /// Bytes a second that cores read from memory; measured without it
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine")]
    pub host_bw: Option<f64>,

    /// Operations a second of all cores together, a multiply-add being two; measured without it
    #[arg(long, value_name = "RATE", value_parser = operations, help_heading = "Another machine")]
    pub flops: Option<f64>,

    /// Memory of a GPU. Without it there is none. Needs --pcie-bw and --hbm-bw
    #[arg(long, value_name = "SIZE", help_heading = "Another machine", requires_all = ["pcie_bw", "hbm_bw"])]
    pub gpu_memory: Option<Bytes>,

    /// Bytes a second from host to GPU
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub pcie_bw: Option<f64>,

    /// Bytes a second that the GPU reads from its memory
    #[arg(long, value_name = "RATE", value_parser = bandwidth, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub hbm_bw: Option<f64>,

    /// Operations a second of the GPU. Without it arithmetic is left out of the account
    #[arg(long, value_name = "RATE", value_parser = operations, help_heading = "Another machine",
          requires = "gpu_memory")]
    pub gpu_flops: Option<f64>,
}

/// Where a figure comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A flag.
    Given(&'static str),
    /// A measurement of now and here, with its circumstances.
    Measured(String),
    /// Neither was to be had; why this figure.
    Assumed(String),
}

/// A figure and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// In bytes, or bytes or operations a second.
    pub value: f64,
    pub source: Source,
}

/// How the disk is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Bytes of a read.
    pub chunk_bytes: usize,
    /// Reads under way at a time.
    pub depth: usize,
    /// Whether the disk was tried for it.
    pub tried: bool,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Bytes.
    pub memory: Figure,
    /// Bytes a second from the host: `B_p` of `bounds.md`.
    pub link: Figure,
    /// Bytes a second of its memory: `B_d`.
    pub bandwidth: Figure,
    /// Operations a second: `F`.
    pub flops: Option<Figure>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Bytes a second: `B_s`.
    pub disk: Figure,
    pub reading: Reading,
    /// Bytes of memory that Strata may use.
    pub memory: Figure,
    /// Bytes a second: `B_h`.
    pub bandwidth: Figure,
    /// Operations a second: `F`.
    pub flops: Figure,
    pub gpu: Option<Gpu>,
}

impl Machine {
    /// The machine that the options describe; what they leave out is measured here, on `files` and for weights of
    /// `dtype`.
    ///
    /// # Errors
    /// A disk or memory that cannot be measured.
    pub fn find(
        options: &MachineOptions,
        memory: Option<Bytes>,
        threads: NonZeroUsize,
        files: &[Arc<dyn DirectRead>],
        dtype: DType,
    ) -> Result<Self> {
        let untried = Reading { chunk_bytes: CHUNK_BYTES, depth: DEPTH, tried: false };
        let (disk, reading) = match (options.disk_bw, files.is_empty()) {
            (Some(rate), _) => (given(rate, "--disk-bw"), untried),
            (None, false) => measure::disk(files)?,
            (None, true) => {
                let why = "there is no file of the model to measure with; give --disk-bw".to_owned();
                (Figure { value: DISK_ASSUMED, source: Source::Assumed(why) }, untried)
            }
        };
        let memory = match memory {
            Some(size) => given(size.0 as f64, "--memory"),
            None => Figure {
                value: default_budget().0 as f64,
                source: Source::Measured("what is available here; --memory chooses".into()),
            },
        };
        let (bandwidth, flops) = match (options.host_bw, options.flops) {
            (Some(rate), Some(flops)) => (given(rate, "--host-bw"), given(flops, "--flops")),
            (rate, flops) => {
                let measured = measure::cores(threads, dtype)?;
                (
                    rate.map_or(measured.bandwidth, |rate| given(rate, "--host-bw")),
                    flops.map_or(measured.flops, |flops| given(flops, "--flops")),
                )
            }
        };
        Ok(Self { disk, reading, memory, bandwidth, flops, gpu: gpu(options)? })
    }
}

fn gpu(options: &MachineOptions) -> Result<Option<Gpu>> {
    let Some(memory) = options.gpu_memory else { return Ok(None) };
    let (Some(link), Some(bandwidth)) = (options.pcie_bw, options.hbm_bw) else {
        return Err(Advised::input(
            "--gpu-memory needs --pcie-bw and --hbm-bw",
            "a GPU cannot be measured yet; give both",
        ));
    };
    Ok(Some(Gpu {
        memory: given(memory.0 as f64, "--gpu-memory"),
        link: given(link, "--pcie-bw"),
        bandwidth: given(bandwidth, "--hbm-bw"),
        flops: options.gpu_flops.map(|flops| given(flops, "--gpu-flops")),
    }))
}

fn given(value: f64, flag: &'static str) -> Figure {
    Figure { value, source: Source::Given(flag) }
}

fn bandwidth(text: &str) -> Result<f64, String> {
    rate(text, 1e6, "bytes")
}

fn operations(text: &str) -> Result<f64, String> {
    rate(text, 1e9, "operations")
}

/// Rates are decimal, as disks and links are sold. What is far from any hardware would overflow the clock.
fn rate(text: &str, least: f64, what: &str) -> Result<f64, String> {
    const UNITS: [(char, f64); 4] = [('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12)];
    let trimmed = text.trim().to_ascii_uppercase();
    let plain = trimmed.strip_suffix("B/S").unwrap_or(&trimmed);
    let unit = UNITS.iter().find_map(|(name, factor)| Some((plain.strip_suffix(*name)?, *factor)));
    let (number, factor) = unit.unwrap_or((plain, 1.0));
    match number.trim().parse::<f64>().map(|number| number * factor) {
        Ok(rate) if (least..=1e18).contains(&rate) => Ok(rate),
        _ => Err(format!("expected {what} a second from {least:e} to 1e18, such as 4.45e9 or 4.45G")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal() {
        assert_eq!(bandwidth("4.45e9"), Ok(4.45e9));
        assert_eq!(bandwidth(" 4.45G "), Ok(4.45e9));
        assert_eq!(bandwidth("500MB/s"), Ok(5e8));
        assert_eq!(operations("1.1t"), Ok(1.1e12));
        for bad in ["0", "-1", "nan", "inf", "", "G", "fast", "1e30", "10"] {
            assert!(bandwidth(bad).is_err(), "{bad}");
        }
    }
}
