//! The engine over each kind of device: with too little KV, requests are preempted, and get the same tokens as with
//! ample memory.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use interbed_device::{Bytes, Cpu, CpuDevice, Device, Gpu, KvPool, PassNeeds, ReferenceDevice, VulkanDevice};
use interbed_engine::{Attachments, Engine, ModelRunner, PreemptionMode, Request, SchedulerConfig, WeightMemory};
use interbed_io::SwapFile;
use interbed_kernels::{BlockGroups, KvDType};
use interbed_kv::KvConfig;
use interbed_kv_disk::{DiskTier, SwapShape};
use interbed_model::{Model, config::ModelConfig, layers};
use interbed_weights::{Catalog, ResidentWeights};

use crate::model::engine_config;
use crate::sim::{assert_idle_and_whole, collect, greedy, teach_short_answers};

const BLOCK_SIZE: usize = 4;
const BATCHED_TOKENS: usize = 16;
const SEQUENCES: usize = 8;
/// Positions of a prompt and its answer.
const POSITIONS: usize = 11 + 14;

/// A tiny model on the device that `open` returns, with `blocks` KV blocks and as many in swap space.
fn start<D: Device + 'static>(
    blocks: usize,
    preemption: PreemptionMode,
    open: impl FnOnce(&PassNeeds, &BlockGroups) -> D,
) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures/qwen2");
    let config = ModelConfig::from_dir(&dir).unwrap();
    let needs = Model::pass_needs(&config.blueprint, BATCHED_TOKENS, BATCHED_TOKENS);
    let layout = Model::kv_layout(&config.blueprint, BLOCK_SIZE, KvDType::F32);
    let mut device = open(&needs, &BlockGroups::new(layout.clone(), blocks));
    let (catalog, specs) = (Catalog::open(&dir).unwrap(), layers::group_specs(&config.blueprint));
    let weights = ResidentWeights::load_on(&mut device, &catalog, &specs, &mut |_, _| ()).unwrap();
    let scheduler = SchedulerConfig {
        max_num_seqs: SEQUENCES,
        max_num_batched_tokens: BATCHED_TOKENS,
        preemption,
        max_token_gap: None,
    };
    let kv = KvConfig { num_blocks: blocks, block_size: BLOCK_SIZE, num_swap_blocks: blocks, ..KvConfig::default() };
    let engine = engine_config(&config, scheduler, kv);
    let swap = tempfile::tempdir().unwrap();
    let shape = SwapShape { block_size: BLOCK_SIZE, block_bytes: layout.block_bytes() };
    let file = SwapFile::create(swap.path(), (2 * blocks * shape.slot_bytes()) as u64).unwrap();
    let memory = WeightMemory::resident(Bytes(weights.bytes()));
    let runner = ModelRunner::new(device, config.blueprint, Box::new(weights), memory);
    let tier = DiskTier::unnamed(Arc::new(file), shape, 0, [1; 32]).unwrap();
    let attachments = Attachments { swap: Some(Box::new(tier)), ..Attachments::default() };
    Engine::start_with(engine, Box::new(runner), attachments).unwrap()
}

fn requests() -> Vec<Request> {
    let one = |seed: u32| greedy((0..11).map(|i| (seed * 31 + i * i * 7 + i) % 60 + 1).collect(), 14);
    (0..SEQUENCES as u32).map(one).collect()
}

fn tokens(engine: &Engine) -> Vec<Vec<u32>> {
    let streams: Vec<_> = requests().into_iter().map(|request| engine.handle().submit(request).unwrap()).collect();
    streams.into_iter().map(|stream| collect(stream).tokens).collect()
}

/// Compares engines with too little KV with one that has ample memory. `open` opens the device of the run of a number.
fn compare<D: Device + 'static>(runs: u64, open: impl Fn(u64, &PassNeeds, &BlockGroups) -> D) {
    let each = POSITIONS.div_ceil(BLOCK_SIZE);
    let ample = start(SEQUENCES * each, PreemptionMode::Auto, |needs, groups| open(0, needs, groups));
    let expected = tokens(&ample);
    assert_eq!(ample.handle().status().preemptions, 0);
    for run in 1..=runs {
        for preemption in [PreemptionMode::Recompute, PreemptionMode::Swap] {
            let engine = start(3 * each, preemption, |needs, groups| open(run, needs, groups));
            teach_short_answers(&engine);
            assert_eq!(tokens(&engine), expected, "run {run}, {preemption:?}");
            assert_idle_and_whole(&engine);
            let status = engine.handle().status();
            assert!(status.preemptions > 0, "the test needs preemptions to mean anything");
            let swaps = preemption == PreemptionMode::Swap;
            assert_eq!(swaps, status.preemptions_swap > 0 && status.kv.swapped_out_blocks > 0, "{:?}", status.kv);
            assert_eq!(status.kv.swaps_failed, 0);
        }
    }
}

#[test]
fn the_processor_swaps_blocks() {
    compare(1, |_, needs, groups| {
        CpuDevice::new(Cpu::new(NonZeroUsize::MIN), needs, KvPool::new(groups.clone()).unwrap()).unwrap()
    });
}

#[test]
fn a_device_that_executes_in_any_order_swaps_blocks() {
    compare(6, |run, needs, groups| ReferenceDevice::new(needs, groups, run));
}

#[test]
fn a_gpu_swaps_blocks() {
    let gpu = match Gpu::first(Bytes(1 << 30)) {
        Ok(gpu) => gpu,
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => return eprintln!("left out: {why}"),
    };
    compare(1, |_, needs, groups| VulkanDevice::new(&gpu, needs, groups).unwrap());
}
