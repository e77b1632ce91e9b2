//! Room to swap KV to (K12): as much as was asked for, or as may be taken without asking.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use strata_device::Bytes;
use strata_engine::{MemoryPlan, SwapSpace};
use strata_io::{IoError, SwapFile, disk_bytes_free};
use strata_kv::BLOCKS_MAX;

use crate::failure::Advised;
use crate::options::{LimitOptions, PreemptionOption, SwapOptions};

/// Most that is taken of a disk without asking.
const SPACE_MAX: u64 = 4 << 30;
/// So much of what a disk has free is taken without asking at the most: one part in this many.
const DISK_SHARE: u64 = 8;
/// Of the budget, buffers get one part in so many, up to [`BUFFERS_MAX`]: a pass is as long as a model is large, and between
/// two passes no more moves than buffers hold.
const BUFFERS_SHARE: u64 = 128;
const BUFFERS_MAX: u64 = 32 << 20;
/// Bookkeeping of a slot besides its tokens: holders, list of free ones, checksum.
const SLOT_BOOKKEEPING: u64 = 16;
/// Where temporary files lie on a disk when those of the first choice lie in memory.
const TEMPORARY_ON_DISK: &str = "/var/tmp";

/// Memory that swapping takes of a budget of `total`.
pub fn memory(limits: &LimitOptions, total: Bytes, block_bytes: usize) -> Bytes {
    let Some(swap) = limits.swap.as_ref().filter(|swap| is_wanted(swap)) else { return Bytes(0) };
    let space = swap.swap_space.map_or(SPACE_MAX.min(total.0), |asked| asked.0);
    let slots = (space / SwapSpace::slot_bytes(block_bytes) as u64).min(BLOCKS_MAX as u64);
    let each = SLOT_BOOKKEEPING + (limits.block_size * size_of::<u32>()) as u64;
    Bytes(buffer_bytes(total, block_bytes).saturating_add(slots.saturating_mul(each)))
}

/// Takes the room. What nobody asked for may be missing.
///
/// # Errors
/// Room that was asked for is not to be had.
pub fn open(limits: &LimitOptions, plan: &MemoryPlan, memory: Bytes, block_bytes: usize) -> Result<Option<SwapSpace>> {
    let Some(swap) = &limits.swap else { return Ok(None) };
    if swap.preemption == PreemptionOption::Swap && swap.swap_space == Some(Bytes(0)) {
        let hint = "give --swap-space a size, or choose another --preemption";
        return Err(Advised::input("--preemption swap has nowhere to swap to with --swap-space 0", hint));
    }
    if !is_wanted(swap) {
        return Ok(None);
    }
    let asked = swap.swap_space.is_some() || swap.swap_dir.is_some() || swap.preemption == PreemptionOption::Swap;
    match take(swap, plan, memory, block_bytes) {
        Ok(space) => Ok(Some(space)),
        Err(error) if asked => Err(error),
        Err(error) => {
            eprintln!("note: KV is not swapped to disk: {error:#}");
            Ok(None)
        }
    }
}

fn is_wanted(swap: &SwapOptions) -> bool {
    swap.preemption != PreemptionOption::Recompute && swap.swap_space != Some(Bytes(0))
}

fn buffer_bytes(total: Bytes, block_bytes: usize) -> u64 {
    let wanted = usize::try_from((total.0 / BUFFERS_SHARE).min(BUFFERS_MAX)).unwrap_or(usize::MAX);
    SwapSpace::buffer_bytes(block_bytes, wanted) as u64
}

fn take(swap: &SwapOptions, plan: &MemoryPlan, memory: Bytes, block_bytes: usize) -> Result<SwapSpace> {
    let refused = |error: &dyn std::fmt::Display| {
        let hint = "give less --swap-space, another --swap-dir on a disk, or --swap-space 0 for none";
        Advised::input(format!("cannot take swap space: {error}"), hint)
    };
    let directory = swap.swap_dir.clone().map_or_else(temporary, Ok).map_err(|error| refused(&error))?;
    let free = disk_bytes_free(&directory).map_err(|error| refused(&error))?;
    let slot = SwapSpace::slot_bytes(block_bytes) as u64;
    let bytes = match swap.swap_space {
        Some(asked) => asked.0,
        None => {
            let kv = slot.saturating_mul(plan.num_blocks_max as u64);
            kv.min(SPACE_MAX).min(plan.budget.total().0).min(free / DISK_SHARE)
        }
    };
    let slots = (bytes / slot).min(BLOCKS_MAX as u64);
    if slots == 0 {
        return Err(Advised::input(
            format!("swap space of {} holds no KV block, which takes {}", Bytes(bytes), Bytes(slot)),
            format!("give --swap-space {slot} or more, or 0 for none"),
        ));
    }
    let file = SwapFile::create(&directory, slots * slot).map_err(|error| refused(&error))?;
    let buffers = usize::try_from(buffer_bytes(plan.budget.total(), block_bytes).min(memory.0))?;
    let space = SwapSpace::new(Arc::new(file), block_bytes, buffers).map_err(|error| refused(&error))?;
    eprintln!("swap    {:>10}  {} blocks in {}", Bytes(slots * slot), space.num_slots(), directory.display());
    Ok(space)
}

/// The directory for temporary files that lies on a disk.
fn temporary() -> Result<PathBuf, IoError> {
    let first = std::env::temp_dir();
    Ok(if SwapFile::is_in_memory(&first)? { PathBuf::from(TEMPORARY_ON_DISK) } else { first })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::load::load_weights;
    use crate::model_dir::ModelDir;
    use crate::options::ModelOptions;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelOptions,
        #[command(flatten)]
        swap: SwapOptions,
    }

    fn limits(more: &[&str]) -> LimitOptions {
        let line = Line::parse_from([&["strata"], more].concat());
        LimitOptions { swap: Some(line.swap), ..line.model.limits }
    }

    fn memory_of(total: u64, more: &[&str]) -> u64 {
        memory(&limits(more), Bytes(total), 100_000).0
    }

    #[test]
    fn swapping_takes_a_small_part_of_the_budget() {
        for total in [300 << 20, 8 << 30, 1 << 40] {
            let taken = memory_of(total, &[]);
            assert!((2 << 20..total / 50).contains(&taken), "{taken} of {total}");
        }
        // A slot takes 100 KiB on disk, and 80 bytes of bookkeeping.
        let (less, more) =
            (memory_of(1 << 30, &["--swap-space", "1000K"]), memory_of(1 << 30, &["--swap-space", "10000K"]));
        assert_eq!(more - less, 90 * 80);
    }

    #[test]
    fn what_cannot_work_is_refused_before_weights_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(bundled.join(file), folder.path().join(file)).unwrap();
        }
        let dir = ModelDir::open(Some(folder.path())).unwrap();
        // Whoever reads them fails.
        let weights = fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
        weights.set_len(1 << 16).unwrap();
        let error = |more: &[&str]| {
            let limits = limits(&[&["--memory", "512M"], more].concat());
            format!("{:#}", load_weights(&dir, &limits).err().unwrap())
        };
        assert!(error(&[]).contains("model.safetensors"), "{}", error(&[]));
        assert!(error(&["--preemption", "swap", "--swap-space", "0"]).contains("nowhere to swap to"));
        assert!(error(&["--swap-dir", "/no/such/directory"]).contains("/no/such/directory"));
    }

    #[test]
    fn who_swaps_nothing_pays_nothing() {
        assert_eq!(memory_of(1 << 30, &["--swap-space", "0"]), 0);
        assert_eq!(memory_of(1 << 30, &["--preemption", "recompute"]), 0);
        let line = Line::parse_from(["strata"]);
        assert_eq!(memory(&line.model.limits, Bytes(1 << 30), 100_000), Bytes(0), "commands that serve one at a time");
    }
}
