//! The engine over a real model: tokens and log-probabilities are equal to the last bit in any company.

use std::num::NonZeroUsize;
use std::path::Path;

use strata_device::{Bytes, CpuDevice, KvPool};
use strata_engine::{
    Engine, EngineConfig, Event, Limits, ModelRunner, PositionLogprobs, Request, SamplingParams, SchedulerConfig,
    WeightMemory,
};
use strata_kernels::KvDType;
use strata_kv::KvConfig;
use strata_model::{Model, config::ModelConfig, groups};
use strata_weights::{Catalog, ResidentWeights};

fn start(name: &str, blocks: usize, max_num_seqs: usize, budget: usize, threads: usize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../strata-model/tests/fixtures").join(name);
    let config = ModelConfig::from_dir(&dir).unwrap();
    let weights =
        ResidentWeights::load(&Catalog::open(&dir).unwrap(), &groups::group_specs(&config), &mut |_, _| ()).unwrap();
    let block_size = 4;
    let runner = ModelRunner {
        device: CpuDevice::new(
            NonZeroUsize::new(threads).unwrap(),
            Model::scratch_bytes(&config, budget, budget, threads),
        )
        .unwrap(),
        weights: WeightMemory::Resident(Bytes(weights.bytes())),
        kv: KvPool::new(Model::kv_layout(&config, block_size, KvDType::BF16), blocks).unwrap(),
        model: Model::new(config.clone(), Box::new(weights)),
    };
    let engine = EngineConfig {
        scheduler: SchedulerConfig { max_num_seqs, max_num_batched_tokens: budget },
        kv: KvConfig { num_blocks: blocks, block_size, seed: 3, ..KvConfig::default() },
        limits: Limits {
            vocab_size: config.vocab_size,
            max_model_len: 80,
            model_context: 80,
            kv_capacity_tokens: blocks * block_size,
            max_logprobs: 20,
            max_beam_width: max_num_seqs,
            max_waiting: 100,
        },
        eos_token_ids: Vec::new(),
        stall: std::time::Duration::from_secs(60),
        idle_turn: std::time::Duration::from_millis(2),
    };
    Engine::start(engine, Box::new(runner)).unwrap()
}

fn requests() -> Vec<Request> {
    (0..24u32)
        .map(|i| Request {
            // Every other prompt continues an earlier one, so that prefixes are hit.
            prompt: (0..5 + i * 2).map(|t| (t * t + (i / 2) * 11) % 60).collect(),
            params: SamplingParams {
                max_tokens: 20,
                temperature: if i % 3 == 0 { 0.0 } else { 0.9 },
                repetition_penalty: if i % 4 == 0 { 1.2 } else { 1.0 },
                seed: u64::from(i),
                logprobs: Some(3),
                ..SamplingParams::default()
            },
            ..Request::default()
        })
        .collect()
}

fn answers(engine: &Engine, requests: &[Request], together: bool) -> Vec<Vec<PositionLogprobs>> {
    let mut streams = Vec::new();
    let mut answers = Vec::new();
    let read = |mut stream: strata_engine::EventStream| {
        let mut answer = Vec::new();
        while let Some(event) = stream.blocking_next() {
            match event {
                Event::Token { logprobs, .. } => answer.extend(logprobs),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert_eq!(answer.len(), 20);
        answer
    };
    for request in requests {
        let stream = engine.handle().submit(request.clone()).unwrap();
        if together { streams.push(stream) } else { answers.push(read(stream)) }
    }
    answers.extend(streams.into_iter().map(read));
    answers
}

#[test]
fn alone_together_chunked_cached_and_preempted() {
    for model in ["qwen2_bf16", "mistral_sliding"] {
        let requests = requests();
        let alone = answers(&start(model, 100, 1, 100, 1), &requests, false);
        let roomy = start(model, 600, 24, 200, 2);
        assert_eq!(answers(&roomy, &requests, true), alone, "{model}: together");
        assert_eq!(answers(&roomy, &requests, true), alone, "{model}: with prefix hits");
        assert!(roomy.handle().status().kv.prefix_hit_tokens > 0);
        for chunk in [24, 31] {
            let engine = start(model, 600, 24, chunk, 2);
            assert_eq!(answers(&engine, &requests, true), alone, "{model}: in chunks of up to {chunk}");
        }
        let tight = start(model, 40, 24, 64, 3);
        assert_eq!(answers(&tight, &requests, true), alone, "{model}: under pressure");
        assert!(tight.handle().status().preemptions > 0, "the test needs preemptions to mean anything");
    }
}
