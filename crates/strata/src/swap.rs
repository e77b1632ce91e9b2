//! Room to swap KV to: as much as was asked for, or as may be taken without asking.

mod file;

use std::path::Path;

use anyhow::Result;
use strata_device::Bytes;
use strata_engine::{MemoryPlan, SwapSpace, SwapStore};
use strata_kv::BLOCKS_MAX;

use crate::failure::Advised;
use crate::options::{LimitOptions, PreemptionOption, SwapOptions};

/// Most that is taken of a disk without asking.
const SPACE_MAX: u64 = 4 << 30;
/// Of the budget, buffers get one part in so many, up to [`BUFFERS_MAX`]: a pass is as long as a model is large, and between
/// two passes no more moves than buffers hold.
const BUFFERS_SHARE: u64 = 128;
const BUFFERS_MAX: u64 = 32 << 20;
/// Bookkeeping of a slot besides its tokens: a content of its own and how many slots that has, the slot's holders and what it
/// holds, list of free ones, checksum.
const SLOT_BOOKKEEPING: u64 = 72;

/// What a place to swap to is asked for.
struct Wanted<'a> {
    /// What `--swap-dir` names.
    directory: Option<&'a Path>,
    /// Bytes that `--swap-space` asks for.
    space: Option<Bytes>,
    /// All memory that the process may take.
    budget: Bytes,
    /// Blocks that there can be in memory.
    num_blocks_max: usize,
    block_bytes: usize,
    /// Memory to move blocks through.
    buffer_bytes: usize,
}

/// Takes the room, or returns none if what is wanted is another place's business.
type OpenPlace = fn(&Wanted<'_>) -> Result<Option<Box<dyn SwapStore>>>;

/// The places to swap to; the first that takes what `--swap-dir` names, or its absence, serves.
const PLACES: [OpenPlace; 1] = [file::open];

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
pub fn open(
    limits: &LimitOptions,
    plan: &MemoryPlan,
    memory: Bytes,
    block_bytes: usize,
) -> Result<Option<Box<dyn SwapStore>>> {
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
        Ok(store) => Ok(store),
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

fn take(
    swap: &SwapOptions,
    plan: &MemoryPlan,
    memory: Bytes,
    block_bytes: usize,
) -> Result<Option<Box<dyn SwapStore>>> {
    let budget = plan.budget.total();
    let wanted = Wanted {
        directory: swap.swap_dir.as_deref(),
        space: swap.swap_space,
        budget,
        num_blocks_max: plan.num_blocks_max,
        block_bytes,
        buffer_bytes: usize::try_from(buffer_bytes(budget, block_bytes).min(memory.0))?,
    };
    for place in PLACES {
        if let Some(store) = place(&wanted)? {
            return Ok(Some(store));
        }
    }
    Ok(None)
}

fn refused(error: &dyn std::fmt::Display) -> anyhow::Error {
    let hint = "give less --swap-space, another --swap-dir on a disk, or --swap-space 0 for none";
    Advised::input(format!("cannot take swap space: {error}"), hint)
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
        // A slot takes 100 KiB on disk, and 136 bytes of bookkeeping.
        let (less, more) =
            (memory_of(1 << 30, &["--swap-space", "1000K"]), memory_of(1 << 30, &["--swap-space", "10000K"]));
        assert_eq!(more - less, 90 * 136);
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
