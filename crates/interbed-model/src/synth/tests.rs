//! Tests that every made model can also be read.

use interbed_kernels::RopeStyle;
use interbed_weights::{Catalog, ElementType, ResidentWeights, TensorId, WeightSource, plan_bytes};

use super::random::CHUNK_ELEMENTS;
use super::*;
use crate::blueprint::Attention;
use crate::chat_template::ChatTemplate;
use crate::generation_config::GenerationConfig;
use crate::gguf::GgufModel;
use crate::preset;
use crate::tokenizer::Tokenizer;

fn spec(name: &str) -> SynthSpec {
    SynthSpec {
        config_json: preset(name).unwrap(),
        num_layers: None,
        dtype: Some(DType::BF16),
        seed: 7,
        router_skew: 0.0,
        shard_bytes: 100_000,
        gguf: false,
    }
}

fn make(spec: &SynthSpec, dir: &Path) -> SynthReport {
    synthesize(spec, dir, &mut |_, _| {}).unwrap()
}

/// Returns the bytes of all files of a directory, by name.
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
        assert_eq!((config.blueprint.layers.len(), config.dtype), (3, Some(dtype)));
        assert_eq!(report.weight_bytes, config.blueprint.num_parameters() * dtype.block_bytes() as u64);
        assert_eq!(GenerationConfig::from_dir(&out).unwrap().eos_token_ids, config.ends.eos_token_ids);
        let catalog = Catalog::open(&out).unwrap();
        assert!(catalog.files().len() > 1, "it was cut into shards");
        assert!(catalog.tensors().all(|(_, entry)| entry.element_type == ElementType::Known(dtype)));
        let weights = ResidentWeights::load(&catalog, &group_specs(&config.blueprint), &mut |_, _| {}).unwrap();
        assert_eq!(weights.bytes(), plan_bytes(&catalog, &group_specs(&config.blueprint)).unwrap());
        assert_eq!(group_specs(&config.blueprint).len(), 1 + 2 * 3 + 1);
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
    // More than one chunk, and a size that no block or chunk divides.
    let shape = vec![1031, 1031];
    let moments = |name: &str, shape: Vec<usize>, dtype| {
        let stream =
            TensorStream::new(1, 0.0, false, &TensorMeta { name: name.to_owned(), dtype, shape: shape.clone() });
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
        // Neighbouring elements, and elements a chunk apart, are uncorrelated.
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
        assert_eq!(ids.len(), config.blueprint.vocab_size, "{name}: every id has a token");
        assert!(ids.values().all(|&id| (id as usize) < config.blueprint.vocab_size), "{name}");
        let text = "The other letters, and then 1234 other things:\n\tпривет 你好 🙂 \u{0}é";
        let encoded = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(encoded.get_ids(), true).unwrap(), text, "{name}");
        let words = tokenizer.encode("there is another thing in the other street", false).unwrap();
        assert!(words.len() < 26, "{name}: {:?}", words.get_tokens());
        let end = tokenizer_config["eos_token"].as_str().unwrap();
        assert_eq!(tokenizer.token_to_id(end), config.ends.eos_token_ids.first().copied(), "{name}");
        assert_eq!(tokenizer.encode(end, false).unwrap().get_ids(), &config.ends.eos_token_ids[..1], "{name}");
        let with_special = tokenizer.encode("a", true).unwrap();
        let begins = with_special.get_ids().first() == config.ends.bos_token_id.as_ref();
        assert_eq!(begins, config.ends.bos_token_id != config.ends.eos_token_ids.first().copied(), "{name}");
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
    assert_eq!((config.ends.eos_token_ids, config.dtype), (vec![299], Some(DType::BF16)));
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

/// Makes a model of `spec` as a GGUF file, and reads its catalog and configuration.
fn make_gguf(spec: &SynthSpec, out: &Path) -> (SynthReport, Catalog, ModelConfig) {
    let report = make(&SynthSpec { gguf: true, ..spec.clone() }, out);
    let catalog = Catalog::open(out).unwrap();
    let config = GgufModel::of(&catalog).unwrap().config().unwrap();
    (report, catalog, config)
}

/// Returns all tensors of a model by name, as f32 values.
fn numbers(catalog: &Catalog, config: &ModelConfig) -> Vec<(String, Vec<f32>)> {
    let specs = group_specs(&config.blueprint);
    let weights = ResidentWeights::load(catalog, &specs, &mut |_, _| {}).unwrap();
    let mut all = Vec::new();
    for (group, spec) in specs.iter().enumerate() {
        for (index, tensor) in spec.tensors.iter().enumerate() {
            let view = weights.vector(TensorId { group, index });
            let mut values = vec![0.0; view.rows() * view.cols()];
            for (row, out) in values.chunks_exact_mut(view.cols()).enumerate() {
                view.matrix().widen_row(row, out);
            }
            all.push((tensor.name.clone(), values));
        }
    }
    all
}

/// Rows of `cols` values in GGUF's order for Llama-like models, brought back to Hugging Face's order.
fn in_halves(values: &[f32], heads: usize, cols: usize) -> Vec<f32> {
    let rows = values.len() / cols;
    let (head_rows, mut out) = (rows / heads, vec![0.0; values.len()]);
    for row in 0..rows {
        let (head, within) = (row / head_rows, row % head_rows);
        let target = head * head_rows + within % 2 * (head_rows / 2) + within / 2;
        out[target * cols..][..cols].copy_from_slice(&values[row * cols..][..cols]);
    }
    out
}

/// Returns the first attention of a model.
fn attention(config: &ModelConfig) -> &Attention {
    config.blueprint.attentions().next().expect("an attention")
}

#[test]
fn a_gguf_file_holds_the_model_of_the_same_seed() {
    let dir = tempfile::tempdir().unwrap();
    let biased = json!({"model_type": "llama", "vocab_size": 300, "hidden_size": 48, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "attention_bias": true,
        "mlp_bias": true, "rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", "factor": 4.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}});
    let small = |model_type: &str, more: Value| {
        let mut config = json!({"model_type": model_type, "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "bos_token_id": 1, "eos_token_id": [2, 3]});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let cases = [
        ("biased", biased),
        ("mistral", small("mistral", json!({"sliding_window": 9}))),
        ("qwen2", small("qwen2", json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1}))),
        ("qwen3", small("qwen3", json!({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}))),
        ("fm9g", small("fm9g", json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}))),
        (
            "granite",
            small(
                "granite",
                json!({"attention_multiplier": 0.3, "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5, "logits_scaling": 3.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64, "attention_factor": 1.25}}),
            ),
        ),
    ];
    for (name, config_json) in cases {
        let spec = SynthSpec { config_json: config_json.to_string(), dtype: Some(DType::F32), ..spec("tiny") };
        let plain = dir.path().join(format!("{name}-plain"));
        make(&spec, &plain);
        let want = ModelConfig::from_dir(&plain).unwrap();
        let (report, catalog, got) = make_gguf(&spec, &dir.path().join(name));
        assert_eq!(report.files, [dir.path().join(name).join("model.gguf")]);
        let shape = |config: &ModelConfig| {
            let of = attention(config);
            let flags = [of.input_bias, of.output_bias, of.norms.is_some(), config.blueprint.head.is_tied];
            let ids = (config.ends.bos_token_id, config.ends.eos_token_ids.clone());
            let blueprint = &config.blueprint;
            (blueprint.num_parameters(), blueprint.context, flags, blueprint.windows(), ids)
        };
        assert_eq!(shape(&got), shape(&want), "{name}");
        let factors = |config: &ModelConfig| {
            let blueprint = &config.blueprint;
            let scale = attention(config).scale;
            [blueprint.embedding_factor, blueprint.branch_factor(), blueprint.head.divisor, scale]
        };
        for (got, want) in factors(&got).into_iter().zip(factors(&want)) {
            assert!((got / want - 1.0).abs() < 1e-6, "{name}: {got} {want}");
        }
        // The same angles at every position.
        let half = attention(&want).key_width / 2;
        let angles = |config: &ModelConfig| {
            let table = crate::rope::RopeTable::new(&config.blueprint.ropes[0]);
            let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
            table.fill(33, 40, &mut cos, &mut sin);
            [cos, sin].concat()
        };
        for (got, want) in angles(&got).into_iter().zip(angles(&want)) {
            assert!((got - want).abs() < 1e-5, "{name}: {got} {want}");
        }
        let plain_catalog = Catalog::open(&plain).unwrap();
        for ((tensor, got_values), (_, want_values)) in
            numbers(&catalog, &got).into_iter().zip(numbers(&plain_catalog, &want))
        {
            let heads = match got.blueprint.ropes[0].style {
                RopeStyle::Neighbours if tensor.contains("q_proj") => Some(attention(&want).heads),
                RopeStyle::Neighbours if tensor.contains("k_proj") => Some(attention(&want).kv_heads),
                _ => None,
            };
            let cols = if tensor.ends_with("bias") { 1 } else { want.blueprint.hidden_size };
            let got_values = heads.map_or(got_values.clone(), |heads| in_halves(&got_values, heads, cols));
            assert!(got_values == want_values, "{name}: {tensor}");
        }
        let model = GgufModel::of(&catalog).unwrap();
        let (tokenizer, original) = (model.tokenizer().unwrap(), Tokenizer::from_dir(&plain).unwrap());
        for text in ["the other 123 things", "x <|end|> y", "é\n\n 🙂"] {
            assert_eq!(tokenizer.encode(text, true).unwrap(), original.encode(text, true).unwrap(), "{name}");
        }
        let messages = [json!({"role": "user", "content": "Hi"})];
        let prompt = |template: ChatTemplate| template.render(&messages, None, true, &Map::new()).unwrap();
        assert_eq!(prompt(model.chat_template().unwrap()), prompt(ChatTemplate::from_dir(&plain).unwrap()), "{name}");
    }
}

#[test]
fn quantised_models_are_the_plain_ones_rounded() {
    let dir = tempfile::tempdir().unwrap();
    let config_json = json!({"model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 320,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0,
        "eos_token_id": 1});
    let spec = SynthSpec { config_json: config_json.to_string(), ..spec("tiny") };
    let plain = SynthSpec { dtype: Some(DType::F32), ..spec.clone() };
    let (_, catalog, config) = make_gguf(&plain, &dir.path().join("f32"));
    let want = numbers(&catalog, &config);
    for (dtype, error_max) in [(DType::Q8_0, 0.01), (DType::Q4_0, 0.15), (DType::Q4K, 0.12)] {
        let spec = SynthSpec { dtype: Some(dtype), ..spec.clone() };
        let out = dir.path().join(dtype.name());
        let mut last = (0, 0);
        let report = synthesize(&spec, &out, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(last, (report.weight_bytes, report.weight_bytes));
        let catalog = Catalog::open(&out).unwrap();
        assert_eq!(report.weight_bytes, catalog.bytes());
        let kind = |name: &str| catalog.get(name).unwrap().element_type.clone();
        assert_eq!(kind("model.embed_tokens.weight"), ElementType::Known(dtype));
        assert_eq!(kind("model.norm.weight"), ElementType::Known(DType::F32));
        // Its rows of 320 elements are not whole blocks of 256.
        let down = if dtype == DType::Q4K { DType::Q8_0 } else { dtype };
        assert_eq!(kind("model.layers.0.mlp.down_proj.weight"), ElementType::Known(down));
        for ((tensor, got), (_, want)) in numbers(&catalog, &config).into_iter().zip(&want) {
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value.powi(2)).sum::<f32>();
            let error = square(&mut got.iter().zip(want).map(|(a, b)| a - b)) / square(&mut want.iter().copied());
            assert!(error.sqrt() < error_max, "{tensor} as {dtype}: {}", error.sqrt());
            assert!(got == *want || error > 0.0 && kind(&tensor) != ElementType::Known(DType::F32), "{tensor}");
        }
    }
}

/// Returns the shape of gpt-oss, in small.
fn gpt_oss() -> String {
    let mut config: Value = serde_json::from_str(&preset("gpt-oss-20b").unwrap()).unwrap();
    for (key, count) in [
        ("vocab_size", 512),
        ("hidden_size", 64),
        ("intermediate_size", 96),
        ("num_hidden_layers", 2),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("num_local_experts", 6),
        ("eos_token_id", 1),
    ] {
        config[key] = json!(count);
    }
    config.to_string()
}

#[test]
fn a_gpt_oss_is_the_same_in_either_format() {
    let dir = tempfile::tempdir().unwrap();
    let given = SynthSpec { config_json: gpt_oss(), dtype: Some(DType::F32), ..spec("tiny") };
    make(&given, &dir.path().join("hf"));
    let config = ModelConfig::from_dir(dir.path().join("hf")).unwrap();
    let want = numbers(&Catalog::open(dir.path().join("hf")).unwrap(), &config);
    let (_, catalog, read) = make_gguf(&given, &dir.path().join("gguf"));
    assert!(numbers(&catalog, &read) == want);
    let (read, config) = (&read.blueprint, &config.blueprint);
    assert_eq!(read.ropes[0].scaling, config.ropes[0].scaling);
    assert_eq!((read.mixture(), read.windows()), (config.mixture(), config.windows()));
    // As published: only experts are of MXFP4.
    let spec = SynthSpec { dtype: Some(DType::Mxfp4), ..given };
    let (report, catalog, config) = make_gguf(&spec, &dir.path().join("mxfp4"));
    assert_eq!(report.weight_bytes, catalog.bytes());
    for (name, dtype) in [
        ("mlp.experts.5.down_proj.weight", DType::Mxfp4),
        ("self_attn.q_proj.weight", DType::BF16),
        ("mlp.experts.all.up_proj.bias", DType::F32),
        ("mlp.gate.weight", DType::F32),
        ("self_attn.sinks", DType::F32),
    ] {
        let entry = catalog.get(&format!("model.layers.1.{name}")).unwrap();
        assert_eq!(entry.element_type, ElementType::Known(dtype), "{name}");
    }
    for ((tensor, got), (_, want)) in numbers(&catalog, &config).into_iter().zip(&want) {
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value.powi(2)).sum::<f32>();
        let error = square(&mut got.iter().zip(want).map(|(a, b)| a - b)) / square(&mut want.iter().copied());
        assert!(error.sqrt() < 0.15, "{tensor}: {}", error.sqrt());
    }
}

#[test]
fn a_model_with_states_is_the_same_in_either_format() {
    let dir = tempfile::tempdir().unwrap();
    let mut config: Value = serde_json::from_str(&preset("qwen3.5-4b").unwrap()).unwrap();
    for (key, count) in [
        ("vocab_size", 512),
        ("hidden_size", 64),
        ("intermediate_size", 96),
        ("num_hidden_layers", 4),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 16),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", 6),
        ("linear_key_head_dim", 8),
        ("linear_value_head_dim", 8),
        ("eos_token_id", 1),
    ] {
        config[key] = json!(count);
    }
    let given = SynthSpec { config_json: config.to_string(), dtype: Some(DType::F32), ..spec("tiny") };
    make(&given, &dir.path().join("hf"));
    let config = ModelConfig::from_dir(dir.path().join("hf")).unwrap();
    let plain = Catalog::open(dir.path().join("hf")).unwrap();
    assert_eq!(plain.get("model.layers.0.linear_attn.conv1d.weight").unwrap().shape, [80, 1, 4]);
    let (_, catalog, read) = make_gguf(&given, &dir.path().join("gguf"));
    let taps = catalog.get("model.layers.0.linear_attn.conv1d.weight").unwrap();
    assert_eq!((taps.shape.as_slice(), &taps.element_type), (&[80, 1, 4][..], &ElementType::Known(DType::F32)));
    let norm = catalog.name_in_file("model.layers.3.post_attention_layernorm.weight");
    assert_eq!(norm, "blk.3.post_attention_norm.weight");
    assert_eq!(read.blueprint.num_parameters(), config.blueprint.num_parameters());
    // Value head j of GGUF files is head (j % 2) * 3 + j / 2 of safetensors.
    let heads = |values: &[f32], first: usize, width: usize| {
        let head = |j: usize| first + (j % 2 * 3 + j / 2) * width;
        let moved = (0..6).flat_map(|j| values[head(j)..head(j) + width].to_vec());
        values[..first].iter().copied().chain(moved).collect::<Vec<_>>()
    };
    for ((tensor, got), (_, want)) in numbers(&catalog, &read).into_iter().zip(numbers(&plain, &config)) {
        let part = tensor.split_once("linear_attn.").map_or("", |(_, part)| part);
        let want = match part {
            "in_proj_qkv.weight" => heads(&want, 2 * 16 * 64, 8 * 64),
            "conv1d.weight" => heads(&want, 2 * 16 * 4, 8 * 4),
            "in_proj_z.weight" => heads(&want, 0, 8 * 64),
            "in_proj_a.weight" | "in_proj_b.weight" => heads(&want, 0, 64),
            "dt_bias" => heads(&want, 0, 1),
            "A_log" => heads(&want, 0, 1).iter().map(|value| -value.exp()).collect(),
            "out_proj.weight" => want.chunks_exact(48).flat_map(|row| heads(row, 0, 8)).collect(),
            "norm.weight" => want,
            _ if tensor.ends_with("norm.weight") => want.iter().map(|value| value + 1.0).collect(),
            _ => want,
        };
        assert!(got == want, "{tensor}");
    }
}

/// Makes a model of the preset `name` with the `sizes` in both formats. Asserts that they say the same, and returns the
/// catalog of the GGUF file.
fn with_state_spaces(dir: &Path, name: &str, sizes: Value) -> Catalog {
    let mut config: Map<String, Value> = serde_json::from_str(&preset(name).unwrap()).unwrap();
    config.extend(sizes.as_object().unwrap().clone());
    let config_json = Value::Object(config).to_string();
    let given = SynthSpec { config_json, dtype: Some(DType::F32), ..spec("tiny") };
    std::fs::create_dir_all(dir).unwrap();
    make(&given, &dir.join("hf"));
    let config = ModelConfig::from_dir(dir.join("hf")).unwrap();
    let plain = Catalog::open(dir.join("hf")).unwrap();
    let (_, catalog, read) = make_gguf(&given, &dir.join("gguf"));
    assert_eq!(read.blueprint.num_parameters(), config.blueprint.num_parameters());
    let parameters: u64 = group_specs(&config.blueprint)
        .iter()
        .flat_map(|group| &group.tensors)
        .map(|tensor| tensor.shape.iter().product::<usize>() as u64)
        .sum();
    let head =
        if config.blueprint.head.is_tied { config.blueprint.vocab_size * config.blueprint.hidden_size } else { 0 };
    assert_eq!(parameters - head as u64, config.blueprint.num_parameters());
    for ((tensor, got), (_, want)) in numbers(&catalog, &read).into_iter().zip(numbers(&plain, &config)) {
        match tensor.ends_with("A_log") {
            true => assert!(got == want.iter().map(|value| -value.exp()).collect::<Vec<_>>(), "{tensor}"),
            // Rows of queries and keys lie in another order.
            false if tensor.contains("q_proj") || tensor.contains("k_proj") => {}
            false => assert!(got == want, "{tensor}"),
        }
    }
    catalog
}

#[test]
fn a_model_with_state_spaces_is_the_same_in_either_format() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = json!({
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 48, "shared_intermediate_size": 96,
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "num_attention_heads": 4,
        "num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_n_groups": 2,
        "num_local_experts": 3, "num_experts_per_tok": 2, "eos_token_id": 1,
    });
    let catalog = with_state_spaces(dir.path(), "granite-4.0-h-tiny", sizes);
    let sizes = json!({
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 48, "hybrid_override_pattern": "M*E-",
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 12, "n_groups": 2, "n_routed_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 96,
    });
    let with_experts = with_state_spaces(&dir.path().join("nemotron"), "nemotron-3-nano-30b-a3b", sizes);
    assert_eq!(with_experts.name_in_file("model.layers.2.mlp.experts.1.up_proj.weight"), "blk.2.ffn_up_exps.weight");
    let name = with_experts.metadata().unwrap().get("general.architecture").unwrap().to_string();
    assert!(name.contains("nemotron_h_moe"), "{name}");
    let input = catalog.get("model.layers.2.mamba.in_proj_xbc.weight").unwrap();
    assert_eq!(input.shape, [128 + 2 * 2 * 12, 64]);
    assert_eq!(catalog.name_in_file("model.layers.2.mamba.in_proj_xbc.weight"), "blk.2.ssm_in.weight");
    let zeros = catalog.metadata().unwrap().get("granitehybrid.attention.head_count_kv").unwrap().to_string();
    assert_eq!(zeros, "a list of 3 numbers");
}

#[test]
fn a_model_with_short_convolutions_is_the_same_in_either_format() {
    let dir = tempfile::tempdir().unwrap();
    for (name, layers) in [("lfm2-1.2b", 4), ("lfm2-8b-a1b", 5)] {
        let mut config: Value = serde_json::from_str(&preset(name).unwrap()).unwrap();
        for (key, count) in [
            ("vocab_size", 512),
            ("hidden_size", 64),
            ("block_ff_dim", 96),
            ("block_multiple_of", 32),
            ("intermediate_size", 96),
            ("moe_intermediate_size", 32),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 2),
            ("eos_token_id", 1),
        ] {
            if config.get(key).is_some() {
                config[key] = json!(count);
            }
        }
        if name.ends_with("a1b") {
            config["num_experts"] = json!(6);
        }
        let (config, dtype) = (config.to_string(), Some(DType::F32));
        let given = SynthSpec { config_json: config, dtype, num_layers: Some(layers), ..spec("tiny") };
        let [hf, gguf] = ["hf", "gguf"].map(|format| dir.path().join(format!("{name}-{format}")));
        make(&given, &hf);
        let config = ModelConfig::from_dir(&hf).unwrap();
        let want = numbers(&Catalog::open(&hf).unwrap(), &config);
        let (_, catalog, read) = make_gguf(&given, &gguf);
        assert!(numbers(&catalog, &read) == want, "{name}");
        assert_eq!(read.blueprint, config.blueprint, "{name}");
        assert_eq!(catalog.name_in_file("model.embedding_norm.weight"), "token_embd_norm.weight");
        let taps = catalog.get("model.layers.0.conv.conv.weight").unwrap();
        assert_eq!((taps.shape.as_slice(), &taps.element_type), (&[64, 1, 3][..], &ElementType::Known(DType::F32)));
    }
}

#[test]
fn what_gguf_cannot_say_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let dynamic = json!({"model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}});
    let spec = SynthSpec { config_json: dynamic.to_string(), dtype: Some(DType::Q8_0), ..spec("tiny") };
    let error = synthesize(&spec, &out, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, SynthError::NotInGguf { .. }) && !out.exists(), "{error}");
    let error = synthesize(&SynthSpec { dtype: Some(DType::Q6K), ..spec }, &out, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, SynthError::NoEncoder { dtype: DType::Q6K }) && !out.exists(), "{error}");
}
