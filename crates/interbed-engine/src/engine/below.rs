//! Between passes, the engine stores KV in the tiers below memory and fetches KV from them.
//!
//! An admitted sequence waits for at most one fetch. A fetch has one part for each tier that brings something: the
//! nearest tier brings the blocks of the prompt that it has, the next tier brings blocks behind them, and so on.

use std::time::{Duration, Instant};

use interbed_kv::{BlockPart, FetchEnded, MissingKeys, SequenceId, Wanted, WantedTails};

use super::Worker;
use super::attached_tier::{AttachedTier, Gone};
use crate::event::FoundBelow;
use crate::scheduler::{Admitted, StepPlan};

/// The longest time for which one tier is waited for while several tiers are reading.
const WAIT_EACH: Duration = Duration::from_millis(1);

/// An admitted sequence that waits for a fetch. Its group has not been told of the admission yet.
pub(super) struct Waits {
    admitted: Admitted,
    /// Whether the sequence computes the blocks in front of the fetched ones while the fetch runs.
    is_ahead: bool,
    /// The tiers that bring blocks, in the order of the blocks, with what each has brought. An entry is `None` until
    /// that part of the fetch has ended.
    came: Vec<(usize, Option<FetchEnded>)>,
}

impl Waits {
    /// Waits for the tiers with the given indices.
    pub(super) fn new(admitted: Admitted, is_ahead: bool, tiers: impl IntoIterator<Item = usize>) -> Self {
        Self { admitted, is_ahead, came: tiers.into_iter().map(|tier| (tier, None)).collect() }
    }
}

/// The blocks behind those in memory that are to come from tiers below memory.
#[derive(Default)]
struct ToFetch {
    /// The tiers that bring blocks, by index, each with the number of its blocks. The blocks of each tier are behind
    /// those of the tier before.
    tiers: Vec<(usize, usize)>,
    /// The number of blocks, from the first on, that are computed while the others are read.
    computed: usize,
    /// What the tiers have, for the client.
    found: Vec<FoundBelow>,
}

impl Worker {
    /// Begins fetches for admitted sequences whose next blocks a tier below memory has or may have. A sequence waits
    /// for its fetch, unless computing the blocks is faster.
    pub(super) fn begin_fetches(&mut self, plan: &mut StepPlan) {
        if self.tiers.is_empty() {
            return;
        }
        for index in (0..plan.admitted.len()).rev() {
            let id = plan.admitted[index].id;
            if self.scheduler.sequence(id).is_long() {
                self.resume_long(id, plan, index);
                continue;
            }
            let keys = self.scheduler.missing_keys(id);
            let ToFetch { tiers, computed, found } = self.look_up_below(keys.clone());
            plan.admitted[index].below = found;
            if tiers.is_empty() {
                continue;
            }
            let count = tiers.iter().map(|(_, blocks)| blocks).sum::<usize>();
            let first = self.scheduler.sequence(id).computed / self.scheduler.blocks().block_size();
            let Some(root) = self.scheduler.blocks().parent_key(id) else { continue };
            let fetch = match computed {
                0 => self.scheduler.begin_fetch(id, count, plan),
                _ => self.scheduler.begin_fetch_ahead(id, first + computed, count - computed, plan),
            };
            let Some(fetch) = fetch else { continue };
            let parents = std::iter::once(root).chain(keys.keys().iter().copied());
            let missing = parents.zip(keys.keys()).zip(first..).skip(computed);
            let tokens = |index| self.scheduler.block_tokens(id, index).into();
            let mut wanted = missing.zip(&fetch.blocks).map(|(((parent, &key), index), &block)| Wanted {
                key,
                parent,
                tokens: tokens(index),
                part: BlockPart::whole(block),
            });
            // One tier alone brings blocks where tails go with them.
            let tails = WantedTails::new(&keys, fetch.tails, tokens);
            let waits = Waits::new(plan.admitted.remove(index), computed > 0, tiers.iter().map(|&(tier, _)| tier));
            self.waiting.insert(fetch.id, waits);
            let mut skipped = computed;
            for (tier, blocks) in tiers {
                let of_tier: Vec<_> = wanted.by_ref().take(blocks - std::mem::take(&mut skipped)).collect();
                let computing = self.scheduler.recompute_seconds(of_tier.len());
                self.tiers[tier].fetch(fetch.id, (of_tier, tails.clone()), computing, computed > 0);
            }
        }
    }

    /// Decides which of the blocks with these keys come from which tier.
    fn look_up_below(&mut self, keys: MissingKeys) -> ToFetch {
        let block_size = self.scheduler.blocks().block_size();
        let (mut fetch, mut behind) = (ToFetch::default(), keys);
        for (index, tier) in self.tiers.iter_mut().enumerate() {
            let blocks = tier.tier.look_up(&behind, self.scheduler.recompute_seconds(behind.keys().len()));
            let parts = behind.num_tail_parts(blocks);
            let mut computed = tier.recomputed(blocks, parts, self.scheduler.recompute_seconds(blocks));
            let has_tails = behind.tails().is_some();
            if has_tails && computed < blocks {
                // A sequence cannot go on from what it computes until then.
                computed = 0;
            }
            fetch.found.push(FoundBelow {
                tier: tier.tier.name(),
                tokens: if tier.tier.knows_contents() { blocks * block_size } else { 0 },
                computed: computed * block_size,
                ..FoundBelow::default()
            });
            if blocks > 0 && computed == blocks {
                // If computing these blocks is faster, the blocks behind them are computed as well.
                break;
            }
            if blocks > 0 {
                fetch.tiers.push((index, blocks));
                fetch.computed = computed;
                if has_tails {
                    break;
                }
                behind = behind.behind(blocks);
            }
        }
        if fetch.tiers.len() > 1 {
            // Blocks are computed meanwhile only if one tier brings all others.
            fetch.computed = 0;
            fetch.tiers.iter().for_each(|&(index, _)| fetch.found[index].computed = 0);
        }
        fetch
    }

    /// Waits a moment for tiers that are about to say whether they have what they were asked for. The sequences whose
    /// fetches have ended then join this pass.
    pub(super) fn await_answers(&mut self, plan: &mut StepPlan) {
        let waits = self.tiers.iter().enumerate().filter_map(|(index, tier)| Some((index, tier.tier.answer_wait()?)));
        let awaited: Vec<_> = waits.collect();
        let Some(wait) = awaited.iter().map(|&(_, wait)| wait).max() else { return };
        // Without a pass, the engine waits for fetches anyway.
        if plan.entries.is_empty() {
            return;
        }
        // Fetches fill blocks that may still hold what was evicted or is to be copied for this pass.
        self.move_blocks();
        let deadline = Instant::now() + wait;
        while awaited.iter().any(|&(index, _)| self.tiers[index].tier.is_reading())
            && let Some((tier, ended)) = self.next_fetch(deadline)
        {
            self.finish_part(tier, ended).into_iter().for_each(|id| self.scheduler.rejoin(id, plan));
        }
    }

    /// Stages the blocks that are to be stored, before anything overwrites them.
    pub(super) fn store_blocks(&mut self) {
        self.store_long();
        if self.tiers.is_empty() {
            return;
        }
        let evicted = self.scheduler.blocks_mut().take_evicted();
        let evicted_points = self.scheduler.blocks_mut().take_evicted_points();
        let points = self.scheduler.blocks_mut().take_wanted_points();
        let [computed, unstored] = self.scheduler.take_computed();
        let Some(blocks) = self.runner.block_bytes() else { return };
        let gone = Gone { evicted, computed, unstored, evicted_points, points };
        self.tiers.iter_mut().for_each(|tier| tier.store(&gone, &self.scheduler, blocks));
    }

    /// Makes progress on what is in flight, and takes in fetches that have ended. Waits up to `wait` for the first one.
    pub(super) fn poll_below(&mut self, wait: Duration) {
        let mut deadline = Instant::now() + wait;
        // If the client of a fetch has gone, nobody waits for that fetch; its blocks become free when it has ended.
        for (&id, _) in self.waiting.iter().filter(|(_, waits)| !self.scheduler.knows(waits.admitted.id)) {
            self.tiers.iter_mut().for_each(|tier| tier.tier.give_up(id));
        }
        while let Some((tier, ended)) = self.next_fetch(deadline) {
            self.finish_part(tier, ended);
            // A sequence whose fetch has ended does not wait for other fetches.
            deadline = Instant::now();
        }
        self.store_blocks();
    }

    /// Returns the index of a tier whose part of a fetch has ended, and what the tier has brought, if one ends before
    /// `deadline`.
    fn next_fetch(&mut self, deadline: Instant) -> Option<(usize, FetchEnded)> {
        let blocks = self.runner.block_bytes()?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let several = self.tiers.iter().filter(|tier| tier.tier.is_reading()).nth(1).is_some();
            let wait = if several { left.min(WAIT_EACH) } else { left };
            // Each tier waits only if it has something in flight.
            let mut polled = self.tiers.iter_mut().map(|tier| tier.tier.poll(blocks, wait)).enumerate();
            let ended = polled.find_map(|(index, ended)| Some((index, ended?)));
            if ended.is_some() || !several || left.is_zero() {
                return ended;
            }
        }
    }

    /// Takes in the part of a fetch that a tier has brought. If that was the last part, returns the sequence that goes
    /// on.
    fn finish_part(&mut self, tier: usize, ended: FetchEnded) -> Option<SequenceId> {
        let block_size = self.scheduler.blocks().block_size();
        let waits = self.waiting.get_mut(&ended.id)?;
        waits.came.iter_mut().filter(|part| part.0 == tier).for_each(|part| part.1 = Some(ended));
        if waits.came.iter().any(|(_, came)| came.is_none()) {
            return None;
        }
        let Waits { mut admitted, is_ahead, came } = self.waiting.remove(&ended.id)?;
        let (mut filled, mut is_whole) = (0, true);
        for (tier, came) in came.into_iter().filter_map(|(tier, came)| Some((tier, came?))) {
            let tier = &mut self.tiers[tier];
            // Blocks behind a missing block are of no use.
            let of_use = if is_whole { came.filled } else { 0 };
            is_whole &= of_use == came.wanted;
            filled += of_use;
            tier.note_fetch(&FetchEnded { filled: of_use, ..came }, block_size);
            for found in admitted.below.iter_mut().filter(|found| found.tier == tier.tier.name()) {
                found.loaded += of_use * block_size;
                found.seconds = came.seconds;
            }
        }
        let (sequence, cached) = match is_ahead {
            true => {
                let cached = admitted.cached + filled * block_size;
                self.scheduler.finish_fetch_ahead(ended.id, filled).map(|sequence| (sequence, cached))
            }
            false => self.scheduler.finish_fetch(ended.id, filled),
        }?;
        if !self.goes_on(sequence, is_whole) {
            return None;
        }
        self.tell_admitted(Admitted { cached, ..admitted });
        Some(sequence)
    }

    /// Returns whether nothing waits to be stored in any tier below memory, and nothing is in flight.
    pub(super) fn is_settled_below(&self) -> bool {
        self.tiers.iter().all(AttachedTier::is_settled)
    }

    /// Stores the blocks that still wait to be stored, for a limited time, because the engine stops.
    pub(super) fn finish_below(&mut self) {
        let began = Instant::now();
        self.tiers.iter_mut().for_each(AttachedTier::hurry);
        while !self.tiers.iter().all(|tier| tier.is_settled() || began.elapsed() >= tier.tier.last_writes()) {
            self.poll_below(Duration::ZERO);
            self.tiers.iter_mut().for_each(|tier| tier.tier.flush());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tiers.iter().for_each(|tier| tier.tier.leave_index());
    }
}
