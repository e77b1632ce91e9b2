//! The engine thread runs one loop, and it alone owns the scheduler, the blocks and the model. Each step plans a pass,
//! runs the pass, and applies its results.

mod answers;
mod attached_tier;
mod balance;
mod batch;
mod below;
mod idle_blocks;
mod later;
mod long;
mod report;
mod show;
mod start;
mod strips;
mod swaps;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use interbed_kv::{BlockCopy, CacheChanges, CacheWatcher, ChainRoot, FetchId, SequenceId, SlotTier};
use interbed_model::{LogitRow, Logits, NothingBelow, Pooling};

use crate::continuation::Ends;
use crate::group::{SequenceGroup, Stage};
use crate::handle::{EngineShared, Submission};
use crate::runner::{PassError, Runner};
use crate::scheduler::{Admitted, Arrival, PlannedTokens, Rejected, Scheduler, StepPlan};
use crate::sequence::{GroupId, Requested, Sequence, SequenceStatus};
use crate::tiers_below::LaterTiers;
use crate::{EngineStatus, RequestError};
use answers::Answers;
use attached_tier::{AttachedTier, frame_tier};
use batch::Batch;
use below::Waits;
use long::{KeptFrames, LongSequence};
use show::Show;
pub use start::{Attachments, Engine, EngineConfig, StartError};
use strips::Strips;

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
    answers: Answers,
    config: EngineConfig,
    plan: StepPlan,
    batch: Batch,
    /// The strips in which blocks are mapped side by side, if the runner has strips.
    strips: Option<Strips>,
    copies: Vec<BlockCopy>,
    /// The watcher of the prefix cache, if there is one, with memory for the changes that it is told of.
    cache: Option<(Box<dyn CacheWatcher>, CacheChanges)>,
    /// The figures that the engine counts itself; [`publish`](Self::publish) adds the others.
    status: EngineStatus,
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
        let (answers, mut stage) = self.staged();
        answers.drop_cancelled(&mut stage);
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
        } else if self.scheduler.num_fetches() > 0 {
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
                Ok(None) if self.shared.board.is_watched() => return !self.shared.stopping(),
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
        let id = self.scheduler.new_id();
        let requested = Requested {
            group: GroupId(id.0),
            priority: request.priority,
            tenant: request.tenant,
            may_be_long: clients.len() == 1 && request.beam.is_none() && root.is_shared(),
            ranks_prompt: request.params.prompt_logprobs.is_some(),
            explain: request.explain_miss,
        };
        let (max_tokens, beams) = (request.params.max_tokens, request.beam.map(|beam| beam.width));
        let EngineConfig { limits, eos_token_ids, .. } = &self.config;
        let (group, continuation) = SequenceGroup::new(id, &mut request, clients, limits.vocab_size, eos_token_ids);
        self.answers.groups.insert(requested.group, group);
        let prompt = request.prompt;
        self.scheduler.add(Arrival { id, request: requested, continuation, prompt, max_tokens, root, beams });
    }

    fn step(&mut self) {
        // This step changes the demand for memory, whatever it does.
        self.settled = false;
        let mut plan = std::mem::take(&mut self.plan);
        let step_begin = Instant::now();
        let (answers, mut stage) = self.staged();
        answers.resume_late(&mut stage);
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
                    self.status.pass_tokens.record(plan.entries.iter().map(|entry| entry.count as u64).sum());
                    self.note_prefill(&plan, begin.elapsed());
                    let (answers, mut stage) = self.staged();
                    answers.apply(&plan, &mut stage);
                    self.scheduler.measured(&plan.work(), step_begin.elapsed().as_secs_f64());
                }
                // The engine is being stopped. This failure is expected, since nothing waits for the pass to end.
                Err(_) if self.shared.stopping() => {}
                Err(PassError::KvLost(lost)) => self.recover_lost(&plan, &lost),
                Err(PassError::Failed(reason)) => self.fail_all(&plan, &reason),
            }
            self.status.steps += 1;
        }
        if self.config.check_invariants {
            self.scheduler.assert_sound();
        }
        self.plan = plan;
    }

    /// Decides what the next pass computes, tells clients whose sequences were preempted or rejected for it, and begins
    /// the copies and swaps that have to come before it.
    fn plan(&mut self, plan: &mut StepPlan) {
        plan.explain_all = tracing::enabled!(tracing::Level::DEBUG);
        let begin = Instant::now();
        self.ask_for_tails();
        self.scheduler.schedule(plan);
        self.begin_fetches(plan);
        self.status.allocation_seconds.record(begin.elapsed());
        self.await_answers(plan);
        for &id in &plan.preempted {
            let Some(sequence) = self.scheduler.get_mut(id) else { continue };
            if let Some(group) = self.answers.groups.get(&sequence.request.group) {
                group.policy.preempted(sequence, sequence.status == SequenceStatus::Leaving);
            }
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
        let group = sequence.request.group;
        let (answers, mut stage) = self.staged();
        answers.on_group(group, &mut stage, |group, stage| group.admitted(&admitted, stage));
    }

    /// Computes the pass, and samples from each row of logits when the row comes.
    fn run(&mut self, plan: &StepPlan) -> Result<(), PassError> {
        let Self { scheduler, answers, batch, runner, config, tiers, strips, status, .. } = self;
        // The masks begin first, so that the workers compute them while the rest of the pass is prepared.
        answers.begin_masks(plan, scheduler);
        let places = match strips {
            Some(strips) => strips.blocks(runner.as_mut()),
            None => vec![None; plan.entries.len()],
        };
        batch.fill(plan, &places, scheduler);
        let groups = batch.groups(plan, scheduler)?;
        let batch = batch.sequences(plan, places, &groups, scheduler, answers);
        let (mut stage, mut late) = (Stage { scheduler, status, ends: ends(config) }, answers.late.len());
        let mut sink = |row: LogitRow, logits: Logits<'_>| {
            let entry = &plan.entries[row.sequence];
            answers.take_row(entry, entry.start + row.token, logits, &mut late, &mut stage);
        };
        match frame_tier(tiers) {
            Some((_, tier)) => {
                let owners = plan.entries.iter().map(|entry| entry.id).collect();
                runner.forward(&batch, &mut KeptFrames { tier, owners }, &mut sink)
            }
            None => runner.forward(&batch, &mut NothingBelow, &mut sink),
        }
    }

    /// Waits a little, because there is nothing to compute until a read, a write, a swap, a fetch or a mask ends.
    fn wait(&mut self, plan: &StepPlan) {
        if !plan.waits_for_disk.is_empty() || self.awaits_tails() {
            self.idle_steps = 0;
            std::thread::sleep(DISK_WAIT);
            self.poll_below(Duration::ZERO);
        } else if self.scheduler.num_swaps() > 0 {
            self.poll_swaps(SWAP_WAIT);
        } else if self.scheduler.num_fetches() > 0 {
            self.poll_below(SWAP_WAIT);
        } else if self.scheduler.awaits_long() {
            self.idle_steps = 0;
            std::thread::sleep(SWAP_WAIT);
        } else {
            // A mask that is awaited comes soon or is given up soon.
            self.idle_steps = if self.answers.late.is_empty() { self.idle_steps + 1 } else { 0 };
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
        let (answers, mut stage) = self.staged();
        answers.on_group(sequence.request.group, &mut stage, |group, stage| group.policy.fail(sequence, error, stage));
    }

    /// Returns the answers, and the parts of the engine that they act upon.
    fn staged(&mut self) -> (&mut Answers, Stage<'_>) {
        let Self { answers, scheduler, status, config, .. } = self;
        (answers, Stage { scheduler, status, ends: ends(config) })
    }

    /// Checks that no block is lost: while no sequence is alive, the free, cached and withdrawn blocks add up to all
    /// blocks. A block that belongs to nobody is a bug; the check reports it and frees all blocks.
    fn check_idle(&mut self) {
        self.no_work_left();
        let leaked = self.scheduler.recover_leaks();
        if leaked > 0 {
            self.status.leaks_found += 1;
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

fn ends(config: &EngineConfig) -> Ends<'_> {
    Ends { eos: &config.eos_token_ids, length_max: config.limits.max_model_len }
}
