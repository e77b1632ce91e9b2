//! Swap space in a file without a name, in a directory on a disk.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use strata_device::Bytes;
use strata_engine::{SwapSpace, SwapStore};
use strata_io::{IoError, SwapFile, disk_bytes_free};
use strata_kv::BLOCKS_MAX;

use super::{SPACE_MAX, Wanted, refused};
use crate::failure::Advised;

/// So much of what a disk has free is taken without asking at the most: one part in this many.
const DISK_SHARE: u64 = 8;
/// Where temporary files lie on a disk when those of the first choice lie in memory.
const TEMPORARY_ON_DISK: &str = "/var/tmp";

/// Room in the directory that was named, whatever its name, or in that for temporary files.
pub(super) fn open(wanted: &Wanted<'_>) -> Result<Option<Box<dyn SwapStore>>> {
    let directory = wanted.directory.map_or_else(temporary, |named| Ok(named.to_path_buf()));
    let directory = directory.map_err(|error| refused(&error))?;
    let free = disk_bytes_free(&directory).map_err(|error| refused(&error))?;
    let slot = SwapSpace::slot_bytes(wanted.block_bytes) as u64;
    let bytes = match wanted.space {
        Some(asked) => asked.0,
        None => {
            let kv = slot.saturating_mul(wanted.num_blocks_max as u64);
            kv.min(SPACE_MAX).min(wanted.budget.0).min(free / DISK_SHARE)
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
    let space = SwapSpace::new(Arc::new(file), wanted.block_bytes, wanted.buffer_bytes);
    let space = space.map_err(|error| refused(&error))?;
    eprintln!("swap    {:>10}  {} blocks in {}", Bytes(slots * slot), space.num_slots(), directory.display());
    Ok(Some(Box::new(space)))
}

/// The directory for temporary files that lies on a disk.
fn temporary() -> Result<PathBuf, IoError> {
    let first = std::env::temp_dir();
    Ok(if SwapFile::is_in_memory(&first)? { PathBuf::from(TEMPORARY_ON_DISK) } else { first })
}
