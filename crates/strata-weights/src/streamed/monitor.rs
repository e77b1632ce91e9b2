//! What others may know of streamed weights, and ask of them, while the engine computes with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::telemetry::{EVENTS_MAX, StreamEvent, StreamStats};
use crate::error::WeightError;

/// Figures that passes leave, and the wish that they end.
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

    /// What happened so far. Waits for nobody who computes.
    pub fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// What happened since the last call, in the order in which it ended, if a timeline is kept.
    pub fn take_events(&self) -> Vec<StreamEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Bytes of weights that a pass sweeps.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// The name of a group, for people.
    pub fn group_name(&self, group: u32) -> &str {
        self.group_names.get(group as usize).map_or("", String::as_str)
    }

    /// Makes a pass under way, and every later one, fail at its next matrix: a pass may take long, and who ends the
    /// program does not want to wait for it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// Somebody asked to stop.
    pub(super) fn check_running(&self) -> Result<(), WeightError> {
        if self.stopped.load(Ordering::Relaxed) { Err(WeightError::Stopped) } else { Ok(()) }
    }

    /// Lets others see figures and events.
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

/// Whoever panics while one of these is held has left it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
