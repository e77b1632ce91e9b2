//! Saves how often the experts of a streamed mixture are used, so that the next start knows which experts to keep in
//! memory before the first token. The counts change no token.

mod counts_file;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_weights::experts::Arena;
use interbed_weights::{Catalog, StreamMonitor};

use crate::fingerprint::Fingerprint;
use crate::report::report;
use crate::user_folders;
use counts_file::CountsFile;

/// The name of the folder for counts, in the user's cache folder.
const FOLDER: &str = "experts";

/// The number of places in each of the model's files that are hashed to recognise the model. Confusing two models would
/// only cost additional reads.
const PIECES: u64 = 8;

/// The interval at which counts are written while the process runs, so that not all are lost if it is killed.
const EVERY: Duration = Duration::from_secs(300);

/// Saves the counts of how often each expert was used to a file, periodically and when this value is dropped.
pub struct KeptCounts {
    /// The sender that keeps the writing thread running. Dropping it tells the thread to end.
    goes_on: Option<Sender<()>>,
    writer: Option<JoinHandle<()>>,
}

impl KeptCounts {
    /// Gives `arena` the counts that earlier runs have saved, and starts to save the counts of this run, which
    /// `monitor` publishes. Returns `None` if counts cannot be saved, and logs the reason.
    pub fn keep(arena: &mut Arena, monitor: Arc<StreamMonitor>, catalog: &Catalog) -> Option<Self> {
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
        // A folder that cannot be written is reported at the start, not when the user has left.
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
            // A panic of the thread has printed its message already.
            let _ = writer.join();
        }
    }
}

/// Writes the counts periodically until the sender of `ended` is dropped, and then a last time.
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
