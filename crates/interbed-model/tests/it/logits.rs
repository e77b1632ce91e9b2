//! Logits and greedy tokens compared with `transformers`, for every architecture and rope type. `tools/reference` makes
//! the fixtures.

use interbed_kernels::{DType, KvDType, Level, Matrix};
use interbed_model::config::ModelConfig;
use interbed_weights::{
    Catalog, ElementType, GroupSpec, ResidentWeights, Role, TensorId, TensorMeta, TensorSpec, WeightSource, write_model,
};
use serde_json::Value;

use crate::harness::{Harness, fixtures};

pub struct Expected {
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    /// The name of each set of logits, and the logits, `[prompt, vocab]`.
    pub logits: Vec<(String, Vec<f32>)>,
}

pub fn expected(name: &str) -> Expected {
    let dir = fixtures().join(name);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
    let ids = |key: &str| json[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let file = interbed_io::ExactFile::open(dir.join("expected.safetensors")).unwrap();
    let catalog = Catalog::from_files(vec![std::sync::Arc::new(file)]).unwrap();
    let tensors = catalog.tensors().map(|(name, entry)| TensorSpec::new(name, entry.shape.clone())).collect::<Vec<_>>();
    let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let group = GroupSpec { name: "expected".into(), role: Role::FeedForward, layer: 0, tensors };
    let weights = ResidentWeights::load(&catalog, &[group], &mut |_, _| ()).unwrap();
    let logits = names
        .into_iter()
        .enumerate()
        .map(|(index, name)| {
            let numbers = weights.vector(TensorId { group: 0, index });
            let (numbers, _) = numbers.matrix().bytes().as_chunks::<4>();
            (name, numbers.iter().map(|&number| f32::from_le_bytes(number)).collect())
        })
        .collect();
    Expected { prompt: ids("prompt"), greedy: ids("greedy"), logits }
}

/// The largest difference, relative to the largest logit.
pub fn distance(got: &[Vec<f32>], want: &[f32]) -> f32 {
    let got = got.concat();
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let apart = got.iter().zip(want).fold(0f32, |apart, (a, b)| apart.max((a - b).abs()));
    apart / largest
}

/// Models with quantised weights: products with these round activations to 8 bits for each 32.
pub const QUANTISED: [&str; 1] = ["gpt_oss_mxfp4"];

/// The model in `dir` with all its weights as single-precision numbers, which are the same numbers.
fn widened(name: &str, dir: &std::path::Path) -> (ModelConfig, Catalog) {
    let catalog = Catalog::open(fixtures().join(name)).unwrap();
    let tensors: Vec<TensorMeta> = catalog
        .tensors()
        .map(|(name, entry)| TensorMeta { name: name.to_owned(), dtype: DType::F32, shape: entry.shape.clone() })
        .collect();
    write_model(dir, &tensors, u64::MAX, &mut |index, sink| {
        let entry = catalog.get(&tensors[index].name).unwrap();
        let mut bytes = vec![0; entry.bytes as usize];
        catalog.files()[entry.file].read_exact_at(&mut bytes, entry.offset)?;
        let ElementType::Known(dtype) = entry.element_type else { panic!("fixtures have known types") };
        let (cols, rows) = (*entry.shape.last().unwrap(), entry.shape.iter().rev().skip(1).product());
        let mut values = vec![0.0; cols];
        (0..rows).try_for_each(|row| {
            Matrix::new(dtype, rows, cols, &bytes).widen_row(row, &mut values);
            values.iter().try_for_each(|value| sink(&value.to_le_bytes()))
        })
    })
    .unwrap();
    (ModelConfig::from_dir(fixtures().join(name)).unwrap(), Catalog::open(dir).unwrap())
}

#[test]
fn quantised_models_compute_exactly_what_their_numbers_say() {
    for name in QUANTISED {
        let dir = tempfile::tempdir().unwrap();
        let (config, catalog) = widened(name, dir.path());
        let expected = expected(name);
        let (_, want) = expected.logits.iter().find(|(kind, _)| kind == "logits_f32").unwrap();
        for level in Level::available() {
            let mut harness = Harness::of(config.clone(), &catalog, KvDType::F32, 2, 1).at(level);
            let mut sequence = harness.sequence(0, &expected.prompt);
            let apart = distance(&harness.prompt_logits(&mut sequence, usize::MAX), want);
            println!("{name:24} {:12} {apart:.2e}", level.name());
            assert!(apart <= 1e-5, "{name} {}: {apart:.2e}", level.name());
        }
        let mut harness = Harness::of(config, &catalog, KvDType::F32, 2, 1);
        let mut sequence = harness.sequence(0, &expected.prompt);
        assert_eq!(harness.greedy(&mut sequence, 64), expected.greedy, "{name}");
    }
}

pub fn cases() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| fixtures().join(name).join("config.json").exists())
        .collect();
    names.sort();
    assert!(names.len() >= 20, "fixtures are missing");
    names
}

/// The best level that does not round activations.
pub fn unrounded() -> Level {
    Level::available().filter(|level| !level.rounds_activations(DType::BF16)).last().unwrap()
}

#[test]
fn logits_agree_with_transformers() {
    let mut failures = Vec::new();
    for name in cases() {
        let expected = expected(&name);
        let dtype = ModelConfig::from_dir(fixtures().join(&name)).unwrap().dtype.unwrap_or(DType::F32);
        for (kind, want) in &expected.logits {
            for level in Level::available() {
                // Weights are exact in every type, and sums are in f32. Only the KV cache may be less precise, and
                // activations may be rounded to bf16 for bf16 weights.
                let exact = kind != "logits_bf16" && kind != "logits_f16";
                let kv_dtype = if exact { KvDType::F32 } else { KvDType::beside(dtype) };
                let exact = exact && !QUANTISED.contains(&name.as_str());
                let tolerance = if exact && !level.rounds_activations(dtype) { 1e-5 } else { 4e-2 };
                let mut harness = Harness::load(&name, kv_dtype, 2, 1).at(level);
                let mut sequence = harness.sequence(0, &expected.prompt);
                let got = harness.prompt_logits(&mut sequence, usize::MAX);
                let apart = distance(&got, want);
                println!("{name:24} {kind:20} {:12} {apart:.2e}", level.name());
                if apart.is_nan() || apart > tolerance {
                    failures.push(format!("{name} {kind} {}: {apart:.2e} above {tolerance:.0e}", level.name()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn what_16_bits_cost_is_no_more_than_in_transformers() {
    let mut seen = 0;
    for name in cases() {
        let expected = expected(&name);
        let of = |kind: &str| expected.logits.iter().find(|(of, _)| of == kind).map(|(_, logits)| logits);
        let (Some(exact), Some(rough)) = (of("logits_f32"), of("logits_bf16")) else { continue };
        let theirs = distance(std::slice::from_ref(rough), exact);
        for level in Level::available() {
            let mut harness = Harness::load(&name, KvDType::BF16, 2, 1).at(level);
            let mut sequence = harness.sequence(0, &expected.prompt);
            let ours = distance(&harness.prompt_logits(&mut sequence, usize::MAX), exact);
            println!("{name:24} {:12} {ours:.2e}, {theirs:.2e}", level.name());
            assert!(ours <= 1.25 * theirs, "{name} {}: {ours:.2e}, {theirs:.2e}", level.name());
            seen += 1;
        }
    }
    assert!(seen >= 3);
}

#[test]
fn a_16_bit_cache_changes_logits_by_no_more_than_16_bits_allow() {
    for (name, kv_dtype, tolerance) in [("llama3_bf16", KvDType::BF16, 2e-2), ("llama_f16", KvDType::F16, 2e-3)] {
        let expected = expected(name);
        let mut harness = Harness::load(name, KvDType::F32, 2, 1);
        let mut sequence = harness.sequence(0, &expected.prompt);
        let exact = harness.prompt_logits(&mut sequence, usize::MAX).concat();
        let mut harness = Harness::load(name, kv_dtype, 2, 1);
        let mut sequence = harness.sequence(0, &expected.prompt);
        let apart = distance(&harness.prompt_logits(&mut sequence, usize::MAX), &exact);
        assert!(apart > 0.0 && apart < tolerance, "{name}: {apart}");
    }
}

#[test]
fn sixty_four_greedy_tokens_are_those_of_transformers() {
    let mut failures = Vec::new();
    for name in cases().into_iter().filter(|name| !QUANTISED.contains(&name.as_str())) {
        let expected = expected(&name);
        assert_eq!(expected.greedy.len(), 64);
        // Where activations are rounded, a near tie may be decided the other way.
        let mut harness = Harness::load(&name, KvDType::F32, 2, 1).at(unrounded());
        let mut sequence = harness.sequence(0, &expected.prompt);
        let got = harness.greedy(&mut sequence, 64);
        if let Some(at) = (0..64).find(|&i| got[i] != expected.greedy[i]) {
            failures.push(format!("{name}: token {at} is {}, not {}", got[at], expected.greedy[at]));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
