//! The forward pass on a GPU, or on a Vulkan driver that computes on the processor: the logits and tokens of
//! `transformers`, whose logits the processor's are compared with too. Where there is no Vulkan, these tests say that
//! they were left out; `INTERBED_REQUIRE_VULKAN=1` makes that a failure.

mod best;
mod floats;
mod hidden;
mod integers;

use std::num::NonZeroUsize;
use std::sync::Arc;

use interbed_device::{Bytes, Cpu, Device, Gpu, ProductArithmetic, VulkanDevice};
use interbed_io::EngineKind;
use interbed_kernels::KvDType;
use interbed_model::config::ModelConfig;
use interbed_model::synth::{SynthSpec, synthesize};
use interbed_model::{BatchSequence, LogitRows, Model, SequenceBlocks, layers};
use interbed_weights::{
    Catalog, GroupSpec, Partition, ResidentWeights, StreamConfig, StreamMonitor, StreamPlan, StreamPolicy,
    TieredWeights, WeightSource, open_direct,
};

use crate::harness::{BLOCKS_PER_SEQUENCE, Beside, argmax, blocks_of, fixtures};
use crate::logits::{cases, distance, expected};

/// The first GPU that kernels run on, if there is any.
fn gpu() -> Option<Arc<Gpu>> {
    let found = Gpu::first(Bytes(1 << 30));
    match found {
        Ok(gpu) => Some(gpu),
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

/// A model on a GPU, and one sequence.
struct OnGpu {
    model: Model,
    device: VulkanDevice,
    tokens: Vec<u32>,
    prompt_len: usize,
    computed: usize,
    beside: Beside,
}

impl OnGpu {
    fn load(gpu: &Arc<Gpu>, name: &str, kv_dtype: KvDType, is_placed: bool, prompt: &[u32]) -> Self {
        Self::over(gpu, name, kv_dtype, prompt, |device, catalog, specs| {
            let weights = match is_placed {
                true => ResidentWeights::load_on(device, catalog, specs, &mut |_, _| ()),
                false => ResidentWeights::load(catalog, specs, &mut |_, _| ()),
            };
            Box::new(weights.unwrap())
        })
    }

    fn over(
        gpu: &Arc<Gpu>,
        name: &str,
        kv_dtype: KvDType,
        prompt: &[u32],
        weights: impl FnOnce(&mut VulkanDevice, &Catalog, &[GroupSpec]) -> Box<dyn WeightSource>,
    ) -> Self {
        let dir = fixtures().join(name);
        let mut config = ModelConfig::from_dir(&dir).unwrap();
        config.blueprint.settle_length(128);
        Self::of(gpu, config, &Catalog::open(&dir).unwrap(), ProductArithmetic::Float, kv_dtype, prompt, weights)
    }

    fn of(
        gpu: &Arc<Gpu>,
        config: ModelConfig,
        catalog: &Catalog,
        products: ProductArithmetic,
        kv_dtype: KvDType,
        prompt: &[u32],
        weights: impl FnOnce(&mut VulkanDevice, &Catalog, &[GroupSpec]) -> Box<dyn WeightSource>,
    ) -> Self {
        let blocks = blocks_of(&config.blueprint, kv_dtype, BLOCKS_PER_SEQUENCE);
        let needs = Model::pass_needs(&config.blueprint, 128, 128);
        let mut device = VulkanDevice::with_products(gpu, &needs, &blocks, products).unwrap();
        let weights = weights(&mut device, catalog, &layers::group_specs(&config.blueprint));
        let model = Model::new(config.blueprint, weights, blocks);
        let beside = Beside::of(&model, 0);
        Self { model, device, tokens: prompt.to_vec(), prompt_len: prompt.len(), computed: 0, beside }
    }

    /// The logits of all tokens that have not been computed, in passes of up to `chunk`.
    fn logits(&mut self, chunk: usize) -> Vec<Vec<f32>> {
        let table: Vec<u32> = (0..BLOCKS_PER_SEQUENCE as u32).rev().collect();
        let mut rows = Vec::new();
        while self.computed < self.tokens.len() {
            let end = self.tokens.len().min(self.computed.saturating_add(chunk));
            let groups = self.beside.groups(self.computed);
            let batch = BatchSequence {
                tokens: &self.tokens[self.computed..end],
                first_position: self.computed,
                prompt_len: self.prompt_len,
                below: 0,
                blocks: SequenceBlocks::Listed(&table),
                groups: &groups,
                logits: LogitRows::All,
            };
            let device: &mut dyn Device = &mut self.device;
            self.model.forward(device, &[batch], &mut |_, logits| rows.push(logits.all().to_vec())).unwrap();
            drop(groups);
            self.beside.advance(self.computed);
            self.computed = end;
        }
        rows
    }

    /// Continues greedily by `count` tokens.
    fn greedy(&mut self, count: usize) -> Vec<u32> {
        for _ in 0..count {
            let last = self.logits(usize::MAX).pop().unwrap();
            self.tokens.push(argmax(&last));
        }
        self.tokens[self.prompt_len..].to_vec()
    }
}

/// The fixtures whose heads the kernels take.
fn on_a_gpu() -> impl Iterator<Item = String> {
    cases().into_iter().filter(|name| {
        let config = ModelConfig::from_dir(fixtures().join(name)).unwrap();
        config.blueprint.attentions().all(|attention| attention.key_width.is_multiple_of(4))
    })
}

#[test]
fn logits_on_a_gpu_agree_with_transformers() {
    let Some(gpu) = gpu() else { return };
    let mut failures = Vec::new();
    for name in on_a_gpu() {
        let expected = expected(&name);
        let exact = |kind: &str| kind != "logits_bf16" && kind != "logits_f16";
        let (kind, want) = expected.logits.iter().find(|(kind, _)| exact(kind)).unwrap();
        // All at once by the kernels for many tokens, and a few at a time by those for few.
        for (chunk, is_placed) in [(usize::MAX, true), (5, true), (1, false)] {
            let mut model = OnGpu::load(&gpu, &name, KvDType::F32, is_placed, &expected.prompt);
            let apart = distance(&model.logits(chunk), want);
            println!("{name:24} {kind:20} {chunk:>20} {apart:.2e}");
            if apart.is_nan() || apart > 1e-5 {
                failures.push(format!("{name} {kind} by {chunk}: {apart:.2e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn sixty_four_greedy_tokens_on_a_gpu_are_those_of_transformers() {
    let Some(gpu) = gpu() else { return };
    for name in on_a_gpu() {
        let expected = expected(&name);
        let greedy = OnGpu::load(&gpu, &name, KvDType::F32, true, &expected.prompt).greedy(64);
        assert_eq!(greedy, expected.greedy, "{name}");
    }
}

#[test]
fn a_smaller_cache_on_a_gpu_changes_logits_by_no_more_than_its_type_allows() {
    let Some(gpu) = gpu() else { return };
    for (name, kv_dtype, tolerance) in [
        ("llama3_bf16", KvDType::BF16, 2e-2),
        ("llama_f16", KvDType::F16, 2e-3),
        ("qwen3", KvDType::Q8, 4e-2),
        ("llama_head_dim_20", KvDType::Q8, 4e-2),
    ] {
        let expected = expected(name);
        let exact = OnGpu::load(&gpu, name, KvDType::F32, true, &expected.prompt).logits(usize::MAX).concat();
        let apart = distance(&OnGpu::load(&gpu, name, kv_dtype, true, &expected.prompt).logits(7), &exact);
        assert!(apart > 0.0 && apart < tolerance, "{name}: {apart}");
    }
}

#[test]
fn logits_on_a_gpu_are_the_same_in_chunks_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    for (name, kv_dtype) in [
        ("qwen2", KvDType::F32),
        ("mistral_sliding", KvDType::F16),
        ("llama3_bf16", KvDType::BF16),
        ("llama_head_dim_20", KvDType::Q8),
        ("qwen3_5", KvDType::F16),
        ("qwen3_5_moe", KvDType::F16),
        ("qwen3_next", KvDType::F32),
        ("lfm2_bias", KvDType::F32),
        ("lfm2_moe", KvDType::F16),
        ("granite_4_h", KvDType::F32),
        ("granite_4_h_moe", KvDType::F16),
        ("nemotron_h_moe", KvDType::F16),
    ] {
        let prompt = expected(name).prompt;
        let bits = |chunk| {
            let rows = OnGpu::load(&gpu, name, kv_dtype, true, &prompt).logits(chunk);
            rows.concat().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        };
        let whole = bits(usize::MAX);
        for chunk in [1, 3, 7] {
            assert!(bits(chunk) == whole, "{name} in chunks of {chunk}");
        }
    }
}

/// Weights in two tiers, a share of them in each, and what was found out of them.
struct Streamed {
    monitor: Arc<StreamMonitor>,
    /// Bytes on the device, and on the host.
    resident: [u64; 2],
    bands: u64,
}

/// The model that ships with the repository, as seen from the fixtures.
const STORYTELLER: &str = "../../../../models/storyteller";

fn streamed(
    gpu: &Arc<Gpu>,
    name: &str,
    prompt: &[u32],
    policy: StreamPolicy,
    band_bytes: usize,
    shares: [f64; 2],
    host_tokens_max: usize,
) -> (OnGpu, Streamed) {
    let budgets = |partition: &Partition| {
        let (least, all) = (partition.least_budget(), partition.band_memory());
        shares.map(|share| least + (all as f64 * share) as u64)
    };
    streamed_within(gpu, name, prompt, policy, band_bytes, budgets, host_tokens_max)
}

/// Weights in two tiers, within budgets of the host and of the device.
fn streamed_within(
    gpu: &Arc<Gpu>,
    name: &str,
    prompt: &[u32],
    policy: StreamPolicy,
    band_bytes: usize,
    budgets: impl Fn(&Partition) -> [u64; 2],
    host_tokens_max: usize,
) -> (OnGpu, Streamed) {
    let mut found = None;
    let model = OnGpu::over(gpu, name, KvDType::F32, prompt, |device, catalog, specs| {
        let plan = StreamPlan::new(catalog, specs, band_bytes).unwrap();
        let [budget, of_device] = budgets(plan.partition());
        let config = StreamConfig {
            budget,
            engine: EngineKind::Pread,
            depth: 2,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy,
            timeline: false,
            host_tokens_max,
            turns: None,
        };
        if host_tokens_max > 0 {
            let types = plan.partition().swept_types();
            assert!(device.compute_on_host(Cpu::new(NonZeroUsize::new(2).unwrap()), &types).unwrap());
        }
        let (files, bands) = (open_direct(catalog).unwrap(), plan.partition().bands().len() as u64);
        let weights = TieredWeights::start_on(device, of_device, plan, catalog, files, config, &mut |_, _| {}).unwrap();
        found = Some(Streamed { resident: weights.resident_bytes(), bands, monitor: weights.monitor() });
        Box::new(weights)
    });
    (model, found.unwrap())
}

#[test]
fn greedy_tokens_are_the_same_with_a_quarter_of_the_weights_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (name, policy, shares, host_tokens_max) in [
        ("qwen2", StreamPolicy::Resident, [0.3, 0.25], 0),
        ("qwen2", StreamPolicy::Resident, [0.3, 0.25], 1),
        ("llama3_bf16", StreamPolicy::Ring, [0.3, 0.25], 1),
        ("mistral_sliding", StreamPolicy::Resident, [2.0, 0.0], 64),
        ("granite", StreamPolicy::Ring, [0.0, 0.0], 0),
    ] {
        let expected = expected(name);
        let (mut model, _) = streamed(&gpu, name, &expected.prompt, policy, 2048, shares, host_tokens_max);
        assert_eq!(model.greedy(64), expected.greedy, "{name}, {policy:?}, {shares:?}");
    }
}

#[test]
fn greedy_tokens_are_the_same_with_part_of_the_experts_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for name in ["qwen2_moe", "qwen3_5_moe", "hunyuan_v1_moe", "gpt_oss", "nemotron_h_moe"] {
        let expected = expected(name);
        // The shares of the experts that have room beside all bands, on the GPU and in host memory.
        let copied = [(0.0, 0.0), (0.6, 0.0), (0.6, 0.3), (1.0, 0.0)].map(|(on_gpu, on_host)| {
            let budgets = |partition: &Partition| {
                let (beside, experts) = (partition.fixed_bytes() + partition.band_memory(), partition.experts());
                let (classes, shape) = experts.unwrap();
                // On the GPU, nothing is rounded up to pages.
                let packed = classes.packed_bytes(partition.banks()).iter().sum::<u64>() * shape.experts() as u64;
                [(on_host, shape.bank_bytes()), (on_gpu, packed)]
                    .map(|(share, bytes)| (beside + (bytes as f64 * share) as u64).max(partition.least_budget()))
            };
            let (mut model, Streamed { monitor, .. }) =
                streamed_within(&gpu, name, &expected.prompt, StreamPolicy::Resident, 2048, budgets, 0);
            assert_eq!(model.greedy(64), expected.greedy, "{name}, {on_gpu}, {on_host}");
            monitor.stats().bytes_copied
        });
        assert!(copied[0] > copied[1] && copied[1] > copied[3], "{name}: {copied:?}");
    }
}

#[test]
fn the_host_waits_for_logits_alone_where_it_holds_more_than_it_could_hand_over() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let config_json = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 10,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    let spec = SynthSpec {
        config_json: config_json.to_string(),
        num_layers: None,
        dtype: None,
        seed: 1,
        router_skew: 0.0,
        shard_bytes: 1 << 30,
        gguf: false,
    };
    let made = synthesize(&spec, dir.path(), &mut |_, _| ()).unwrap();
    let name = dir.path().to_str().unwrap();
    let prompt: Vec<u32> = (0..8).map(|at| 7 * at + 11).collect();
    let want = OnGpu::load(&gpu, name, KvDType::F32, true, &prompt).greedy(3);
    let (mut model, Streamed { monitor, resident: [on_device, on_host], .. }) =
        streamed(&gpu, name, &prompt, StreamPolicy::Resident, 4 << 20, [2.0, 0.1], 0);
    let swept = monitor.swept_bytes();
    // A pass copies twice what the ring has room for.
    assert!(on_host == swept - on_device && on_host > 64 << 20, "{on_host} of {swept} bytes, {made:?}");
    assert_eq!(model.greedy(3), want);
    let waits = (model.device.stats().unwrap().waits_for_room, monitor.stats().waits_for_copies);
    assert!(waits == (0, 0) || !gpu.info().reads_host_memory, "{waits:?}");
}

#[test]
fn what_is_read_and_copied_is_what_stays_nowhere_and_what_does_not_stay_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    const PASSES: u64 = 10;
    let prompt = [7, 50, 300, 21];
    let want = OnGpu::load(&gpu, STORYTELLER, KvDType::F32, true, &prompt).greedy(4 + PASSES as usize);
    for (shares, host_tokens_max) in
        [([0.0, 0.25], 0), ([0.3, 0.25], 0), ([2.0, 0.1], 0), ([0.3, 0.25], 1), ([2.0, 0.1], 1)]
    {
        let (mut model, Streamed { monitor, resident: [on_device, on_host], bands }) =
            streamed(&gpu, STORYTELLER, &prompt, StreamPolicy::Resident, 64 << 10, shares, host_tokens_max);
        let swept = monitor.swept_bytes();
        assert!(on_device > 0 && on_device < swept, "{on_device} of {swept}");
        model.greedy(4);
        let before = monitor.stats();
        assert_eq!(model.greedy(PASSES as usize), want);
        let taken = monitor.stats().since(&before);
        assert_eq!(taken.passes, PASSES);
        assert_eq!(model.device.stats().unwrap().waits_for_room, 0, "the host waits for logits, and for reads");
        // Where reads are in the way of copies, it is by chance whether one must end first.
        assert!(shares[0] < 1.0 || taken.waits_for_copies == 0, "{shares:?}: {taken:?}");
        let by_host = if host_tokens_max > 0 { on_host } else { 0 };
        assert_eq!(taken.bytes_on_host, PASSES * by_host, "{shares:?}");
        let (copied, through) = (taken.bytes_copied / PASSES, swept - on_device - by_host);
        assert!(copied.abs_diff(through) <= through / 100, "{shares:?}: {copied} copied, {through} pass through");
        // Reads are of whole sectors, and there is one for a row of the embedding.
        let (read, nowhere) = (taken.bytes_read / PASSES, swept - on_device - on_host);
        let rounding = bands * 8192 + 16384;
        assert!((nowhere..nowhere + rounding).contains(&read), "{shares:?}: {read} read, {nowhere} are nowhere");
        assert!(nowhere > 0 || read < 16384, "{shares:?}: {read} read");
    }
}

#[test]
fn a_ring_copies_all_that_a_pass_sweeps_once() {
    let Some(gpu) = gpu() else { return };
    const PASSES: u64 = 10;
    let prompt = [7, 50, 300, 21];
    let want = OnGpu::load(&gpu, STORYTELLER, KvDType::F32, true, &prompt).greedy(4 + PASSES as usize);
    for shares in [[0.0, 0.0], [0.3, 0.25], [2.0, 0.1]] {
        let (mut model, Streamed { monitor, .. }) =
            streamed(&gpu, STORYTELLER, &prompt, StreamPolicy::Ring, 64 << 10, shares, 0);
        model.greedy(4);
        let (before, link) = (monitor.stats(), model.device.stats().unwrap().bytes_to_device);
        assert_eq!(model.greedy(PASSES as usize), want);
        let (copied, swept) = (monitor.stats().since(&before).bytes_copied, PASSES * monitor.swept_bytes());
        let link = model.device.stats().unwrap().bytes_to_device - link;
        // What else goes to the device are tokens, tables and rotations.
        for bytes in [copied, link] {
            assert!(bytes.abs_diff(swept) <= swept / 100, "{shares:?}: {copied} copied, {link} in all, of {swept}");
        }
    }
}
