//! An engine is started with its settings, its runner and what is attached to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use interbed_grammar::Vocabulary;
use interbed_kv::{BlockId, BlockManager, CacheChanges, CacheWatcher, KvConfig, KvConfigError, Resize, SlotTier};
use thiserror::Error;

use super::Worker;
use super::answers::Answers;
use super::balance::tell;
use super::batch::Batch;
use super::show::Show;
use super::strips::Strips;
use crate::handle::EngineShared;
use crate::live::Board;
use crate::runner::Runner;
use crate::scheduler::{Scheduler, SchedulerConfig, StepPlan};
use crate::tiers_below::{LaterTiers, TierBelow};
use crate::{EngineHandle, EngineStatus, Limits, TokenId};

/// Settings of an engine. The engine receives the [`Runner`], which computes forward passes, and the [`Attachments`]
/// separately.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Settings of the scheduler, such as the limits of a forward pass.
    pub scheduler: SchedulerConfig,
    /// Settings of the KV block manager.
    pub kv: KvConfig,
    /// Limits that requests are checked against.
    pub limits: Limits,
    /// End-of-sequence tokens of the model.
    pub eos_token_ids: Vec<TokenId>,
    /// Time after which the health of an engine that has work but completes no step becomes
    /// [`Health::Stalled`](crate::Health::Stalled). The time starts at the end of the last step, or when work arrives
    /// at an idle engine if that is later.
    pub stall: Duration,
    /// Longest time that an engine without requests sleeps before it continues its background work. Moving memory from
    /// KV to weights is an example of such work. If no background work is left, the engine may sleep until a request
    /// arrives.
    pub idle_turn: Duration,
    /// Whether the engine verifies after each step that its queues and KV blocks are consistent. The check takes time
    /// proportional to the length of all queues and the number of blocks, so it is meant for tests.
    pub check_invariants: bool,
}

/// Optional parts of an engine.
#[derive(Default)]
pub struct Attachments {
    /// KV tiers on disk or in a shared store that are attached when the engine starts. The engine searches the tiers in
    /// this order. The first tier is called the nearest.
    pub below: Vec<TierBelow>,
    /// KV tiers on disk or in a shared store that are opened and attached after the engine has started. If this is set,
    /// the field `below` must be empty.
    pub later: Option<LaterTiers>,
    /// Tier that keeps nothing but swapped-out KV blocks. With `None`, the engine writes swapped-out blocks to the
    /// nearest tier in `below` or `later` that accepts them. If no tier accepts them, the engine does not swap.
    pub swap: Option<Box<dyn SlotTier>>,
    /// Watcher of the prefix cache. The engine calls it between steps if the contents of the cache have changed.
    pub cache_watcher: Option<Box<dyn CacheWatcher>>,
}

/// Reason why an engine could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The KV configuration is invalid.
    #[error(transparent)]
    Kv(#[from] KvConfigError),
    /// The KV configuration asks for more swap slots than the tier for swapped-out blocks has. A slot keeps one block.
    #[error("{wanted} KV blocks are to be swapped out at a time, but there are {got} slots; lower num_swap_blocks")]
    SwapSlots {
        /// Number of slots that the configuration asks for.
        wanted: usize,
        /// Number of slots that the tier has.
        got: usize,
    },
    /// The KV tiers on disk or in shared stores cannot be combined. The string says why.
    #[error("{0}")]
    Tiers(String),
    /// The operating system refused to start the engine thread.
    #[error("the engine thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running engine. Dropping the engine stops its thread, and requests in flight fail with
/// [`RequestError::Stopped`](crate::RequestError::Stopped).
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine without [`Attachments`]. The engine keeps KV only in memory, without swapping.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`StartError`].
    pub fn start(config: EngineConfig, runner: Box<dyn Runner>) -> Result<Self, StartError> {
        Self::start_with(config, runner, Attachments::default())
    }

    /// Starts an engine with the given attachments.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`StartError`].
    pub fn start_with(
        mut config: EngineConfig,
        mut runner: Box<dyn Runner>,
        Attachments { mut below, later, mut swap, cache_watcher }: Attachments,
    ) -> Result<Self, StartError> {
        TierBelow::check(&below).map_err(StartError::Tiers)?;
        if later.is_some() && !below.is_empty() {
            return Err(StartError::Tiers(
                "some KV tiers are open, and others come later; attach all at one time".into(),
            ));
        }
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
        begin(&mut blocks, &config.kv, runner.as_mut());
        if cache_watcher.is_some() {
            blocks.record_changes();
        }
        let mut scheduler = Scheduler::new(config.scheduler, blocks);
        if let Some(later) = later.as_ref().filter(|_| runner.streams_kv()) {
            scheduler.await_long(later.long_tokens);
        }
        let strips = runner.strips().map(|strips| Strips::new(strips.config()));
        let (shared, submissions) = EngineShared::new(
            config.limits.clone(),
            config.stall,
            Board::new(runner.shown_weights().map(|weights| weights.monitor())),
        );
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
            answers: Answers::default(),
            config,
            plan: StepPlan::default(),
            batch: Batch::default(),
            strips,
            copies: Vec::new(),
            cache: cache_watcher.map(|watcher| (watcher, CacheChanges::default())),
            status: EngineStatus::default(),
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
        Ok(Self { handle: EngineHandle { shared }, thread: Some(thread) })
    }

    /// Returns a handle for submitting requests.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

/// Tells `runner` which blocks have memory from the start on, if memory is traded.
fn begin(blocks: &mut BlockManager, config: &KvConfig, runner: &mut dyn Runner) {
    match runner.kv_memory() {
        Some(memory) => blocks.set_usable(memory.blocks_at_start()),
        // Groups of blocks trade memory, of which the first has all at the start.
        None if !config.tails.is_empty() => {}
        None => return,
    }
    // A manager begins with all blocks present, and reports none of those that stay.
    let left = blocks.take_resize().left;
    let came = (0..config.num_blocks as u32).map(BlockId).filter(|block| left.binary_search(block).is_err());
    tell(&Resize { came: came.collect(), left: Vec::new() }, runner);
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The worker catches its own panics, so joining the thread does not fail because of a panic.
            let _ = thread.join();
        }
    }
}
