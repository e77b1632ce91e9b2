//! The engine thread: one loop, one owner of scheduler, blocks and model.

mod balance;
mod report;
mod swaps;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strata_kv::{BlockCopy, BlockManager, ChainRoot, ConfigError, KvConfig, Miss, SequenceId};
use strata_model::{BatchSequence, LogitRow, LogitRows};
use thiserror::Error;

use crate::active::{Active, Outcome};
use crate::handle::Submission;
use crate::runner::Runner;
use crate::sampler::Sampler;
use crate::scheduler::{Admitted, Arrival, Scheduler, SchedulerConfig, StepPlan};
use crate::sequence::Sequence;
use crate::shared::EngineShared;
use crate::{EngineHandle, Event, FinishReason, FinishedCounts, Histogram, Limits, RequestError, TokenId};

/// Everything that an engine is built from besides what computes.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Limits of a pass.
    pub scheduler: SchedulerConfig,
    /// The block manager's configuration.
    pub kv: KvConfig,
    /// What requests are checked against.
    pub limits: Limits,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// Time without a completed step, while there is work, after which health is no longer good.
    pub stall: Duration,
    /// Time between two turns of an idle engine that still moves memory from KV to weights (M4).
    pub idle_turn: Duration,
}

/// An engine that could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The KV configuration cannot work.
    #[error(transparent)]
    Kv(#[from] ConfigError),
    /// The system refused a thread.
    #[error("the engine thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running engine. Dropping it stops the thread; requests under way fail with [`RequestError::Stopped`].
pub struct Engine {
    handle: EngineHandle,
    shared: Arc<EngineShared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine thread.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(mut config: EngineConfig, mut runner: Box<dyn Runner>) -> Result<Self, StartError> {
        if runner.kv_swap().is_none() {
            config.kv.num_swap_blocks = 0;
        }
        let mut blocks = BlockManager::new(config.kv.clone())?;
        if let Some(memory) = runner.kv_memory() {
            blocks.set_usable(memory.blocks_at_start());
            // Nothing was ever written to those that left.
            blocks.take_resize();
        }
        let mut scheduler = Scheduler::new(config.scheduler, blocks);
        let block_bytes = runner.memory().kv_block.0;
        if let Some(swap) = runner.kv_swap() {
            scheduler.set_swap_trial(block_bytes, swap.trial());
        }
        let (shared, submissions) = EngineShared::new(config.limits.clone(), config.stall);
        let worker = Worker {
            shared: Arc::clone(&shared),
            submissions,
            scheduler,
            runner,
            sampler: Sampler::default(),
            active: HashMap::new(),
            config,
            plan: StepPlan::default(),
            tables: Vec::new(),
            copies: Vec::new(),
            next_id: 0,
            totals: Totals::default(),
            idle_steps: 0,
            settled: true,
        };
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || worker.run())?;
        Ok(Self { handle: EngineHandle { shared: shared.clone() }, shared, thread: Some(thread) })
    }

    /// A reference through which requests go in.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The worker catches its own panics, so joining cannot fail for one.
            let _ = thread.join();
        }
    }
}

/// Time that an engine with nothing to compute waits for a swap before it looks for new requests.
const SWAP_WAIT: Duration = Duration::from_millis(5);

/// Steps in a row that may schedule nothing while sequences wait, before health says so.
const IDLE_STEPS_MAX: u32 = 100;

#[derive(Default)]
struct Totals {
    steps: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    generation_tokens: u64,
    finished: FinishedCounts,
    leaks_found: u64,
    allocation_seconds: Histogram,
}

struct Worker {
    shared: Arc<EngineShared>,
    submissions: Receiver<Option<Submission>>,
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    sampler: Sampler,
    active: HashMap<SequenceId, Active>,
    config: EngineConfig,
    plan: StepPlan,
    /// Block tables of the batch, one after the other.
    tables: Vec<u32>,
    copies: Vec<BlockCopy>,
    next_id: u64,
    totals: Totals,
    idle_steps: u32,
    /// Whether memory is divided as it should be under the present demand.
    settled: bool,
}

impl Worker {
    fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| while self.turn() {}));
        let reason = match outcome {
            Ok(()) => "the engine was stopped".to_owned(),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                tracing::error!("the engine thread panicked: {message}; every request under way has failed");
                format!("the engine thread panicked: {message}")
            }
        };
        self.shared.died(reason);
        for active in self.active.values() {
            active.send(Event::Failed(RequestError::Stopped));
        }
    }

    /// One turn of the loop: take in requests, drop those whose client has gone, compute a step. `false` ends it.
    fn turn(&mut self) -> bool {
        if !self.take_submissions() {
            return false;
        }
        self.drop_cancelled();
        self.poll_swaps(Duration::ZERO);
        self.balance();
        if self.scheduler.has_sequences() {
            self.step();
        } else if self.scheduler.num_swaps() > 0 {
            // Their sequences are gone, but their blocks are not free yet.
            self.poll_swaps(SWAP_WAIT);
        }
        if self.scheduler.is_idle() {
            self.check_idle();
        }
        self.publish();
        true
    }

    /// Queues what has arrived; sleeps while there is nothing to do.
    fn take_submissions(&mut self) -> bool {
        loop {
            if self.shared.stopping() {
                return false;
            }
            let submission = match (self.scheduler.is_idle(), self.settled) {
                (true, true) => self.submissions.recv().map_err(|_| TryRecvError::Disconnected),
                (true, false) => self.submissions.recv_timeout(self.config.idle_turn).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                (false, _) => self.submissions.try_recv(),
            };
            match submission {
                Ok(None) => {}
                Ok(Some(Submission { request, events })) => {
                    let id = SequenceId(self.next_id);
                    self.next_id += 1;
                    let namespace = self.runner.cache_namespace(request.prompt.len());
                    let root = match request.params.prompt_logprobs {
                        // Every row of the prompt is wanted, so nothing of it may come from the cache.
                        Some(_) => ChainRoot::unshared(),
                        None => ChainRoot::new(request.cache_salt.as_deref(), namespace),
                    };
                    let arrival = Arrival {
                        id,
                        max_tokens: request.params.max_tokens,
                        root,
                        priority: request.priority,
                        tenant: request.tenant,
                        explain: request.explain_miss,
                        prompt: request.prompt,
                    };
                    let vocab_size = self.config.limits.vocab_size;
                    let active = Active::new(&arrival.prompt, request.params, vocab_size, events);
                    self.active.insert(id, active);
                    self.scheduler.add(arrival);
                    self.shared.busy();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let gone: Vec<_> =
            self.active.iter().filter(|(_, active)| active.events.is_closed()).map(|(&id, _)| id).collect();
        for id in gone {
            self.totals.finished.cancelled += 1;
            self.end(id);
        }
    }

    /// Takes a request out of every structure, and gives its blocks back.
    fn end(&mut self, id: SequenceId) -> Option<(Active, Option<Sequence>)> {
        let active = self.active.remove(&id)?;
        if !active.started {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
        }
        Some((active, self.scheduler.remove(id)))
    }

    fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        match reason {
            FinishReason::Length => self.totals.finished.length += 1,
            FinishReason::EndOfSequence | FinishReason::StopToken(_) => self.totals.finished.stop += 1,
        }
        if let Some((active, sequence)) = self.end(id) {
            self.scheduler.ended(active.generated);
            let (preemptions, swaps) = sequence.map_or((0, 0), |sequence| (sequence.preemptions, sequence.swaps));
            active.send(Event::Finished { reason, preemptions, swaps });
        }
    }

    fn fail(&mut self, id: SequenceId, error: RequestError) {
        self.totals.finished.failed += 1;
        if let Some((active, _)) = self.end(id) {
            active.send(Event::Failed(error));
        }
    }

    fn step(&mut self) {
        // Whatever this step does, demand is another one afterwards.
        self.settled = false;
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.explain_all = tracing::enabled!(tracing::Level::DEBUG);
        let begin = Instant::now();
        self.scheduler.schedule(&mut plan);
        self.totals.allocation_seconds.record(begin.elapsed());
        for Admitted { id, cached, miss } in plan.admitted.drain(..) {
            let Some(active) = self.active.get_mut(&id) else { continue };
            if let Some(miss) = &miss {
                tracing::debug!("{id}: {cached} of {} prompt tokens were cached: {}", active.prompt_len, miss.reason);
            }
            if !active.started {
                active.started = true;
                active.cached_tokens = cached;
                active.miss = miss.map(|miss| Miss { reason: miss.reason.for_client(), ..miss });
                self.totals.prompt_tokens += active.prompt_len as u64;
                self.totals.cached_tokens += cached as u64;
                self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            }
        }
        for &(id, need, limit) in &plan.rejected {
            self.fail(id, RequestError::TooLarge { need, limit });
        }
        self.begin_swaps(&plan);
        if plan.entries.is_empty() && self.scheduler.num_swaps() > 0 {
            self.poll_swaps(SWAP_WAIT);
        } else if plan.entries.is_empty() {
            self.idle_steps += 1;
            // Nothing can change while nothing runs; do not spin.
            std::thread::sleep(Duration::from_millis(1));
        } else {
            self.idle_steps = 0;
            let begin = Instant::now();
            match self.forward(&plan) {
                Ok(()) => {
                    self.note_prefill(&plan, begin.elapsed());
                    self.retire(&plan);
                }
                // Whoever stops the engine does not want to wait for the pass, and expects this.
                Err(_) if self.shared.stopping() => {}
                Err(reason) => {
                    tracing::error!("a forward pass failed: {reason}; its {} requests fail", plan.entries.len());
                    for entry in &plan.entries {
                        self.fail(entry.id, RequestError::Forward(reason.clone()));
                    }
                }
            }
            self.totals.steps += 1;
        }
        self.plan = plan;
    }

    fn forward(&mut self, plan: &StepPlan) -> Result<(), String> {
        let Self { scheduler, active, tables, runner, sampler, config, .. } = self;
        tables.clear();
        let table = |id| scheduler.blocks().block_table(id).expect("a running sequence holds blocks");
        for entry in &plan.entries {
            tables.extend(table(entry.id).iter().map(|block| block.0));
        }
        let mut rest = &tables[..];
        let batch: Vec<_> = plan
            .entries
            .iter()
            .map(|entry| {
                let (block_table, after) = rest.split_at(table(entry.id).len());
                rest = after;
                let request = &active[&entry.id];
                let logits = match (request.wants_prompt_rows(), entry.samples) {
                    (true, _) => LogitRows::All,
                    (false, true) => LogitRows::Last,
                    (false, false) => LogitRows::None,
                };
                BatchSequence {
                    tokens: &scheduler.sequence(entry.id).tokens[entry.start..entry.start + entry.count],
                    first_position: entry.start,
                    prompt_len: request.prompt_len,
                    block_table,
                    logits,
                }
            })
            .collect();
        let eos = &config.eos_token_ids;
        runner.forward(&batch, &mut |row: LogitRow, logits: &mut [f32]| {
            let entry = &plan.entries[row.sequence];
            let request = active.get_mut(&entry.id).expect("a planned request is active");
            request.take_row(sampler, entry, row, &scheduler.sequence(entry.id).tokens, logits, eos);
        })
    }

    /// The pass has retired: publish its blocks, append its tokens, end what is done.
    fn retire(&mut self, plan: &StepPlan) {
        for entry in &plan.entries {
            self.scheduler.complete(entry);
            let length = self.scheduler.sequence(entry.id).tokens.len();
            let room = self.config.limits.max_model_len.saturating_sub(length);
            let Some(active) = self.active.get_mut(&entry.id) else { continue };
            let before = active.generated;
            let outcome = active.advance(entry, room, &self.config.eos_token_ids);
            self.totals.generation_tokens += (active.generated - before) as u64;
            match outcome {
                Outcome::Prompt => {}
                Outcome::Token(token) => self.scheduler.push_token(entry.id, token),
                Outcome::Finished(reason) => self.finish(entry.id, reason),
                Outcome::NotFinite => self.fail(entry.id, RequestError::NotFinite),
            }
        }
    }

    /// Conservation: with nothing alive, free + cached + withdrawn = total. A leak is a bug; it is reported, and mended.
    fn check_idle(&mut self) {
        self.idle_steps = 0;
        let leaked = self.scheduler.recover_leaks();
        if leaked > 0 {
            self.totals.leaks_found += 1;
            tracing::error!(
                "{leaked} KV blocks belonged to nobody while the engine was idle; all blocks have been freed"
            );
        }
        self.shared.idle();
    }
}
