//! Chooses and opens the space to which KV is swapped: as much as the options ask for, or a default. Each kind of
//! storage has a file in `swap/`, which says how much memory it takes and how it is opened.

mod file;

use std::path::Path;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_engine::{MemoryPlan, SwapStore};
use interbed_kernels::KvLayout;
use interbed_kv_disk::SwapSpace;

use crate::failure::Advised;
use crate::options::{LimitOptions, PreemptionOption, SwapOptions};
use crate::report::report;

/// The maximum disk space that is taken if the options do not ask for a size, in bytes.
const SPACE_MAX: u64 = 4 << 30;
/// Buffers take one part in this many of the budget, up to [`BUFFERS_MAX`] bytes: larger models have longer passes,
/// and between two passes at most as much KV can move as the buffers hold.
const BUFFERS_SHARE: u64 = 128;
const BUFFERS_MAX: u64 = 32 << 20;
/// The number of bytes of bookkeeping for a slot, besides its token ids: a content and its number of slots, the slot's
/// holders and content, an entry in the list of free slots, a checksum.
const SLOT_BOOKKEEPING: u64 = 72;

/// The kinds of storage. The first one that accepts the options is used.
const PLACES: &[Place] = &[file::PLACE];

/// A kind of storage for swapped KV.
struct Place {
    /// The name in messages, as in "KV is swapped to …".
    name: &'static str,
    /// Returns the memory that the storage takes, or `None` if it does not accept the options.
    memory: fn(&Wanted<'_>) -> Option<Bytes>,
    /// Allocates the storage, within the memory that [`Place::memory`] has returned.
    open: fn(&Wanted<'_>, &SwapRoom) -> Result<Box<dyn SwapStore>>,
}

/// The options for swap space, and the sizes that matter for it.
struct Wanted<'a> {
    /// The path that `--swap-dir` gives.
    directory: Option<&'a Path>,
    /// The bytes that `--swap-space` asks for.
    space: Option<Bytes>,
    /// The memory budget of the process.
    budget: Bytes,
    /// The number of tokens in a KV block.
    block_size: usize,
    /// The number of bytes of a KV block.
    block_bytes: usize,
}

/// The parts of the memory plan that a kind of storage needs.
struct SwapRoom {
    /// The maximum number of KV blocks in memory.
    num_blocks_max: usize,
    /// The part of the memory budget for swapping.
    memory: Bytes,
}

impl Wanted<'_> {
    /// Returns the bytes of the buffers through which blocks move.
    fn buffer_bytes(&self) -> usize {
        let wanted = usize::try_from((self.budget.0 / BUFFERS_SHARE).min(BUFFERS_MAX)).unwrap_or(usize::MAX);
        SwapSpace::buffer_bytes(self.block_bytes, wanted)
    }

    /// Returns the memory for the bookkeeping of `slots` slots.
    fn bookkeeping(&self, slots: u64) -> Bytes {
        Bytes(slots.saturating_mul(SLOT_BOOKKEEPING + (self.block_size * size_of::<u32>()) as u64))
    }

    /// Returns the first of `places` that accepts the options, and the memory that it takes.
    fn find<'a>(&self, places: &'a [Place]) -> Option<(&'a Place, Bytes)> {
        places.iter().find_map(|place| Some((place, (place.memory)(self)?)))
    }
}

/// Returns the memory that swapping takes of a budget of `total` bytes.
pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
    let Some(swap) = limits.swap.as_ref().filter(|swap| is_wanted(swap)) else { return Bytes(0) };
    wanted(swap, total, layout).find(PLACES).map_or(Bytes(0), |(_, memory)| memory)
}

/// Allocates the swap space, within the `memory` that was reserved for it. Returns `None` if there is none, and if it
/// cannot be allocated and the user did not ask for it.
///
/// # Errors
/// Fails if swap space that the user asked for cannot be allocated.
pub fn open(
    limits: &LimitOptions,
    plan: &MemoryPlan,
    memory: Bytes,
    layout: &KvLayout,
) -> Result<Option<Box<dyn SwapStore>>> {
    let Some(swap) = &limits.swap else { return Ok(None) };
    if swap.preemption == PreemptionOption::Swap && swap.swap_space == Some(Bytes(0)) {
        let hint = "give --swap-space a size, or choose another --preemption";
        return Err(Advised::input("--preemption swap has nowhere to swap to with --swap-space 0", hint));
    }
    if !is_wanted(swap) {
        return Ok(None);
    }
    let wanted = wanted(swap, plan.budget.total(), layout);
    let Some((place, _)) = wanted.find(PLACES) else { return Ok(None) };
    let asked = swap.swap_space.is_some() || swap.swap_dir.is_some() || swap.preemption == PreemptionOption::Swap;
    match (place.open)(&wanted, &SwapRoom { num_blocks_max: plan.num_blocks_max, memory }) {
        Ok(store) => Ok(Some(store)),
        Err(error) if asked => Err(error),
        Err(error) => {
            report!("note: KV is not swapped to {}: {error:#}", place.name);
            Ok(None)
        }
    }
}

fn is_wanted(swap: &SwapOptions) -> bool {
    swap.preemption != PreemptionOption::Recompute && swap.swap_space != Some(Bytes(0))
}

fn wanted<'a>(swap: &'a SwapOptions, budget: Bytes, layout: &KvLayout) -> Wanted<'a> {
    let (directory, space) = (swap.swap_dir.as_deref(), swap.swap_space);
    Wanted { directory, space, budget, block_size: layout.block_size(), block_bytes: layout.content_bytes() }
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

    use interbed_kernels::{KvDType, KvShape};

    use super::*;
    use crate::audience::{Audience, Surroundings};
    use crate::footprint::Footprint;
    use crate::load::load_onto;
    use crate::model_dir::ModelDir;
    use crate::options::ModelOptions;
    use crate::place::Processor;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelOptions,
        #[command(flatten)]
        swap: SwapOptions,
    }

    fn limits(more: &[&str]) -> LimitOptions {
        let line = Line::parse_from([&["interbed"], more].concat());
        LimitOptions { swap: Some(line.swap), ..line.model.limits }
    }

    fn memory_of(total: u64, more: &[&str]) -> u64 {
        memory(&limits(more), Bytes(total), &layout()).0
    }

    /// Returns the layout of blocks with 16 tokens and 100 KiB.
    fn layout() -> KvLayout {
        KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 10, head_dim: 80 }])
    }

    #[test]
    fn swapping_takes_a_small_part_of_the_budget() {
        for total in [300 << 20, 8 << 30, 1 << 40] {
            let taken = memory_of(total, &[]);
            assert!((2 << 20..total / 50).contains(&taken), "{taken} of {total}");
        }
        // A slot takes 100 KiB on disk and 136 bytes of bookkeeping in memory.
        let (less, more) =
            (memory_of(1 << 30, &["--swap-space", "1000K"]), memory_of(1 << 30, &["--swap-space", "10000K"]));
        assert_eq!(more - less, 90 * 136);
    }

    #[test]
    fn the_place_that_serves_says_what_memory_it_takes() {
        const IN_MEMORY: Place = Place {
            name: "memory",
            memory: |wanted| (wanted.directory == Some(Path::new("memory:"))).then_some(Bytes(7 << 20)),
            open: |_, _| unreachable!("nothing is opened here"),
        };
        let layout = layout();
        let found = |more: &[&str]| {
            let limits = limits(more);
            let wanted = wanted(limits.swap.as_ref().unwrap(), Bytes(1 << 30), &layout);
            wanted.find(&[IN_MEMORY, file::PLACE]).map(|(place, memory)| (place.name, memory.0))
        };
        assert_eq!(found(&["--swap-dir", "memory:"]), Some(("memory", 7 << 20)));
        assert_eq!(found(&["--swap-dir", "/elsewhere"]), Some(("disk", memory_of(1 << 30, &[]))));
        assert_eq!(found(&[]), Some(("disk", memory_of(1 << 30, &[]))));
    }

    #[test]
    fn what_cannot_work_is_refused_before_weights_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(bundled.join(file), folder.path().join(file)).unwrap();
        }
        let dir = ModelDir::open(Some(folder.path())).unwrap();
        // The weights are cut off, so that reading them fails.
        let weights = fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
        weights.set_len(1 << 16).unwrap();
        let surroundings = Surroundings { footprint: Footprint::default(), audience: Audience::Clients };
        let error = |more: &[&str]| {
            let limits = limits(&[&["--memory", "512M"], more].concat());
            format!("{:#}", load_onto(&Processor, &dir, &limits, &surroundings).err().unwrap())
        };
        assert!(error(&[]).contains("model.safetensors"), "{}", error(&[]));
        assert!(error(&["--preemption", "swap", "--swap-space", "0"]).contains("nowhere to swap to"));
        assert!(error(&["--swap-dir", "/no/such/directory"]).contains("/no/such/directory"));
    }

    #[test]
    fn who_swaps_nothing_pays_nothing() {
        assert_eq!(memory_of(1 << 30, &["--swap-space", "0"]), 0);
        assert_eq!(memory_of(1 << 30, &["--preemption", "recompute"]), 0);
        let line = Line::parse_from(["interbed"]);
        assert_eq!(
            memory(&line.model.limits, Bytes(1 << 30), &layout()),
            Bytes(0),
            "commands that serve one at a time"
        );
    }
}
