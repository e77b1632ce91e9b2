//! The memory that a model needs under the options of a command. All commands that load a model, plan it or tell of it
//! make this value, and read the least budget from it. The weights themselves need not exist.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use interbed_device::{Bytes, HUGE_PAGE, KvPool, StripShape, page_size, usable_cores};
use interbed_engine::{LATE_MAX, LEAST_CONTEXT, MemoryNeeds, MemoryPlan, SchemaNeeds};
use interbed_kernels::{DType, KvDType, KvLayout};
use interbed_kv::{BLOCK_SIZE_MAX, KvConfig, TailConfig, TailParts};
use interbed_model::Model;
use interbed_model::config::ModelConfig;
use interbed_server::{COMPILED_BYTES, COMPILING_BYTES, COMPILING_MAX};

use crate::audience::{Audience, Surroundings};
use crate::failure::Advised;
use crate::lower_tiers::LowerTiers;
use crate::options::{KvDtype, KvLayoutOption, LimitOptions};
use crate::seed::random_seed;
use crate::tier_kind::StoredKv;
use crate::{kv_events, swap, tails};

/// The default of the maximum number of tokens in one pass.
pub const BATCHED_TOKENS: usize = 512;

/// The default of the maximum number of tokens in one pass if weights are streamed: about as many as can be computed
/// while the weights of a pass are read.
const BATCHED_TOKENS_STREAMED: usize = 1024;

/// The scratch memory of longer passes may take one part in this many of the budget.
const SCRATCH_SHARE: u64 = 16;

/// The number of bytes that the block manager needs for a KV block, besides its content and its token ids: list links,
/// hash, index entry.
const BLOCK_BOOKKEEPING: u64 = 192;

/// A model as far as its needs of memory follow from it.
pub struct WeighedModel<'a> {
    /// The name in messages.
    pub name: String,
    /// The shape of the model.
    pub config: &'a ModelConfig,
    /// The type of most weights.
    pub dtype: DType,
    /// The number of bytes of all weights.
    pub weights: Bytes,
    /// The minimum memory with which the weights can be streamed.
    pub weights_streamed: Bytes,
}

/// What a model needs under the options of a command: of host memory if the processor computes, and as the figures from
/// which the needs of a device and of the host beside it follow.
pub struct Needs<'a> {
    /// The shape of the model.
    pub config: &'a ModelConfig,
    /// The options.
    pub limits: &'a LimitOptions,
    /// Who sends prompts.
    pub audience: Audience<'a>,
    /// The layout of KV blocks.
    pub layout: KvLayout,
    /// What layers keep besides the KV of all tokens.
    pub tails: Vec<TailConfig>,
    /// The needs of host memory, except for those that grow with the budget.
    fixed: MemoryNeeds,
}

impl<'a> Needs<'a> {
    /// Returns what `model` needs.
    ///
    /// # Errors
    /// Fails if the options contradict the model.
    pub fn of(model: WeighedModel<'a>, limits: &'a LimitOptions, surroundings: &Surroundings<'a>) -> Result<Self> {
        let WeighedModel { name, config, dtype, weights, weights_streamed } = model;
        // The block size is checked first, because everything below divides and multiplies by it.
        kv_config(limits, limits.block_size.unwrap_or(BLOCK_SIZE), 1).check().context("--block-size cannot be used")?;
        let context = config.blueprint.context;
        let max_model_len = limits.max_model_len.map_or(context, |asked| asked.get());
        if max_model_len > context {
            bail!("--max-model-len is {max_model_len}, but {name} has a context of {context}; ask for at most that");
        }
        let layout = kv_layout(config, dtype, limits);
        let tails = tails::of(&config.blueprint, &layout);
        let mut block_bytes = layout.block_bytes() + layout.block_size() * size_of::<u32>();
        if limits.kv_layout == KvLayoutOption::Virtual {
            block_bytes += layout.block_bytes() / page_size() * PAGE_TABLES;
        }
        let Surroundings { footprint, audience } = *surroundings;
        let serves_many = matches!(audience, Audience::Clients);
        let vocab_size = config.blueprint.vocab_size;
        let fixed = MemoryNeeds {
            process: Bytes(
                footprint.computing(threads(limits).get(), vocab_size, serves_many).0
                    + kv_events::memory(limits.kv_events.as_ref()).0,
            ),
            opening: footprint.opening,
            weights,
            weights_streamed,
            scratch: pass_bytes(config, batched_tokens(limits, BATCHED_TOKENS), limits),
            requests: audience.least(),
            schemas: if serves_many { schemas(vocab_size) } else { SchemaNeeds::default() },
            swap: Bytes(0),
            block_returnable: Bytes(KvPool::returnable_bytes(layout.block_bytes()) as u64),
            block: Bytes(block_bytes as u64 + BLOCK_BOOKKEEPING),
            blocks_most: usize::MAX,
            block_size: layout.block_size(),
            blocks_beside: tails::blocks_beside(&tails, &layout, batched_tokens(limits, BATCHED_TOKENS), max_model_len),
            max_model_len,
            max_num_seqs: limits.max_num_seqs.get(),
        };
        Ok(Self { config, limits, audience, layout, tails, fixed })
    }

    /// Returns the needs within a budget of `total` bytes of host memory, in which the processor computes.
    pub fn within(&self, total: Bytes) -> MemoryNeeds {
        let swap = self.lower_memory(self.limits, total);
        let blocks_most = self.blocks_within(swap, self.fixed.block);
        MemoryNeeds { swap, blocks_most, ..self.fixed }
    }

    /// Returns the most blocks of `block` bytes that `--kv-memory` has room for beside `buffers` bytes.
    pub fn blocks_within(&self, buffers: Bytes, block: Bytes) -> usize {
        let blocks = self.limits.kv_memory.map(|memory| memory.0.saturating_sub(buffers.0) / block.0);
        blocks.map_or(usize::MAX, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX))
    }

    /// Returns the least budget of host memory in which the processor can compute, in whole mebibytes. All commands and
    /// error messages tell this number.
    pub fn least(&self) -> Bytes {
        MemoryPlan::least_within(&|total| self.within(total))
    }

    /// Returns the scratch memory and the number of tokens of longer passes, which are worth it if weights are
    /// streamed. Returns `None` if the user sets the number of tokens, or if scratch memory would take too much of
    /// `total` bytes.
    pub fn longer_passes(&self, total: Bytes) -> Option<(Bytes, usize)> {
        let more = batched_tokens(self.limits, BATCHED_TOKENS_STREAMED);
        let scratch = pass_bytes(self.config, more, self.limits);
        let is_worth_it = more != batched_tokens(self.limits, BATCHED_TOKENS) && scratch.0 <= total.0 / SCRATCH_SHARE;
        is_worth_it.then_some((scratch, more))
    }

    /// Checks that `--kv-memory` has room for a useful context, within a budget of `total` bytes.
    ///
    /// # Errors
    /// Fails if it has not.
    pub fn check_kv_memory(&self, total: Bytes) -> Result<()> {
        let (needs, Some(memory)) = (self.within(total), self.limits.kv_memory) else { return Ok(()) };
        let least = needs.max_model_len.min(LEAST_CONTEXT);
        if needs.blocks_most.saturating_sub(needs.blocks_beside).saturating_mul(needs.block_size) >= least {
            return Ok(());
        }
        let blocks = (least.div_ceil(needs.block_size) + needs.blocks_beside) as u64 * needs.block.0;
        // Buffers for swapping grow with `--kv-memory`, but more slowly.
        let mut smallest = Bytes(0);
        loop {
            let limits = LimitOptions { kv_memory: Some(smallest), ..self.limits.clone() };
            let buffers = self.lower_memory(&limits, total);
            let needed = buffers.0.saturating_add(blocks).div_ceil(1 << 20) << 20;
            if needed <= smallest.0 {
                break;
            }
            smallest = Bytes(needed);
        }
        Err(Advised::input(
            format!("--kv-memory {memory} has no room for {least} tokens of context"),
            format!("give --kv-memory {}M or more", smallest.0 >> 20),
        ))
    }

    /// Returns the host memory of the buffers through which KV goes to lower tiers and comes back, and of the
    /// bookkeeping of these tiers, under `limits` and within a budget of `total` bytes.
    fn lower_memory(&self, limits: &LimitOptions, total: Bytes) -> Bytes {
        let swap = swap::memory(limits, total, &self.layout);
        Bytes(swap.0.saturating_add(LowerTiers::memory(limits, total, &self.stored()).0))
    }

    /// Returns the model's KV as tiers below memory store it.
    pub fn stored(&self) -> StoredKv<'_> {
        StoredKv { layout: &self.layout, together: TailParts::most(&self.tails, self.layout.block_size()).max(1) }
    }
}

/// Returns the scratch memory of passes of `tokens` tokens on the processor.
fn pass_bytes(config: &ModelConfig, tokens: usize, limits: &LimitOptions) -> Bytes {
    Bytes(Model::pass_bytes(&config.blueprint, tokens, tokens, threads(limits)) as u64)
}

/// The number of bytes of page tables for one page of a block: an entry where the block is, and on average four entries
/// in strips.
const PAGE_TABLES: usize = 5 * size_of::<u64>();

/// Returns the configuration of the block manager.
pub fn kv_config(limits: &LimitOptions, block_size: usize, num_blocks: usize) -> KvConfig {
    KvConfig {
        num_blocks,
        block_size,
        prefix_caching: !limits.no_prefix_caching,
        seed: random_seed(),
        ..KvConfig::default()
    }
}

/// Returns the layout of KV blocks under these options, for weights mostly of type `weights`.
pub fn kv_layout(config: &ModelConfig, weights: DType, limits: &LimitOptions) -> KvLayout {
    let dtype = match limits.kv_dtype {
        KvDtype::Auto => KvDType::beside(weights),
        KvDtype::F32 => KvDType::F32,
        KvDtype::F16 => KvDType::F16,
        KvDtype::Bf16 => KvDType::BF16,
        KvDtype::Q8 => KvDType::Q8,
    };
    let of = |block_size| Model::kv_layout(&config.blueprint, block_size, dtype);
    match (limits.kv_layout, limits.block_size) {
        (KvLayoutOption::Paged, asked) => of(asked.unwrap_or(BLOCK_SIZE)),
        (KvLayoutOption::Virtual, Some(asked)) => of(asked).in_pages(page_size()),
        (KvLayoutOption::Virtual, None) => {
            let mut sizes = (BLOCK_SIZE.ilog2()..=BLOCK_SIZE_MAX.ilog2()).map(|log| of(1 << log));
            let in_huge_pages = |layout: &KvLayout| layout.block_bytes().is_multiple_of(HUGE_PAGE);
            let layout = sizes.find(in_huge_pages);
            layout.unwrap_or_else(|| of(BLOCK_SIZE).in_pages(page_size()))
        }
    }
}

/// The default number of tokens in a block.
const BLOCK_SIZE: usize = 16;

/// Returns the shape of the strips in which the KV of sequences of up to `max_model_len` tokens is mapped. There are
/// more strips than sequences that run at a time: the others keep the KV of ended sequences for later requests with
/// the same prefix.
pub fn strips(limits: &LimitOptions, block_size: usize, max_model_len: usize, num_blocks: usize) -> StripShape {
    let blocks = max_model_len.div_ceil(block_size).min(num_blocks);
    StripShape { count: 2 * limits.max_num_seqs.get() + 1, blocks }
}

/// Returns the memory for schemas and grammars, and for logits of answers whose schemas take long to compile.
fn schemas(vocab_size: usize) -> SchemaNeeds {
    let late = (LATE_MAX * size_of::<f32>()) as u64 * vocab_size as u64;
    SchemaNeeds {
        in_use: Bytes(COMPILED_BYTES as u64 + late),
        compiling: Bytes(COMPILING_BYTES as u64),
        most: COMPILING_MAX,
    }
}

/// Returns the maximum number of tokens in one pass. Each running sequence has room for one token in the pass.
pub fn batched_tokens(limits: &LimitOptions, default: usize) -> usize {
    limits.max_num_batched_tokens.map_or(default, usize::from).max(limits.max_num_seqs.get())
}

/// Returns the number of threads that compute.
pub fn threads(limits: &LimitOptions) -> NonZeroUsize {
    limits.threads.unwrap_or_else(usable_cores)
}
