//! The engine over devices with memory of their own, of which states, windows and the KV of all tokens share little:
//! requests get the tokens that the processor gives them with ample memory.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use interbed_device::{
    BlockMemory, Bytes, ChunkShape, Cpu, CpuDevice, Device, Gpu, KvPool, PassNeeds, ProductArithmetic, ReferenceDevice,
    VulkanDevice,
};
use interbed_engine::{Engine, ModelRunner, PreemptionMode, Request, SchedulerConfig, WeightMemory};
use interbed_kernels::{BlockGroup, BlockGroups, KvDType};
use interbed_kv::{Keeps, KvConfig, TailConfig};
use interbed_model::{KeptGroup, Model, config::ModelConfig, layers};
use interbed_weights::{Catalog, ResidentWeights};

use crate::drafting::{Drafting, Known};
use crate::model::engine_config;
use crate::sim::{assert_idle_and_whole, collect, greedy, teach_short_answers};

const BLOCK_SIZE: usize = 4;
const SEQUENCES: usize = 6;
/// More blocks than all requests can use.
const AMPLE: usize = 2000;
/// Blocks whose memory holds some four states, or nine.
const LITTLE: [usize; 2] = [150, 320];
/// Blocks for the KV and the windows of a few requests.
const WINDOWED: usize = 150;

/// A model whose layers keep states or windows, and the sizes of its passes and blocks.
struct Parts {
    catalog: Catalog,
    config: ModelConfig,
    needs: PassNeeds,
    groups: BlockGroups,
    batched_tokens: usize,
}

impl Parts {
    fn of(name: &str, blocks: usize, batched_tokens: usize) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures").join(name);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let needs = Model::pass_needs(&config.blueprint, batched_tokens, batched_tokens);
        let trunk = Model::groups_of(&config.blueprint).groups()[0].layout(BLOCK_SIZE, KvDType::F32);
        let (kept, bytes) = (Model::groups_of(&config.blueprint), blocks * trunk.block_bytes());
        let layouts = kept.groups().iter().map(|group| group.layout(BLOCK_SIZE, KvDType::F32));
        let counts: Vec<_> = layouts.map(|layout| bytes / layout.block_bytes()).collect();
        let groups = kept.blocks(BLOCK_SIZE, KvDType::F32, &counts);
        assert!(counts.len() > 1 && counts[0] == blocks, "{name} keeps something beside the KV of all tokens");
        Self { catalog: Catalog::open(&dir).unwrap(), config, needs, groups, batched_tokens }
    }

    /// What layers keep beside the KV of all tokens.
    fn tails(&self) -> Vec<TailConfig> {
        let kept = Model::groups_of(&self.config.blueprint);
        let tail = |(group, blocks): (&KeptGroup, &BlockGroup)| {
            let keeps = match group {
                KeptGroup::Kv { window, .. } => Keeps::Window { tokens: window.unwrap() },
                KeptGroup::States(_) => Keeps::State,
            };
            TailConfig { keeps, block_bytes: blocks.block_bytes(), parts: 1 }
        };
        kept.groups().iter().zip(self.groups.groups()).skip(1).map(tail).collect()
    }

    /// The bytes of what a sequence keeps beside the KV of all tokens.
    fn bytes_beside(&self) -> usize {
        let bytes = |tail: &TailConfig| match tail.keeps {
            Keeps::Window { tokens } => ((tokens + self.batched_tokens).div_ceil(BLOCK_SIZE) + 1) * tail.block_bytes,
            Keeps::State => 2 * tail.block_bytes,
        };
        self.tails().iter().map(bytes).sum()
    }

    /// The bytes that all blocks share.
    fn bytes(&self) -> u64 {
        (self.groups.groups()[0].num_blocks() * self.groups.trunk().block_bytes()) as u64
    }

    /// An engine over `device`, which has memory for the weights and [these bytes](Self::bytes). It guesses `drafts`
    /// tokens at a time.
    fn engine<D: Device + 'static>(self, mut device: D, known: &Arc<Known>, drafts: usize) -> Engine {
        let specs = layers::group_specs(&self.config.blueprint);
        let weights = ResidentWeights::load_on(&mut device, &self.catalog, &specs, &mut |_, _| ()).unwrap();
        let memory = WeightMemory::resident(Bytes(weights.bytes()));
        let scheduler = SchedulerConfig {
            max_num_seqs: SEQUENCES.min(self.batched_tokens),
            max_num_batched_tokens: self.batched_tokens,
            preemption: PreemptionMode::Recompute,
            max_token_gap: None,
        };
        let trunk = self.groups.trunk().block_bytes();
        let kv = KvConfig {
            num_blocks: self.groups.groups()[0].num_blocks(),
            block_size: BLOCK_SIZE,
            tails: self.tails(),
            block_bytes: trunk,
            pass_tokens: self.batched_tokens,
            ..KvConfig::default()
        };
        let mut config = engine_config(&self.config, scheduler, kv);
        config.limits.kv_blocks_beside = self.bytes_beside().div_ceil(trunk);
        config.check_invariants = true;
        let runner = ModelRunner::new(device, self.config.blueprint, Box::new(weights), memory);
        Engine::start(config, Box::new(Drafting::new(runner, known, drafts))).unwrap()
    }

    fn on_processor(self) -> Engine {
        let pool = KvPool::new_sparse(self.groups.clone()).unwrap();
        let device = CpuDevice::new(Cpu::new(NonZeroUsize::MIN), &self.needs, pool).unwrap();
        self.engine(device, &Arc::default(), 0)
    }
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    // All begin alike, and part ways in the middle of a block.
    (0..length).map(|i| (if i < 18 { i * 5 } else { seed * 31 + i * i * 7 + i }) % 60 + 2).collect()
}

fn requests() -> Vec<Request> {
    let one = |seed: u32| greedy(prompt(seed % 5, 23 + seed * 9 % 40), 14 + seed as usize % 3 * 9);
    (0..8).map(one).collect()
}

/// The answers to the requests one after the other, together, and again; then several to each; then a conversation.
fn answers(engine: &Engine) -> [Vec<Vec<u32>>; 5] {
    let submit = |request: Request| engine.handle().submit(request).unwrap();
    let alone = requests().into_iter().map(|one| collect(submit(one)).tokens).collect();
    let together = || {
        let streams: Vec<_> = requests().into_iter().map(submit).collect();
        streams.into_iter().map(|stream| collect(stream).tokens).collect()
    };
    let [first, second] = [together(), together()];
    let forked = requests().into_iter().take(4).flat_map(|one| {
        let streams = engine.handle().submit_many(one, SEQUENCES.min(3)).unwrap();
        streams.into_iter().map(|stream| collect(stream).tokens).collect::<Vec<_>>()
    });
    let forked = forked.collect();
    let mut talk = prompt(9, 30);
    let turns = (0..5).map(|turn| {
        let ended = collect(submit(greedy(talk.clone(), 9)));
        talk.extend(&ended.tokens);
        talk.extend(prompt(turn, 5));
        ended.tokens
    });
    let turns = turns.collect();
    [alone, first, second, forked, turns]
}

/// Compares engines over the devices that `open` opens, which have little memory, with one over the processor that has
/// much. Each run has so many blocks, and computes so many tokens in a pass. Returns how often requests made room.
fn compare<D: Device + 'static>(name: &str, runs: &[[usize; 2]], open: impl Fn(u64, &Parts) -> D) -> u64 {
    let want = answers(&Parts::of(name, AMPLE, 64).on_processor());
    let (alone, known) = (&want[0], Arc::new(Known::default()));
    let sequences = requests().into_iter().zip(alone).map(|(request, answer)| [&request.prompt[..], answer].concat());
    known.sequences.lock().unwrap().extend(sequences);
    assert_eq!([&want[1], &want[2]], [alone, alone]);
    assert!(want[3].chunks(3).zip(alone).all(|(forked, alone)| forked.iter().all(|one| one == alone)));
    let run = |(run, &[blocks, batched_tokens]): (usize, &[usize; 2])| {
        let parts = Parts::of(name, blocks, batched_tokens);
        let device = open(run as u64, &parts);
        let engine = parts.engine(device, &known, [0, 4][run % 2]);
        teach_short_answers(&engine);
        let what = format!("{name}, {blocks} blocks, {batched_tokens} tokens a pass");
        assert_eq!(answers(&engine), want, "{what}");
        assert_idle_and_whole(&engine);
        let status = engine.handle().status();
        assert!(status.kv.blocks_withdrawn > 0, "{what}: states have taken no memory of the trunk");
        assert!(status.kv.prefix_hit_tokens > 0, "{what}: nothing was found");
        status.preemptions
    };
    let preemptions = runs.iter().enumerate().map(run).sum();
    assert!(runs.len() == 1 || known.right.load(Ordering::Relaxed) > 100, "nothing was guessed");
    preemptions
}

#[test]
fn a_device_that_executes_in_any_order_shares_memory_between_groups() {
    let open = |run: u64, parts: &Parts| {
        let device = |seed: u64| ReferenceDevice::new(&parts.needs, &parts.groups, seed);
        // Not a byte more than what weights and blocks take.
        let mut ample = device(0).with_memory(1 << 40);
        let specs = layers::group_specs(&parts.config.blueprint);
        let weights = ResidentWeights::load_on(&mut ample, &parts.catalog, &specs, &mut |_, _| ()).unwrap();
        let memory = parts.bytes() + ample.memory_used().unwrap();
        drop(weights);
        device(run).with_memory(memory)
    };
    let [few, more] = LITTLE;
    let preemptions = compare("qwen3_5", &[[few, 64], [few, 7], [more, 24]], open);
    assert!(preemptions > 0, "nobody had to make room");
    // With an embedding that is the head too, and windows of one length.
    compare("qwen3_5_tied", &[[few, 24]], open);
    compare("lfm2", &[[few, 24]], open);
    compare("gemma3", &[[WINDOWED, 24]], open);
}

#[test]
fn a_gpu_shares_memory_between_groups() {
    let products = ProductArithmetic::Float;
    if let Err(why) = Gpu::first(Bytes(1 << 30)) {
        assert!(std::env::var_os("INTERBED_REQUIRE_VULKAN").is_none(), "{why}");
        return eprintln!("left out: {why}");
    }
    let open = |_, parts: &Parts| {
        // All that passes, weights and the chunks of blocks take, and what the driver rounds up.
        let chunks = ChunkShape::new(parts.groups.groups().iter().map(BlockGroup::block_bytes));
        let blocks = chunks.chunks_for(parts.bytes() as usize) * chunks.bytes();
        let beside = VulkanDevice::pass_bytes(&parts.needs, products) as u64 + parts.catalog.bytes() + (256 << 10);
        let gpu = Gpu::first(Bytes(blocks as u64 + beside)).unwrap();
        let shared = BlockMemory::Shared(Bytes(parts.bytes()));
        VulkanDevice::with_blocks(&gpu, &parts.needs, &parts.groups, shared, products).unwrap()
    };
    compare("qwen3_5", &[[LITTLE[0], 24], [LITTLE[1], 24]], open);
    compare("gemma3", &[[WINDOWED, 24]], open);
}
