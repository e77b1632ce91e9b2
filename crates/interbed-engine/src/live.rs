//! What the engine shows of itself to those who watch it: which sequences there are, and what each KV block is used
//! for. Nothing is shown, and nothing spent on it, while nobody watches.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use interbed_kv::BlockUse;
use interbed_weights::{GroupShape, StreamMonitor, StreamStats, WindowSight};

use crate::TenantId;

/// Sequences that are shown. More of them wait, or run, unseen.
pub const SHOWN_MAX: usize = 512;

/// The engine's state between two steps.
#[derive(Debug, Clone, Default)]
pub struct LiveState {
    /// The sequences: those that run first, and in each place the first to go on.
    pub sequences: Vec<LiveSequence>,
    /// What each block is used for. A sequence's number is [`LiveSequence::number`].
    pub blocks: Vec<BlockUse>,
}

/// A sequence, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSequence {
    /// Names it; sequences are counted from the start on.
    pub id: u64,
    /// Its number in the map of blocks, which another one may get when it has ended.
    pub number: u16,
    /// Where it is.
    pub place: LivePlace,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Leading tokens, of prompt and answer, whose KV is there.
    pub computed: usize,
    /// Tokens generated.
    pub generated: usize,
    /// Blocks that it holds in memory.
    pub blocks: usize,
    /// Blocks of KV that are on disk and not in memory.
    pub below: usize,
    /// Leading tokens of its prompt that were found in the cache when its request was first admitted.
    pub cached: usize,
    /// Whose request it is part of.
    pub tenant: Option<TenantId>,
    /// When the engine took its request on.
    pub came: Instant,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LivePlace {
    /// It takes part in passes.
    Running,
    /// The same, with more KV than memory.
    Long,
    /// The beginning of its KV is being fetched from disk.
    Fetching,
    /// Its KV is being swapped in.
    Arriving,
    /// Its KV is being swapped out.
    Leaving,
    /// Its KV is in swap space.
    Swapped,
    /// It holds no blocks.
    Waiting,
}

/// What those who watch see of a request besides its sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSight {
    /// Leading tokens of its prompt that were found in the cache.
    pub(crate) cached: usize,
    /// When the engine took it on.
    pub(crate) came: Instant,
}

/// The state that was shown last, and how many watch.
#[derive(Debug, Default)]
pub(crate) struct Board {
    watchers: AtomicUsize,
    latest: Mutex<LiveState>,
    /// How often `latest` was replaced.
    number: AtomicU64,
    /// Where weights are shown, if they are streamed.
    weights: Option<Arc<StreamMonitor>>,
}

impl Board {
    pub(crate) fn new(weights: Option<Arc<StreamMonitor>>) -> Self {
        Self { weights, ..Self::default() }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Shows `state`, which becomes one that was shown before, to be written again.
    pub(crate) fn show(&self, state: &mut LiveState) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *latest, state);
        self.number.fetch_add(1, Ordering::Release);
    }
}

/// Somebody who watches. The engine shows its state for as long as this lives.
pub struct Watcher {
    board: Arc<Board>,
    /// The number of the state that was read last, and that of the weights.
    seen: [u64; 2],
}

impl Watcher {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        board.watchers.fetch_add(1, Ordering::Relaxed);
        board.weights.iter().for_each(|monitor| monitor.watch());
        Self { board, seen: [0; 2] }
    }

    /// Copies the engine's state to `state`; false if none was shown since the last call. Never waits for a step.
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

    /// Copies where the weights are to `sight`; false if that was not shown since the last call, or if they are not
    /// streamed. They are shown in mid-pass too.
    pub fn read_weights(&mut self, sight: &mut WindowSight) -> bool {
        let [_, seen] = &mut self.seen;
        let before = *seen;
        *seen = self.board.weights.as_ref().map_or(before, |monitor| monitor.sight(before, sight));
        *seen != before
    }

    /// How the weights are cut, in the order of [`read_weights`](Self::read_weights), if they are streamed.
    pub fn weight_groups(&self) -> Option<&[GroupShape]> {
        self.board.weights.as_ref().map(|monitor| monitor.groups())
    }

    /// What streaming has taken so far, in mid-pass too; `None` if weights are not streamed.
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.board.weights.as_ref().map(|monitor| monitor.stats())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.board.weights.iter().for_each(|monitor| monitor.unwatch());
        self.board.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
