//! Between passes, the engine stores KV in the tiers below memory and fetches KV from them.
//!
//! An admitted sequence waits for at most one fetch. The fetch has two parts: the blocks of the prompt that the disk
//! has, and the blocks behind them, for which the shared store is asked.

use std::time::{Duration, Instant};

use interbed_kv::{FetchEnded, FetchId, SequenceId, Wanted};

use super::Worker;
use super::disk::Disk;
use super::gone::Gone;
use super::remote::Remote;
use crate::event::FoundBelow;
use crate::scheduler::{Admitted, StepPlan};

/// The longest time for which a stopping engine goes on writing blocks to disk.
const LAST_WRITES: Duration = Duration::from_secs(10);
/// The longest time for which a stopping engine goes on writing blocks to a shared store.
const LAST_WRITES_SHARED: Duration = Duration::from_secs(3);

/// The longest time for which a pass is put off while a shared store looks whether it has a block.
const ANSWER_WAIT: Duration = Duration::from_millis(3);

/// The longest time for which one tier is waited for while both tiers bring something.
const WAIT_EACH: Duration = Duration::from_millis(1);

/// An admitted sequence that waits for a fetch. Its group has not been told of the admission yet.
pub(super) struct Waits {
    admitted: Admitted,
    /// Whether the sequence computes the blocks in front of the fetched ones while the fetch runs.
    is_ahead: bool,
    /// What the disk has brought and what the shared store has brought. An entry is `None` until that part of the fetch
    /// has ended.
    came: [Option<FetchEnded>; 2],
}

/// The two parts of a fetch.
#[derive(Clone, Copy)]
enum Part {
    Disk,
    Remote,
}

impl Waits {
    /// Waits for the part from disk if `of_disk`, and for the part from the shared store if `of_remote`.
    pub(super) fn new(admitted: Admitted, is_ahead: bool, of_disk: bool, of_remote: bool) -> Self {
        let nothing = FetchEnded { id: FetchId(0), filled: 0, wanted: 0, bytes: 0, seconds: 0.0 };
        Self { admitted, is_ahead, came: [of_disk, of_remote].map(|waits| (!waits).then_some(nothing)) }
    }
}

impl Worker {
    /// Begins fetches for admitted sequences whose next blocks a tier below memory has or may have. A sequence waits
    /// for its fetch, unless computing the blocks is faster.
    pub(super) fn begin_fetches(&mut self, plan: &mut StepPlan) {
        if self.disk.is_none() && self.remote.is_none() {
            return;
        }
        for index in (0..plan.admitted.len()).rev() {
            let id = plan.admitted[index].id;
            if self.scheduler.sequence(id).is_long {
                self.resume_long(id, plan, index);
                continue;
            }
            let keys = self.scheduler.missing_keys(id);
            let tokens = |blocks: usize| blocks * self.scheduler.blocks().block_size();
            let found = self.disk.as_mut().map_or(0, |disk| disk.look_up(&keys));
            plan.admitted[index].below = Some(FoundBelow { tokens: tokens(found), ..FoundBelow::default() });
            let asked = keys.len() - found;
            let computing = self.scheduler.recompute_seconds(asked);
            let of_disk = self.scheduler.recompute_seconds(found);
            let mut computed = self.disk.as_mut().map_or(0, |disk| disk.recomputed(found, of_disk));
            // If all blocks on disk are computed because that is faster, the blocks behind them are computed as well.
            let asks = (found == 0 || computed < found)
                && self.remote.as_ref().is_some_and(|remote| remote.is_worth_asking(asked, computing));
            if asks {
                computed = 0;
            }
            plan.admitted[index].below.iter_mut().for_each(|below| below.computed = tokens(computed));
            let count = if asks { keys.len() } else { found };
            if computed == count {
                continue;
            }
            let first = self.scheduler.sequence(id).computed / self.scheduler.blocks().block_size();
            let Some(root) = self.scheduler.blocks().parent_key(id) else { continue };
            let fetch = match computed {
                0 => self.scheduler.begin_fetch(id, count, plan),
                _ => self.scheduler.begin_fetch_ahead(id, first + computed, count - computed, plan),
            };
            let Some(fetch) = fetch else { continue };
            let parents = std::iter::once(root).chain(keys.iter().copied());
            let missing = parents.zip(&keys).zip(first..).skip(computed);
            let wanted = missing.zip(&fetch.blocks).map(|(((parent, &key), index), &block)| Wanted {
                key,
                parent,
                tokens: self.scheduler.block_tokens(id, index).into(),
                block,
            });
            let mut of_disk: Vec<_> = wanted.collect();
            let of_remote = of_disk.split_off(found - computed);
            let waits =
                Waits::new(plan.admitted.remove(index), computed > 0, !of_disk.is_empty(), !of_remote.is_empty());
            self.waiting.insert(fetch.id, waits);
            if let Some(disk) = self.disk.as_mut().filter(|_| !of_disk.is_empty()) {
                disk.fetch(fetch.id, of_disk, computed > 0);
            }
            if let Some(remote) = self.remote.as_mut().filter(|_| !of_remote.is_empty()) {
                remote.fetch(fetch.id, of_remote, computing);
            }
        }
    }

    /// Waits a moment for the answers of the shared store. A store that has nothing answers in less time than a pass
    /// takes, and the sequences whose fetches have ended then join this pass.
    pub(super) fn await_answers(&mut self, plan: &mut StepPlan) {
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.is_fetching()) else { return };
        // Without a pass, the engine waits for fetches anyway.
        if plan.entries.is_empty() || remote.answer() > ANSWER_WAIT {
            return;
        }
        // Fetches fill blocks that may still hold what was evicted or is to be copied for this pass.
        self.copy_blocks();
        let deadline = Instant::now() + ANSWER_WAIT;
        while self.remote.as_ref().is_some_and(Remote::is_fetching)
            && let Some((part, ended)) = self.next_fetch(deadline)
        {
            self.finish_part(part, ended).into_iter().for_each(|id| self.scheduler.rejoin(id, plan));
        }
    }

    /// Stages the blocks that are to be stored, before anything overwrites them.
    pub(super) fn store_blocks(&mut self) {
        self.store_long();
        if self.disk.is_none() && self.remote.is_none() {
            return;
        }
        let evicted = self.scheduler.take_evicted();
        let (computed, unstored) = (self.scheduler.take_fresh(), self.scheduler.take_unstored());
        let Some(blocks) = self.runner.block_bytes() else { return };
        let gone = Gone { evicted, computed, unstored };
        self.disk.iter_mut().for_each(|disk| disk.store(&gone, &self.scheduler, blocks));
        self.remote.iter_mut().for_each(|remote| remote.store(&gone, &self.scheduler, blocks));
    }

    /// Makes progress on what is in flight, and takes in fetches that have ended. Waits up to `wait` for the first one.
    pub(super) fn poll_below(&mut self, wait: Duration) {
        let mut deadline = Instant::now() + wait;
        // If the client of a fetch has gone, nobody waits for that fetch; its blocks become free when it has ended.
        if let Some(remote) = self.remote.as_mut().filter(|remote| remote.is_fetching()) {
            let gone = self.waiting.iter().filter(|(_, waits)| !self.scheduler.knows(waits.admitted.id));
            gone.for_each(|(&id, _)| remote.give_up(id));
        }
        while let Some((part, ended)) = self.next_fetch(deadline) {
            self.finish_part(part, ended);
            // A sequence whose fetch has ended does not wait for other fetches.
            deadline = Instant::now();
        }
        self.store_blocks();
    }

    /// Returns a part of a fetch that has ended, if one ends before `deadline`.
    fn next_fetch(&mut self, deadline: Instant) -> Option<(Part, FetchEnded)> {
        let blocks = self.runner.block_bytes()?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_fetching = self.remote.as_ref().is_some_and(Remote::is_fetching);
            let both = is_fetching && self.disk.as_ref().is_some_and(|disk| disk.disk.tier.stats().queued_reads > 0);
            let wait = if both { left.min(WAIT_EACH) } else { left };
            // Each tier waits only if it has something in flight.
            let of_disk = self.disk.as_mut().and_then(|disk| disk.poll(blocks, wait));
            if let Some(ended) = of_disk {
                return Some((Part::Disk, ended));
            }
            let of_remote = self.remote.as_mut().and_then(|remote| remote.poll(blocks, wait));
            if let Some(ended) = of_remote {
                return Some((Part::Remote, ended));
            }
            if !both || left.is_zero() {
                return None;
            }
        }
    }

    /// Takes in the part of a fetch that a tier has brought. If that was the last part, returns the sequence that goes
    /// on.
    fn finish_part(&mut self, part: Part, ended: FetchEnded) -> Option<SequenceId> {
        let block_size = self.scheduler.blocks().block_size();
        let waits = self.waiting.get_mut(&ended.id)?;
        waits.came[part as usize] = Some(ended);
        let [Some(of_disk), Some(of_remote)] = waits.came else { return None };
        let Waits { admitted, is_ahead, .. } = self.waiting.remove(&ended.id)?;
        // Blocks behind a missing block are of no use.
        let behind = if of_disk.filled == of_disk.wanted { of_remote.filled } else { 0 };
        let filled = of_disk.filled + behind;
        if let Some(disk) = self.disk.as_mut().filter(|_| of_disk.wanted > 0) {
            disk.note_fetch(&of_disk, block_size);
        }
        if let Some(remote) = self.remote.as_mut().filter(|_| of_remote.wanted > 0) {
            remote.note_fetch(&FetchEnded { filled: behind, ..of_remote }, block_size);
        }
        let (sequence, cached) = match is_ahead {
            true => {
                let cached = admitted.cached + filled * block_size;
                self.scheduler.finish_fetch_ahead(ended.id, filled).map(|sequence| (sequence, cached))
            }
            false => self.scheduler.finish_fetch(ended.id, filled),
        }?;
        let below = admitted.below.map(|below| FoundBelow {
            loaded: below.loaded + of_disk.filled * block_size,
            remote: behind * block_size,
            seconds: of_disk.seconds,
            remote_seconds: of_remote.seconds,
            ..below
        });
        self.tell_admitted(Admitted { cached, below, ..admitted });
        Some(sequence)
    }

    /// Returns the number of fetches in flight.
    pub(super) fn num_fetches(&self) -> usize {
        self.scheduler.num_fetches()
    }

    /// Returns for the disk, then for the shared store, whether nothing waits to be stored and nothing is in flight.
    fn is_each_settled(&self) -> [bool; 2] {
        [self.disk.as_ref().is_none_or(Disk::is_settled), self.remote.as_ref().is_none_or(Remote::is_settled)]
    }

    /// Returns whether nothing waits to be stored in either tier below memory, and nothing is in flight.
    pub(super) fn is_settled_below(&self) -> bool {
        self.is_each_settled() == [true; 2]
    }

    /// Stores the blocks that still wait to be stored, for a limited time, because the engine stops.
    pub(super) fn finish_below(&mut self) {
        let began = Instant::now();
        self.disk.iter_mut().for_each(Disk::hurry);
        loop {
            let (took, [on_disk, shared]) = (began.elapsed(), self.is_each_settled());
            if (on_disk || took >= LAST_WRITES) && (shared || took >= LAST_WRITES_SHARED) {
                break;
            }
            self.poll_below(Duration::ZERO);
            self.disk.iter_mut().for_each(Disk::flush);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.disk.iter().for_each(Disk::leave_index);
    }
}
