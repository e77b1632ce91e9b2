//! Locks files with the locks that Python's `huggingface_hub` takes too, so that no file is downloaded twice at the
//! same time.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::error::{HubProblem, LOCK};

/// Time between two attempts to take a lock that another process holds.
const LOOK: Duration = Duration::from_millis(200);

/// A lock that is held. Dropping it releases the lock. The system releases the lock when the process ends in any way.
pub(crate) struct HeldLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

/// Takes the lock at `path`, and waits as long as another process holds it. Calls `busy` once if it has to wait.
pub(crate) fn lock(path: &Path, mut busy: impl FnMut()) -> Result<HeldLock, HubProblem> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(HubProblem::file("create", folder))?;
    }
    let mut told = false;
    loop {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(HubProblem::file("open", path))?;
        match file.try_lock() {
            // Some programs delete the file when they release the lock. Others then lock a new file of that name.
            Ok(()) if is_at(&file, path) => return Ok(HeldLock(file)),
            Ok(()) => continue,
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut told, true) {
                    busy();
                }
                std::thread::sleep(LOOK);
            }
            Err(TryLockError::Error(source)) => {
                return Err(HubProblem::File { action: LOCK, path: path.to_owned(), source });
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}
