//! The bundled model with too little KV, swapping to a real file: the same tokens as with ample memory.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use interbed_device::{Bytes, Cpu};
use interbed_engine::{
    Attachments, Engine, EngineStatus, ModelRunner, PreemptionMode, Request, SchedulerConfig, WeightMemory,
};
use interbed_io::SwapFile;
use interbed_kernels::KvDType;
use interbed_kv::KvConfig;
use interbed_kv_disk::{DiskTier, SwapShape};
use interbed_model::{Model, config::ModelConfig, layers};
use interbed_weights::{Catalog, ResidentWeights};

use crate::model::{engine_config, kv_pool};
use crate::sim::{Ended, assert_idle_and_whole, collect, greedy, teach_short_answers};

const BLOCK_SIZE: usize = 4;
const MAX_NUM_SEQS: usize = 64;
const BATCHED_TOKENS: usize = 128;

/// The bundled model with `blocks` KV blocks, and as many in swap space.
fn start(blocks: usize, preemption: PreemptionMode, threads: NonZeroUsize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
    let config = ModelConfig::from_dir(&dir).unwrap();
    let weights =
        ResidentWeights::load(&Catalog::open(&dir).unwrap(), &layers::group_specs(&config.blueprint), &mut |_, _| ())
            .unwrap();
    let layout = Model::kv_layout(&config.blueprint, BLOCK_SIZE, KvDType::F16);
    let swap = tempfile::tempdir().unwrap();
    let shape = SwapShape { block_size: BLOCK_SIZE, block_bytes: layout.block_bytes() };
    let file = SwapFile::create(swap.path(), (2 * blocks * shape.slot_bytes()) as u64).unwrap();
    let swap = DiskTier::unnamed(Arc::new(file), shape, 0, [1; 32]).unwrap();
    let scheduler = SchedulerConfig {
        max_num_seqs: MAX_NUM_SEQS,
        max_num_batched_tokens: BATCHED_TOKENS,
        preemption,
        max_token_gap: None,
    };
    let kv = KvConfig { num_blocks: blocks, block_size: BLOCK_SIZE, num_swap_blocks: blocks, ..KvConfig::default() };
    let engine = engine_config(&config, scheduler, kv);
    let memory = WeightMemory::resident(Bytes(weights.bytes()));
    let (kv, cpu) = (kv_pool(layout, blocks), Cpu::new(threads));
    let runner = ModelRunner::on_cpu(config.blueprint, Box::new(weights), memory, kv, cpu, BATCHED_TOKENS).unwrap();
    let attachments = Attachments { swap: Some(Box::new(swap)), ..Attachments::default() };
    Engine::start_with(engine, Box::new(runner), attachments).unwrap()
}

fn requests(count: u32, prompt: u32, answer: usize) -> Vec<Request> {
    (0..count)
        .map(|seed| greedy((0..prompt).map(|i| (seed * 31 + i * i * 7 + i) % 250 + 1).collect(), answer))
        .collect()
}

fn serve(engine: &Engine, requests: &[Request]) -> Vec<Ended> {
    let streams: Vec<_> = requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
    streams.into_iter().map(collect).collect()
}

fn tokens(ended: Vec<Ended>) -> Vec<Vec<u32>> {
    ended.into_iter().map(|ended| ended.tokens).collect()
}

/// Blocks that `requests` requests of `tokens` tokens take.
fn blocks_for(requests: usize, tokens: usize) -> usize {
    requests * tokens.div_ceil(BLOCK_SIZE)
}

#[test]
fn sixty_four_requests_in_kv_for_six_answer_as_with_ample_memory() {
    let requests = requests(64, 13, 20);
    let ample = start(blocks_for(64, 33), PreemptionMode::Auto, NonZeroUsize::MIN);
    let expected = tokens(serve(&ample, &requests));
    assert_eq!(ample.handle().status().preemptions, 0);
    for preemption in [PreemptionMode::Recompute, PreemptionMode::Swap, PreemptionMode::Auto] {
        let engine = start(blocks_for(6, 33), preemption, NonZeroUsize::MIN);
        teach_short_answers(&engine);
        assert_eq!(tokens(serve(&engine, &requests)), expected, "{preemption:?}");
        assert_idle_and_whole(&engine);
        let EngineStatus { preemptions, preemptions_swap, kv, .. } = engine.handle().status();
        println!(
            "{preemption:?}: {preemptions} preemptions, {preemptions_swap} by swapping {} blocks",
            kv.swapped_out_blocks
        );
        assert!(preemptions > 0, "the test needs preemptions to mean anything");
        match preemption {
            PreemptionMode::Recompute => assert_eq!(preemptions_swap, 0),
            PreemptionMode::Swap => assert!(preemptions_swap > 0 && kv.swapped_out_blocks > 0 && kv.swaps_failed == 0),
            PreemptionMode::Auto => {}
        }
    }
}

/// Speed is a figure to be looked at, not to be tested: machines differ.
#[test]
#[ignore = "a measurement: run it in release, with --nocapture, when the machine is quiet"]
fn speed_with_kv_for_a_quarter_of_the_load() {
    let (prompt, answer, count) = (64, 96, 64);
    let requests = requests(count, prompt, answer);
    let ample = blocks_for(count as usize, prompt as usize + answer);
    let threads = NonZeroUsize::new(2).unwrap();
    let modes = [PreemptionMode::Recompute, PreemptionMode::Swap, PreemptionMode::Auto];
    let quarters = modes.map(|preemption| (ample / 4, preemption));
    for round in 0..3 {
        for (blocks, preemption) in [(ample, PreemptionMode::Auto)].into_iter().chain(quarters) {
            let engine = start(blocks, preemption, threads);
            serve(&engine, &requests[..4]);
            let begin = Instant::now();
            let ended = serve(&engine, &requests);
            let speed =
                ended.iter().map(|ended| ended.tokens.len()).sum::<usize>() as f64 / begin.elapsed().as_secs_f64();
            let status = engine.handle().status();
            println!(
                "{round}: {blocks} blocks, {preemption:?}: {speed:.0} tokens/s, {} preemptions, {} by swap",
                status.preemptions, status.preemptions_swap
            );
        }
    }
}
