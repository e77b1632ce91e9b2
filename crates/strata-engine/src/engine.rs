//! The engine thread: one loop, one owner of scheduler, blocks and model.

mod balance;
mod beams;
mod continuations;
mod report;
mod swaps;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strata_kv::{BlockManager, ChainRoot, ConfigError, KvConfig, SequenceId, Transfer};
use strata_model::{BatchSequence, LogitRow};
use thiserror::Error;

use crate::active::Active;
use crate::beam_run::BeamRuns;
use crate::handle::Submission;
use crate::runner::Runner;
use crate::sampler::Sampler;
use crate::scheduler::{Scheduler, SchedulerConfig, StepPlan};
use crate::shared::EngineShared;
use crate::{EngineHandle, Event, FinishedCounts, Histogram, Limits, RequestError, TokenId};

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
    /// Check after each step that queues and blocks agree (K14); takes time in proportion to all of them. For tests.
    pub check_invariants: bool,
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
            beams: BeamRuns::default(),
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
    beams: BeamRuns,
    config: EngineConfig,
    plan: StepPlan,
    /// Block tables of the batch, one after the other.
    tables: Vec<u32>,
    copies: Vec<Transfer>,
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
        let continuations = self.active.values().flat_map(|active| active.siblings.iter().chain([active]));
        continuations.for_each(|active| active.send(Event::Failed(RequestError::Stopped)));
        self.beams.iter().for_each(|run| run.fail(&RequestError::Stopped));
    }

    /// One turn of the loop: take in requests, drop those whose client has gone, compute a step. `false` ends it.
    fn turn(&mut self) -> bool {
        if !self.take_submissions() {
            return false;
        }
        self.drop_cancelled();
        self.drop_cancelled_beams();
        self.poll_swaps(Duration::ZERO);
        self.balance();
        if self.scheduler.has_sequences() {
            self.step();
        } else if self.scheduler.num_swaps() > 0 {
            // Their sequences are gone, but their blocks are not free yet. Nobody waits for that: health is about requests.
            self.no_work_left();
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
                Ok(Some(Submission { request, clients })) => {
                    let namespace = self.runner.cache_namespace(request.prompt.len());
                    let root = match request.params.prompt_logprobs {
                        // Every row of the prompt is wanted, so nothing of it may come from the cache.
                        Some(_) => ChainRoot::unshared(),
                        None => ChainRoot::new(request.cache_salt.as_deref(), namespace),
                    };
                    self.begin(request, root, clients);
                    self.shared.busy();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn new_id(&mut self) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        id
    }

    fn step(&mut self) {
        // Whatever this step does, demand is another one afterwards.
        self.settled = false;
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.explain_all = tracing::enabled!(tracing::Level::DEBUG);
        self.gather_beams(&mut plan);
        let begin = Instant::now();
        self.scheduler.schedule(&mut plan);
        self.totals.allocation_seconds.record(begin.elapsed());
        self.gather_beams(&mut plan);
        self.tell_preempted(&plan);
        for admitted in plan.admitted.drain(..) {
            self.started(admitted);
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
        if self.config.check_invariants {
            self.scheduler.assert_sound();
        }
        self.plan = plan;
    }

    fn forward(&mut self, plan: &StepPlan) -> Result<(), String> {
        let Self { scheduler, active, beams, tables, runner, sampler, config, .. } = self;
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
                let (prompt_len, logits) = match beams.get(entry.id) {
                    Some(run) => (run.prompt_len, run.wanted_rows(entry)),
                    None => (active[&entry.id].prompt_len, active[&entry.id].wanted_rows(entry)),
                };
                BatchSequence {
                    tokens: &scheduler.sequence(entry.id).tokens[entry.start..entry.start + entry.count],
                    first_position: entry.start,
                    prompt_len,
                    block_table,
                    logits,
                }
            })
            .collect();
        let eos = &config.eos_token_ids;
        runner.forward(&batch, &mut |row: LogitRow, logits: &mut [f32]| {
            let entry = &plan.entries[row.sequence];
            if let Some(run) = beams.get_mut(entry.id) {
                return run.take_row(sampler, entry.id, logits);
            }
            let request = active.get_mut(&entry.id).expect("a planned request is active");
            request.take_row(sampler, entry, row, &scheduler.sequence(entry.id).tokens, logits, eos);
        })
    }

    /// The pass has retired: publish its blocks, append its tokens, end what is done.
    fn retire(&mut self, plan: &StepPlan) {
        // Before any of them is forked.
        plan.entries.iter().for_each(|entry| self.scheduler.complete(entry));
        for entry in &plan.entries {
            self.retire_beams(entry.id);
            self.fork_siblings(entry);
            self.advance(entry.id, entry, |scheduler, token| scheduler.push_token(entry.id, token));
        }
    }

    /// Conservation: with nothing alive, free + cached + withdrawn = total. A leak is a bug; it is reported, and mended.
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
