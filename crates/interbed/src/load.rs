//! Loads a model from a directory, a GGUF file or a packed store: checks it, divides memory, loads the weights and
//! starts the engine.

pub mod report;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_device::{Bytes, Device, DeviceError};
use interbed_engine::{
    Attachments, Engine, EngineConfig, Limits, MemoryPlan, ModelRunner, PreemptionMode, SchedulerConfig, WeightMemory,
    blocks_beside_disk,
};
use interbed_kernels::Level;
use interbed_kv::{KvConfig, TailConfig};
use interbed_kv_events::EventPublisher;
use interbed_model::Pooling;
use interbed_model::chat_template::ChatTemplate;
use interbed_model::config::ModelConfig;
use interbed_model::generation_config::GenerationConfig;
use interbed_model::tokenizer::Tokenizer;
use interbed_server::ModelFacts;
use interbed_weights::{ElasticWeights, ResidentWeights, WeightSource};

use crate::audience::{Audience, Surroundings};
use crate::budget::budget;
use crate::division::Division;
use crate::gpu::GpuPlace;
use crate::lower_tiers::{Below, LowerTiers};
use crate::model_dir::ModelDir;
use crate::model_facts::model_facts;
use crate::needs::{kv_config, threads};
use crate::opened::Opened;
use crate::options::LimitOptions;
use crate::place::{ComputePlace, Processor};
use crate::progress::Loading;
use crate::streaming::{self, Streaming};
use crate::swap::SwapPlace;
use crate::{kv_events, routing, small_files, swap};

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
    /// The division of the memory budget.
    pub plan: MemoryPlan,
    /// The number of bytes of all weights, in memory and on disk.
    pub model_bytes: u64,
    /// The processor's threads and instruction level, as text.
    pub processor: String,
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
    // Loading takes long, so options that cannot work are refused before it.
    let publisher = kv_events::bind(limits.kv_events.as_ref())?;
    let runnable = Runnable::new(&dir, limits, &Surroundings { footprint, audience })?;
    let on_gpu = runnable.division.device.is_some() && runnable.streamed.is_none();
    let facts = model_facts(&dir, on_gpu);
    let (engine, plan, streamed) = start_engine(runnable, &dir, limits, publisher, max_waiting)?;
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
        plan,
        model_bytes,
        processor,
        streamed,
    })
}

/// A model in memory, with the division of its budget.
pub struct Runnable {
    /// The runner that computes passes.
    pub runner: ModelRunner<Box<dyn Device>>,
    /// The division of memory. The device has memory, or addresses, for at least its number of KV blocks.
    pub division: Division,
    /// What layers keep besides the KV of all tokens.
    pub tails: Vec<TailConfig>,
    /// Streams weights that do not fit into memory. Dropping it stops every pass.
    pub streamed: Option<Streaming>,
    /// The tiers of KV below memory.
    pub below: Below,
    /// The place that preempted KV is swapped to.
    pub swap: SwapPlace,
}

impl Runnable {
    /// Divides memory and loads the weights onto the device that the options name.
    pub fn new(dir: &ModelDir, limits: &LimitOptions, surroundings: &Surroundings<'_>) -> Result<Self> {
        match GpuPlace::chosen(dir, limits)? {
            Some(gpu) => load_onto(&gpu, dir, limits, surroundings),
            None => load_onto(&Processor, dir, limits, surroundings),
        }
    }
}

/// Divides memory and loads the weights onto the device of `place`.
pub fn load_onto(
    place: &dyn ComputePlace,
    dir: &ModelDir,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
) -> Result<Runnable> {
    let needs = dir.needs(limits, surroundings)?;
    let mut division = Division::of(&needs, budget(limits)?, place.memory(dir, limits)?)?;
    report::division(dir, &division, limits);
    let layout = needs.layout.clone();
    let block_bytes = layout.block_bytes().max(1);
    // Loading takes long, so options that cannot work are refused before it.
    let routes = limits.stream.record_routing.as_ref().map(|path| routing::record(dir, path)).transpose()?;
    let total = division.plan.budget.total();
    let lower_tiers = LowerTiers::prepare(dir.identified(), limits, total, &needs.stored(), &place.computes())?;
    let swap = swap::open(limits, &division.plan, division.needs.swap, &layout, lower_tiers.num_slots())?;
    let mut device = place.open(dir, &division, layout, limits)?;
    let (source, weights, mut streamed) = if division.is_streamed() {
        let turns = lower_tiers.turns(&dir.catalog);
        // Weights take all the memory that they are given, so KV comes first.
        let num_blocks = division.plan.num_blocks;
        if device.reserve_blocks(0, num_blocks)? < num_blocks {
            return Err(DeviceError::Full).context("there is no memory for KV; give less --gpu-memory");
        }
        let (mut source, streaming) = streaming::start(&mut device, dir, &division, limits, turns)?;
        let limits = |weights: &mut dyn ElasticWeights| (Bytes(weights.least_budget()), Bytes(weights.full_budget()));
        // On a device, memory that groups of blocks share stays with them.
        let trades = needs.tails.is_empty() || !device.has_own_memory();
        let elastic = source.elastic().filter(|_| trades);
        let trade = elastic.map(limits).map(|(least, most)| division.trade(least, most));
        let monitor = Some(Arc::clone(&streaming.monitor));
        (source, WeightMemory { bytes: Bytes(streaming.resident), monitor, trade }, Some(streaming))
    } else {
        let loading = Loading::begin(limits.watch.clone());
        let progress = &mut |done, all| loading.set(done, all);
        let weights = ResidentWeights::load_on(&mut device, &dir.catalog, &dir.specs, progress)?;
        drop(loading);
        let memory = WeightMemory::resident(Bytes(weights.bytes()));
        (Box::new(weights) as Box<dyn WeightSource>, memory, None)
    };
    let mut runner = ModelRunner::new(device, dir.config.blueprint.clone(), source, weights);
    if let Some(routes) = routes {
        runner.model.tell_routes(routes);
    }
    if let Some(strips) = &mut runner.strips {
        strips.hiding = limits.hiding;
    }
    if let Some(streaming) = streamed.as_mut().filter(|_| limits.stream.timeline) {
        streaming.device = Some(runner.keep_timeline()?);
    }
    let below = match streamed {
        Some(_) => lower_tiers.open_known()?,
        None => {
            let tiers = lower_tiers.open_loaded()?;
            // A prefix that is on disk should not have to wait for its memory to become resident.
            runner.device.prepare_blocks(0, tiers.found().min(KV_TOUCHED / block_bytes));
            Below::Now(tiers)
        }
    };
    Ok(Runnable { runner, division, tails: needs.tails, streamed, below, swap })
}

/// Starts the engine. Also returns the division of memory, and the weights if they are streamed.
fn start_engine(
    runnable: Runnable,
    dir: &ModelDir,
    limits: &LimitOptions,
    publisher: Option<EventPublisher>,
    max_waiting: usize,
) -> Result<(Engine, MemoryPlan, Option<Streaming>)> {
    let Runnable { runner, division, tails, streamed, below, swap } = runnable;
    let Division { needs, plan, batched_tokens, .. } = division;
    let block_size = needs.block_size;
    // KV that memory does not hold is read from disk in each pass.
    let on_disk = below.long_tokens()?;
    let least = blocks_beside_disk(block_size, batched_tokens) + needs.blocks_beside;
    let is_beside = least <= plan.num_blocks_max;
    let context = limits.max_model_len.map_or(dir.config.blueprint.context, |asked| asked.get());
    let max_model_len = if is_beside { plan.max_model_len.max(context.min(on_disk)) } else { plan.max_model_len };
    report::context(&plan, max_model_len, context, limits);
    // Blocks of further groups are numbered behind those that the device has.
    let groups = runner.device.block_groups();
    let num_blocks = if tails.is_empty() { plan.num_blocks_max } else { groups.groups()[0].num_blocks() };
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: limits.max_num_seqs.get(),
            max_num_batched_tokens: batched_tokens,
            preemption: limits.swap.as_ref().map_or(PreemptionMode::Auto, |swap| swap.preemption.into()),
            max_token_gap: limits.max_token_gap,
        },
        kv: KvConfig {
            num_swap_blocks: swap.num_slots,
            tails,
            block_bytes: groups.trunk().block_bytes(),
            pass_tokens: batched_tokens,
            ..kv_config(limits, block_size, num_blocks)
        },
        limits: Limits {
            vocab_size: dir.config.blueprint.vocab_size,
            max_model_len,
            model_context: dir.config.blueprint.context,
            kv_capacity_tokens: plan.num_blocks_max * block_size,
            kv_block_tokens: block_size,
            kv_blocks_beside: needs.blocks_beside,
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
    let swap = swap.store.map(|store| Box::new(store) as _);
    let attachments = Attachments { below, later, swap, cache_watcher };
    Ok((Engine::start_with(config, Box::new(runner), attachments)?, plan, streamed))
}
