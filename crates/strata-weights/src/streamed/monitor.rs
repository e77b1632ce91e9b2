//! What other threads may read of streamed weights, and ask of them, while the engine computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::telemetry::{EVENTS_MAX, StreamEvent, StreamStats};
use crate::error::WeightError;

/// The statistics that passes publish, and the request to stop.
#[derive(Debug)]
pub struct StreamMonitor {
    group_names: Vec<String>,
    swept_bytes: u64,
    stopped: AtomicBool,
    stats: Mutex<StreamStats>,
    events: Mutex<Vec<StreamEvent>>,
}

impl StreamMonitor {
    pub(super) fn new(group_names: Vec<String>, swept_bytes: u64) -> Self {
        Self {
            group_names,
            swept_bytes,
            stopped: AtomicBool::new(false),
            stats: Mutex::default(),
            events: Mutex::default(),
        }
    }

    /// The statistics so far. Never waits for a computation.
    pub fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// The events since the last call, in the order in which they ended, if a timeline is kept.
    pub fn take_events(&self) -> Vec<StreamEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Bytes of weights that a pass sweeps.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// The name of a group, for display.
    pub fn group_name(&self, group: u32) -> &str {
        self.group_names.get(group as usize).map_or("", String::as_str)
    }

    /// Makes the current pass and every later one fail at its next matrix: a pass may take long, and shutting down
    /// should not wait for it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// If [`stop`](Self::stop) was called.
    pub(super) fn check_running(&self) -> Result<(), WeightError> {
        if self.stopped.load(Ordering::Relaxed) { Err(WeightError::Stopped) } else { Ok(()) }
    }

    /// Publishes statistics and events.
    pub(super) fn publish(&self, stats: StreamStats, new: impl Iterator<Item = StreamEvent>) {
        *lock(&self.stats) = stats;
        let mut new = new.peekable();
        if new.peek().is_some() {
            let mut events = lock(&self.events);
            let room = EVENTS_MAX.saturating_sub(events.len());
            events.extend(new.take(room));
        }
    }
}

/// Locks the mutex. The data is consistent even after a panic of a thread that held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
