//! How often the experts of a streamed mixture were used, kept from one start to the next: what to keep in memory is
//! known then before the first token. No token depends on it.

mod counts_file;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_weights::experts::Arena;
use interbed_weights::{Catalog, StreamMonitor, StreamedWeights};

use crate::fingerprint::Fingerprint;
use crate::report::report;
use crate::user_folders;
use counts_file::CountsFile;

/// The folder within that of what can be had again.
const FOLDER: &str = "experts";

/// Places in each of the model's files that are looked at. A mistake would only cost reads.
const PIECES: u64 = 8;

/// Time after which counts are written while the process goes on, so that not all is lost if it is killed.
const EVERY: Duration = Duration::from_secs(300);

/// Writes counts from time to time, and when it is dropped.
pub struct KeptCounts {
    /// Dropped when the process ends.
    goes_on: Option<Sender<()>>,
    writer: Option<JoinHandle<()>>,
}

impl KeptCounts {
    /// Has `weights` begin with the counts of earlier runs, and keeps those of this one. `None` where there are no
    /// experts, or no place for counts, which is told.
    pub fn keep(weights: &mut StreamedWeights, catalog: &Catalog) -> Option<Self> {
        let (monitor, arena) = (weights.monitor(), weights.arena_mut()?);
        let Some(folder) = user_folders::cache() else {
            tracing::debug!("how often experts are used is not kept: neither XDG_CACHE_HOME nor HOME is set");
            return None;
        };
        let kept = Self::keep_in(&folder.join(FOLDER), arena, monitor, catalog);
        kept.inspect_err(warn_unkept).ok()
    }

    fn keep_in(folder: &Path, arena: &mut Arena, monitor: Arc<StreamMonitor>, catalog: &Catalog) -> Result<Self> {
        let mut fingerprint = Fingerprint::default();
        catalog.stored_files().iter().try_for_each(|file| fingerprint.file(file.as_ref(), PIECES))?;
        let file = CountsFile::new(folder, fingerprint.digest(), arena.shape());
        // What cannot be written is told now, and not when the user has gone.
        user_folders::create_private(file.path()).with_context(|| format!("cannot make {}", folder.display()))?;
        file.check_writable()?;
        let known = file.read().and_then(|counts| match counts {
            Some(counts) => {
                arena.warm(&counts)?;
                report!("experts {:>10}  begin with how often earlier runs have used them", "");
                Ok(())
            }
            None => Ok(()),
        });
        if let Err(error) = known {
            let path = file.path().display();
            tracing::warn!("{path} is not used, and experts are counted anew: {error:#}");
        }
        let (goes_on, ended) = channel();
        let writer = std::thread::Builder::new().name("counts".into()).spawn(move || write(&file, &monitor, &ended))?;
        Ok(Self { goes_on: Some(goes_on), writer: Some(writer) })
    }
}

impl Drop for KeptCounts {
    fn drop(&mut self) {
        self.goes_on = None;
        if let Some(writer) = self.writer.take() {
            // A thread that panicked has said so.
            let _ = writer.join();
        }
    }
}

/// Writes the counts from time to time until it is over, and once more then.
fn write(file: &CountsFile, monitor: &StreamMonitor, ended: &Receiver<()>) {
    let (mut written, mut is_told) = (None, false);
    loop {
        let is_over = ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Disconnected);
        if let Some(counts) = monitor.expert_counts().filter(|counts| written.as_ref() != Some(counts)) {
            match file.write(&counts) {
                Ok(()) => written = Some(counts),
                Err(_) if is_told => {}
                Err(error) => {
                    warn_unkept(&error.into());
                    is_told = true;
                }
            }
        }
        if is_over {
            return;
        }
    }
}

fn warn_unkept(error: &anyhow::Error) {
    tracing::warn!("how often experts are used is not kept: {error:#}; --no-expert-counts does without");
}
