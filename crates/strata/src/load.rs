//! From a directory, a GGUF file or a packed store to a running engine: check, divide memory, load, start.

mod report;
mod swap;

use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use strata_device::{Bytes, CpuDevice, HostMemory, KvPool};
use strata_engine::{
    Engine, EngineConfig, Limits, MemoryNeeds, MemoryPlan, ModelRunner, PreemptionMode, SchedulerConfig, WeightMemory,
};
use strata_kernels::{DType, KvLayout, LEVEL_VARIABLE, Level};
use strata_kv::KvConfig;
use strata_model::chat_template::ChatTemplate;
use strata_model::config::ModelConfig;
use strata_model::generation_config::GenerationConfig;
use strata_model::gguf::GgufModel;
use strata_model::tokenizer::Tokenizer;
use strata_model::{Model, groups};
use strata_weights::{
    Catalog, CatalogEntry, ElementType, GroupSpec, ResidentWeights, WeightError, WeightSource, model_name, plan_bytes,
};

use crate::needs::{BATCHED_TOKENS, WeightNeeds, batched_tokens, kv_layout, longer_passes, memory_needs, threads};
use crate::options::{LimitOptions, ModelOptions};
use crate::streaming::{self, Streaming};
use crate::{progress, small_files};

/// The model that ships with the repository, as seen from its root.
const BUNDLED_MODEL: &str = "models/storyteller";

/// Most log-probabilities per token that a request may ask for, as in vLLM.
const MAX_LOGPROBS: usize = 20;

/// Widest beam search that a request may ask for, if so many sequences may run at a time.
const MAX_BEAM_WIDTH: usize = 64;

/// Time without a completed step after which `/health` says so. A pass of a large model may take long.
const STALL: Duration = Duration::from_secs(120);

/// The same where weights are streamed, and a pass takes as long as the disk does.
const STALL_STREAMED: Duration = Duration::from_secs(900);

/// Pace at which an idle engine gives memory of cached KV back to streamed weights: all of it within a minute or so. Who
/// comes back sooner, as in a conversation, finds the beginning of the prompt computed.
const IDLE_TURN: Duration = Duration::from_millis(50);

/// Least memory for requests that wait or are being read: bodies, texts, token ids.
pub const REQUEST_BYTES: usize = 128 << 20;

/// Requests that may wait before one more is refused, where nobody says otherwise.
pub const MAX_WAITING: usize = 1024;

/// A model that is ready to serve.
pub struct Loaded {
    /// The weights, if they are streamed. Dropped before the engine, so that it does not finish a pass under way.
    pub streamed: Option<Streaming>,
    pub name: String,
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<Arc<ChatTemplate>>,
    pub generation: GenerationConfig,
    pub config: ModelConfig,
    /// Where it came from.
    pub path: PathBuf,
    /// The memory budget that it keeps to.
    pub budget: Bytes,
    /// The part of it that requests outside the engine may take.
    pub request_bytes: usize,
}

/// What a directory, a GGUF file or a packed store holds, checked, with nothing large in memory yet.
pub struct ModelDir {
    /// The directory, the file or the device.
    pub path: PathBuf,
    pub config: ModelConfig,
    pub generation: GenerationConfig,
    pub catalog: Catalog,
    pub specs: Vec<GroupSpec>,
    pub weight_bytes: Bytes,
}

impl ModelDir {
    /// Opens what the options name, or the bundled model. A directory without safetensors may hold a GGUF model.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => bundled_model()?,
        };
        if !path.is_dir() && !path.is_file() && !is_block_device(&path) {
            bail!(
                "{} is neither a directory nor a file; give a GGUF file, a packed store, or a Hugging Face directory \
                 with config.json, *.safetensors and tokenizer.json, or make one with `strata synth` (a prompt goes \
                 behind --prompt)",
                path.display()
            );
        }
        let opened = match Catalog::open(&path) {
            // A file that cannot be opened, or a GGUF file that is damaged: no directory can mend that.
            Err(error) if !path.is_dir() || matches!(error, WeightError::Gguf { .. }) => return Err(error.into()),
            opened => opened,
        };
        // Before complaints about weights: without a configuration it is no model at all.
        let (mut config, generation) = small_files::configuration(opened.as_ref().ok(), &path)?;
        let catalog = opened?;
        config.settle_head(catalog.get(groups::HEAD_TENSOR).is_some());
        let specs = groups::group_specs(&config);
        if let Some(gguf) = GgufModel::of(&catalog) {
            gguf.check_tensors(&specs)?;
        }
        let weight_bytes = Bytes(plan_bytes(&catalog, &specs)?);
        Ok(Self { path, config, generation, catalog, specs, weight_bytes })
    }

    /// The last part of the path, which clients see as the model's name; of a file, without ending and numbers.
    pub fn name(&self) -> String {
        // A device is called by its bus.
        if let Some(store) = self.catalog.store().filter(|_| is_block_device(&self.path)) {
            return store.manifest().name.clone();
        }
        // A file in a Hub's cache is a link to one that is named by its hash, so links of files are not followed.
        if self.path.is_file()
            && let Ok(absolute) = std::path::absolute(&self.path)
            && let Some(name) = model_name(&absolute)
        {
            return name;
        }
        let absolute = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        absolute.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The types that the model's weights are stored in, with their bytes, those of most bytes first.
    pub fn weight_types(&self) -> Vec<(DType, Bytes)> {
        // Matrices that are coded have room for more patches or fewer, which is no other type to a person.
        self.sum_by_type(|(known, found)| known.name() == found.name(), |dtype, entry| (dtype, entry.bytes))
    }

    /// The type that most weights have, however they are coded: a store has that of what it was packed from.
    pub fn weight_dtype(&self) -> DType {
        let types = self.sum_by_type(
            |(known, found)| known == found,
            |dtype, entry| {
                let (&cols, outer) = entry.shape.split_last().unwrap_or((&1, &[]));
                let rows = outer.iter().fold(1u64, |rows, &dim| rows.saturating_mul(dim as u64));
                let dtype = dtype.decoded();
                (dtype, rows.saturating_mul(dtype.row_bytes(cols).unwrap_or(0) as u64))
            },
        );
        types.first().map(|(dtype, _)| *dtype).or(self.config.dtype).unwrap_or(DType::F32)
    }

    /// The bytes of all weights by type, most first, as `weigh` makes type and bytes of a tensor's.
    fn sum_by_type(
        &self,
        is_same: impl Fn((DType, DType)) -> bool,
        weigh: impl Fn(DType, &CatalogEntry) -> (DType, u64),
    ) -> Vec<(DType, Bytes)> {
        let mut names = HashSet::new();
        let mut types: Vec<(DType, Bytes)> = Vec::new();
        // A tied head is the embedding again.
        for tensor in self.specs.iter().flat_map(|group| &group.tensors).filter(|tensor| names.insert(&tensor.name)) {
            // Loading refuses other types by name.
            let Some(entry) = self.catalog.get(&tensor.name) else { continue };
            let ElementType::Known(dtype) = entry.element_type else { continue };
            let (dtype, bytes) = weigh(dtype, entry);
            match types.iter_mut().find(|(known, _)| is_same((*known, dtype))) {
                Some((_, sum)) => sum.0 = sum.0.saturating_add(bytes),
                None => types.push((dtype, Bytes(bytes))),
            }
        }
        types.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.0));
        types
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        small_files::tokenizer(&self.catalog, &self.path)
    }

    /// The chat template, where the model has one.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        small_files::template(&self.catalog, &self.path)
    }

    /// How a KV block of this model lies in memory under these options.
    pub fn kv_layout(&self, limits: &LimitOptions) -> KvLayout {
        kv_layout(&self.config, self.weight_dtype(), limits)
    }

    /// Divides `total` for an engine under these options.
    ///
    /// # Errors
    /// Options that contradict the model, or a budget that is too small.
    pub fn divide(&self, total: Bytes, limits: &LimitOptions) -> Result<Division> {
        let mut needs = self.needs(limits)?;
        needs.swap = swap::memory(limits, total, self.kv_layout(limits).block_bytes());
        let plan = MemoryPlan::divide(total, &needs)?;
        let division = Division { needs, plan, batched_tokens: batched_tokens(limits, BATCHED_TOKENS) };
        if division.plan.streamed
            && let Some((needs, batched_tokens)) = longer_passes(&self.config, &needs, total, limits)
            && let Ok(plan) = MemoryPlan::divide(total, &needs)
        {
            return Ok(Division { needs, plan, batched_tokens });
        }
        Ok(division)
    }

    /// What the parts of an engine need.
    pub fn needs(&self, limits: &LimitOptions) -> Result<MemoryNeeds> {
        let weights = WeightNeeds {
            dtype: self.weight_dtype(),
            whole: self.weight_bytes,
            streamed: streaming::least_bytes(self)?,
        };
        memory_needs(&self.config, &self.name(), &weights, limits)
    }
}

/// How a budget is divided for a model.
pub struct Division {
    pub needs: MemoryNeeds,
    pub plan: MemoryPlan,
    /// Tokens of one pass.
    pub batched_tokens: usize,
}

/// Opens the model, divides memory, loads the weights and starts the engine, reporting each on stderr. Requests beyond
/// `max_waiting` that wait are refused.
pub fn load(options: &ModelOptions, max_waiting: usize) -> Result<Loaded> {
    let dir = ModelDir::open(options.model.as_deref())?;
    let tokenizer = dir.tokenizer()?;
    if tokenizer.vocab_size() > dir.config.vocab_size {
        // Ids beyond the embedding would be read from beyond its end.
        tracing::warn!(
            "the tokenizer has {} tokens, the model {}; prompts with the tokens beyond are refused",
            tokenizer.vocab_size(),
            dir.config.vocab_size
        );
    }
    let template = dir.template()?.map(Arc::new);
    let name = dir.name();
    let (engine, plan, streamed) = start_engine(&dir, &options.limits, max_waiting)?;
    let (budget, request_bytes) = (plan.budget.total(), usize::try_from(plan.requests.0)?);
    let ModelDir { config, generation, path, .. } = dir;
    Ok(Loaded {
        name,
        engine,
        tokenizer: Arc::new(tokenizer),
        template,
        generation,
        config,
        path,
        budget,
        request_bytes,
        streamed,
    })
}

/// A model in memory, and how the budget around it was divided.
pub struct Runnable {
    pub runner: ModelRunner,
    pub plan: MemoryPlan,
    /// The weights, if they are streamed.
    pub streamed: Option<Streaming>,
    /// Tokens of one pass.
    pub batched_tokens: usize,
}

/// Divides memory and loads the weights.
pub fn load_weights(dir: &ModelDir, limits: &LimitOptions) -> Result<Runnable> {
    let division = dir.divide(limits.memory.unwrap_or_else(default_budget), limits)?;
    let Division { needs, mut plan, batched_tokens } = division;
    report::division(dir, &plan, &needs, limits);

    let layout = dir.kv_layout(limits);
    // Loading takes long: what cannot work is refused before it.
    let swap = swap::open(limits, &plan, needs.swap, layout.block_bytes())?;
    let (source, weights, kv, streamed): (Box<dyn WeightSource>, _, _, _) = if plan.streamed {
        let streaming = streaming::start(dir, plan.weights, &limits.stream)?;
        let weights = Arc::clone(&streaming.weights);
        let trade = plan.trade(&needs, Bytes(weights.least_budget()), Bytes(weights.full_budget()));
        let kv = KvPool::new_sparse(layout, plan.num_blocks_max)?;
        (Box::new(Arc::clone(&weights)), WeightMemory::Streamed { weights, trade }, kv, Some(streaming))
    } else {
        let bar = progress::bytes("loading", dir.weight_bytes.0);
        let weights = ResidentWeights::load(&dir.catalog, &dir.specs, &mut |done, _| bar.set_position(done))?;
        bar.finish_and_clear();
        let memory = WeightMemory::Resident(Bytes(weights.bytes()));
        (Box::new(weights), memory, KvPool::new(layout, plan.num_blocks)?, None)
    };
    report::context(&plan, &needs);
    if let Some(asked) = std::env::var(LEVEL_VARIABLE).ok().filter(|asked| asked != Level::detect().name()) {
        tracing::warn!(
            "{LEVEL_VARIABLE} is {asked:?}, which this machine does not have; using {}",
            Level::detect().name()
        );
    }
    let runner = ModelRunner {
        device: CpuDevice::new(threads(limits), usize::try_from(needs.scratch.0)?)?,
        kv,
        swap,
        model: Model::new(dir.config.clone(), source),
        weights,
    };
    Ok(Runnable { runner, plan, streamed, batched_tokens })
}

fn start_engine(
    dir: &ModelDir,
    limits: &LimitOptions,
    max_waiting: usize,
) -> Result<(Engine, MemoryPlan, Option<Streaming>)> {
    let Runnable { runner, plan, streamed, batched_tokens } = load_weights(dir, limits)?;
    let num_swap_blocks = runner.swap.as_ref().map_or(0, |store| store.num_slots());
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: limits.max_num_seqs.get(),
            max_num_batched_tokens: batched_tokens,
            preemption: limits.swap.as_ref().map_or(PreemptionMode::Auto, |swap| swap.preemption.into()),
        },
        kv: KvConfig { num_swap_blocks, ..kv_config(limits, plan.num_blocks_max) },
        limits: Limits {
            vocab_size: dir.config.vocab_size,
            max_model_len: plan.max_model_len,
            model_context: dir.config.context(),
            kv_capacity_tokens: plan.num_blocks_max * limits.block_size,
            kv_block_tokens: limits.block_size,
            max_logprobs: MAX_LOGPROBS,
            max_beam_width: MAX_BEAM_WIDTH.min(limits.max_num_seqs.get()),
            max_waiting,
        },
        eos_token_ids: dir.generation.end_tokens(&dir.config).to_vec(),
        stall: if streamed.is_some() { STALL_STREAMED } else { STALL },
        idle_turn: IDLE_TURN,
        check_invariants: false,
    };
    Ok((Engine::start(config, Box::new(runner))?, plan, streamed))
}

/// How the block manager is set.
pub fn kv_config(limits: &LimitOptions, num_blocks: usize) -> KvConfig {
    KvConfig {
        num_blocks,
        block_size: limits.block_size,
        prefix_caching: !limits.no_prefix_caching,
        seed: random_seed(),
        ..KvConfig::default()
    }
}

/// Looks for the bundled model below the working directory and below the folders that the program lies in, so that it
/// is found from a checkout's root, from a folder inside it, and by the built binary wherever it is called from.
fn bundled_model() -> Result<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors())
        .map(|folder| folder.join(BUNDLED_MODEL))
        .find(|path| path.join("config.json").exists())
        .with_context(|| format!("the bundled model ({BUNDLED_MODEL}) was not found; give a model as the argument"))
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// What Strata takes where nobody says how much.
pub fn default_budget() -> Bytes {
    let memory = HostMemory::read();
    // Something must be left to the rest of the machine. A cgroup's limit is ours alone, but for page tables and buffers
    // of the kernel that count towards it too.
    let available = memory.available.saturating_add(memory.resident) / 10 * 9;
    Bytes(memory.cgroup_limit.map_or(available, |limit| (limit / 100 * 97).min(available)))
}

/// Different in every process, so that hash collisions cannot be prepared ahead (K2).
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
