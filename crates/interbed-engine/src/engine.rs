//! The engine thread runs one loop, and it alone owns the scheduler, the blocks and the model. Each step plans a pass,
//! runs the pass, and applies its results.

mod attached_tier;
mod balance;
mod below;
mod idle_blocks;
mod later;
mod long;
mod report;
mod show;
mod strips;
mod swaps;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use interbed_grammar::Vocabulary;
use interbed_kv::{
    BlockCopy, BlockManager, CacheChanges, CacheWatcher, ChainRoot, FetchId, IdHasher, KvConfig, KvConfigError,
    SequenceId, SlotTier,
};
use interbed_model::{BatchSequence, LogitRow, Logits, Pooling, SequenceBlocks};
use thiserror::Error;

use crate::group::{Sampling, SequenceGroup, Stage};
use crate::handle::{EngineShared, Submission};
use crate::live::Board;
use crate::masks::MaskWorkers;
use crate::runner::{PassError, Runner};
use crate::sampler::Sampler;
use crate::scheduler::{Admitted, Arrival, PlannedTokens, Rejected, Scheduler, SchedulerConfig, StepPlan};
use crate::sequence::{Continuation, Ends, GroupId, Sequence, SequenceStatus};
use crate::status::Totals;
use crate::tiers_below::{LaterTiers, TierBelow};
use crate::{EngineHandle, Limits, RequestError, TokenId};
use attached_tier::{AttachedTier, frame_tier};
use below::Waits;
use long::{KeptFrames, LongSequence};
use show::Show;
use strips::Strips;

/// The settings that an engine is built from. The runner and what is attached to the engine come separately.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The limits of a pass.
    pub scheduler: SchedulerConfig,
    /// The block manager's configuration.
    pub kv: KvConfig,
    /// The limits that requests are checked against.
    pub limits: Limits,
    /// The tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// The time without a completed step after which health is no longer good, if there is work.
    pub stall: Duration,
    /// The time between two turns of an idle engine that still moves memory from KV to weights.
    pub idle_turn: Duration,
    /// Whether the engine checks after each step that queues and blocks agree. The check takes time in proportion to
    /// the length of all queues and the number of blocks, so it is for tests.
    pub check_invariants: bool,
}

/// What an engine may have besides its runner.
#[derive(Default)]
pub struct Attachments {
    /// The tiers below memory that hold KV, nearest first, attached from the start.
    pub below: Vec<TierBelow>,
    /// Tiers below memory that are attached while the engine runs; they are given instead of `below`.
    pub later: Option<LaterTiers>,
    /// A tier that keeps nothing but swapped blocks. If there is none, the nearest of the other tiers that takes
    /// swapped blocks gets them.
    pub swap: Option<Box<dyn SlotTier>>,
    /// The watcher that is told after each step what the prefix cache has gained and lost.
    pub cache_watcher: Option<Box<dyn CacheWatcher>>,
}

/// The reason why an engine could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The KV configuration cannot work.
    #[error(transparent)]
    Kv(#[from] KvConfigError),
    /// The block manager counts on more swap slots than the tier that takes swapped blocks has.
    #[error("{wanted} KV blocks are to be swapped out at a time, but there are {got} slots; lower num_swap_blocks")]
    SwapSlots {
        /// Slots that the configuration names.
        wanted: usize,
        /// Slots that the tier has.
        got: usize,
    },
    /// The tiers below memory cannot be used together.
    #[error("{0}")]
    Tiers(String),
    /// The system refused to start the engine thread.
    #[error("the engine thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running engine. Dropping the engine stops its thread, and requests in flight fail with [`RequestError::Stopped`].
pub struct Engine {
    handle: EngineHandle,
    shared: Arc<EngineShared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine thread with nothing attached.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`StartError`].
    pub fn start(config: EngineConfig, runner: Box<dyn Runner>) -> Result<Self, StartError> {
        Self::start_with(config, runner, Attachments::default())
    }

    /// Starts the engine thread with the given attachments.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`StartError`].
    pub fn start_with(
        mut config: EngineConfig,
        mut runner: Box<dyn Runner>,
        Attachments { mut below, later, mut swap, cache_watcher }: Attachments,
    ) -> Result<Self, StartError> {
        TierBelow::check(&below).map_err(StartError::Tiers)?;
        let slots = match &mut swap {
            Some(swap) => Some(swap.num_slots()),
            None => below.iter_mut().find_map(|below| below.tier.slots()).map(|tier| tier.num_slots()),
        };
        match (config.kv.num_swap_blocks, slots.filter(|_| runner.block_bytes().is_some())) {
            (wanted, Some(got)) if wanted > got => return Err(StartError::SwapSlots { wanted, got }),
            (_, None) if later.is_none() => config.kv.num_swap_blocks = 0,
            _ => {}
        }
        let mut blocks = BlockManager::new(config.kv.clone())?;
        if let Some(memory) = runner.kv_memory() {
            blocks.set_usable(memory.blocks_at_start());
            // The blocks that left were never written to, so they need not be given back.
            blocks.take_resize();
        }
        if cache_watcher.is_some() {
            blocks.record_changes();
        }
        let mut scheduler = Scheduler::new(config.scheduler, blocks);
        if let Some(later) = later.as_ref().filter(|_| runner.streams_kv()) {
            scheduler.await_long(later.long_tokens);
        }
        let strips = runner.strips().map(|strips| Strips::new(strips.config()));
        let (shared, submissions) =
            EngineShared::new(config.limits.clone(), config.stall, Board::new(runner.stream_monitor()));
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            submissions,
            scheduler,
            runner,
            swap,
            tiers: Vec::new(),
            later,
            waiting: HashMap::new(),
            long: HashMap::new(),
            sampler: Sampler::default(),
            masks: MaskWorkers::default(),
            late: Vec::new(),
            groups: HashMap::default(),
            config,
            plan: StepPlan::default(),
            tokens: Vec::new(),
            tables: Vec::new(),
            strips,
            copies: Vec::new(),
            cache_watcher,
            cache_changes: CacheChanges::default(),
            totals: Totals::default(),
            idle_steps: 0,
            settled: true,
            show: Show::default(),
        };
        worker.scheduler.await_swap_tier();
        worker.attach(below);
        worker.allow_swaps();
        // The first figures are published here, so that handles can read them before the first turn.
        worker.publish();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            // Constraints recurse on what they allow, so the thread needs a large stack.
            .stack_size(Vocabulary::STACK_BYTES)
            .spawn(move || worker.live())?;
        Ok(Self { handle: EngineHandle { shared: shared.clone() }, shared, thread: Some(thread) })
    }

    /// Returns a handle through which requests are submitted.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The worker catches its own panics, so joining the thread does not fail because of a panic.
            let _ = thread.join();
        }
    }
}

/// The longest time that an engine with nothing to compute waits for a swap before it looks for new requests.
const SWAP_WAIT: Duration = Duration::from_millis(5);

/// The time between two checks whether the blocks that a sequence waits for are on disk.
const DISK_WAIT: Duration = Duration::from_millis(1);

/// The number of steps in a row that may schedule nothing while sequences wait. Health reports a stall after more.
const IDLE_STEPS_MAX: u32 = 100;

struct Worker {
    shared: Arc<EngineShared>,
    submissions: Receiver<Option<Submission>>,
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    /// A tier that keeps nothing but swapped blocks, if there is one.
    swap: Option<Box<dyn SlotTier>>,
    /// The tiers of KV below memory, nearest first.
    tiers: Vec<AttachedTier>,
    /// Tiers below memory that are still to be attached.
    later: Option<LaterTiers>,
    /// The admitted sequences that wait for a fetch, by fetch.
    waiting: HashMap<FetchId, Waits>,
    /// The sequences that are longer than memory.
    long: HashMap<SequenceId, LongSequence>,
    sampler: Sampler,
    masks: MaskWorkers,
    /// The sequences that take part in no pass until their masks say which tokens are allowed next.
    late: Vec<SequenceId>,
    groups: HashMap<GroupId, SequenceGroup, BuildHasherDefault<IdHasher>>,
    config: EngineConfig,
    plan: StepPlan,
    /// The tokens of the batch, sequence by sequence.
    tokens: Vec<TokenId>,
    /// The block tables of the batch, sequence by sequence.
    tables: Vec<u32>,
    /// The strips in which blocks are mapped side by side, if the runner has strips.
    strips: Option<Strips>,
    copies: Vec<BlockCopy>,
    cache_watcher: Option<Box<dyn CacheWatcher>>,
    cache_changes: CacheChanges,
    totals: Totals,
    idle_steps: u32,
    /// Whether memory is divided between KV and weights as the present demand asks.
    settled: bool,
    show: Show,
}

impl Worker {
    /// Runs the engine's thread. When the thread ends, its channels close, and clients learn from this that it has
    /// ended.
    fn live(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while self.turn() {}
            self.finish_below();
        }));
        let reason = match outcome {
            Ok(()) => "the engine was stopped".to_owned(),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                tracing::error!("the engine thread panicked: {message}; every request in flight has failed");
                format!("the engine thread panicked: {message}")
            }
        };
        self.shared.died(reason);
    }

    /// Runs one turn of the loop: takes in requests, drops requests whose client has gone, and computes a step. Returns
    /// `false` if the loop is to end.
    fn turn(&mut self) -> bool {
        if !self.take_submissions() {
            return false;
        }
        self.drop_cancelled();
        self.poll_swaps(Duration::ZERO);
        self.attach_later();
        self.poll_below(Duration::ZERO);
        self.balance();
        if self.scheduler.has_sequences() {
            self.step();
        } else if self.scheduler.num_swaps() > 0 {
            // The sequences of these swaps have ended, but their blocks are not free yet. No request waits for the
            // swaps, and health describes only progress on requests.
            self.no_work_left();
            self.poll_swaps(SWAP_WAIT);
        } else if self.num_fetches() > 0 {
            self.no_work_left();
            self.poll_below(SWAP_WAIT);
        }
        if self.scheduler.is_idle() {
            self.check_idle();
        }
        self.tell_cache_changes();
        self.publish();
        self.show();
        true
    }

    /// Queues the requests that have arrived, and sleeps while there is nothing to do. Returns `false` if the engine is
    /// to stop.
    fn take_submissions(&mut self) -> bool {
        loop {
            if self.shared.stopping() {
                return false;
            }
            let settled = self.settled && self.is_settled_below() && self.later.is_none();
            let turn = (!settled).then_some(self.config.idle_turn);
            let submission = match (self.scheduler.is_idle(), turn.into_iter().chain(self.show_within()).min()) {
                (true, None) => self.submissions.recv().map_err(|_| TryRecvError::Disconnected),
                (true, Some(within)) => self.submissions.recv_timeout(within).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                (false, _) => self.submissions.try_recv(),
            };
            match submission {
                // An empty submission wakes the thread when somebody has begun to watch.
                Ok(None) if self.shared.board().is_watched() => return !self.shared.stopping(),
                Ok(None) => {}
                Ok(Some(submission)) => {
                    self.begin(submission);
                    self.shared.busy();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Creates the sequence group of a request and queues its first sequence.
    fn begin(&mut self, Submission { mut request, clients }: Submission) {
        let namespace = self.runner.cache_namespace(request.prompt.len());
        let every_row = request.params.prompt_logprobs.is_some() || request.embed == Some(Pooling::Mean);
        let root = match every_row {
            // Every row of the prompt must be computed, so nothing of the prompt may come from the cache.
            true => ChainRoot::unshared(),
            false => ChainRoot::new(request.cache_salt.as_deref(), namespace),
        };
        let root = root.of_tenant(request.tenant.map(|tenant| tenant.0));
        let (id, max_tokens) = (self.scheduler.new_id(), request.params.max_tokens);
        let ranks_prompt = request.params.prompt_logprobs.is_some();
        let may_be_long = clients.len() == 1 && request.beam.is_none() && root.is_shared();
        let EngineConfig { limits, eos_token_ids, .. } = &self.config;
        let (group, continuation) = SequenceGroup::new(id, &mut request, clients, limits.vocab_size, eos_token_ids);
        self.groups.insert(GroupId(id.0), group);
        self.scheduler.add(Arrival {
            id,
            group: GroupId(id.0),
            continuation,
            prompt: request.prompt,
            max_tokens,
            root,
            priority: request.priority,
            tenant: request.tenant,
            explain: request.explain_miss,
            beams: request.beam.map(|beam| beam.width),
            may_be_long,
            ranks_prompt,
        });
    }

    fn step(&mut self) {
        // This step changes the demand for memory, whatever it does.
        self.settled = false;
        let mut plan = std::mem::take(&mut self.plan);
        let step_begin = Instant::now();
        self.resume_late();
        self.plan(&mut plan);
        self.hurry_long(&plan);
        if plan.entries.is_empty() {
            self.wait(&plan);
        } else {
            self.idle_steps = 0;
            let begin = Instant::now();
            self.map_strips(&plan);
            match self.run(&plan) {
                Ok(()) => {
                    self.totals.pass_tokens.record(plan.entries.iter().map(|entry| entry.count as u64).sum());
                    self.note_prefill(&plan, begin.elapsed());
                    self.apply(&plan);
                    self.scheduler.measured(&plan.work(), step_begin.elapsed().as_secs_f64());
                }
                // The engine is being stopped. This failure is expected, since nothing waits for the pass to end.
                Err(_) if self.shared.stopping() => {}
                Err(PassError::KvLost(lost)) => self.recover_lost(&plan, &lost),
                Err(PassError::Failed(reason)) => self.fail_all(&plan, &reason),
            }
            self.totals.steps += 1;
        }
        if self.config.check_invariants {
            self.scheduler.assert_sound();
        }
        self.plan = plan;
    }

    /// Decides what the next pass computes, tells clients whose sequences were preempted or rejected for it, and begins
    /// the copies and swaps that have to come before it.
    fn plan(&mut self, plan: &mut StepPlan) {
        self.scheduler.explain_all = tracing::enabled!(tracing::Level::DEBUG);
        let begin = Instant::now();
        self.scheduler.schedule(plan);
        self.begin_fetches(plan);
        self.totals.allocation_seconds.record(begin.elapsed());
        self.await_answers(plan);
        for &id in &plan.preempted {
            let Some(sequence) = self.scheduler.get_mut(id) else { continue };
            let swapped = sequence.status == SequenceStatus::Leaving;
            self.groups.get(&sequence.group).into_iter().for_each(|group| group.preempted(sequence, swapped));
        }
        for admitted in plan.admitted.drain(..) {
            self.tell_admitted(admitted);
        }
        for Rejected { sequence, need, limit } in plan.rejected.drain(..) {
            self.fail(sequence, &RequestError::TooLarge { need, limit });
        }
        if let Some(drafter) = self.runner.drafter() {
            self.scheduler.draft(plan, drafter, self.config.limits.vocab_size);
        }
        if self.strips.as_ref().is_some_and(|strips| strips.mapper().hiding().ahead) {
            self.scheduler.look_ahead(plan);
        }
        self.begin_swaps(plan);
    }

    /// Tells a sequence's group that the sequence is admitted, once all of its prompt that was kept in memory or below
    /// is in memory.
    fn tell_admitted(&mut self, mut admitted: Admitted) {
        let sequence = self.scheduler.sequence(admitted.id);
        if let Some(miss) = &mut admitted.miss {
            if miss.matched_tokens != admitted.cached {
                // Blocks may have been computed in front of the blocks that came from below.
                let came = admitted.below.iter().filter(|below| below.loaded > 0);
                let found = admitted.cached + came.map(|below| below.computed).sum::<usize>();
                *miss = self.scheduler.blocks().explain_behind(sequence.tokens(), &sequence.hashes, found);
                miss.matched_tokens = admitted.cached;
            }
            let cached = admitted.cached;
            tracing::debug!("{}: {cached} tokens of its prompt were cached: {}", admitted.id, miss.reason);
        }
        let group = sequence.group;
        self.on_group(group, |group, stage| group.admitted(&admitted, stage));
    }

    /// Computes the pass, and samples from each row of logits when the row comes.
    fn run(&mut self, plan: &StepPlan) -> Result<(), PassError> {
        let Self { scheduler, groups, tokens, tables, runner, sampler, masks, late, config, tiers, strips, .. } = self;
        // The masks begin first, so that the workers compute them while the rest of the pass is prepared.
        for entry in plan.entries.iter().filter(|entry| entry.samples()) {
            let sequence = scheduler.get_mut(entry.id).expect("a planned sequence is known");
            groups.get_mut(&sequence.group).into_iter().for_each(|group| group.begin_masks(sequence, masks));
        }
        tokens.clear();
        tables.clear();
        let table = |id| scheduler.blocks().block_table(id).expect("a running sequence holds blocks");
        for entry in &plan.entries {
            tokens.extend_from_slice(&scheduler.sequence(entry.id).tokens_from(entry.start)[..entry.count]);
        }
        let places = match strips {
            Some(strips) => strips.blocks(runner.as_mut()),
            None => vec![None; plan.entries.len()],
        };
        for (entry, _) in plan.entries.iter().zip(&places).filter(|(_, place)| place.is_none()) {
            tables.extend(table(entry.id).iter().map(|block| block.0));
        }
        let block_size = scheduler.blocks().block_size();
        let (mut tokens, mut tables) = (&tokens[..], &tables[..]);
        let batch: Vec<_> = plan
            .entries
            .iter()
            .zip(places)
            .map(|(entry, place)| {
                let sequence = scheduler.sequence(entry.id);
                let blocks = place.unwrap_or_else(|| {
                    let blocks = tables.split_off(..table(entry.id).len());
                    SequenceBlocks::Listed(blocks.expect("all of them were appended"))
                });
                BatchSequence {
                    tokens: tokens.split_off(..entry.count).expect("all of them were appended"),
                    first_position: entry.start,
                    prompt_len: sequence.prompt_len,
                    below: scheduler.blocks().blocks_below(entry.id) * block_size,
                    blocks,
                    logits: groups[&sequence.group].wanted_rows(sequence, entry),
                }
            })
            .collect();
        let (eos, mut late) = (&config.eos_token_ids, late.len());
        let mut sink = |row: LogitRow, logits: Logits<'_>| {
            let entry = &plan.entries[row.sequence];
            let sequence = scheduler.get_mut(entry.id).expect("a planned sequence is known");
            let group = groups.get_mut(&sequence.group).expect("its group is known");
            let sampling = Sampling { sampler: &mut *sampler, eos, late: &mut late };
            group.take_row(sequence, entry, entry.start + row.token, logits, sampling);
        };
        match frame_tier(tiers) {
            Some((_, tier)) => {
                let owners = plan.entries.iter().map(|entry| entry.id).collect();
                runner.forward_from(&batch, &mut KeptFrames { tier, owners }, &mut sink)
            }
            None => runner.forward(&batch, &mut sink).map_err(PassError::Failed),
        }
    }

    /// Applies the results of a pass that has ended: publishes its blocks, appends its tokens, and ends sequences that
    /// are done.
    fn apply(&mut self, plan: &StepPlan) {
        let ends = Self::ends(&self.config);
        // All entries are completed before any sequence is forked.
        for entry in &plan.entries {
            let Some(sequence) = self.scheduler.get_mut(entry.id) else { continue };
            let group = self.groups.get_mut(&sequence.group).expect("its group is known");
            if let Some(accepted) = group.accept(sequence, ends) {
                self.scheduler.complete(entry, accepted);
            }
        }
        for entry in &plan.entries {
            // The sequence may have ended together with another sequence of its group.
            let group = self.scheduler.get_mut(entry.id).map(|sequence| sequence.group);
            group.into_iter().for_each(|group| self.on_group(group, |group, stage| group.apply(entry, stage)));
            let sequence = self.scheduler.get_mut(entry.id);
            let continuation = sequence.and_then(|sequence| sequence.continuation.as_ref());
            if continuation.is_some_and(Continuation::is_late) && !self.late.contains(&entry.id) {
                self.late.push(entry.id);
            }
        }
    }

    /// Resumes sequences that took part in no pass because their masks were late, if the masks have come.
    fn resume_late(&mut self) {
        for id in std::mem::take(&mut self.late) {
            let Some(sequence) = self.scheduler.get_mut(id) else { continue };
            let is_there = sequence.status == SequenceStatus::Running && sequence.pending() == 0;
            let Some(continuation) = &mut sequence.continuation else { continue };
            if !continuation.is_late() {
                continue;
            }
            if !is_there || !continuation.can_resume() {
                self.late.push(id);
                continue;
            }
            let group = sequence.group;
            let Self { groups, scheduler, totals, config, sampler, .. } = self;
            let Some(of) = groups.get_mut(&group) else { continue };
            let sampling = Sampling { sampler, eos: &config.eos_token_ids, late: &mut 0 };
            of.resume(id, sampling, &mut Stage { scheduler, totals, ends: Self::ends(config) });
            if of.is_over() {
                groups.remove(&group);
            }
        }
    }

    /// Waits a little, because there is nothing to compute until a read, a write, a swap, a fetch or a mask ends.
    fn wait(&mut self, plan: &StepPlan) {
        if !plan.waits_for_disk.is_empty() {
            self.idle_steps = 0;
            std::thread::sleep(DISK_WAIT);
            self.poll_below(Duration::ZERO);
        } else if self.scheduler.num_swaps() > 0 {
            self.poll_swaps(SWAP_WAIT);
        } else if self.num_fetches() > 0 {
            self.poll_below(SWAP_WAIT);
        } else if self.scheduler.awaits_long() {
            self.idle_steps = 0;
            std::thread::sleep(SWAP_WAIT);
        } else {
            // A mask that is awaited comes soon or is given up soon.
            self.idle_steps = if self.late.is_empty() { self.idle_steps + 1 } else { 0 };
            // Nothing can change while nothing runs, so the thread sleeps instead of spinning.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Fails all sequences of a pass that has failed.
    fn fail_all(&mut self, plan: &StepPlan, reason: &str) {
        tracing::error!("a forward pass failed: {reason}; its {} requests fail", plan.entries.len());
        let error = RequestError::Forward(reason.to_owned());
        for PlannedTokens { id, .. } in &plan.entries {
            self.scheduler.remove(*id).into_iter().for_each(|sequence| self.fail(sequence, &error));
        }
    }

    /// Tells the group of `sequence` that the sequence has failed. The scheduler has already removed `sequence`.
    fn fail(&mut self, sequence: Sequence, error: &RequestError) {
        self.on_group(sequence.group, |group, stage| group.fail(sequence, error, stage));
    }

    /// Ends the sequences whose clients have gone.
    fn drop_cancelled(&mut self) {
        let Self { groups, scheduler, totals, config, .. } = self;
        let mut stage = Stage { scheduler, totals, ends: Self::ends(config) };
        groups.retain(|_, group| {
            group.drop_cancelled(&mut stage);
            !group.is_over()
        });
    }

    /// Calls `act` on a group, and forgets the group if it is over.
    fn on_group(&mut self, id: GroupId, act: impl FnOnce(&mut SequenceGroup, &mut Stage<'_>)) {
        let Self { groups, scheduler, totals, config, .. } = self;
        let Some(group) = groups.get_mut(&id) else { return };
        act(group, &mut Stage { scheduler, totals, ends: Self::ends(config) });
        if group.is_over() {
            groups.remove(&id);
        }
    }

    fn ends(config: &EngineConfig) -> Ends<'_> {
        Ends { eos: &config.eos_token_ids, length_max: config.limits.max_model_len }
    }

    /// Checks that no block is lost: while no sequence is alive, the free, cached and withdrawn blocks add up to all
    /// blocks. A block that belongs to nobody is a bug; the check reports it and frees all blocks.
    fn check_idle(&mut self) {
        self.no_work_left();
        let leaked = self.scheduler.recover_leaks();
        if leaked > 0 {
            self.totals.leaks_found += 1;
            tracing::error!(
                "{leaked} KV blocks belonged to nobody while the engine was idle; all blocks have been freed"
            );
        }
    }

    fn no_work_left(&mut self) {
        self.idle_steps = 0;
        self.shared.idle();
    }
}
