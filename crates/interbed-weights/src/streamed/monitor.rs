//! Lets other threads read about streamed weights, and stop them, while the engine computes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sight::{GroupShape, WindowSight};
use super::telemetry::{EVENTS_MAX, StreamEvent, StreamStats};
use crate::error::WeightError;
use crate::experts::{Arena, SlabCounts};

/// Holds the statistics that passes publish, the places of units that passes show to watchers, and the request to stop.
#[derive(Debug)]
pub struct StreamMonitor {
    groups: Vec<GroupShape>,
    swept_bytes: u64,
    stopped: AtomicBool,
    stats: Mutex<StreamStats>,
    expert_counts: Mutex<Option<SlabCounts>>,
    events: Mutex<Vec<StreamEvent>>,
    watchers: AtomicUsize,
    sight: Mutex<WindowSight>,
    /// Number of times that `sight` was replaced.
    sights: AtomicU64,
}

impl StreamMonitor {
    pub(super) fn new(groups: Vec<GroupShape>, swept_bytes: u64) -> Self {
        Self {
            groups,
            swept_bytes,
            stopped: AtomicBool::new(false),
            stats: Mutex::default(),
            expert_counts: Mutex::default(),
            events: Mutex::default(),
            watchers: AtomicUsize::new(0),
            sight: Mutex::default(),
            sights: AtomicU64::new(0),
        }
    }

    /// Returns the statistics so far. The call never waits for a computation.
    pub fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// Returns how often experts were used up to the end of the last pass; `None` before the first pass with experts
    /// has ended. The call never waits for a computation.
    pub fn expert_counts(&self) -> Option<SlabCounts> {
        lock(&self.expert_counts).clone()
    }

    /// Takes the events since the last call, in the order in which they ended. There are none unless a timeline is
    /// kept.
    pub fn take_events(&self) -> Vec<StreamEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Returns the number of bytes of weights that a pass sweeps.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// Returns the name of a group, for display.
    pub fn group_name(&self, group: u32) -> &str {
        self.groups.get(group as usize).map_or("", |group| &group.name)
    }

    /// Returns the name and size of all groups, in the order of a pass.
    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }

    /// Asks passes to show where each unit is, until [`unwatch`](Self::unwatch) has been called as often as this
    /// function.
    pub fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back one call of [`watch`](Self::watch).
    pub fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Copies the places of units that a pass published last to `sight`. Publications are numbered; if the last one is
    /// number `seen`, which the caller has, nothing is copied. Returns the number of the last publication.
    pub fn sight(&self, seen: u64, sight: &mut WindowSight) -> u64 {
        if self.sights.load(Ordering::Acquire) == seen {
            return seen;
        }
        let latest = lock(&self.sight);
        sight.units.clone_from(&latest.units);
        (sight.host_bytes, sight.device_bytes) = (latest.host_bytes, latest.device_bytes);
        self.sights.load(Ordering::Acquire)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Shows where each unit is to watchers, and leaves in `sight` the places that were shown before, to be written
    /// again.
    pub(super) fn show(&self, sight: &mut WindowSight) {
        let mut latest = lock(&self.sight);
        std::mem::swap(&mut *latest, sight);
        self.sights.fetch_add(1, Ordering::Release);
    }

    /// Makes the current pass and every later pass fail at its next matrix. A pass may take long, and shutting down
    /// should not wait for the pass.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Checks that passes may go on.
    ///
    /// # Errors
    /// Fails if [`stop`](Self::stop) was called.
    pub(super) fn check_running(&self) -> Result<(), WeightError> {
        if self.stopped.load(Ordering::Relaxed) { Err(WeightError::Stopped) } else { Ok(()) }
    }

    /// Publishes how often experts were used. The counts are some ten kilobytes, so each pass can copy them.
    pub(super) fn publish_counts(&self, arena: &Arena) {
        arena.copy_counts(lock(&self.expert_counts).get_or_insert_default());
    }

    /// Publishes statistics, and events as far as there is room for them.
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
