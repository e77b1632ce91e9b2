//! The forward pass on a device that executes submissions in any legal order, over poisoned memory: it computes what
//! the CPU computes, and detects every wait that is left out.

mod checked;
mod experts;
mod trade;

use interbed_device::{Command, Device, DeviceError, HostBuffer, PlacedBytes, Queue, ReferenceDevice, Tensor, Token};
use interbed_io::EngineKind;
use interbed_kernels::{BlockGroups, KvDType, Level};
use interbed_model::config::ModelConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::{BatchSequence, ForwardError, LogitRows, Logits, Model, SequenceBlocks, layers};
use interbed_weights::{
    Catalog, ResidentWeights, StreamConfig, StreamPlan, StreamPolicy, StreamedWeights, TieredWeights, WeightError,
    WeightSource, open_direct,
};

use crate::harness::{BLOCKS_PER_SEQUENCE, Beside, Harness, blocks_of, fixtures, weights_of};
use crate::logits::{distance, expected};

/// Fixtures whose layers differ: biases, head norms, delta rules and gated attention, gated convolutions, state
/// spaces, windows, scales, tied heads, experts beside a gated one or a dense network and without gates, shared keys
/// and values, queries that grow, norms after rotation, sinks.
const MODELS: [&str; 19] = [
    "qwen2",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "granite_4_h_moe",
    "nemotron_h_moe",
    "mistral_sliding",
    "granite",
    "qwen2_moe",
    "ministral3",
    "hunyuan_v1_moe",
    "gpt_oss",
    "gemma3",
    "gemma4",
    "gemma4_moe",
    "arcee",
];

const MIXTURES: [&str; 6] = ["qwen2_moe", "gemma4_moe", "qwen3_5_moe", "hunyuan_v1_moe", "gpt_oss", "nemotron_h_moe"];

/// How many random schedules a test goes through: `usual`, or as many as `INTERBED_SCHEDULES` says.
fn schedules(usual: u64) -> u64 {
    std::env::var("INTERBED_SCHEDULES").map_or(usual, |number| number.parse().expect("INTERBED_SCHEDULES is a number"))
}

/// A test leaves out one wait in `usual`, each in a run of its own; or every one, if `INTERBED_EVERY_WAIT` is set.
fn every(usual: usize) -> usize {
    if std::env::var_os("INTERBED_EVERY_WAIT").is_some() { 1 } else { usual }
}

/// Defines the methods that a device around a [`ReferenceDevice`] leaves to it.
macro_rules! passes_the_rest_on {
    () => {
        fn tensor_capacity(&self) -> usize {
            self.device.tensor_capacity()
        }

        fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError> {
            self.device.is_complete(token)
        }

        fn share(&mut self, memory: &HostBuffer) -> bool {
            self.device.share(memory)
        }

        fn computes_on_host(&self) -> bool {
            self.device.computes_on_host()
        }

        fn has_own_memory(&self) -> bool {
            self.device.has_own_memory()
        }

        fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError> {
            self.device.downloaded(tensor)
        }

        fn block_groups(&self) -> &BlockGroups {
            self.device.block_groups()
        }

        fn reserve_blocks(&mut self, group: usize, count: usize) -> Result<usize, DeviceError> {
            self.device.reserve_blocks(group, count)
        }

        fn resize_blocks(&mut self, came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
            self.device.resize_blocks(came, left)
        }

        fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError> {
            self.device.read_block(block, begin, into)
        }

        fn fill_block(
            &mut self,
            block: u32,
            bytes: std::ops::Range<usize>,
            fill: &mut dyn FnMut(&mut [u8]),
        ) -> Result<(), DeviceError> {
            self.device.fill_block(block, bytes, fill)
        }
    };
}

/// A device that ignores one of its waits and passes everything else on.
struct Forgetful {
    device: ReferenceDevice,
    /// How many waits of submissions and of the host there were so far.
    waits: usize,
    forgotten: usize,
    /// Submissions that the device refused; who streams weights tries again.
    refused: usize,
}

impl Forgetful {
    fn forgets(&mut self) -> bool {
        self.waits += 1;
        self.waits - 1 == self.forgotten
    }
}

impl Device for Forgetful {
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        let kept: Vec<_> = waits.iter().copied().filter(|_| !self.forgets()).collect();
        let submitted = self.device.submit(queue, commands, &kept);
        self.refused += usize::from(submitted.is_err());
        submitted
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        if self.forgets() { Ok(()) } else { self.device.complete(token) }
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        self.device.allocate(len)
    }

    passes_the_rest_on!();
}

/// Passes of two sequences: first both prompts in chunks, then tokens of both together.
const PASSES: [[(usize, LogitRows); 2]; 5] = [
    [(4, LogitRows::None), (2, LogitRows::None)],
    [(3, LogitRows::None), (1, LogitRows::All)],
    [(6, LogitRows::Last), (5, LogitRows::None)],
    [(1, LogitRows::Last), (1, LogitRows::Last)],
    [(1, LogitRows::Last), (2, LogitRows::All)],
];

fn model_of(name: &str) -> Model {
    model_over(name, |catalog, config| {
        Box::new(ResidentWeights::load(catalog, &layers::group_specs(&config.blueprint), &mut |_, _| ()).unwrap())
    })
}

fn settings(budget: u64, policy: StreamPolicy, host_tokens_max: usize) -> StreamConfig {
    StreamConfig {
        budget,
        engine: EngineKind::Pread,
        depth: 2,
        disk_bytes_per_s: 0.0,
        link_bytes_per_s: 0.0,
        policy,
        timeline: false,
        host_tokens_max,
        turns: None,
    }
}

/// A model whose weights are streamed through the fewest slots possible.
fn streamed_model_of(name: &str) -> Model {
    model_over(name, |catalog, config| {
        let plan = StreamPlan::new(catalog, &layers::group_specs(&config.blueprint), 1).unwrap();
        let settings = settings(plan.partition().least_budget(), StreamPolicy::Resident, 0);
        let files = open_direct(catalog).unwrap();
        Box::new(StreamedWeights::start(plan, catalog, files, settings, &mut |_, _| {}).unwrap())
    })
}

/// A model whose weights are streamed in two tiers, each as small as it can be.
fn tiered_model_of(name: &str, device: &mut dyn Device, policy: StreamPolicy) -> Model {
    tiered_model(name, device, policy, [0.0, 0.0], 0)
}

/// A model whose weights are streamed in two tiers, of which host and device hold such `shares` for good. The host
/// computes in passes of up to `host_tokens_max` tokens.
fn tiered_model(
    name: &str,
    device: &mut dyn Device,
    policy: StreamPolicy,
    shares: [f64; 2],
    host_tokens_max: usize,
) -> Model {
    try_tiered_model(name, device, policy, shares, host_tokens_max).unwrap()
}

fn try_tiered_model(
    name: &str,
    device: &mut dyn Device,
    policy: StreamPolicy,
    shares: [f64; 2],
    host_tokens_max: usize,
) -> Result<Model, WeightError> {
    try_model_over(name, |catalog, config| {
        let plan = StreamPlan::new(catalog, &layers::group_specs(&config.blueprint), 1).unwrap();
        let (least, all) = (plan.partition().least_budget(), plan.partition().band_memory());
        let [budget, of_device] = shares.map(|share| least + (all as f64 * share) as u64);
        let settings = settings(budget, policy, host_tokens_max);
        let files = open_direct(catalog).unwrap();
        let started = TieredWeights::start_on(device, of_device, plan, catalog, files, settings, &mut |_, _| {});
        Ok(Box::new(started?))
    })
}

fn model_over(name: &str, weights: impl FnOnce(&Catalog, &ModelConfig) -> Box<dyn WeightSource>) -> Model {
    try_model_over(name, |catalog, config| Ok(weights(catalog, config))).unwrap()
}

fn try_model_over(
    name: &str,
    weights: impl FnOnce(&Catalog, &ModelConfig) -> Result<Box<dyn WeightSource>, WeightError>,
) -> Result<Model, WeightError> {
    let dir = fixtures().join(name);
    let config = ModelConfig::from_dir(&dir).unwrap();
    let weights = weights(&Catalog::open(&dir).unwrap(), &config)?;
    let blocks = blocks_of(&config.blueprint, KvDType::F32, 64);
    Ok(Model::new(config.blueprint, weights, blocks))
}

fn reference(name: &str, seed: u64) -> ReferenceDevice {
    let config = ModelConfig::from_dir(fixtures().join(name)).unwrap();
    let blocks = blocks_of(&config.blueprint, KvDType::F32, 64);
    ReferenceDevice::new(&Model::pass_needs(&config.blueprint, 16, 16), &blocks, seed)
}

/// All logits of [`PASSES`].
fn logits(model: &mut Model, device: &mut dyn Device) -> Result<Vec<Vec<f32>>, ForwardError> {
    let tokens =
        [[3u32, 17, 4, 40, 5, 9, 21, 3, 8, 13, 2, 6, 50, 51, 7], [11, 3, 3, 9, 30, 31, 32, 1, 14, 15, 16, 0, 0, 0, 0]];
    let tables = [[5u32, 0, 7, 2], [1, 6, 4, 3]];
    let (mut done, mut rows) = ([0; 2], Vec::new());
    let mut beside = [0, 1].map(|index| Beside::of(model, index));
    for pass in PASSES {
        let groups = [0, 1].map(|index| beside[index].groups(done[index]));
        let of = |index: usize| {
            let (count, logits) = pass[index];
            BatchSequence {
                tokens: &tokens[index][done[index]..done[index] + count],
                first_position: done[index],
                prompt_len: 13,
                below: 0,
                blocks: SequenceBlocks::Listed(&tables[index]),
                groups: &groups[index],
                logits,
            }
        };
        model.forward(device, &[of(0), of(1)], &mut |_, row| rows.push(row.all().to_vec()))?;
        drop(groups);
        (0..2).for_each(|index| beside[index].advance(done[index]));
        done = [0, 1].map(|index| done[index] + pass[index].0);
    }
    Ok(rows)
}

#[test]
fn any_legal_order_gives_the_processors_logits() {
    for name in MODELS {
        let plain = Level::available().find(|level| level.name() == "portable").unwrap();
        let mut harness = Harness::load(name, KvDType::F32, 1, 2).at(plain);
        let want = logits(&mut harness.model, &mut harness.device).unwrap();
        let largest = want.concat().iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let mut first: Option<Vec<Vec<f32>>> = None;
        for seed in 0..schedules(6) {
            let got = logits(&mut model_of(name), &mut reference(name, seed)).unwrap();
            for (got, want) in got.concat().iter().zip(want.concat()) {
                assert!((got - want).abs() <= 1e-4 * largest, "{name}, seed {seed}: {got} for {want}");
            }
            assert_eq!(&got, first.get_or_insert_with(|| got.clone()), "{name}, seed {seed}");
        }
    }
}

/// The logits of a fixture's prompt, computed in passes of up to `chunk` tokens from either format.
fn prompt_logits(config: ModelConfig, catalog: &Catalog, prompt: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let blocks = blocks_of(&config.blueprint, KvDType::F32, BLOCKS_PER_SEQUENCE);
    let mut device = ReferenceDevice::new(&Model::pass_needs(&config.blueprint, 64, 64), &blocks, chunk as u64);
    let weights = weights_of(&config, catalog);
    let mut model = Model::new(config.blueprint, weights, blocks);
    let (mut beside, mut rows) = (Beside::of(&model, 0), Vec::new());
    for (index, tokens) in prompt.chunks(chunk).enumerate() {
        let first_position = index * chunk;
        let groups = beside.groups(first_position);
        let blocks = SequenceBlocks::From(0);
        let (prompt_len, below, groups, logits) = (prompt.len(), 0, groups.as_slice(), LogitRows::All);
        let batch = BatchSequence { tokens, first_position, prompt_len, below, blocks, groups, logits };
        model.forward(&mut device, &[batch], &mut |_, row| rows.push(row.all().to_vec())).unwrap();
        beside.advance(first_position);
    }
    rows
}

#[test]
fn models_with_states_agree_with_transformers_from_both_formats() {
    for name in ["qwen3_5", "qwen3_5_tied", "qwen3_5_bf16", "lfm2", "lfm2_bf16", "granite_4_h", "nemotron_h"] {
        let expected = expected(name);
        let (_, want) = expected.logits.iter().find(|(kind, _)| kind == "logits_f32").unwrap();
        let dir = fixtures().join(name);
        let plain = (ModelConfig::from_dir(&dir).unwrap(), Catalog::open(&dir).unwrap());
        let catalog = Catalog::open(fixtures().join("gguf").join(format!("{name}.gguf"))).unwrap();
        let gguf = (GgufModel::of(&catalog).unwrap().config().unwrap(), catalog);
        for (config, catalog) in [plain, gguf] {
            let whole = prompt_logits(config.clone(), &catalog, &expected.prompt, 64);
            let apart = distance(&whole, want);
            println!("{name}: {apart:.2e}");
            assert!(apart <= 1e-5, "{name}: {apart:.2e}");
            assert!(prompt_logits(config, &catalog, &expected.prompt, 7) == whole, "{name}: chunks change bits");
        }
    }
}

/// The four greatest logits behind two prompts, if `wanted` of each.
fn best_of_two(name: &str, seed: u64, wanted: LogitRows) -> Vec<Vec<[f32; 2]>> {
    let mut rows = Vec::new();
    let batch = [(&[3u32, 17, 4][..], 0), (&[11, 3], 1)].map(|(tokens, block)| BatchSequence {
        tokens,
        first_position: 0,
        prompt_len: tokens.len(),
        below: 0,
        blocks: SequenceBlocks::From(block),
        groups: &[],
        logits: wanted,
    });
    let mut sink = |_, logits: Logits<'_>| match logits {
        Logits::Best(best) => rows.push(best.to_vec()),
        Logits::All(row) => {
            let mut all: Vec<[f32; 2]> = (0u16..).zip(row).map(|(token, logit)| [f32::from(token), *logit]).collect();
            all.sort_by(|a, b| b[1].total_cmp(&a[1]).then(a[0].total_cmp(&b[0])));
            rows.push(all[..4].to_vec());
        }
    };
    model_of(name).forward(&mut reference(name, seed), &batch, &mut sink).unwrap();
    rows
}

#[test]
fn the_best_of_rows_are_found_in_any_legal_order() {
    let want = best_of_two(MODELS[0], 0, LogitRows::Last);
    assert_eq!(want.len(), 2);
    for seed in 0..schedules(6) {
        assert_eq!(best_of_two(MODELS[0], seed, LogitRows::Best(4)), want, "seed {seed}");
    }
}

#[test]
fn every_wait_that_is_left_out_is_found() {
    let name = MODELS[0];
    let count = {
        let mut device = Forgetful { device: reference(name, 0), waits: 0, forgotten: usize::MAX, refused: 0 };
        logits(&mut model_of(name), &mut device).unwrap();
        device.waits
    };
    // Each pass waits for its upload. A pass with logits has two further waits for them; without logits, the next
    // pass's upload waits for it.
    assert_eq!(count, PASSES.len() + 2 * (PASSES.len() - 1) + 1);
    for forgotten in 0..count {
        let mut device = Forgetful { device: reference(name, forgotten as u64), waits: 0, forgotten, refused: 0 };
        let outcome = logits(&mut model_of(name), &mut device);
        assert!(
            matches!(
                outcome,
                Err(ForwardError::Device(DeviceError::Unordered { .. } | DeviceError::ReadTooEarly { .. }))
            ),
            "wait {forgotten} of {count} was left out, and nobody noticed: {outcome:?}"
        );
    }
}

/// A device that ignores one of the waits with which weights are released, and passes everything else on.
struct Hasty {
    device: ReferenceDevice,
    /// How many such waits there were so far: the host waits for no other computation.
    waits: usize,
    forgotten: usize,
}

impl Device for Hasty {
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        self.device.submit(queue, commands, waits)
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        if token.queue == Queue::Compute {
            self.waits += 1;
            if self.waits - 1 == self.forgotten {
                return Ok(());
            }
        }
        self.device.complete(token)
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        self.device.allocate(len)
    }

    passes_the_rest_on!();
}

#[test]
fn streamed_weights_are_released_once_the_device_has_used_them() {
    let name = MODELS[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    for seed in 0..3 {
        let got = logits(&mut streamed_model_of(name), &mut reference(name, seed)).unwrap();
        assert_eq!(got, want, "seed {seed}");
    }
    // Which waits there are depends on what has arrived from the disk; there are more than these.
    for forgotten in 0..8 {
        let is_found = (0..20).any(|seed| {
            let mut device = Hasty { device: reference(name, seed), waits: 0, forgotten };
            let outcome = logits(&mut streamed_model_of(name), &mut device);
            assert!(device.waits > forgotten);
            // The device may happen to have used the weights by then.
            matches!(outcome, Err(ForwardError::Device(DeviceError::WeightsInUse)))
        });
        assert!(is_found, "wait {forgotten} was left out, and nobody noticed");
    }
}

#[test]
fn weights_in_two_tiers_give_the_same_logits_in_any_legal_order() {
    let name = MODELS[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    for policy in [StreamPolicy::Resident, StreamPolicy::Ring] {
        for seed in 0..schedules(4) {
            let mut device = reference(name, seed);
            let mut model = tiered_model_of(name, &mut device, policy);
            assert_eq!(logits(&mut model, &mut device).unwrap(), want, "{policy:?}, seed {seed}");
        }
    }
}

#[test]
fn every_wait_between_copies_and_computation_that_is_left_out_is_found() {
    let name = MODELS[0];
    let count = {
        let mut device = Forgetful { device: reference(name, 0), waits: 0, forgotten: usize::MAX, refused: 0 };
        let mut model = tiered_model_of(name, &mut device, StreamPolicy::Resident);
        logits(&mut model, &mut device).unwrap();
        device.waits
    };
    // Where nothing is streamed there are 14.
    assert!(count > 100, "{count}");
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    let (mut found, mut tried) = (0, 0);
    for forgotten in (0..count).step_by(every(41)) {
        let mut device = Forgetful { device: reference(name, forgotten as u64), waits: 0, forgotten, refused: 0 };
        tried += 1;
        // Weights may already be refused while they are loaded.
        let outcome = try_tiered_model(name, &mut device, StreamPolicy::Resident, [0.0, 0.0], 0)
            .map_err(ForwardError::from)
            .and_then(|mut model| logits(&mut model, &mut device));
        found += usize::from(device.refused > 0 || outcome.is_err());
        // Otherwise a later wait of the same queue for a later copy is one for all before it. How many there are of
        // these depends on what has arrived from the disk: half of all, or a few more on a busy machine.
        assert!(outcome.is_err() || outcome.is_ok_and(|logits| logits == want), "wait {forgotten} of {count}");
    }
    assert!(found * 3 > tried, "{found} of {tried} were found");
}

#[test]
fn the_host_may_compute_with_what_it_holds_in_any_legal_order() {
    for name in MODELS {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        // In passes of two tokens, in all but the longest, and in all.
        for (host_tokens_max, shares) in [(2, [0.5, 0.2]), (8, [0.3, 0.3]), (99, [1.0, 0.4])] {
            for seed in 0..schedules(2) {
                let mut device = reference(name, seed);
                let mut model = tiered_model(name, &mut device, StreamPolicy::Resident, shares, host_tokens_max);
                let got = logits(&mut model, &mut device).unwrap();
                assert_eq!(got, want, "{name}, up to {host_tokens_max} tokens, seed {seed}");
            }
        }
    }
}

#[test]
fn every_wait_between_host_and_device_that_is_left_out_is_found() {
    let name = MODELS[0];
    let model = |device: &mut Forgetful| try_tiered_model(name, device, StreamPolicy::Resident, [1.0, 0.3], 99);
    let count = {
        let mut device = Forgetful { device: reference(name, 0), waits: 0, forgotten: usize::MAX, refused: 0 };
        logits(&mut model(&mut device).unwrap(), &mut device).unwrap();
        device.waits
    };
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    let (mut found, mut tried) = (0, 0);
    for forgotten in (0..count).step_by(every(3)) {
        let mut device = Forgetful { device: reference(name, forgotten as u64), waits: 0, forgotten, refused: 0 };
        tried += 1;
        let outcome =
            model(&mut device).map_err(ForwardError::from).and_then(|mut model| logits(&mut model, &mut device));
        found += usize::from(device.refused > 0 || outcome.is_err());
        assert!(outcome.is_err() || outcome.is_ok_and(|logits| logits == want), "wait {forgotten} of {count}");
    }
    // A later wait of the same queue is one for all before it.
    assert!(found * 3 > tried, "{found} of {tried} were found");
}

/// A device that refuses some copies of weights, and passes everything else on.
struct Refusing {
    device: ReferenceDevice,
    random: u64,
    /// Of so many copies, one is refused; 0 for none.
    one_in: u64,
    /// How often there still is memory.
    allocations: usize,
}

impl Device for Refusing {
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let is_copy = matches!(commands, [Command::CopyWeights { .. }]);
        if is_copy && self.one_in > 0 && (self.random >> 33).is_multiple_of(self.one_in) {
            return Err(DeviceError::NoMemory);
        }
        self.device.submit(queue, commands, waits)
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        self.device.complete(token)
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        self.allocations = self.allocations.checked_sub(1).ok_or(DeviceError::Full)?;
        self.device.allocate(len)
    }

    passes_the_rest_on!();
}

#[test]
fn copies_that_a_device_refuses_fail_a_pass_and_change_no_other() {
    let name = MODELS[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    let (mut failed, mut done) = (0, 0);
    // Refused so rarely at last that some passes go through, in whatever order reads arrive.
    for (seed, one_in) in [(1, 3), (2, 6), (3, 12), (4, 96)] {
        let mut device = Refusing { device: reference(name, seed), random: seed, one_in: 0, allocations: usize::MAX };
        let mut model = tiered_model_of(name, &mut device, StreamPolicy::Resident);
        device.one_in = one_in;
        for _ in 0..12 {
            match logits(&mut model, &mut device) {
                Ok(got) => {
                    assert_eq!(got, want, "seed {seed}");
                    done += 1;
                }
                Err(ForwardError::Weights(_) | ForwardError::Device(DeviceError::NoMemory)) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        device.one_in = 0;
        assert_eq!(logits(&mut model, &mut device).unwrap(), want, "seed {seed}, in the end");
    }
    assert!(failed > 0 && done > 0, "{failed} failed, {done} did not");
}

#[test]
fn a_device_with_less_memory_than_it_was_said_to_have_streams_more() {
    let name = MODELS[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    // Half of the weights would stay there, if there were memory.
    let shares = [0.3, 0.5];
    let taken = {
        let mut device = Refusing { device: reference(name, 0), random: 0, one_in: 0, allocations: usize::MAX };
        tiered_model(name, &mut device, StreamPolicy::Resident, shares, 0);
        usize::MAX - device.allocations
    };
    let (mut smaller, mut tried) = (0, 0);
    for allocations in (0..taken).step_by(23) {
        for policy in [StreamPolicy::Resident, StreamPolicy::Ring] {
            tried += 1;
            let seed = allocations as u64;
            let mut device = Refusing { device: reference(name, seed), random: 0, one_in: 0, allocations };
            let started = try_tiered_model(name, &mut device, policy, shares, 0);
            match started.map(|mut model| logits(&mut model, &mut device)) {
                Ok(Ok(got)) => {
                    assert_eq!(got, want, "{policy:?}, {allocations} of {taken}");
                    smaller += 1;
                }
                // Not even the least that streaming needs.
                Err(WeightError::Device(DeviceError::Full)) => {}
                Ok(Err(error)) => panic!("{policy:?}, {allocations} of {taken}: {error}"),
                Err(error) => panic!("{policy:?}, {allocations} of {taken}: {error}"),
            }
        }
    }
    assert!(smaller > tried / 3, "{smaller} of {tried}");
}
