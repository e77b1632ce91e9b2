//! The engine shows its state to those who watch it: which sequences there are, and what each KV block is used for.
//! While nobody watches, nothing is shown, and showing costs nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use interbed_kv::BlockUse;
use interbed_weights::{GroupShape, StreamMonitor, StreamStats, WindowSight};

use crate::TenantId;

/// Largest number of sequences in a [`LiveState`]. Further sequences are not listed.
pub const SHOWN_MAX: usize = 512;

/// State of the engine between two steps, for display.
#[derive(Debug, Clone, Default)]
pub struct LiveState {
    /// At most [`SHOWN_MAX`] sequences. Those that take part in forward passes come first, and those that wait in the
    /// queue come last. Waiting sequences are in the order of the queue.
    pub sequences: Vec<LiveSequence>,
    /// Use of each KV block: entry `i` says how block `i` is used. If sequences hold the block, the entry contains the
    /// lowest [`LiveSequence::number`] of these sequences.
    pub blocks: Vec<BlockUse>,
}

/// A sequence as it is shown to watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSequence {
    /// Id of the sequence. A sequence that is created later has a higher id.
    pub id: u64,
    /// Number that stands for the sequence in [`LiveState::blocks`] while the sequence holds KV blocks or swap slots.
    /// Afterwards, another sequence may get the number. If there are more sequences than numbers, the remaining
    /// sequences share the highest number, [`BlockUse::OWNERS_MAX`]` - 1`.
    pub number: u16,
    /// Scheduling state of the sequence.
    pub place: LivePlace,
    /// Number of tokens in the prompt.
    pub prompt: usize,
    /// Number of leading tokens whose KV the sequence holds in memory or on disk. The tokens of the prompt come first,
    /// and the generated tokens follow. The number is 0 while the sequence waits in the queue.
    pub computed: usize,
    /// Number of tokens generated so far.
    pub generated: usize,
    /// Number of KV blocks that the sequence holds in memory.
    pub blocks: usize,
    /// Number of the sequence's leading KV blocks that are only on disk, because the KV of the whole sequence does not
    /// fit in memory. The number is 0 for a sequence whose KV fits in memory, even if the sequence is swapped out.
    pub below: usize,
    /// Number of leading prompt tokens whose KV was found in memory, on disk or in a shared store when the request was
    /// first admitted; 0 before the admission.
    pub cached: usize,
    /// Tenant to which the sequence's request belongs.
    pub tenant: Option<TenantId>,
    /// Time at which the engine thread received the request.
    pub came: Instant,
}

/// Scheduling state of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LivePlace {
    /// The sequence takes part in forward passes.
    Running,
    /// The sequence takes part in forward passes, but its KV does not fit in memory. The beginning of the KV stays on
    /// disk.
    Long,
    /// Part of the sequence's KV is being read from disk or from a shared store.
    Fetching,
    /// The sequence's KV is being swapped in.
    Arriving,
    /// The sequence's KV is being swapped out.
    Leaving,
    /// The sequence's KV is in swap space, and the sequence waits to be swapped in.
    Swapped,
    /// The sequence waits in the queue and holds no KV blocks.
    Waiting,
}

/// The facts about a request that watchers see besides its sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSight {
    /// The number of leading prompt tokens that were found in the cache.
    pub(crate) cached: usize,
    /// Time at which the engine thread received the request.
    pub(crate) came: Instant,
}

/// The state that was shown last, and the number of watchers.
#[derive(Debug, Default)]
pub(crate) struct Board {
    watchers: AtomicUsize,
    latest: Mutex<LiveState>,
    /// The number of times that `latest` was replaced.
    number: AtomicU64,
    /// The monitor through which weights are shown, if they are streamed.
    weights: Option<Arc<StreamMonitor>>,
}

impl Board {
    pub(crate) fn new(weights: Option<Arc<StreamMonitor>>) -> Self {
        Self { weights, ..Self::default() }
    }

    /// Returns what streaming the weights has taken so far, if weights are streamed.
    pub(crate) fn stream_stats(&self) -> Option<StreamStats> {
        self.weights.as_ref().map(|monitor| monitor.stats())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Shows `state`. In exchange, `state` becomes a state that was shown before, whose memory is used again.
    pub(crate) fn show(&self, state: &mut LiveState) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *latest, state);
        self.number.fetch_add(1, Ordering::Release);
    }
}

/// Reads the state that the engine publishes. The engine publishes its state only while a watcher exists.
pub struct Watcher {
    board: Arc<Board>,
    /// The number of the engine's state that was read last, then the number of the weights' state that was read last.
    seen: [u64; 2],
}

impl Watcher {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        board.watchers.fetch_add(1, Ordering::Relaxed);
        board.weights.iter().for_each(|monitor| monitor.watch());
        Self { board, seen: [0; 2] }
    }

    /// Copies the engine's latest published state into `state`, and returns true. If this watcher has already read the
    /// latest state, or if the engine has not published any, returns false and leaves `state` unchanged. The call never
    /// waits for a step to end.
    pub fn read(&mut self, state: &mut LiveState) -> bool {
        let [seen, _] = &mut self.seen;
        if self.board.number.load(Ordering::Acquire) == *seen {
            return false;
        }
        let latest = self.board.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = self.board.number.load(Ordering::Acquire);
        state.sequences.clone_from(&latest.sequences);
        state.blocks.clone_from(&latest.blocks);
        true
    }

    /// Copies the latest published state of the streamed weights into `sight`, and returns true. Streamed weights are
    /// weights that forward passes read from disk. If this watcher has already read the latest state, if no state has
    /// been published, or if the weights are not streamed, the call returns false and leaves `sight` unchanged. States
    /// are published during forward passes, too.
    pub fn read_weights(&mut self, sight: &mut WindowSight) -> bool {
        let [_, seen] = &mut self.seen;
        let before = *seen;
        *seen = self.board.weights.as_ref().map_or(before, |monitor| monitor.sight(before, sight));
        *seen != before
    }

    /// Returns the name and size of each group of streamed weights, or `None` if the weights are not streamed. The
    /// groups are in the order in which a forward pass uses them. [`WindowSight::units`] lists the units of the first
    /// group, then those of the second group, and so on.
    pub fn weight_groups(&self) -> Option<&[GroupShape]> {
        self.board.weights.as_ref().map(|monitor| monitor.groups())
    }

    /// Returns the statistics of weight streaming since the weights were opened, or `None` if the weights are not
    /// streamed. The statistics are updated during forward passes, too.
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.board.stream_stats()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.board.weights.iter().for_each(|monitor| monitor.unwatch());
        self.board.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
