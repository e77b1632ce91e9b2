//! What the parts of an engine need of memory, by model and options, whether weights are at hand or not.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, bail};
use strata_device::{Bytes, HostMemory, KvPool, usable_cores};
use strata_engine::MemoryNeeds;
use strata_kernels::{DType, KvDType, KvLayout};
use strata_kv::KvConfig;
use strata_model::Model;
use strata_model::config::ModelConfig;
use strata_model::tokenizer::Tokenizer;

use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::options::{KvDtype, LimitOptions};
use crate::seed::random_seed;

/// Tokens of one pass where nobody says otherwise.
pub const BATCHED_TOKENS: usize = 512;

/// The same where weights are streamed: about as many as are computed while a pass's weights are read.
const BATCHED_TOKENS_STREAMED: usize = 1024;

/// For those, scratch may take one part in so many of the budget.
const SCRATCH_SHARE: u64 = 16;

/// Bookkeeping of a KV block besides its bytes and its tokens' ids: list links, hash, index entry.
const BLOCK_BOOKKEEPING: u64 = 192;

/// Least memory for requests of many clients that wait or are being read: bodies, texts, token ids.
pub const REQUEST_BYTES: usize = 128 << 20;

/// Least memory for the one text that is answered: what a short conversation takes to be tokenized.
const TEXT_BYTES: u64 = 1 << 20;

/// Tokenizing a conversation may take one part in so many of the budget.
const TALK_SHARE: u64 = 16;

/// Bytes of text that a token stands for, rather more than fewer.
const BYTES_PER_TOKEN: usize = 5;

/// What weights need, as far as the division of memory cares.
pub struct WeightNeeds {
    /// The type that most of them have.
    pub dtype: DType,
    /// All of them.
    pub whole: Bytes,
    /// The least with which they can be streamed.
    pub streamed: Bytes,
}

/// Who is answered, which says what texts take besides the engine.
#[derive(Clone, Copy)]
pub enum Audience<'a> {
    /// Nobody: passes are measured.
    Nobody,
    /// One prompt, which has been tokenized, and takes so many bytes with its text.
    Prompt(Bytes),
    /// One person at a time, whose conversation grows and is tokenized by this.
    Person(&'a Tokenizer),
    /// Many clients at once.
    Clients,
}

/// What takes memory besides the engine.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub footprint: Footprint,
    pub audience: Audience<'a>,
}

impl Audience<'_> {
    /// Memory for texts, at the least.
    fn least(self) -> Bytes {
        match self {
            Self::Nobody => Bytes(0),
            Self::Prompt(bytes) => Bytes(bytes.0.max(TEXT_BYTES)),
            Self::Person(_) => Bytes(TEXT_BYTES),
            Self::Clients => Bytes(REQUEST_BYTES as u64),
        }
    }

    /// What texts would take if they were as long as a context of so many tokens, where that is to be foreseen; not too
    /// much of `total`.
    pub fn of_context(self, tokens: usize, total: Bytes) -> Option<Bytes> {
        let Self::Person(tokenizer) = self else { return None };
        // Lines of a usual length, as text that people write has them.
        const LINE: &str = "Lines of some words, as they are written, and as they can be cut.\n";
        let text = LINE.repeat(tokens.saturating_mul(BYTES_PER_TOKEN).min(8 << 20).div_ceil(LINE.len()));
        let wanted = (tokenizer.scratch_bytes(&text) + text.len() * 2) as u64;
        Some(Bytes(wanted.min(total.0 / TALK_SHARE)))
    }
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

/// How a KV block lies in memory under these options, beside weights that are mostly of one type.
pub fn kv_layout(config: &ModelConfig, weights: DType, limits: &LimitOptions) -> KvLayout {
    let dtype = match limits.kv_dtype {
        KvDtype::Auto => KvDType::beside(weights),
        KvDtype::F32 => KvDType::F32,
        KvDtype::F16 => KvDType::F16,
        KvDtype::Bf16 => KvDType::BF16,
        KvDtype::Q8 => KvDType::Q8,
    };
    Model::kv_layout(config, limits.block_size, dtype)
}

/// What the parts of an engine for the model called `name` need, whether its weights are at hand or not.
pub fn memory_needs(
    config: &ModelConfig,
    name: &str,
    weights: &WeightNeeds,
    limits: &LimitOptions,
    surroundings: &Surroundings<'_>,
) -> Result<MemoryNeeds> {
    // First: everything below divides and multiplies by it.
    kv_config(limits, 1).check().context("--block-size cannot be used")?;
    let context = config.context();
    let max_model_len = limits.max_model_len.map_or(context, |asked| asked.get());
    if max_model_len > context {
        bail!("--max-model-len is {max_model_len}, but {name} has a context of {context}; ask for at most that");
    }
    let (sequences, tokens) = (limits.max_num_seqs.get(), batched_tokens(limits, BATCHED_TOKENS));
    let layout = kv_layout(config, weights.dtype, limits);
    let Surroundings { footprint, audience } = surroundings;
    let serves_many = matches!(audience, Audience::Clients);
    Ok(MemoryNeeds {
        process: footprint.computing(threads(limits).get(), config.vocab_size, serves_many),
        opening: footprint.opening,
        weights: weights.whole,
        weights_streamed: weights.streamed,
        scratch: Bytes(Model::pass_bytes(config, tokens, tokens, threads(limits)) as u64),
        requests: audience.least(),
        swap: Bytes(0),
        block_returnable: Bytes(KvPool::returnable_bytes(&layout) as u64),
        block: Bytes((layout.block_bytes() + limits.block_size * size_of::<u32>()) as u64 + BLOCK_BOOKKEEPING),
        block_size: limits.block_size,
        max_model_len,
        max_num_seqs: sequences,
    })
}

/// Tokens of one pass, which must have room for one of every running sequence.
pub fn batched_tokens(limits: &LimitOptions, default: usize) -> usize {
    limits.max_num_batched_tokens.map_or(default, usize::from).max(limits.max_num_seqs.get())
}

/// What longer passes need, which are worth it where weights are streamed, and how many tokens they have. None if
/// somebody says how many, or if scratch would take too much of `total`.
pub fn longer_passes(
    config: &ModelConfig,
    needs: &MemoryNeeds,
    total: Bytes,
    limits: &LimitOptions,
) -> Option<(MemoryNeeds, usize)> {
    let more = batched_tokens(limits, BATCHED_TOKENS_STREAMED);
    let scratch = Bytes(Model::pass_bytes(config, more, more, threads(limits)) as u64);
    let worth = more != batched_tokens(limits, BATCHED_TOKENS) && scratch.0 <= total.0 / SCRATCH_SHARE;
    worth.then_some((MemoryNeeds { scratch, ..*needs }, more))
}

/// Threads that compute.
pub fn threads(limits: &LimitOptions) -> NonZeroUsize {
    limits.threads.unwrap_or_else(usable_cores)
}

/// The budget: what was asked for, if this machine has it, or else what may be taken without asking.
///
/// # Errors
/// More was asked for than there is.
pub fn budget(limits: &LimitOptions) -> Result<Bytes> {
    let Some(asked) = limits.memory else { return Ok(default_budget()) };
    let memory = HostMemory::read();
    if !limits.overcommit {
        check_budget(asked, &memory)?;
    }
    let available = memory.available.saturating_add(memory.resident);
    if asked.0 > available {
        tracing::warn!(
            "--memory is {asked}, but other programs leave {} of this machine's {}: if they do not give some back, the \
             system may swap or end a program; give less --memory, or end others first",
            Bytes(available),
            Bytes(memory.total)
        );
    }
    Ok(asked)
}

/// Refuses a budget beyond what this process can ever have in memory.
fn check_budget(asked: Bytes, memory: &HostMemory) -> Result<()> {
    let Some(most) = memory.most().filter(|&most| asked.0 > most) else { return Ok(()) };
    let source = match memory.cgroup_limit {
        Some(limit) if limit == most => format!("the memory limit of this process (its cgroup's) is {}", Bytes(limit)),
        _ => format!("this machine has {}", Bytes(memory.total)),
    };
    let swap = match memory.swap {
        0 => String::new(),
        swap => format!("; swap space ({}) does not count, for it is slower than Strata's own streaming", Bytes(swap)),
    };
    // A tenth is left to the rest of the machine.
    let advice = (most / 10 * 9) >> 20;
    Err(Advised::input(
        format!("--memory is {asked}, but {source}{swap}"),
        format!(
            "give --memory {advice}M or less (weights that do not fit are streamed from disk), leave it out to take \
             what is available, or insist with --overcommit; `strata plan` and `strata info` judge any --memory"
        ),
    ))
}

/// What Strata takes where nobody says how much.
pub fn default_budget() -> Bytes {
    let memory = HostMemory::read();
    // Something must be left to the rest of the machine. A cgroup's limit is ours alone, but for page tables and
    // buffers of the kernel that count towards it too.
    let available = memory.available.saturating_add(memory.resident) / 10 * 9;
    Bytes(memory.cgroup_limit.map_or(available, |limit| (limit / 100 * 97).min(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_budget_beyond_the_machine_is_refused_with_its_figures() {
        let here = HostMemory { available: 9 * GIB, total: 24 * GIB, swap: 0, cgroup_limit: None, resident: 0 };
        let refused = |asked: u64, memory: &HostMemory| {
            check_budget(Bytes(asked), memory).err().and_then(|error| crate::failure::message(&error))
        };
        // What other programs use may be free in a moment.
        assert_eq!(refused(24 * GIB, &here), None);
        let text = refused(100 * GIB, &here).unwrap();
        for part in ["100.0 GiB", "this machine has 24.0 GiB", "--memory 22118M", "--overcommit"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("swap"), "{text}");
        let text = refused(25 * GIB, &HostMemory { swap: 32 * GIB, ..here }).unwrap();
        assert!(text.contains("swap space (32.0 GiB)"), "{text}");
        let caged = HostMemory { cgroup_limit: Some(4 * GIB), ..here };
        assert_eq!(refused(4 * GIB, &caged), None);
        let text = refused(5 * GIB, &caged).unwrap();
        assert!(text.contains("cgroup") && text.contains("4.00 GiB") && text.contains("--memory 3686M"), "{text}");
        assert_eq!(refused(u64::MAX, &HostMemory { total: 0, ..here }), None, "nothing is known");
    }
}
