//! Handles Ctrl-C: it stops the answer that is being generated, or ends the program if there is none.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::INTERRUPTED;

/// A handler for Ctrl-C, which is active once it has been created.
pub struct Interrupts {
    runtime: Runtime,
    /// Whether some work is running that Ctrl-C stops.
    stoppable: Arc<AtomicBool>,
    pressed: watch::Receiver<()>,
}

impl Interrupts {
    /// Starts to handle Ctrl-C, which by default ends the program.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or the signal handler.
    pub fn listen() -> Result<Self> {
        // Other threads compute; this one only waits for signals.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().context("cannot start")?;
        let mut signals = {
            let _inside = runtime.enter();
            signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?
        };
        let (press, pressed) = watch::channel(());
        let stoppable = Arc::new(AtomicBool::new(false));
        let armed = stoppable.clone();
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                // A second press ends the program, even if the first one has not been handled yet.
                if armed.swap(false, Ordering::AcqRel) {
                    press.send_replace(());
                } else {
                    std::process::exit(INTERRUPTED.into());
                }
            }
        });
        Ok(Self { runtime, stoppable, pressed })
    }

    /// Runs `work` to its end and returns its result. At Ctrl-C, drops `work` and returns `None`.
    pub fn stop_at_ctrl_c<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut pressed = self.pressed.clone();
        // A press of Ctrl-C that came after the last work ended is not meant for this work.
        pressed.mark_unchanged();
        self.stoppable.store(true, Ordering::Release);
        let outcome = self.runtime.block_on(async {
            tokio::select! {
                biased;
                Ok(()) = pressed.changed() => None,
                outcome = work => Some(outcome),
            }
        });
        self.stoppable.store(false, Ordering::Release);
        outcome
    }
}
