//! From a directory to a running engine, with all weights in memory.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use interbed_device::{Bytes, Cpu, KvPool, usable_cores};
use interbed_engine::{Engine, EngineConfig, Limits, ModelRunner, PreemptionMode, SchedulerConfig, WeightMemory};
use interbed_kernels::{BlockGroups, KvDType};
use interbed_kv::KvConfig;
use interbed_model::config::ModelConfig;
use interbed_model::generation_config::GenerationConfig;
use interbed_model::tokenizer::Tokenizer;
use interbed_model::{HeadSource, Model, end_tokens, layers};
use interbed_weights::{Catalog, ResidentWeights};

/// Tokens of a KV block, and how many blocks there are: together, all tokens that requests may have at a time.
const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 512;
/// Most tokens of a pass, and most sequences at a time.
const PASS_TOKENS: usize = 256;
const SEQUENCES: usize = 16;

/// A model that is ready to be asked.
pub struct Opened {
    /// Takes requests as long as it lives.
    pub engine: Engine,
    /// The model's own.
    pub tokenizer: Tokenizer,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
}

/// Opens a Hugging Face directory and starts an engine for it.
///
/// # Errors
/// The directory holds no model that can be read, or there is no memory for it.
pub fn open(dir: &Path) -> Result<Opened> {
    let mut catalog = Catalog::open(dir)?;
    let mut config = ModelConfig::from_dir(dir)?;
    HeadSource::settle(&mut config, &mut catalog, u64::MAX)?;
    let tokenizer = Tokenizer::from_dir(dir)?;
    let end_tokens = end_tokens(&GenerationConfig::from_dir(dir)?, &config, Some(&tokenizer), None);

    let weights = ResidentWeights::load(&catalog, &layers::group_specs(&config.blueprint), &mut |_, _| {})?;
    let memory = WeightMemory::resident(Bytes(weights.bytes()));
    let layout = Model::kv_layout(&config.blueprint, BLOCK_SIZE, KvDType::BF16);
    let kv = KvPool::new(BlockGroups::new(layout, BLOCKS))?;
    let limits = Limits {
        vocab_size: config.blueprint.vocab_size,
        max_model_len: config.blueprint.context.min(BLOCKS * BLOCK_SIZE),
        model_context: config.blueprint.context,
        kv_capacity_tokens: BLOCKS * BLOCK_SIZE,
        kv_block_tokens: BLOCK_SIZE,
        kv_blocks_beside: 0,
        max_logprobs: 5,
        max_beam_width: SEQUENCES,
        max_waiting: 100,
    };
    let cpu = Cpu::new(usable_cores());
    let runner = ModelRunner::on_cpu(config.blueprint, Box::new(weights), memory, kv, cpu, PASS_TOKENS)?;
    let engine = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: SEQUENCES,
            max_num_batched_tokens: PASS_TOKENS,
            preemption: PreemptionMode::Recompute,
            max_token_gap: None,
        },
        kv: KvConfig { num_blocks: BLOCKS, block_size: BLOCK_SIZE, ..KvConfig::default() },
        limits,
        eos_token_ids: end_tokens.clone(),
        stall: Duration::from_secs(60),
        idle_turn: Duration::from_millis(50),
        check_invariants: false,
    };
    Ok(Opened { engine: Engine::start(engine, Box::new(runner))?, tokenizer, end_tokens })
}

#[cfg(test)]
mod tests {
    use interbed_engine::text::{TextOptions, TextStream};
    use interbed_engine::{Request, SamplingParams};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_storyteller_tells_together_what_it_tells_alone() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
        let model = open(&dir).expect("the model that ships");
        let tokenizer = Arc::new(model.tokenizer);
        let submit = |prompt: &str| {
            let prompt = tokenizer.encode(prompt, true).expect("tokens");
            let params = SamplingParams { max_tokens: 20, temperature: 0.0, ..SamplingParams::default() };
            let request = Request { prompt, params, ..Request::default() };
            let events = model.engine.handle().submit(request).expect("room");
            TextStream::new(events, tokenizer.clone(), TextOptions::default())
        };
        let read = |mut stream: TextStream| {
            std::iter::from_fn(|| stream.blocking_next().map(|delta| delta.text)).collect::<String>()
        };
        let prompts = ["Once upon a time", "One sunny morning", "The little fox"];
        let alone: Vec<String> = prompts.iter().map(|prompt| read(submit(prompt))).collect();
        let streams: Vec<TextStream> = prompts.iter().map(|prompt| submit(prompt)).collect();
        let together: Vec<String> = streams.into_iter().map(read).collect();
        assert_eq!(together, alone);
        assert!(alone.iter().all(|text| text.len() > 20), "{alone:?}");
    }
}
