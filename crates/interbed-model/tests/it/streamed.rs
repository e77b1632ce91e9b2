//! A model with streamed weights computes bit for bit what it computes with resident weights: under any budget, with
//! any cut into bands, and while the budget changes.

use std::ops::ControlFlow;
use std::path::Path;

use interbed_device::{DeviceError, ReferenceDevice};
use interbed_io::{EngineKind, WriteTarget};
use interbed_kernels::{DType, KvDType};
use interbed_model::config::ModelConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::layers::group_specs;
use interbed_model::synth::{SynthSpec, synthesize};
use interbed_model::{BatchSequence, ForwardError, LogitRows, Model, SequenceBlocks};
use interbed_weights::{
    Catalog, Coding, ElasticWeights, StorePlan, StreamConfig, StreamPlan, StreamPolicy, StreamedWeights, WeightError,
    open_direct, write_store,
};

use crate::harness::{BLOCKS_PER_SEQUENCE, Harness, blocks_of, fixtures};

/// Cases: plain, biases on all projections, head norms, tied heads, scales, sliding windows, two norms a branch,
/// experts, rows of a table, matrices in one piece, experts that are rearranged on the way, convolutions and states.
const CASES: [(&str, KvDType); 25] = [
    ("llama3_bf16", KvDType::BF16),
    ("llama_bias", KvDType::F32),
    ("qwen2_bf16", KvDType::Q8),
    ("qwen3", KvDType::F16),
    ("llama3_gqa_tied", KvDType::F32),
    ("minicpm", KvDType::F32),
    ("mistral_sliding", KvDType::F32),
    ("gemma3", KvDType::F16),
    ("gemma4", KvDType::F32),
    ("gemma4_moe", KvDType::F16),
    ("arcee", KvDType::F32),
    ("qwen3_moe", KvDType::F16),
    ("qwen2_moe", KvDType::F32),
    ("glm4_moe", KvDType::F32),
    ("phi3_long", KvDType::F32),
    ("gpt_oss", KvDType::F32),
    ("gpt_oss_mxfp4", KvDType::F16),
    ("qwen3_5", KvDType::F16),
    ("qwen3_5_moe", KvDType::BF16),
    ("qwen3_next", KvDType::F32),
    ("lfm2_bias", KvDType::F16),
    ("lfm2_moe", KvDType::F32),
    ("granite_4_h", KvDType::F16),
    ("granite_4_h_moe", KvDType::F32),
    ("nemotron_h_moe", KvDType::F32),
];

fn config_of(catalog: &Catalog, dir: &Path) -> ModelConfig {
    match GgufModel::of(catalog) {
        Some(gguf) => gguf.config().unwrap(),
        None => ModelConfig::from_dir(dir).unwrap(),
    }
}

fn plan(catalog: &Catalog, config: &ModelConfig, band_bytes: usize) -> StreamPlan {
    StreamPlan::new(catalog, &group_specs(&config.blueprint), band_bytes).unwrap()
}

fn stream(
    catalog: &Catalog,
    config: &ModelConfig,
    band_bytes: usize,
    budget: u64,
    policy: StreamPolicy,
    engine: EngineKind,
) -> StreamedWeights {
    let settings = StreamConfig {
        budget,
        engine,
        depth: 2,
        disk_bytes_per_s: 0.0,
        link_bytes_per_s: 0.0,
        policy,
        timeline: false,
        host_tokens_max: 0,
        turns: None,
    };
    let files = open_direct(catalog).unwrap();
    let plan = plan(catalog, config, band_bytes);
    StreamedWeights::start(plan, catalog, files, settings, &mut |_, _| {}).unwrap()
}

fn elastic(harness: &mut Harness) -> &mut dyn ElasticWeights {
    harness.model.weights().elastic().unwrap()
}

fn set_budget(harness: &mut Harness, bytes: u64) -> Result<(), WeightError> {
    harness.model.weights().elastic().unwrap().set_budget(bytes, &mut harness.device)
}

/// Policies and read engines; io_uring only if this machine allows it.
fn ways() -> impl Iterator<Item = (StreamPolicy, EngineKind)> {
    let uring = EngineKind::Uring.start::<Vec<u8>>(1).is_ok();
    let ways = [StreamPolicy::Resident, StreamPolicy::Ring].map(|policy| (policy, EngineKind::Pread));
    let more = [StreamPolicy::Resident, StreamPolicy::Ring].map(|policy| (policy, EngineKind::Uring));
    ways.into_iter().chain(more.into_iter().filter(move |_| uring))
}

/// The logits of a prompt computed in chunks, as bits.
fn logits(harness: &mut Harness, prompt: &[u32], chunk: usize) -> Vec<Vec<u32>> {
    let mut sequence = harness.sequence(0, prompt);
    let rows = harness.prompt_logits(&mut sequence, chunk);
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * i * 3 + i * 11) % 60).collect()
}

#[test]
fn logits_are_those_of_weights_in_memory() {
    // Each case goes through every third combination, or through all if `INTERBED_EVERY_WAIT` is set.
    let every = if std::env::var_os("INTERBED_EVERY_WAIT").is_some() { 1 } else { 3 };
    for (case, (name, dtype)) in CASES.into_iter().enumerate() {
        let dir = fixtures().join(name);
        let catalog = Catalog::open(&dir).unwrap();
        let config = config_of(&catalog, &dir);
        let want = logits(&mut Harness::load(name, dtype, 2, 1), &prompt(70), usize::MAX);
        for (band, band_bytes) in [1, 5000, 1 << 20].into_iter().enumerate() {
            let mut combination = case + band;
            let least = plan(&catalog, &config, band_bytes).partition().least_budget();
            let all = plan(&catalog, &config, band_bytes).partition().full_budget();
            for budget in [least, least + (all - least) / 3, all] {
                for (policy, engine) in ways() {
                    combination += 1;
                    if combination % every > 0 {
                        continue;
                    }
                    let weights = stream(&catalog, &config, band_bytes, budget, policy, engine);
                    let mut harness = Harness::over(config.clone(), Box::new(weights), dtype, 2, BLOCKS_PER_SEQUENCE);
                    for chunk in [usize::MAX, 33] {
                        let got = logits(&mut harness, &prompt(70), chunk);
                        assert_eq!(
                            got, want,
                            "{name}: bands of {band_bytes}, {budget} bytes, {policy:?}, {engine}, {chunk}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn experts_that_are_read_ahead_change_nothing() {
    for (name, dtype) in CASES.into_iter().filter(|(name, _)| name.contains("moe") || name.contains("gpt_oss")) {
        let dir = fixtures().join(name);
        let catalog = Catalog::open(&dir).unwrap();
        let config = config_of(&catalog, &dir);
        let want = logits(&mut Harness::load(name, dtype, 2, 1), &prompt(70), usize::MAX);
        let plan = plan(&catalog, &config, 5000);
        let (_, shape) = plan.partition().experts().unwrap();
        // Routers stay, and half of the experts.
        let budget = plan.partition().full_budget() - (shape.bank_bytes() - shape.least_bytes()) / 2;
        let looks = config.blueprint.mixtures().count() > 1;
        for (policy, engine) in ways().filter(|(policy, _)| *policy == StreamPolicy::Resident) {
            for reads_ahead in [true, false] {
                let weights = stream(&catalog, &config, 5000, budget, policy, engine);
                let monitor = weights.monitor();
                let mut harness = Harness::over(config.clone(), Box::new(weights), dtype, 2, BLOCKS_PER_SEQUENCE);
                elastic(&mut harness).set_reads_ahead(reads_ahead);
                for chunk in [1, 3, 32] {
                    assert_eq!(logits(&mut harness, &prompt(70), chunk), want, "{name}: {engine}, {chunk}");
                }
                assert_eq!(monitor.stats().experts_ahead > 0, reads_ahead && looks, "{name}: {engine}");
            }
        }
    }
}

/// A random model with matrices of a few hundred KiB.
fn synthetic(dtype: DType, dir: &Path) -> (Catalog, ModelConfig) {
    let config_json = serde_json::json!({"model_type": "llama", "vocab_size": 2048, "hidden_size": 256,
        "intermediate_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false, "rope_theta": 500.0});
    let spec = SynthSpec {
        config_json: config_json.to_string(),
        num_layers: None,
        dtype: Some(dtype),
        seed: 5,
        router_skew: 0.0,
        shard_bytes: 2 << 20,
        gguf: false,
    };
    synthesize(&spec, dir, &mut |_, _| {}).unwrap();
    let catalog = Catalog::open(dir).unwrap();
    let config = config_of(&catalog, dir);
    (catalog, config)
}

#[test]
fn quantised_weights_stream_as_well() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K] {
        let dir = tempfile::tempdir().unwrap();
        let (catalog, config) = synthetic(dtype, &dir.path().join("model"));
        let mut resident = Harness::of(config.clone(), &catalog, KvDType::F16, 2, 1);
        let want = logits(&mut resident, &prompt(40), usize::MAX);
        let budget = plan(&catalog, &config, 40_000).partition().least_budget() + 600_000;
        let weights = stream(&catalog, &config, 40_000, budget, StreamPolicy::Resident, EngineKind::Pread);
        assert!(weights.resident_bytes() > 0 && weights.resident_bytes() < weights.monitor().swept_bytes());
        let mut harness = Harness::over(config, Box::new(weights), KvDType::F16, 2, BLOCKS_PER_SEQUENCE);
        assert_eq!(logits(&mut harness, &prompt(40), 13), want, "{dtype}");
    }
}

#[test]
fn weights_in_fp8_stream_from_a_packed_store() {
    let (from, dir) = (fixtures().join("qwen3_moe_fp8"), tempfile::tempdir().unwrap());
    let catalog = Catalog::open(&from).unwrap();
    let config = config_of(&catalog, &from);
    let want = logits(&mut Harness::load("qwen3_moe_fp8", KvDType::F16, 2, 1), &prompt(70), usize::MAX);
    let store = dir.path().join("fp8.interbed");
    let layout = StorePlan::new(&catalog, &group_specs(&config.blueprint), "fp8", Vec::new(), &Coding::none()).unwrap();
    let target = WriteTarget::open(&store).unwrap();
    write_store(&catalog, &layout, target, &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    let packed = Catalog::open(&store).unwrap();
    for band_bytes in [1, 5000] {
        let budget = plan(&packed, &config, band_bytes).partition().least_budget();
        for (policy, engine) in ways() {
            let weights = stream(&packed, &config, band_bytes, budget, policy, engine);
            let mut harness = Harness::over(config.clone(), Box::new(weights), KvDType::F16, 2, BLOCKS_PER_SEQUENCE);
            assert_eq!(logits(&mut harness, &prompt(70), 33), want, "bands of {band_bytes}, {policy:?}, {engine}");
        }
    }
}

/// Resident weights are not read again, and no other weights are read twice in a pass.
#[test]
fn a_pass_reads_what_does_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (catalog, config) = synthetic(DType::BF16, &dir.path().join("model"));
    let least = plan(&catalog, &config, 256 << 10).partition().least_budget();
    for extra in [0, 2 << 20, 5 << 20] {
        let weights = stream(&catalog, &config, 256 << 10, least + extra, StreamPolicy::Resident, EngineKind::Pread);
        let monitor = weights.monitor();
        let mut harness = Harness::over(config.clone(), Box::new(weights), KvDType::F16, 2, BLOCKS_PER_SEQUENCE);
        let mut sequence = harness.sequence(0, &prompt(5));
        harness.prompt_logits(&mut sequence, usize::MAX);
        let resident = elastic(&mut harness).resident_bytes();
        assert!(resident + (400 << 10) >= extra, "{resident} of {extra} stay");
        // Reads ahead for the next pass have ended, before and after measuring: they are the same number of bytes each
        // time.
        elastic(&mut harness).settle();
        let before = monitor.stats();
        for passes in 1..=4 {
            sequence.tokens.push(passes);
            harness.prompt_logits(&mut sequence, usize::MAX);
            elastic(&mut harness).settle();
            let read = monitor.stats().since(&before).bytes_read;
            let bound = monitor.swept_bytes() - elastic(&mut harness).resident_bytes();
            // Reads end on whole pages, and a token's row of the embedding is read too.
            let share = read as f64 / (bound * u64::from(passes)) as f64;
            assert!((1.0..=1.03).contains(&share), "{extra}: {read} bytes in {passes} passes, {bound} each");
        }
    }
}

#[test]
fn the_budget_may_change_between_passes() {
    let dir = tempfile::tempdir().unwrap();
    let (catalog, config) = synthetic(DType::BF16, &dir.path().join("model"));
    let mut resident = Harness::of(config.clone(), &catalog, KvDType::F16, 2, 1);
    let want = logits(&mut resident, &prompt(24), usize::MAX);
    let least = plan(&catalog, &config, 64 << 10).partition().least_budget();
    let weights = stream(&catalog, &config, 64 << 10, least + (4 << 20), StreamPolicy::Resident, EngineKind::Pread);
    let mut harness = Harness::over(config, Box::new(weights), KvDType::F16, 2, BLOCKS_PER_SEQUENCE);
    let mut sizes = Vec::new();
    for extra in [4, 1, 0, 3, 7, 2] {
        set_budget(&mut harness, least + (extra << 20)).unwrap();
        assert_eq!(logits(&mut harness, &prompt(24), 7), want, "{extra} MiB beyond the least");
        sizes.push(elastic(&mut harness).resident_bytes());
    }
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2] && sizes[4] > sizes[3], "{sizes:?}");
    assert!(set_budget(&mut harness, least / 2).is_err());
    assert_eq!(logits(&mut harness, &prompt(24), 7), want);
}

#[test]
fn a_batch_that_is_too_large_begins_no_pass() {
    let dir = fixtures().join("qwen3");
    let catalog = Catalog::open(&dir).unwrap();
    let config = config_of(&catalog, &dir);
    let budget = plan(&catalog, &config, 5000).partition().least_budget();
    let weights = stream(&catalog, &config, 5000, budget, StreamPolicy::Resident, EngineKind::Pread);
    let monitor = weights.monitor();
    let blocks = blocks_of(&config.blueprint, KvDType::F32, 8);
    let mut device = ReferenceDevice::new(&Model::pass_needs(&config.blueprint, 1, 1), &blocks, 0);
    let mut model = Model::new(config.blueprint, Box::new(weights), blocks);
    let mut forward = |tokens: &[u32]| {
        let (prompt_len, blocks) = (tokens.len(), SequenceBlocks::From(0));
        let (first_position, below, groups, logits) = (0, 0, &[][..], LogitRows::Last);
        let batch = BatchSequence { tokens, first_position, prompt_len, below, blocks, groups, logits };
        let outcome = model.forward(&mut device, &[batch], &mut |_, _| ());
        (outcome, monitor.stats().passes)
    };
    let (outcome, passes) = forward(&prompt(30));
    assert!(matches!(outcome, Err(ForwardError::Device(DeviceError::OutOfTensors(_)))), "{outcome:?}");
    assert_eq!(passes, 0);
    let (outcome, passes) = forward(&prompt(1));
    assert!(outcome.is_ok() && passes == 1, "{outcome:?}");
}
