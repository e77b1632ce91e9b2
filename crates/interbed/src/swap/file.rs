//! Implements swap space in an unnamed file on a disk.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_engine::SwapStore;
use interbed_io::{IoError, SwapFile, disk_bytes_free};
use interbed_kv::BLOCKS_MAX;
use interbed_kv_disk::SwapSpace;

use super::{Place, SPACE_MAX, SwapRoom, Wanted, refused};
use crate::failure::Advised;
use crate::report::report;

/// The default size is at most one part in this many of the disk's free space.
const DISK_SHARE: u64 = 8;
/// The directory for temporary files that is used if the system's own is in memory.
const TEMPORARY_ON_DISK: &str = "/var/tmp";

/// The storage in the directory that `--swap-dir` names, or in the directory for temporary files.
pub(super) const PLACE: Place = Place { name: "disk", memory, open };

/// Returns the memory of the buffers and of the bookkeeping for the maximum number of slots. The actual number may be
/// lower, because the disk's free space is only known later.
fn memory(wanted: &Wanted<'_>) -> Option<Bytes> {
    let space = wanted.space.map_or(SPACE_MAX.min(wanted.budget.0), |asked| asked.0);
    let slots = slots(wanted, space);
    Some(Bytes((wanted.buffer_bytes() as u64).saturating_add(wanted.bookkeeping(slots).0)))
}

/// Returns the number of slots that fit into `bytes` bytes.
fn slots(wanted: &Wanted<'_>, bytes: u64) -> u64 {
    (bytes / SwapSpace::slot_bytes(wanted.block_bytes) as u64).min(BLOCKS_MAX as u64)
}

fn open(wanted: &Wanted<'_>, room: &SwapRoom) -> Result<Box<dyn SwapStore>> {
    let directory = wanted.directory.map_or_else(temporary, |named| Ok(named.to_path_buf()));
    let directory = directory.map_err(|error| refused(&error))?;
    let free = disk_bytes_free(&directory).map_err(|error| refused(&error))?;
    let slot = SwapSpace::slot_bytes(wanted.block_bytes) as u64;
    let bytes = match wanted.space {
        Some(asked) => asked.0,
        None => {
            let kv = slot.saturating_mul(room.num_blocks_max as u64);
            kv.min(SPACE_MAX).min(wanted.budget.0).min(free / DISK_SHARE)
        }
    };
    let slots = slots(wanted, bytes);
    if slots == 0 {
        return Err(Advised::input(
            format!("swap space of {} holds no KV block, which takes {}", Bytes(bytes), Bytes(slot)),
            format!("give --swap-space {slot} or more, or 0 for none"),
        ));
    }
    let file = SwapFile::create(&directory, slots * slot).map_err(|error| refused(&error))?;
    let buffer_bytes = wanted.buffer_bytes().min(usize::try_from(room.memory.0)?);
    let space = SwapSpace::new(Arc::new(file), wanted.block_bytes, buffer_bytes);
    let space = space.map_err(|error| refused(&error))?;
    report!("swap    {:>10}  {} blocks in {}", Bytes(slots * slot), space.num_slots(), directory.display());
    Ok(Box::new(space))
}

/// Returns a directory for temporary files that is on a disk.
fn temporary() -> Result<PathBuf, IoError> {
    let first = std::env::temp_dir();
    Ok(if SwapFile::is_in_memory(&first)? { PathBuf::from(TEMPORARY_ON_DISK) } else { first })
}
