//! Loads a model from a directory, a GGUF file or a packed store: checks it, divides memory, loads the weights and
//! starts the engine.

pub mod report;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_device::{Budget, Bytes, Cpu, KvPool};
use interbed_engine::{
    Attachments, Engine, EngineConfig, Limits, MemoryPlan, ModelRunner, PreemptionMode, Runner, SchedulerConfig,
    WeightMemory, blocks_beside_disk,
};
use interbed_kernels::{KvLayout, LEVEL_VARIABLE, Level};
use interbed_kv::KvConfig;
use interbed_model::Pooling;
use interbed_model::chat_template::ChatTemplate;
use interbed_model::config::ModelConfig;
use interbed_model::generation_config::GenerationConfig;
use interbed_model::tokenizer::Tokenizer;
use interbed_server::ModelFacts;
use interbed_weights::{ResidentWeights, WeightSource};

use crate::audience::{Audience, Surroundings};
use crate::budget::budget;
use crate::lower_tiers::{Below, LowerTiers};
use crate::model_dir::{Division, ModelDir};
use crate::model_facts::model_facts;
use crate::needs::{self, kv_config, threads};
use crate::opened::Opened;
use crate::options::{KvLayoutOption, LimitOptions};
use crate::progress::Loading;
use crate::streaming::{self, Streaming};
use crate::{gpu, kv_events, routing, small_files, swap};

/// The maximum number of log-probabilities per token that a request may ask for, as in vLLM.
const MAX_LOGPROBS: usize = 20;

/// The maximum width of a beam search, if as many sequences may run at a time.
const MAX_BEAM_WIDTH: usize = 64;

/// The time without a completed step after which `/health` reports a stalled engine. A pass of a large model may take
/// long.
const STALL: Duration = Duration::from_secs(120);

/// The time without a completed step after which `/health` reports a stalled engine if weights are streamed: a pass
/// then takes as long as the disk needs.
const STALL_STREAMED: Duration = Duration::from_secs(900);

/// The pace at which an idle engine returns memory that KV does not need to streamed weights. All of this memory is
/// returned within about a minute.
const IDLE_TURN: Duration = Duration::from_millis(50);

/// The default of the maximum number of requests that wait. A further request is refused.
pub const MAX_WAITING: usize = 1024;

/// The maximum number of bytes of KV blocks that are made resident at the start.
const KV_TOUCHED: usize = 1 << 30;

/// A model that is ready to serve.
pub struct Loaded {
    /// The weights, if they are streamed. The field comes before `engine`, so that it is dropped first and a pass in
    /// progress is not finished.
    pub streamed: Option<Streaming>,
    /// The model's name.
    pub name: String,
    /// The engine that computes requests.
    pub engine: Engine,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// The model's sampling defaults.
    pub generation: GenerationConfig,
    /// The ids of the tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// The way in which the model pools hidden states for embeddings, or the reason why it makes none.
    pub pooling: Result<Pooling, String>,
    /// The shape of the model.
    pub config: ModelConfig,
    /// The facts about the model that the server tells its clients.
    pub facts: ModelFacts,
    /// The memory budget and its parts.
    pub budget: Budget,
    /// The number of bytes of all weights, in memory and on disk.
    pub model_bytes: u64,
    /// The processor's threads and instruction level, as text.
    pub processor: String,
    /// The number of bytes that requests may hold outside the engine.
    pub request_bytes: usize,
    /// The number of schemas and grammars that may be compiled at a time.
    pub schemas: usize,
}

/// Divides memory for an open model and its audience, loads the weights and starts the engine, and reports each on
/// stderr. If more than `max_waiting` requests wait, further ones are refused.
pub fn load(opened: Opened, limits: &LimitOptions, audience: Audience<'_>, max_waiting: usize) -> Result<Loaded> {
    let Opened { mut dir, tokenizer, template, footprint } = opened;
    let name = dir.name();
    dir.config.blueprint.settle_length(limits.max_model_len.map_or(usize::MAX, |asked| asked.get()));
    if LowerTiers::are_wanted(limits) {
        dir.identify();
    }
    let surroundings = Surroundings { footprint, audience };
    let (engine, plan, streamed, on_gpu) = start_engine(&dir, limits, &surroundings, max_waiting)?;
    let facts = model_facts(&dir, on_gpu && streamed.is_none());
    let (budget, request_bytes) = (plan.budget, usize::try_from(plan.requests.0)?);
    let model_bytes = dir.catalog.bytes();
    let processor = format!("{} threads, {}", threads(limits), Level::detect().name());
    let pooling = small_files::pooling(&dir.catalog, &dir.path);
    let ModelDir { config, generation, end_tokens, .. } = dir;
    Ok(Loaded {
        name,
        engine,
        tokenizer,
        template,
        generation,
        end_tokens,
        pooling,
        config,
        facts,
        budget,
        model_bytes,
        processor,
        request_bytes,
        schemas: plan.schemas,
        streamed,
    })
}

/// A model in memory, with the division of its budget.
pub struct Runnable {
    /// The runner that computes passes.
    pub runner: ModelRunner,
    /// The division of the memory budget.
    pub plan: MemoryPlan,
    /// The weights, if they are streamed.
    pub streamed: Option<Streaming>,
    /// The maximum number of tokens in one pass.
    pub batched_tokens: usize,
    /// The tiers of KV below memory.
    pub below: Below,
}

/// Divides memory and loads the weights into host memory.
pub fn load_weights(dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>) -> Result<Runnable> {
    let division = dir.divide(budget(limits)?, limits, surroundings)?;
    let Division { needs, mut plan, batched_tokens } = division;
    report::division(dir, &plan, &needs, limits);

    let layout = dir.kv_layout(limits);
    // Loading takes long, so options that cannot work are refused before it.
    let swap = swap::open(limits, &plan, needs.swap, &layout)?;
    let computes = Level::detect().name();
    let routes = limits.stream.record_routing.as_ref().map(|path| routing::record(dir, path)).transpose()?;
    let lower_tiers = LowerTiers::prepare(dir.identified(), limits, plan.budget.total(), &layout, computes)?;
    let (source, weights, kv, streamed, below): (Box<dyn WeightSource>, _, _, _, _) = if plan.streamed {
        // Until weights and KV are allocated, all memory is free except the process's own.
        let room = Bytes(plan.budget.total().0.saturating_sub(needs.process.0));
        let (weights, streaming) = streaming::start(dir, plan.weights, room, limits, lower_tiers.turns(&dir.catalog))?;
        let trade = plan.trade(&needs, Bytes(weights.least_budget()), Bytes(weights.full_budget()));
        let kv = kv_pool(layout, &plan, limits)?;
        let monitor = Arc::clone(&streaming.monitor);
        (Box::new(weights), WeightMemory::Streamed { monitor, trade }, kv, Some(streaming), lower_tiers.open_known()?)
    } else {
        let loading = Loading::begin(limits.watch.clone());
        let weights = ResidentWeights::load(&dir.catalog, &dir.specs, &mut |done, all| loading.set(done, all))?;
        drop(loading);
        let memory = WeightMemory::Resident(Bytes(weights.bytes()));
        let mut kv = kv_pool(layout, &plan, limits)?;
        // A prefix that is on disk should not have to wait for its memory to become resident.
        let tiers = lower_tiers.open_loaded()?;
        let found = tiers.kv_disk.as_ref().map_or(0, |disk| disk.tier.recovered().blocks);
        kv.touch(found.min(KV_TOUCHED / kv.layout().block_bytes()), threads(limits).get());
        (Box::new(weights), memory, kv, None, Below::Now(tiers))
    };
    if let Some(asked) = std::env::var(LEVEL_VARIABLE).ok().filter(|asked| asked != Level::detect().name()) {
        tracing::warn!(
            "{LEVEL_VARIABLE} is {asked:?}, which this machine does not have; using {}",
            Level::detect().name()
        );
    }
    let cpu = Cpu::new(threads(limits));
    let mut runner = ModelRunner::on_cpu(dir.config.blueprint.clone(), source, weights, kv, cpu, batched_tokens)?;
    if let Some(routes) = routes {
        runner.model.tell_routes(routes);
    }
    runner.swap = swap;
    if let Some(strips) = &mut runner.strips {
        strips.hiding = limits.hiding;
    }
    Ok(Runnable { runner, plan, streamed, batched_tokens, below })
}

/// Allocates the memory of KV blocks.
fn kv_pool(layout: KvLayout, plan: &MemoryPlan, limits: &LimitOptions) -> Result<KvPool> {
    // If weights are streamed, KV and weights trade memory, so the pool has the maximum number of blocks and is
    // sparse.
    let (num_blocks, sparse) = (if plan.streamed { plan.num_blocks_max } else { plan.num_blocks }, plan.streamed);
    let shape = needs::strips(limits, layout.block_size(), plan.max_model_len, num_blocks);
    Ok(match (limits.kv_layout, sparse) {
        (KvLayoutOption::Virtual, _) => KvPool::new_in_strips(layout, num_blocks, shape).context(
            "there are no addresses for --kv-layout virtual; give a smaller --max-model-len or --max-num-seqs, or take \
             --kv-layout paged",
        )?,
        (KvLayoutOption::Paged, true) => KvPool::new_sparse(layout, num_blocks)?,
        (KvLayoutOption::Paged, false) => KvPool::new(layout, num_blocks)?,
    })
}

/// A model on the device that the options name, with the other values that an engine is started with.
pub struct Started {
    /// The runner that computes passes.
    pub runner: Box<dyn Runner>,
    /// The division of the memory budget.
    pub plan: MemoryPlan,
    /// Streams weights that do not fit into memory. Dropping it stops every pass.
    pub streamed: Option<Streaming>,
    /// The maximum number of tokens in one pass.
    pub batched_tokens: usize,
    on_gpu: bool,
    below: Below,
    block_size: usize,
    num_swap_blocks: usize,
}

impl Started {
    /// Divides memory and loads the weights onto the device.
    pub fn new(dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>) -> Result<Self> {
        let on_gpu = gpu::load(dir, limits, surroundings)?;
        if let Some(gpu::OnGpu { runner, plan, streamed, batched_tokens, block_size, below }) = on_gpu {
            let num_swap_blocks = runner.swap.as_ref().map_or(0, |store| store.num_slots());
            let runner = Box::new(runner);
            let on_gpu = true;
            return Ok(Self { runner, plan, streamed, batched_tokens, on_gpu, below, block_size, num_swap_blocks });
        }
        let Runnable { runner, plan, streamed, batched_tokens, below } = load_weights(dir, limits, surroundings)?;
        let block_size = runner.device.kv().layout().block_size();
        let num_swap_blocks = runner.swap.as_ref().map_or(0, |store| store.num_slots());
        let (runner, on_gpu) = (Box::new(runner), false);
        Ok(Self { runner, plan, streamed, batched_tokens, on_gpu, below, block_size, num_swap_blocks })
    }
}

/// Starts the engine. Also returns the division of memory, the weights if they are streamed, and whether a GPU
/// computes.
fn start_engine(
    dir: &ModelDir,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
    max_waiting: usize,
) -> Result<(Engine, MemoryPlan, Option<Streaming>, bool)> {
    // Loading takes long, so options that cannot work are refused before it.
    let publisher = kv_events::bind(limits.kv_events.as_ref())?;
    let Started { runner, plan, streamed, batched_tokens, on_gpu, below, block_size, num_swap_blocks } =
        Started::new(dir, limits, surroundings)?;
    // KV that memory does not hold is read from disk in each pass.
    let on_disk = below.long_tokens()?;
    let is_beside = blocks_beside_disk(block_size, batched_tokens) <= plan.num_blocks_max;
    let context = limits.max_model_len.map_or(dir.config.blueprint.context, |asked| asked.get());
    let max_model_len = if is_beside { plan.max_model_len.max(context.min(on_disk)) } else { plan.max_model_len };
    report::context(&plan, max_model_len, context, limits);
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: limits.max_num_seqs.get(),
            max_num_batched_tokens: batched_tokens,
            preemption: limits.swap.as_ref().map_or(PreemptionMode::Auto, |swap| swap.preemption.into()),
            max_token_gap: limits.max_token_gap,
        },
        kv: KvConfig { num_swap_blocks, ..kv_config(limits, block_size, plan.num_blocks_max) },
        limits: Limits {
            vocab_size: dir.config.blueprint.vocab_size,
            max_model_len,
            model_context: dir.config.blueprint.context,
            kv_capacity_tokens: plan.num_blocks_max * block_size,
            kv_block_tokens: block_size,
            max_logprobs: MAX_LOGPROBS,
            max_beam_width: MAX_BEAM_WIDTH.min(limits.max_num_seqs.get()),
            max_waiting,
        },
        eos_token_ids: dir.end_tokens.clone(),
        stall: if streamed.is_some() { STALL_STREAMED } else { STALL },
        idle_turn: IDLE_TURN,
        check_invariants: false,
    };
    let cache_watcher = publisher.map(|publisher| kv_events::tell(publisher, block_size));
    let (below, later) = below.attachments()?;
    let attachments = Attachments { below, later, cache_watcher };
    Ok((Engine::start_with(config, runner, attachments)?, plan, streamed, on_gpu))
}
