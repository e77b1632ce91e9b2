//! Decides where preempted KV is swapped to, and what memory that takes: to the store of `--kv-disk`, if there is one
//! and no `--swap-dir` is given, or else to a store without a name, which is opened here.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_engine::MemoryPlan;
use interbed_io::{IoError, SwapFile, disk_bytes_free};
use interbed_kernels::KvLayout;
use interbed_kv::{BLOCKS_MAX, SlotTier};
use interbed_kv_disk::{DiskTier, SwapShape};

use crate::failure::Advised;
use crate::options::{LimitOptions, PreemptionOption, SwapOptions};
use crate::report::report;
use crate::seed::random_seed;

/// The maximum disk space that is taken if the options do not ask for a size, in bytes.
const SPACE_MAX: u64 = 4 << 30;
/// The default size is at most one part in this many of the disk's free space.
const DISK_SHARE: u64 = 8;
/// The directory for temporary files that is used if the system's own is in memory.
const TEMPORARY_ON_DISK: &str = "/var/tmp";
/// Buffers take one part in this many of the budget, up to [`BUFFERS_MAX`] bytes: larger models have longer passes,
/// and between two passes at most as much KV can move as the buffers hold.
const BUFFERS_SHARE: u64 = 128;
const BUFFERS_MAX: u64 = 32 << 20;
/// The number of bytes of bookkeeping for a slot, besides its token ids and its place on disk: a content and its number
/// of slots, the slot's holders and content, an entry in the list of free slots.
const SLOT_BOOKKEEPING: u64 = 64;

/// The options for swapping, and the sizes that matter for it.
struct Wanted<'a> {
    options: &'a SwapOptions,
    /// Whether the options name a store for KV on disk.
    has_disk: bool,
    /// The memory budget of the process.
    budget: Bytes,
    shape: SwapShape,
}

impl<'a> Wanted<'a> {
    /// Returns what `limits` want, or `None` if nothing is swapped.
    fn of(limits: &'a LimitOptions, budget: Bytes, layout: &KvLayout) -> Option<Self> {
        let options = limits.swap.as_ref()?;
        let is_wanted = options.preemption != PreemptionOption::Recompute && options.swap_space != Some(Bytes(0));
        let has_disk = limits.kv_disk.as_ref().is_some_and(|options| options.kv_disk.is_some());
        let shape = SwapShape { block_size: layout.block_size(), block_bytes: layout.content_bytes() };
        is_wanted.then_some(Self { options, has_disk, budget, shape })
    }

    /// Returns whether KV is swapped to the store of `--kv-disk`.
    fn is_to_disk(&self) -> bool {
        self.has_disk && self.options.swap_dir.is_none()
    }

    /// Returns the maximum number of slots. The actual number may be lower, because the disk's free space is only known
    /// later.
    fn slots_max(&self) -> usize {
        let space = self.options.swap_space.map_or(SPACE_MAX.min(self.budget.0), |asked| asked.0);
        match self.is_to_disk() {
            // The store divides its room into records of its own.
            true => {
                usize::try_from(space / self.shape.block_bytes as u64).map_or(BLOCKS_MAX, |all| all.min(BLOCKS_MAX))
            }
            false => self.shape.slots_within(space),
        }
    }

    /// Returns the bytes of the buffers of a store without a name.
    fn buffer_bytes(&self) -> usize {
        let wanted = usize::try_from((self.budget.0 / BUFFERS_SHARE).min(BUFFERS_MAX)).unwrap_or(usize::MAX);
        self.shape.buffer_bytes(wanted)
    }

    fn memory(&self) -> Bytes {
        let (is_to_disk, block_size) = (self.is_to_disk(), self.shape.block_size);
        let place = DiskTier::slot_bytes(if self.has_disk { block_size } else { 0 });
        let slot = SLOT_BOOKKEEPING + (block_size * size_of::<u32>() + place) as u64;
        let buffers = if is_to_disk { 0 } else { self.buffer_bytes() as u64 };
        Bytes((self.slots_max() as u64).saturating_mul(slot).saturating_add(buffers))
    }
}

/// Returns the memory that swapping takes of a budget of `total` bytes, besides that of a store for KV on disk.
pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
    Wanted::of(limits, total, layout).map_or(Bytes(0), |wanted| wanted.memory())
}

/// Returns the number of slots that the store of `--kv-disk` has for swapped blocks, and the bytes that these blocks
/// may take there if the options say so. The number is 0 if KV is not swapped to that store.
pub fn slots_on_disk(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> (usize, Option<u64>) {
    match Wanted::of(limits, total, layout).filter(Wanted::is_to_disk) {
        Some(wanted) => (wanted.slots_max(), wanted.options.swap_space.map(|asked| asked.0)),
        None => (0, None),
    }
}

/// The place that preempted KV is swapped to.
#[derive(Default)]
pub struct SwapPlace {
    /// A store without a name, unless the store of `--kv-disk` takes the KV.
    pub store: Option<DiskTier>,
    /// The number of slots; 0 if nothing is swapped.
    pub num_slots: usize,
}

/// Returns the place that preempted KV is swapped to. The store of `--kv-disk`, if that can be used, has `on_disk`
/// slots. Otherwise a store without a name is opened, within the `memory` that was reserved for KV below memory. There
/// is no place if the store cannot be opened and the user did not ask for it.
///
/// # Errors
/// Fails if swap space that the user asked for cannot be had.
pub fn open(
    limits: &LimitOptions,
    plan: &MemoryPlan,
    memory: Bytes,
    layout: &KvLayout,
    on_disk: Option<usize>,
) -> Result<SwapPlace> {
    let Some(options) = &limits.swap else { return Ok(SwapPlace::default()) };
    if options.preemption == PreemptionOption::Swap && options.swap_space == Some(Bytes(0)) {
        let hint = "give --swap-space a size, or choose another --preemption";
        return Err(Advised::input("--preemption swap has nowhere to swap to with --swap-space 0", hint));
    }
    let Some(wanted) = Wanted::of(limits, plan.budget.total(), layout) else { return Ok(SwapPlace::default()) };
    if let Some(num_slots) = on_disk.filter(|_| wanted.is_to_disk()) {
        return Ok(SwapPlace { store: None, num_slots });
    }
    let asked =
        options.swap_space.is_some() || options.swap_dir.is_some() || options.preemption == PreemptionOption::Swap;
    match open_unnamed(&wanted, plan.num_blocks_max, memory) {
        Ok(store) => Ok(SwapPlace { num_slots: store.num_slots(), store: Some(store) }),
        Err(error) if asked => Err(error),
        Err(error) => {
            report!("note: KV is not swapped to disk: {error:#}");
            Ok(SwapPlace::default())
        }
    }
}

fn open_unnamed(wanted: &Wanted<'_>, num_blocks_max: usize, memory: Bytes) -> Result<DiskTier> {
    let directory = wanted.options.swap_dir.clone().map_or_else(temporary, Ok);
    let directory = directory.map_err(|error| refused(&error))?;
    let free = disk_bytes_free(&directory).map_err(|error| refused(&error))?;
    let bytes = match wanted.options.swap_space {
        Some(asked) => asked.0,
        None => wanted.shape.bytes_of(num_blocks_max).min(SPACE_MAX).min(wanted.budget.0).min(free / DISK_SHARE),
    };
    let slot = Bytes(wanted.shape.slot_bytes() as u64);
    if wanted.shape.slots_within(bytes) == 0 {
        return Err(Advised::input(
            format!("swap space of {} holds no KV block, which takes {slot}", Bytes(bytes)),
            format!("give --swap-space {} or more, or 0 for none", slot.0),
        ));
    }
    let align = interbed_io::DIRECT_ALIGN as u64;
    let file = SwapFile::create(&directory, bytes / align * align).map_err(|error| refused(&error))?;
    let buffer_bytes = wanted.buffer_bytes().min(usize::try_from(memory.0)?);
    let store = DiskTier::unnamed(Arc::new(file), wanted.shape, buffer_bytes, secret());
    let store = store.map_err(|error| refused(&error))?;
    report!("swap    {:>10}  {} blocks in {}", Bytes(bytes), store.num_slots(), directory.display());
    Ok(store)
}

/// Makes up a secret for a file that nobody else can reach.
fn secret() -> [u8; 32] {
    let mut secret = [0; 32];
    secret.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&random_seed().to_le_bytes()));
    secret
}

/// Returns a directory for temporary files that is on a disk.
fn temporary() -> Result<PathBuf, IoError> {
    let first = std::env::temp_dir();
    Ok(if SwapFile::is_in_memory(&first)? { PathBuf::from(TEMPORARY_ON_DISK) } else { first })
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
    use crate::options::{KvDiskOptions, ModelOptions};
    use crate::place::Processor;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelOptions,
        #[command(flatten)]
        swap: SwapOptions,
        #[command(flatten)]
        kv_disk: KvDiskOptions,
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
        // A slot takes 100 KiB on disk, and some 184 bytes of bookkeeping in memory.
        let (less, more) =
            (memory_of(1 << 30, &["--swap-space", "1000K"]), memory_of(1 << 30, &["--swap-space", "10000K"]));
        assert!((80 * 160..92 * 208).contains(&(more - less)), "{more} {less}");
    }

    #[test]
    fn a_store_that_takes_swaps_needs_no_buffers_for_them() {
        let disk = |more: &[&str]| {
            let line = Line::parse_from([&["interbed", "--kv-disk", "kv"], more].concat());
            LimitOptions { swap: Some(line.swap), kv_disk: Some(line.kv_disk), ..line.model.limits }
        };
        let (total, layout) = (Bytes(1 << 30), layout());
        let memory = |more: &[&str]| memory(&disk(more), total, &layout).0;
        let slots = |more: &[&str]| slots_on_disk(&disk(more), total, &layout);
        assert!(memory(&[]) < memory(&["--swap-dir", "/elsewhere"]));
        assert_eq!(slots(&["--swap-dir", "/elsewhere"]), (0, None), "it is swapped elsewhere");
        assert_eq!(slots(&["--swap-space", "1000K"]), (10, Some(1000 << 10)));
        assert_eq!((slots(&[]).1, slots(&["--preemption", "recompute"]).0), (None, 0));
        assert_eq!(slots_on_disk(&limits(&[]), total, &layout).0, 0, "there is no store");
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
