//! The bundled model, streamed: many requests take memory from its weights, which come back afterwards.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use interbed_device::{Bytes, Cpu, CpuDevice, PassNeeds};
use interbed_engine::{
    Engine, KvDemand, KvGrant, KvMemory, MemoryTrade, ModelRunner, PassError, PreemptionMode, Request, Runner,
    SchedulerConfig, TradeLimits, WeightMemory,
};
use interbed_io::EngineKind;
use interbed_kernels::KvDType;
use interbed_kv::KvConfig;
use interbed_model::config::ModelConfig;
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits, Model, layers};
use interbed_weights::{
    Catalog, ElasticWeights, Presence, ResidentWeights, StreamConfig, StreamPlan, StreamPolicy, StreamedWeights,
    WeightSource, WindowSight, open_direct,
};

use crate::model::{engine_config, kv_pool};
use crate::passes_on::passes_on;
use crate::sim::{assert_idle_and_whole, collect, eventually, greedy};

const BLOCK_SIZE: usize = 16;
const BATCHED_TOKENS: usize = 64;
const BLOCKS_START: usize = 12;
/// Bytes of a band of weights, with what lies around it on its pages.
const BAND: u64 = BAND_BYTES as u64 + 4096;

const BAND_BYTES: usize = 64 << 10;

/// The model's runner, looked at before and after each pass.
struct Watched {
    runner: ModelRunner<CpuDevice>,
    total: u64,
    block: u64,
    /// Blocks that may have memory.
    present: usize,
    seen: Arc<Seen>,
}

struct Seen {
    kv_most: AtomicU64,
    weights_least: AtomicU64,
    /// Bytes of weights that stayed in memory when it was last divided.
    resident: AtomicU64,
}

impl Watched {
    fn check(&mut self) {
        let (weights, kv) = (self.runner.memory().weights.0, self.present as u64 * self.block);
        assert!(weights + kv <= self.total, "weights hold {weights}, KV may take {kv} of {}", self.total);
        self.seen.kv_most.fetch_max(kv, Ordering::Relaxed);
        self.seen.weights_least.fetch_min(weights, Ordering::Relaxed);
    }
}

impl Runner for Watched {
    passes_on!(runner: copy_blocks, cache_namespace, strips, resize_blocks, memory, shown_weights);

    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        self.check();
        self.runner.forward(batch, below, sink)?;
        self.check();
        Ok(())
    }

    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        Some(self)
    }
}

impl KvMemory for Watched {
    fn blocks_at_start(&mut self) -> usize {
        self.runner.blocks_at_start()
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        self.present = demand.present;
        self.check();
        // As if nothing cached were worth anything: an idle engine gives back all that it took.
        let grant = self.runner.balance(KvDemand { recompute: None, ..demand });
        let resident = self.runner.model.weights().elastic().unwrap().resident_bytes();
        self.seen.resident.store(resident, Ordering::Relaxed);
        self.present = self.present.max(grant.blocks);
        self.check();
        grant
    }
}

struct Parts {
    catalog: Catalog,
    config: ModelConfig,
}

impl Parts {
    /// The weights, streamed with `extra` bytes more than the least, and the resulting budget.
    fn stream(&self, extra: u64) -> (StreamedWeights, u64) {
        let plan = StreamPlan::new(&self.catalog, &layers::group_specs(&self.config.blueprint), BAND_BYTES).unwrap();
        let budget = plan.partition().least_budget() + extra;
        let settings = StreamConfig {
            budget,
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
        let weights = StreamedWeights::start(plan, &self.catalog, files, settings, &mut |_, _| {}).unwrap();
        (weights, budget)
    }

    fn open() -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
        Self { catalog: Catalog::open(&dir).unwrap(), config: ModelConfig::from_dir(&dir).unwrap() }
    }

    fn runner(&self, source: Box<dyn WeightSource>, weights: WeightMemory, blocks: usize) -> ModelRunner<CpuDevice> {
        let layout = Model::kv_layout(&self.config.blueprint, BLOCK_SIZE, KvDType::BF16);
        let (kv, cpu) = (kv_pool(layout, blocks), Cpu::new(NonZeroUsize::MIN));
        ModelRunner::on_cpu(self.config.blueprint.clone(), source, weights, kv, cpu, BATCHED_TOKENS).unwrap()
    }

    fn device(&self) -> CpuDevice {
        let layout = Model::kv_layout(&self.config.blueprint, BLOCK_SIZE, KvDType::BF16);
        CpuDevice::new(Cpu::new(NonZeroUsize::MIN), &PassNeeds::default(), kv_pool(layout, 1)).unwrap()
    }

    fn engine(&self, runner: Box<dyn Runner>, blocks: usize) -> Engine {
        let scheduler = SchedulerConfig {
            max_num_seqs: 32,
            max_num_batched_tokens: BATCHED_TOKENS,
            preemption: PreemptionMode::Auto,
            max_token_gap: None,
        };
        let kv = KvConfig { num_blocks: blocks, block_size: BLOCK_SIZE, ..KvConfig::default() };
        let config = engine_config(&self.config, scheduler, kv);
        Engine::start(config, runner).unwrap()
    }

    /// Each request alone, with everything in memory.
    fn expected(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        let specs = layers::group_specs(&self.config.blueprint);
        let weights = ResidentWeights::load(&self.catalog, &specs, &mut |_, _| ()).unwrap();
        let memory = WeightMemory::resident(Bytes(weights.bytes()));
        let engine = self.engine(Box::new(self.runner(Box::new(weights), memory, 64)), 64);
        requests.iter().map(|request| collect(engine.handle().submit(request.clone()).unwrap()).tokens).collect()
    }
}

#[test]
fn the_bundled_model_gives_memory_to_kv_and_takes_it_back() {
    let parts = Parts::open();
    let requests: Vec<_> = (0..24u32)
        .map(|i| greedy((0..40 + i).map(|at| 20 + (i * 97 + at * at * 3 + at * 11) % 2000).collect(), 12))
        .chain([greedy((0..700).map(|at| 20 + at * at % 1999).collect(), 4)])
        .collect();
    let expected = parts.expected(&requests);

    let (mut weights, budget) = parts.stream(2 << 20);
    let mut device = parts.device();
    let block = Model::kv_layout(&parts.config.blueprint, BLOCK_SIZE, KvDType::BF16).block_bytes() as u64;
    let total = budget + BLOCKS_START as u64 * block;
    let trade = MemoryTrade::new(TradeLimits {
        total,
        weights_least: weights.least_budget(),
        weights_most: weights.full_budget(),
        block,
        blocks_start: BLOCKS_START,
        blocks_max: 1000,
    });
    let blocks = trade.blocks_max();
    assert!(trade.blocks_start() == BLOCKS_START && (60..120).contains(&blocks), "{blocks}");
    let (resident, held) = (weights.resident_bytes(), weights.memory(&mut device).held);
    let memory = WeightMemory { bytes: Bytes(0), monitor: Some(weights.monitor()), trade: Some(trade) };
    let runner = parts.runner(Box::new(weights), memory, blocks);
    let seen = Arc::new(Seen {
        kv_most: AtomicU64::new(0),
        weights_least: AtomicU64::new(u64::MAX),
        resident: AtomicU64::new(0),
    });
    let watched = Watched { runner, total, block, present: BLOCKS_START, seen: seen.clone() };
    let engine = parts.engine(Box::new(watched), blocks);

    for round in 0..2 {
        seen.kv_most.store(0, Ordering::Relaxed);
        seen.weights_least.store(u64::MAX, Ordering::Relaxed);
        let streams: Vec<_> = requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(&collect(stream).tokens, expected, "round {round}");
        }
        // KV grew by more than 40 blocks, and weights made room.
        assert!(seen.kv_most.load(Ordering::Relaxed) > (BLOCKS_START as u64 + 40) * block);
        assert!(seen.weights_least.load(Ordering::Relaxed) + 40 * block <= held);
        assert_idle_and_whole(&engine);
        // Idle, the weights come back, as many as before but for what two bands may leave unused.
        eventually(&engine, "all memory is given back", |status| {
            status.kv_bytes() == BLOCKS_START as u64 * block && status.memory.weights.0 + 2 * BAND > held
        });
        let back = seen.resident.load(Ordering::Relaxed);
        assert!(back + BAND > resident, "{back} of {resident} bytes");
    }
}

/// What streamed weights say that they take stays within their budget, slots that wait for bands included.
#[test]
fn the_memory_of_streamed_weights_is_what_they_were_given() {
    let parts = Parts::open();
    let (mut weights, given) = parts.stream(1 << 20);
    let mut device = parts.device();
    let (least, full) = (weights.least_budget(), weights.full_budget());
    assert!(least < given && given < full);
    for budget in [full, least, given, full, full + (1 << 20), least] {
        weights.set_budget(budget, &mut device).unwrap();
        while weights.memory(&mut device).loading {
            std::thread::yield_now();
        }
        let memory = weights.memory(&mut device);
        assert_eq!(memory.budget, budget);
        assert!(memory.held <= budget.min(full), "{memory:?}");
        assert!(memory.held + (256 << 10) >= budget.min(full), "{memory:?}: much is left unused");
        assert_eq!(weights.resident_bytes() == weights.monitor().swept_bytes(), budget >= full);
    }
    assert!(weights.set_budget(least - 1, &mut device).is_err());
    assert_eq!(weights.memory(&mut device).budget, least);
}

#[test]
fn the_window_is_seen_to_move() {
    let parts = Parts::open();
    let (mut weights, budget) = parts.stream(1 << 20);
    let mut device = parts.device();
    let block = Model::kv_layout(&parts.config.blueprint, BLOCK_SIZE, KvDType::BF16).block_bytes() as u64;
    let trade = MemoryTrade::new(TradeLimits {
        total: budget + BLOCKS_START as u64 * block,
        weights_least: weights.least_budget(),
        weights_most: weights.full_budget(),
        block,
        blocks_start: BLOCKS_START,
        blocks_max: BLOCKS_START,
    });
    let (monitor, held) = (weights.monitor(), weights.memory(&mut device).held);
    let memory = WeightMemory { bytes: Bytes(0), monitor: Some(monitor.clone()), trade: Some(trade) };
    let engine = parts.engine(Box::new(parts.runner(Box::new(weights), memory, BLOCKS_START)), BLOCKS_START);
    let run = || drop(collect(engine.handle().submit(greedy(vec![20, 21, 22], 60)).unwrap()));
    let mut sight = WindowSight::default();
    run();
    assert_eq!(monitor.sight(0, &mut sight), 0, "nobody watches");

    let mut watcher = engine.handle().watch();
    let units: usize = watcher.weight_groups().expect("they are streamed").iter().map(|group| group.units).sum();
    let mut seen = [0; 5];
    let mut sights = 0;
    for _ in 0..100 {
        run();
        if watcher.read_weights(&mut sight) {
            sights += 1;
            assert_eq!(sight.units.len(), units);
            assert!(0 < sight.host_bytes && sight.host_bytes <= held && sight.device_bytes == 0, "{sight:?}");
            sight.units.iter().for_each(|unit| seen[usize::from(unit.code() & 7)] += 1);
        }
        if sights > 2 && seen[Presence::InUse as usize] > 0 {
            break;
        }
    }
    let of = |presence: Presence| seen[presence as usize];
    assert!(of(Presence::Absent) > 0 && of(Presence::Present) > 0 && of(Presence::InUse) > 0, "{seen:?}");
    // Between passes nothing is in use; that is shown last.
    eventually(&engine, "at rest", |status| status.running == 0);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while sight.units.iter().any(|unit| unit.code() & 7 == Presence::InUse as u8) {
        assert!(std::time::Instant::now() < end, "{sight:?}");
        watcher.read_weights(&mut sight);
        std::thread::yield_now();
    }
}
