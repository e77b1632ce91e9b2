//! Lets other threads read about streamed weights, and stop them, while the engine computes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sight::{GroupShape, WindowSight};
use super::telemetry::{EVENTS_MAX, StreamEvent, StreamStats};
use crate::error::WeightError;
use crate::experts::{Arena, SlabCounts};

/// State that forward passes share with other threads: statistics, the location of each unit of weights, and a request
/// to stop.
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
    /// Creates a monitor for weights in `groups`, of whose matrices each pass reads `swept_bytes` bytes in full.
    pub fn new(groups: Vec<GroupShape>, swept_bytes: u64) -> Self {
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

    /// Returns the last published statistics. The call never waits for a computation.
    pub fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// Returns how often each expert was used until the end of the last pass; `None` before the end of the first pass
    /// with experts. The call never waits for a computation.
    pub fn expert_counts(&self) -> Option<SlabCounts> {
        lock(&self.expert_counts).clone()
    }

    /// Removes and returns the events published since the last call, in the order in which they were recorded. The
    /// result is empty unless the configuration enables the timeline.
    pub fn take_events(&self) -> Vec<StreamEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Returns the total size of the matrices that a pass reads in full, in bytes as stored in the files.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// Returns the display name of a group, or an empty string if there is no such group.
    pub fn group_name(&self, group: u32) -> &str {
        self.groups.get(group as usize).map_or("", |group| &group.name)
    }

    /// Returns the name and size of each group, in the order in which a pass uses the groups.
    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }

    /// Adds a watcher. While there is a watcher, passes publish the location of each unit. [`unwatch`](Self::unwatch)
    /// removes the watcher.
    pub fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a watcher that [`watch`](Self::watch) added.
    pub fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Copies the last published locations of all units to `sight`, if the caller has not seen them yet. Publications
    /// are numbered from 1. `seen` is the number of the last publication that the caller has seen, or 0 if it has seen
    /// none. Returns the number of the last publication.
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

    /// Makes the current pass and all later passes fail at their next matrix, so that a shutdown does not have to wait
    /// for a long pass.
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
