//! The engine over devices whose memory KV blocks and streamed weights share: KV grows at the cost of weights, and
//! requests get the tokens that they get with all memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use interbed_device::{BlockMemory, Bytes, Device, Gpu, PassNeeds, ProductArithmetic, ReferenceDevice, VulkanDevice};
use interbed_engine::{
    BlockBytes, Engine, MemoryTrade, ModelRunner, PreemptionMode, Request, Runner, SchedulerConfig, TradeLimits,
    WeightMemory,
};
use interbed_io::EngineKind;
use interbed_kernels::{BlockGroups, KvDType, KvLayout};
use interbed_kv::{BlockCopy, BlockId, BlockPart, KvConfig};
use interbed_model::{Model, config::ModelConfig, layers};
use interbed_weights::{
    Catalog, ElasticWeights, ResidentWeights, StreamConfig, StreamPlan, StreamPolicy, TieredWeights, open_direct,
};

use crate::model::engine_config;
use crate::sim::{assert_idle_and_whole, collect, eventually, greedy};

/// A dense model, and a mixture.
const MODELS: [&str; 2] = ["qwen2", "qwen2_moe"];
const BLOCK_SIZE: usize = 4;
const BATCHED_TOKENS: usize = 16;
const SEQUENCES: usize = 6;
/// Positions of a prompt and its answer.
const POSITIONS: usize = 19 + 12;
/// The blocks that all sequences together can fill.
const BLOCKS: usize = SEQUENCES * POSITIONS.div_ceil(BLOCK_SIZE);
const BLOCKS_START: usize = 8;

struct Parts {
    catalog: Catalog,
    config: ModelConfig,
    needs: PassNeeds,
    layout: KvLayout,
}

impl Parts {
    fn of(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures").join(name);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let needs = Model::pass_needs(&config.blueprint, BATCHED_TOKENS, BATCHED_TOKENS);
        let layout = Model::kv_layout(&config.blueprint, BLOCK_SIZE, KvDType::F32);
        Self { catalog: Catalog::open(&dir).unwrap(), config, needs, layout }
    }

    fn plan(&self) -> StreamPlan {
        StreamPlan::new(&self.catalog, &layers::group_specs(&self.config.blueprint), 2048).unwrap()
    }

    fn groups(&self) -> BlockGroups {
        BlockGroups::new(self.layout.clone(), BLOCKS)
    }

    fn block_bytes(&self) -> u64 {
        self.layout.block_bytes() as u64
    }

    /// The bytes that weights may take on the device at first: 60 % of what is more than the least.
    fn weights(&self) -> u64 {
        let (plan, share) = (self.plan(), |bytes: u64| bytes / 10 * 6);
        plan.partition().least_budget() + share(plan.partition().full_budget() - plan.partition().least_budget())
    }

    /// The bytes that weights and KV blocks share on the device.
    fn total(&self) -> u64 {
        self.weights() + BLOCKS_START as u64 * self.block_bytes()
    }

    fn engine<D: Device + 'static>(&self, runner: ModelRunner<D>) -> Engine {
        let scheduler = SchedulerConfig {
            max_num_seqs: SEQUENCES,
            max_num_batched_tokens: BATCHED_TOKENS,
            preemption: PreemptionMode::Recompute,
            max_token_gap: None,
        };
        let kv = KvConfig { num_blocks: BLOCKS, block_size: BLOCK_SIZE, ..KvConfig::default() };
        Engine::start(engine_config(&self.config, scheduler, kv), Box::new(runner)).unwrap()
    }

    /// An engine with all weights and blocks in the device's memory.
    fn ample<D: Device + 'static>(&self, mut device: D) -> Engine {
        let specs = layers::group_specs(&self.config.blueprint);
        let weights = ResidentWeights::load_on(&mut device, &self.catalog, &specs, &mut |_, _| ()).unwrap();
        let memory = WeightMemory::resident(Bytes(weights.bytes()));
        self.engine(ModelRunner::new(device, self.config.blueprint.clone(), Box::new(weights), memory))
    }

    /// An engine whose weights are streamed to the device, and whose blocks have no memory before they need it.
    fn trading<D: Device + 'static>(&self, mut device: D) -> Engine {
        let plan = self.plan();
        let config = StreamConfig {
            budget: plan.partition().full_budget(),
            engine: EngineKind::Pread,
            depth: 2,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy: StreamPolicy::Resident,
            timeline: false,
            host_tokens_max: 0,
            turns: None,
        };
        let files = open_direct(&self.catalog).unwrap();
        let on_device = self.weights();
        let weights =
            TieredWeights::start_on(&mut device, on_device, plan, &self.catalog, files, config, &mut |_, _| ())
                .unwrap();
        let trade = MemoryTrade::new(TradeLimits {
            total: self.total(),
            weights_least: weights.least_budget(),
            weights_most: weights.full_budget(),
            block: self.block_bytes(),
            blocks_start: BLOCKS_START,
            blocks_max: BLOCKS,
        });
        assert_eq!(trade.blocks_start(), BLOCKS_START);
        let memory = WeightMemory { bytes: Bytes(0), monitor: Some(weights.monitor()), trade: Some(trade) };
        self.engine(ModelRunner::new(device, self.config.blueprint.clone(), Box::new(weights), memory))
    }
}

fn requests(round: u32) -> Vec<Request> {
    let one = |seed: u32| greedy((0..19).map(|i| (seed * 31 + i * i * 7 + i) % 60 + 1).collect(), 12);
    (0..SEQUENCES as u32).map(|number| one(number + round * 100)).collect()
}

fn tokens(engine: &Engine, round: u32) -> Vec<Vec<u32>> {
    let streams: Vec<_> = requests(round).into_iter().map(|one| engine.handle().submit(one).unwrap()).collect();
    streams.into_iter().map(|stream| collect(stream).tokens).collect()
}

/// Compares engines whose KV and weights share the memory of a device with one that has all memory. `open` opens the
/// device of the run of a number, with the given bytes for weights and blocks, or with memory for all blocks.
fn compare<D: Device + 'static>(runs: u64, open: impl Fn(u64, &Parts, Option<u64>) -> D) {
    for name in MODELS {
        let parts = Parts::of(name);
        let ample = parts.ample(open(0, &parts, None));
        let expected = [0, 1].map(|round| tokens(&ample, round));
        let most = AtomicU64::new(0);
        for run in 0..runs {
            let engine = parts.trading(open(run, &parts, Some(parts.total())));
            for (round, expected) in (0..).zip(&expected) {
                let streams: Vec<_> =
                    requests(round).into_iter().map(|one| engine.handle().submit(one).unwrap()).collect();
                let status = eventually(&engine, "KV has grown", |status| {
                    status.kv.blocks_total - status.kv.blocks_withdrawn > BLOCKS_START + 4
                });
                most.fetch_max(status.kv_bytes(), Ordering::Relaxed);
                let got: Vec<_> = streams.into_iter().map(|stream| collect(stream).tokens).collect();
                assert_eq!(&got, expected, "{name}, run {run}, round {round}");
                assert_idle_and_whole(&engine);
            }
        }
        assert!(most.load(Ordering::Relaxed) > BLOCKS_START as u64 * parts.block_bytes());
    }
}

#[test]
fn a_device_that_executes_in_any_order_gives_memory_to_kv() {
    compare(3, |run, parts, memory| {
        let device = ReferenceDevice::new(&parts.needs, &parts.groups(), run);
        match memory {
            Some(bytes) => device.with_memory(bytes),
            None => device,
        }
    });
}

#[test]
fn a_gpu_gives_memory_to_kv() {
    let gpu = |bytes: u64| match Gpu::first(Bytes(bytes)) {
        Ok(gpu) => Some(gpu),
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    };
    if gpu(1 << 30).is_none() {
        return;
    }
    let products = ProductArithmetic::Float;
    compare(1, |_, parts, memory| match memory {
        None => VulkanDevice::new(&gpu(1 << 30).unwrap(), &parts.needs, &parts.groups()).unwrap(),
        Some(bytes) => {
            // What chunks and the driver's rounding leave empty is a small part of any real budget.
            let beside = VulkanDevice::pass_bytes(&parts.needs, products) as u64 + (1 << 20);
            let gpu = gpu(bytes + beside).unwrap();
            let blocks = BlockMemory::FromWeights;
            VulkanDevice::with_blocks(&gpu, &parts.needs, &parts.groups(), blocks, products).unwrap()
        }
    });
}

/// A device that has no memory for blocks that came fails what uses them, and nothing panics.
#[test]
fn blocks_that_got_no_memory_are_not_touched() {
    let parts = Parts::of(MODELS[0]);
    let mut device = ReferenceDevice::new(&parts.needs, &parts.groups(), 1).with_memory(1 << 30);
    let specs = layers::group_specs(&parts.config.blueprint);
    let weights = ResidentWeights::load_on(&mut device, &parts.catalog, &specs, &mut |_, _| ()).unwrap();
    let memory = WeightMemory::resident(Bytes(weights.bytes()));
    let mut runner = ModelRunner::new(device, parts.config.blueprint.clone(), Box::new(weights), memory);
    // Nothing was reserved for them.
    runner.resize_blocks(&[0, 1], &[]);
    runner.copy_blocks(&[BlockCopy { source: BlockId(0), destination: BlockId(1) }]);
    runner.fill(BlockPart::whole(BlockId(0)), 4, &mut |_| panic!("there is nothing to fill"));
    let why = runner.read(BlockPart::whole(BlockId(0)), &mut [0; 4]).unwrap_err();
    assert!(why.contains("could not get their memory"), "{why}");
}
