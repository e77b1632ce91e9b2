//! Models that are made here must be models that are read here.

use strata_weights::{Catalog, ElementType, ResidentWeights, WeightSource};

use super::random::CHUNK_ELEMENTS;
use super::*;
use crate::generation_config::GenerationConfig;
use crate::presets::preset;

fn spec(name: &str) -> SynthSpec {
    SynthSpec {
        config_json: preset(name).unwrap(),
        num_layers: None,
        dtype: Some(DType::BF16),
        seed: 7,
        shard_bytes: 100_000,
        gguf: false,
    }
}

fn make(spec: &SynthSpec, dir: &Path) -> SynthReport {
    synthesize(spec, dir, &mut |_, _| {}).unwrap()
}

/// The bytes of all files of a directory, by name.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read =
        |entry: std::fs::DirEntry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| read(entry.unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_made_model_is_read_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, name) in [(DType::F32, "float32"), (DType::F16, "float16"), (DType::BF16, "bfloat16")] {
        let out = dir.path().join(name);
        let mut last = (0, 0);
        let spec = SynthSpec { dtype: Some(dtype), num_layers: Some(3), ..spec("tiny") };
        let report = synthesize(&spec, &out, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(last, (report.weight_bytes, report.weight_bytes));
        let config = ModelConfig::from_dir(&out).unwrap();
        assert_eq!((config.num_layers, config.dtype), (3, Some(dtype)));
        assert_eq!(report.weight_bytes, config.num_parameters() * dtype.block_bytes() as u64);
        assert_eq!(GenerationConfig::from_dir(&out).unwrap().eos_token_ids, config.eos_token_ids);
        let catalog = Catalog::open(&out).unwrap();
        assert!(catalog.files().len() > 1, "it was cut into shards");
        assert!(catalog.tensors().all(|(_, entry)| entry.element_type == ElementType::Known(dtype)));
        let weights = ResidentWeights::load(&catalog, &group_specs(&config), &mut |_, _| {}).unwrap();
        assert_eq!(weights.num_groups(), 1 + 2 * 3 + 1);
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, seed| {
        let out = dir.path().join(name);
        make(&SynthSpec { seed, ..spec("tiny") }, &out);
        contents(&out)
    };
    let first = made("first", 7);
    assert!(first == made("again", 7));
    assert!(first != made("other", 8));
}

#[test]
fn weights_have_the_spread_that_keeps_activations_sane() {
    // More than one chunk, and an end that is no multiple of anything.
    let shape = vec![1031, 1031];
    let moments = |name: &str, shape: Vec<usize>, dtype| {
        let stream = TensorStream::new(1, &TensorMeta { name: name.to_owned(), dtype, shape: shape.clone() });
        let mut values = Vec::new();
        let mut bytes = Vec::new();
        for chunk in 0..stream.num_chunks() {
            stream.fill_chunk(chunk, &mut bytes);
            values.extend(bytes.chunks_exact(dtype.block_bytes()).map(|bytes| match *bytes {
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                [a, b] => half::bf16::from_le_bytes([a, b]).to_f32(),
                _ => unreachable!("elements have two or four bytes here"),
            }));
        }
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        // Neighbours, and elements a chunk apart, have nothing to do with each other.
        for lag in [1, 1031, CHUNK_ELEMENTS as usize] {
            let products = values.iter().zip(values.iter().skip(lag)).map(|(&a, &b)| f64::from(a) * f64::from(b));
            let count = values.len().saturating_sub(lag);
            if count > 10_000 && mean.abs() < 0.5 {
                assert!((products.sum::<f64>() / count as f64 / square).abs() < 0.02, "lag {lag}");
            }
        }
        (mean, square.sqrt())
    };
    for dtype in [DType::F32, DType::BF16] {
        let (mean, spread) = moments("model.layers.0.mlp.up_proj.weight", shape.clone(), dtype);
        let expected = 1.0 / 1031f64.sqrt();
        assert!(mean.abs() < expected / 300.0 && (spread / expected - 1.0).abs() < 0.01, "{mean} {spread}");
    }
    let (mean, spread) = moments("model.norm.weight", vec![20_000], DType::F32);
    assert!((mean - 1.0).abs() < 0.01 && (spread - 0.05).abs() < 0.005, "{mean} {spread}");
}

#[test]
fn the_tokenizer_encodes_every_text_and_stays_below_the_vocabulary() {
    for name in ["tiny", "qwen2.5-0.5b", "llama-3.2-1b", "mistral-7b"] {
        let config = ModelConfig::from_json(&preset(name).unwrap()).unwrap();
        let [(_, tokenizer), (_, tokenizer_config)] = tokenizer::tokenizer_files(&config).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer.to_string()).unwrap();
        let ids = tokenizer.get_vocab(true);
        assert_eq!(ids.len(), config.vocab_size, "{name}: every id has a token");
        assert!(ids.values().all(|&id| (id as usize) < config.vocab_size), "{name}");
        let text = "The other letters, and then 1234 other things:\n\tпривет 你好 🙂 \u{0}é";
        let encoded = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(encoded.get_ids(), true).unwrap(), text, "{name}");
        let words = tokenizer.encode("there is another thing in the other street", false).unwrap();
        assert!(words.len() < 26, "{name}: {:?}", words.get_tokens());
        let end = tokenizer_config["eos_token"].as_str().unwrap();
        assert_eq!(tokenizer.token_to_id(end), config.eos_token_ids.first().copied(), "{name}");
        assert_eq!(tokenizer.encode(end, false).unwrap().get_ids(), &config.eos_token_ids[..1], "{name}");
        let with_special = tokenizer.encode("a", true).unwrap();
        let begins = with_special.get_ids().first() == config.bos_token_id.as_ref();
        assert_eq!(begins, config.bos_token_id != config.eos_token_ids.first().copied(), "{name}");
    }
}

#[test]
fn a_model_without_an_end_is_given_one() {
    let dir = tempfile::tempdir().unwrap();
    let config_json = json!({"model_type": "qwen2", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8,
                             "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1});
    let out = dir.path().join("out");
    make(&SynthSpec { config_json: config_json.to_string(), dtype: None, ..spec("tiny") }, &out);
    let config = ModelConfig::from_dir(&out).unwrap();
    assert_eq!((config.eos_token_ids, config.dtype), (vec![299], Some(DType::BF16)));
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let fail = |spec: &SynthSpec| {
        let error = synthesize(spec, &out, &mut |_, _| {}).unwrap_err();
        assert!(!out.exists(), "{error}");
        error
    };
    let small = json!({"model_type": "llama", "vocab_size": 200}).to_string();
    let error = fail(&SynthSpec { config_json: small, ..spec("tiny") });
    assert!(matches!(error, SynthError::VocabularyTooSmall { vocab_size: 200, needed: 258 }), "{error}");
    assert!(matches!(fail(&SynthSpec { num_layers: Some(0), ..spec("tiny") }), SynthError::Config(_)));
    assert!(matches!(fail(&SynthSpec { config_json: "[]".to_owned(), ..spec("tiny") }), SynthError::Config(_)));
    let huge = SynthSpec { num_layers: Some(10_000), ..spec("llama-3-70b") };
    assert!(matches!(fail(&huge), SynthError::DiskTooSmall { .. }), "17 TB fit nowhere");

    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("precious"), "x").unwrap();
    let error = synthesize(&spec("tiny"), &out, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, SynthError::NotEmpty { .. }), "{error}");
    assert_eq!(contents(&out), [("precious".to_owned(), b"x".to_vec())]);
}
