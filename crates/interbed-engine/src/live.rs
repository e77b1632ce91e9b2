//! The engine shows its state to those who watch it: which sequences there are, and what each KV block is used for.
//! While nobody watches, nothing is shown, and showing costs nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use interbed_kv::BlockUse;
use interbed_weights::{GroupShape, StreamMonitor, StreamStats, WindowSight};

use crate::TenantId;

/// The most sequences that are shown. Further sequences wait or run without being shown.
pub const SHOWN_MAX: usize = 512;

/// The engine's state between two steps.
#[derive(Debug, Clone, Default)]
pub struct LiveState {
    /// The sequences, ordered by place: those that run come first. Within a place, the first to go on comes first.
    pub sequences: Vec<LiveSequence>,
    /// The use of each block, which names a sequence by its [`LiveSequence::number`].
    pub blocks: Vec<BlockUse>,
}

/// A sequence as it is shown to watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSequence {
    /// The sequence's id. Sequences are counted from the engine's start.
    pub id: u64,
    /// The sequence's number in the map of blocks. Another sequence may get this number when the sequence has ended.
    pub number: u16,
    /// Where the sequence is.
    pub place: LivePlace,
    /// The number of tokens of the prompt.
    pub prompt: usize,
    /// The number of leading tokens, of prompt and answer, whose KV is there.
    pub computed: usize,
    /// The number of tokens generated.
    pub generated: usize,
    /// The number of blocks that the sequence holds in memory.
    pub blocks: usize,
    /// The number of the sequence's blocks that are on disk and not in memory.
    pub below: usize,
    /// The number of leading prompt tokens that were found in the cache when the request was first admitted.
    pub cached: usize,
    /// The tenant whose request the sequence is part of.
    pub tenant: Option<TenantId>,
    /// The time at which the engine took the request on.
    pub came: Instant,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LivePlace {
    /// The sequence takes part in passes.
    Running,
    /// The sequence takes part in passes, and has more KV than fits in memory.
    Long,
    /// The beginning of the sequence's KV is being fetched from a tier below memory.
    Fetching,
    /// The sequence's KV is being swapped in.
    Arriving,
    /// The sequence's KV is being swapped out.
    Leaving,
    /// The sequence's KV is in swap space.
    Swapped,
    /// The sequence holds no blocks.
    Waiting,
}

/// The facts about a request that watchers see besides its sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSight {
    /// The number of leading prompt tokens that were found in the cache.
    pub(crate) cached: usize,
    /// The time at which the engine took the request on.
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

/// A watcher of the engine. The engine shows its state until this is dropped.
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

    /// Copies the engine's state to `state`. Returns false if none was shown since the last call. This never waits for
    /// a step.
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

    /// Copies where the weights are to `sight`. Returns false if that was not shown since the last call, or if weights
    /// are not streamed. The weights are shown during passes too.
    pub fn read_weights(&mut self, sight: &mut WindowSight) -> bool {
        let [_, seen] = &mut self.seen;
        let before = *seen;
        *seen = self.board.weights.as_ref().map_or(before, |monitor| monitor.sight(before, sight));
        *seen != before
    }

    /// Returns how the weights are cut into groups, in the order of [`read_weights`](Self::read_weights), if weights
    /// are streamed.
    pub fn weight_groups(&self) -> Option<&[GroupShape]> {
        self.board.weights.as_ref().map(|monitor| monitor.groups())
    }

    /// Returns what streaming has taken so far, during passes too; `None` if weights are not streamed.
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
