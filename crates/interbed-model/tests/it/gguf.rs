//! GGUF files that the Python package `gguf` wrote, against the models and tokenizers that they were made from
//! (`tools/reference/make_gguf_fixtures.py`).

use std::path::PathBuf;

use interbed_kernels::{DType, KvDType, Level, Matrix, RopeStyle};
use interbed_model::blueprint::{DecayForm, KeySharing, Part, Passage, RopeScaling};
use interbed_model::config::ModelConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::synth::{SynthSpec, synthesize};
use interbed_model::tokenizer::Tokenizer;
use interbed_weights::{Catalog, ElementType, TensorMeta, write_gguf};
use proptest::prelude::*;
use serde_json::Value;

use crate::harness::{Harness, fixtures};
use crate::logits::{QUANTISED, distance, expected, unrounded};

fn folder() -> PathBuf {
    fixtures().join("gguf")
}

/// The models, by the name of the fixture that they were made from, and their (first) file.
pub fn models() -> Vec<(String, PathBuf)> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let name = stem.split("-0").next().unwrap().to_owned();
        let first = stem == name || stem.contains("-00001-of-");
        let is_model = first && path.extension().unwrap() == "gguf" && fixtures().join(&name).exists();
        if is_model {
            models.push((name, path));
        }
    }
    models.sort();
    assert!(models.len() >= 12, "fixtures are missing");
    models
}

#[test]
fn models_compute_what_they_were_made_from() {
    let mut failures = Vec::new();
    for (name, path) in models() {
        let catalog = Catalog::open(&path).unwrap();
        let config = GgufModel::of(&catalog).unwrap().config().unwrap();
        let mut expected = expected(&name);
        let (_, want) = expected.logits.iter_mut().find(|(kind, _)| kind == "logits_f32").unwrap();
        if QUANTISED.contains(&name.as_str()) {
            // What activations that are rounded to 8 bits give, the same in either form.
            let mut harness = Harness::load(&name, KvDType::F32, 2, 1).at(unrounded());
            let mut sequence = harness.sequence(0, &expected.prompt);
            *want = harness.prompt_logits(&mut sequence, usize::MAX).concat();
            let mut sequence = harness.sequence(0, &expected.prompt);
            expected.greedy = harness.greedy(&mut sequence, 64);
        }
        let mut harness = Harness::of(config, &catalog, KvDType::F32, 2, 1).at(unrounded());
        let mut sequence = harness.sequence(0, &expected.prompt);
        let got = harness.prompt_logits(&mut sequence, usize::MAX);
        let apart = distance(&got, want);
        println!("{name:24} {apart:.2e}");
        // Weights are the same numbers; rope factors are rounded to f32, and sums over a head go in another order.
        if apart.is_nan() || apart > 2e-5 {
            failures.push(format!("{name}: {apart:.2e}"));
        }
        let mut sequence = harness.sequence(0, &expected.prompt);
        if harness.greedy(&mut sequence, 64) != expected.greedy {
            failures.push(format!("{name}: other greedy tokens"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn configurations_are_those_of_the_directories() {
    for (name, path) in models() {
        let catalog = Catalog::open(&path).unwrap();
        let got = GgufModel::of(&catalog).unwrap().config().unwrap();
        let want = ModelConfig::from_dir(fixtures().join(&name)).unwrap();
        // Weights lie in another order, factors went through a shorter type, what scaling gives may be stored, and what
        // is added to norms' weights has been added. Rates of decay are stored instead of their logarithms.
        let alike = |config: &ModelConfig| {
            let mut blueprint = config.blueprint.clone();
            for rope in &mut blueprint.ropes {
                (rope.style, rope.factors, rope.scaling) = (RopeStyle::Halves, None, RopeScaling::Default);
                rope.theta = f64::from(rope.theta as f32);
            }
            blueprint.embedding_factor = 1.0;
            (blueprint.head.divisor, blueprint.head.norm.offset) = (1.0, 0.0);
            for branch in blueprint.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
                branch.factor = 1.0;
                for passage in [&mut branch.enter, &mut branch.leave] {
                    if let Passage::Norm(norm) = passage {
                        norm.offset = 0.0;
                    }
                }
                if let Part::GatedDelta(delta) = &mut branch.part {
                    (delta.sharing, delta.decay) = (KeySharing::Neighbours, DecayForm::Logarithm);
                }
                if let Part::Mamba(mamba) = &mut branch.part {
                    mamba.decay = DecayForm::Logarithm;
                }
                if let Part::Attention(attention) = &mut branch.part {
                    attention.scale = 1.0;
                    if let Some(norms) = &mut attention.norms {
                        norms.offset = 0.0;
                    }
                    if let Some(growth) = &mut attention.growth {
                        growth.beta = f64::from(growth.beta as f32);
                    }
                }
            }
            (blueprint, config.ends.bos_token_id, config.ends.eos_token_ids.clone())
        };
        assert_eq!(alike(&got), alike(&want), "{name}");
        let factors = |config: &ModelConfig| {
            let blueprint = &config.blueprint;
            let scale = blueprint.attentions().next().unwrap().scale;
            [blueprint.embedding_factor, blueprint.branch_factor(), blueprint.head.divisor, scale]
        };
        for (got, want) in factors(&got).into_iter().zip(factors(&want)) {
            assert!((got / want - 1.0).abs() < 1e-6, "{name}: {got} {want}");
        }
    }
}

/// A tokenizer fixture, and its texts with their ids.
fn tokenizer(name: &str) -> (Tokenizer, Vec<(String, Vec<u32>)>) {
    let catalog = Catalog::open(folder().join(format!("{name}.gguf"))).unwrap();
    let tokenizer = GgufModel::of(&catalog).unwrap().tokenizer().unwrap();
    let json = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&json).unwrap();
    let case = |case: &Value| {
        let ids = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        (case["text"].as_str().unwrap().to_owned(), ids)
    };
    (tokenizer, cases.iter().map(case).collect())
}

#[test]
fn tokens_are_those_of_the_original() {
    for name in ["byte_level", "sentencepiece"] {
        let (tokenizer, cases) = tokenizer(name);
        assert!(cases.len() > 10);
        for (text, ids) in cases {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{name}: {text:?}");
            let without = tokenizer.encode(&text, false).unwrap();
            assert_eq!(without, ids[1..], "{name}: only the token that begins a text is added");
            assert_eq!(tokenizer.decode(&without, false), text, "{name}");
        }
    }
}

#[test]
fn the_bundled_tokenizer_is_the_same_from_either_format() {
    let bundled = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
    let original = Tokenizer::from_dir(&bundled).unwrap();
    let catalog = Catalog::open(folder().join("byte_level.gguf")).unwrap();
    let model = GgufModel::of(&catalog).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    assert_eq!(tokenizer.vocab_size(), original.vocab_size());
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (original.bos_token(), original.eos_token()));
    for id in 0..original.vocab_size() as u32 {
        assert_eq!(tokenizer.vocabulary_entry(id), original.vocabulary_entry(id));
        assert_eq!(tokenizer.token_bytes(id), original.token_bytes(id));
        assert_eq!(tokenizer.is_special(id), original.is_special(id));
    }
    // A text of its own kind, several times longer than what is tokenized in one piece.
    let story = std::fs::read_to_string(bundled.join("README.md")).unwrap().repeat(40);
    assert_eq!(tokenizer.encode(&story, true).unwrap(), original.encode(&story, true).unwrap());

    let template = model.chat_template().unwrap();
    let messages = [serde_json::json!({"role": "user", "content": "Hi"})];
    let prompt = template.render(&messages, None, true, &serde_json::Map::new()).unwrap();
    assert_eq!(prompt, "<|begin_of_text|><|user|>\nHi<|end|>\n<|assistant|>\n");
}

/// A random model in `dtype`, and the same with its weights as single-precision numbers.
pub fn quantised_and_widened(dtype: DType, dir: &std::path::Path) -> [Catalog; 2] {
    // The smallest shape in which every matrix has whole blocks of 256.
    let config_json = serde_json::json!({"model_type": "llama", "vocab_size": 512, "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": true, "rope_theta": 500.0});
    let spec = SynthSpec {
        config_json: config_json.to_string(),
        num_layers: None,
        dtype: Some(dtype),
        seed: 5,
        router_skew: 0.0,
        shard_bytes: u64::MAX,
        gguf: true,
    };
    synthesize(&spec, &dir.join("quantised"), &mut |_, _| {}).unwrap();
    let catalog = Catalog::open(dir.join("quantised")).unwrap();
    let tensors: Vec<TensorMeta> = catalog
        .tensors()
        .map(|(name, entry)| TensorMeta { name: name.to_owned(), dtype: DType::F32, shape: entry.shape.clone() })
        .collect();
    let widened = dir.join("widened.gguf");
    write_gguf(&widened, catalog.metadata().unwrap(), &tensors, &mut |index, sink| {
        let entry = catalog.get(&tensors[index].name).unwrap();
        let mut bytes = vec![0; entry.bytes as usize];
        catalog.files()[entry.file].read_exact_at(&mut bytes, entry.offset)?;
        let ElementType::Known(dtype) = entry.element_type else { panic!("synthetic models have known types") };
        let (cols, rows) = (*entry.shape.last().unwrap(), entry.shape.iter().rev().skip(1).product());
        let matrix = Matrix::new(dtype, rows, cols, &bytes);
        let mut values = vec![0.0; cols];
        (0..rows).try_for_each(|row| {
            matrix.widen_row(row, &mut values);
            values.iter().try_for_each(|value| sink(&value.to_le_bytes()))
        })
    })
    .unwrap();
    [catalog, Catalog::open(widened).unwrap()]
}

/// Products with quantised weights round the activations to eight bits for each 32: about 0.4 % of their size. Over
/// three layers of random weights, which correct nothing, that grows to some 3 % of the largest logit (llama.cpp's
/// differ from exact ones by as much); wrong scales or codes would make them differ by more than 100 %.
#[test]
fn quantised_models_compute_what_their_widened_weights_do() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K] {
        let dir = tempfile::tempdir().unwrap();
        let [quantised, widened] = quantised_and_widened(dtype, dir.path());
        let logits = |catalog: &Catalog, level: Level, chunk: usize| {
            let config = GgufModel::of(catalog).unwrap().config().unwrap();
            let mut harness = Harness::of(config, catalog, KvDType::F32, 2, 1).at(level);
            let prompt: Vec<u32> = (0..50).map(|i| i * 37 % 512).collect();
            let mut sequence = harness.sequence(0, &prompt);
            harness.prompt_logits(&mut sequence, chunk)
        };
        let want = logits(&widened, unrounded(), usize::MAX).concat();
        for level in Level::available() {
            let got = logits(&quantised, level, usize::MAX);
            let apart = distance(&got, &want);
            println!("{dtype} {}: {apart:.2e}", level.name());
            assert!(apart > 0.0 && apart < 0.08, "{dtype} {}: {apart}", level.name());
            assert!(logits(&quantised, level, 7) == got, "{dtype} {}: chunks change bits", level.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever a file says, it is read or refused; nothing panics on the way to a tokenizer.
    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((0usize..15_000, any::<u8>()), 1..8)) {
        let mut bytes = std::fs::read(folder().join("sentencepiece.gguf")).unwrap();
        for (position, value) in changes {
            let position = position % bytes.len();
            bytes[position] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(catalog) = Catalog::open(&path)
            && let Some(model) = GgufModel::of(&catalog)
        {
            let _ = (model.config(), model.chat_template(), model.generation_config());
            if let Ok(tokenizer) = model.tokenizer() {
                let _ = tokenizer.encode("Once upon a time…", true);
            }
        }
    }
}
