//! Signals that end a server.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::INTERRUPTED;
use crate::report::report;

/// The exit code of a process that SIGTERM has ended.
const TERMINATED: i32 = 143;

/// Handles Ctrl-C and SIGTERM. The first signal lets requests in flight finish, the second cuts them off, and the third
/// ends the process.
pub struct Stop {
    signals: [Signal; 2],
    drain_s: u64,
    /// Whether a second signal has come.
    pub impatient: Arc<AtomicBool>,
}

impl Stop {
    /// Starts to listen for the signals. `drain_s` is the number of seconds that requests in flight have to finish,
    /// which a message shows at the first signal. This function must be called within a Tokio runtime.
    pub fn listen(drain_s: u64) -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let signals = [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
        Ok(Self { signals, drain_s, impatient: Arc::default() })
    }

    /// Completes at the first signal, and returns a future that completes at the second.
    pub async fn future(mut self) -> impl Future<Output = ()> {
        self.next().await;
        report!("Stopping: requests in flight get {} s to finish; once more ends at once", self.drain_s);
        async move {
            self.next().await;
            self.impatient.store(true, Ordering::Release);
            tokio::spawn(async move {
                self.next().await;
                std::process::exit(INTERRUPTED.into());
            });
        }
    }

    /// Waits for a signal, and returns the exit code for a process that this signal stops.
    pub async fn next(&mut self) -> i32 {
        let [interrupt, terminate] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => INTERRUPTED.into(),
            _ = terminate.recv() => TERMINATED,
        }
    }
}
