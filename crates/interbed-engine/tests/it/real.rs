//! The engine over a real model: tokens and log-probabilities are equal to the last bit in any company.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use interbed_device::{Bytes, Cpu};
use interbed_engine::{
    BeamParams, Engine, EngineConfig, Event, ModelRunner, PositionLogprobs, PreemptionMode, Request, SamplingParams,
    SchedulerConfig, WeightMemory,
};
use interbed_kernels::KvDType;
use interbed_kv::KvConfig;
use interbed_model::{Model, config::ModelConfig, layers};
use interbed_weights::{Catalog, ResidentWeights};

use crate::beams::searched;
use crate::model::{engine_config, kv_pool};
use crate::sim::{assert_idle_and_whole, collect, greedy, teach_short_answers};

/// The bundled model, as seen from the fixtures.
const STORYTELLER: &str = "../../../../models/storyteller";

pub fn start(name: &str, blocks: usize, max_num_seqs: usize, budget: usize, threads: usize) -> Engine {
    start_paced(name, blocks, max_num_seqs, budget, threads, None)
}

/// Starts an engine that keeps the time between two tokens within `max_token_gap`, if that is given.
fn start_paced(
    name: &str,
    blocks: usize,
    max_num_seqs: usize,
    budget: usize,
    threads: usize,
    max_token_gap: Option<Duration>,
) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures").join(name);
    let config = ModelConfig::from_dir(&dir).unwrap();
    let weights =
        ResidentWeights::load(&Catalog::open(&dir).unwrap(), &layers::group_specs(&config.blueprint), &mut |_, _| ())
            .unwrap();
    let block_size = 4;
    let kv = kv_pool(Model::kv_layout(&config.blueprint, block_size, KvDType::BF16), blocks);
    let memory = WeightMemory::resident(Bytes(weights.bytes()));
    let cpu = Cpu::new(NonZeroUsize::new(threads).unwrap());
    let runner = ModelRunner::on_cpu(config.blueprint.clone(), Box::new(weights), memory, kv, cpu, budget).unwrap();
    let preemption = PreemptionMode::Auto;
    let scheduler = SchedulerConfig { max_num_seqs, max_num_batched_tokens: budget, preemption, max_token_gap };
    let kv = KvConfig { num_blocks: blocks, block_size, seed: 3, ..KvConfig::default() };
    let engine = EngineConfig { check_invariants: true, ..engine_config(&config, scheduler, kv) };
    Engine::start(engine, Box::new(runner)).unwrap()
}

pub fn requests() -> Vec<Request> {
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
    let read = |mut stream: interbed_engine::EventStream| {
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
        assert!(roomy.handle().status().cached_tokens > 0);
        for chunk in [24, 31] {
            let engine = start(model, 600, 24, chunk, 2);
            assert_eq!(answers(&engine, &requests, true), alone, "{model}: in chunks of up to {chunk}");
        }
        for gap in [1, 1000, 1_000_000].map(Duration::from_micros) {
            let engine = start_paced(model, 600, 24, 200, 2, Some(gap));
            assert_eq!(answers(&engine, &requests, true), alone, "{model}: at most {gap:?} between two tokens");
        }
        let tight = start(model, 40, 24, 64, 3);
        teach_short_answers(&tight);
        assert_eq!(answers(&tight, &requests, true), alone, "{model}: under pressure");
        assert!(tight.handle().status().preemptions > 0, "the test needs preemptions to mean anything");
    }
}

/// The most likely tokens after `history`, from a pass of its own that finds nothing cached.
fn next(engine: &Engine, history: &[u32], top: usize) -> Vec<(u32, f32)> {
    let mut request = greedy(history.to_vec(), 1);
    // Rows of the prompt are wanted, so all of it is computed.
    (request.params.logprobs, request.params.prompt_logprobs) = (Some(top), Some(0));
    let mut stream = engine.handle().submit(request).unwrap();
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::PromptDone(done) => assert_eq!(done.cached_tokens, 0),
            Event::Token { logprobs, .. } => {
                return logprobs.unwrap().top.iter().map(|token| (token.token, token.logprob)).collect();
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no token");
}

#[test]
fn beam_search_finds_what_it_would_find_without_a_cache() {
    for (model, first) in [("qwen2_bf16", 3), ("mistral_sliding", 5), (STORYTELLER, 300)] {
        let alone = start(model, 100, 1, 100, 1);
        let (roomy, tight) = (start(model, 600, 24, 100, 2), start(model, 30, 24, 30, 2));
        for (width, length) in [(1, 9), (3, 30), (4, 16)] {
            let mut request = greedy((0..length).map(|at| first + (at * at * 7 + at * 3) % 50).collect(), 12);
            // What is likely ends some hypotheses.
            let likely = next(&alone, &request.prompt, 4);
            request.params.stop_token_ids = vec![likely[3].0];
            request.beam = Some(BeamParams { width, ..BeamParams::default() });
            let expected = searched(&request, width, |history| next(&alone, history, 2 * width));
            for engine in [&roomy, &tight] {
                teach_short_answers(engine);
                let others: Vec<_> =
                    requests()[..12].iter().map(|one| engine.handle().submit(one.clone()).unwrap()).collect();
                let streams = engine.handle().submit_many(request.clone(), width).unwrap();
                let found: Vec<_> = streams.into_iter().map(collect).map(|one| (one.tokens, one.reason)).collect();
                assert_eq!(found, expected, "{model}, {width} beams");
                others.into_iter().for_each(|stream| drop(collect(stream)));
                assert_idle_and_whole(engine);
            }
        }
        assert!(tight.handle().status().preemptions > 0, "the test needs preemptions to mean anything");
    }
}
