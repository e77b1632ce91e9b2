//! The memory that the parts of an engine need, for a model and options. The weights themselves need not exist.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use interbed_device::{Bytes, HUGE_PAGE, KvPool, StripShape, page_size, usable_cores};
use interbed_engine::{LATE_MAX, MemoryNeeds, SchemaNeeds};
use interbed_kernels::{DType, KvDType, KvLayout};
use interbed_kv::{BLOCK_SIZE_MAX, KvConfig};
use interbed_model::Model;
use interbed_model::config::ModelConfig;
use interbed_server::{COMPILED_BYTES, COMPILING_BYTES, COMPILING_MAX};

use crate::audience::{Audience, Surroundings};
use crate::kv_events;
use crate::options::{KvDtype, KvLayoutOption, LimitOptions};
use crate::seed::random_seed;

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

/// The facts about the weights that the division of memory needs.
pub struct WeightNeeds {
    /// The type of most weights.
    pub dtype: DType,
    /// The number of bytes of all weights.
    pub whole: Bytes,
    /// The minimum memory with which the weights can be streamed.
    pub streamed: Bytes,
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

/// Returns the memory that the parts of an engine need for the model called `name`.
pub fn memory_needs(
    config: &ModelConfig,
    name: &str,
    weights: &WeightNeeds,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
) -> Result<MemoryNeeds> {
    // The block size is checked first, because everything below divides and multiplies by it.
    kv_config(limits, limits.block_size.unwrap_or(BLOCK_SIZE), 1).check().context("--block-size cannot be used")?;
    let context = config.blueprint.context;
    let max_model_len = limits.max_model_len.map_or(context, |asked| asked.get());
    if max_model_len > context {
        bail!("--max-model-len is {max_model_len}, but {name} has a context of {context}; ask for at most that");
    }
    let (sequences, tokens) = (limits.max_num_seqs.get(), batched_tokens(limits, BATCHED_TOKENS));
    let layout = kv_layout(config, weights.dtype, limits);
    let mut block_bytes = layout.block_bytes() + layout.block_size() * size_of::<u32>();
    if limits.kv_layout == KvLayoutOption::Virtual {
        block_bytes += layout.block_bytes() / page_size() * PAGE_TABLES;
    }
    let Surroundings { footprint, audience } = surroundings;
    let serves_many = matches!(audience, Audience::Clients);
    Ok(MemoryNeeds {
        process: Bytes(
            footprint.computing(threads(limits).get(), config.blueprint.vocab_size, serves_many).0
                + kv_events::memory(limits.kv_events.as_ref()).0,
        ),
        opening: footprint.opening,
        weights: weights.whole,
        weights_streamed: weights.streamed,
        scratch: Bytes(Model::pass_bytes(&config.blueprint, tokens, tokens, threads(limits)) as u64),
        requests: audience.least(),
        schemas: if serves_many { schemas(config.blueprint.vocab_size) } else { SchemaNeeds::default() },
        swap: Bytes(0),
        block_returnable: Bytes(KvPool::returnable_bytes(&layout) as u64),
        block: Bytes(block_bytes as u64 + BLOCK_BOOKKEEPING),
        blocks_most: usize::MAX,
        block_size: layout.block_size(),
        max_model_len,
        max_num_seqs: sequences,
    })
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

/// Returns the memory needs of longer passes and their number of tokens. Longer passes are worth it if weights are
/// streamed. Returns `None` if the user sets the number of tokens, or if scratch memory would take too much of `total`.
pub fn longer_passes(
    config: &ModelConfig,
    needs: &MemoryNeeds,
    total: Bytes,
    limits: &LimitOptions,
) -> Option<(MemoryNeeds, usize)> {
    let more = batched_tokens(limits, BATCHED_TOKENS_STREAMED);
    let scratch = Bytes(Model::pass_bytes(&config.blueprint, more, more, threads(limits)) as u64);
    let worth = more != batched_tokens(limits, BATCHED_TOKENS) && scratch.0 <= total.0 / SCRATCH_SHARE;
    worth.then_some((MemoryNeeds { scratch, ..*needs }, more))
}

/// Returns the number of threads that compute.
pub fn threads(limits: &LimitOptions) -> NonZeroUsize {
    limits.threads.unwrap_or_else(usable_cores)
}
