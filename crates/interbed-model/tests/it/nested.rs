//! A language model within one that sees: its tensors are found under either spelling, and what sees is left alone.

use std::fs;

use interbed_kernels::KvDType;
use interbed_model::config::ModelConfig;
use interbed_weights::Catalog;
use serde_json::{Value, json};

use crate::harness::{Harness, fixtures};
use crate::logits::{distance, expected, unrounded};

/// A language model by its fixture, the `model_type` of the model around it, and that of the part that sees.
const WHOLE: [[&str; 3]; 5] = [
    ["ministral3", "mistral3", "pixtral"],
    ["gemma4", "gemma4", "gemma4_vision"],
    ["qwen3_5", "qwen3_5", "qwen3_5_vision"],
    ["qwen3_5_moe", "qwen3_5_moe", "qwen3_5_moe_vision"],
    ["lfm2", "lfm2_vl", "siglip2_vision_model"],
];

#[test]
fn a_model_that_sees_computes_text_as_its_language_model_does() {
    for [name, whole, sees] in WHOLE {
        check(name, whole, sees);
    }
}

fn check(name: &str, whole: &str, sees: &str) {
    let (from, expected) = (fixtures().join(name), expected(name));
    let (_, want) = expected.logits.iter().find(|(kind, _)| kind == "logits_f32").unwrap();
    let text: Value = serde_json::from_str(&fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    let file = fs::read(from.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    for prefixes in [["language_model.model.", "language_model.lm_head."], ["model.language_model.", "lm_head."]] {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"model_type": whole, "text_config": text, "vision_config": {"model_type": sees}});
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let mut renamed = json!({});
        for (tensor, entry) in header.as_object().unwrap() {
            let of_model = tensor.strip_prefix("model.").map(|rest| format!("{}{rest}", prefixes[0]));
            let of_head = tensor.strip_prefix("lm_head.").map(|rest| format!("{}{rest}", prefixes[1]));
            renamed[of_model.or(of_head).unwrap_or_else(|| tensor.clone())] = entry.clone();
        }
        renamed["vision_tower.patch_conv.weight"] =
            json!({"dtype": "F32", "shape": [1], "data_offsets": [data.len(), data.len() + 4]});
        let renamed = renamed.to_string();
        let length = (renamed.len() as u64).to_le_bytes();
        let parts = [&length[..], renamed.as_bytes(), data, &[0; 4]];
        fs::write(dir.path().join("model.safetensors"), parts.concat()).unwrap();

        let config = ModelConfig::from_dir(dir.path()).unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let mut harness = Harness::of(config, &catalog, KvDType::F32, 2, 1).at(unrounded());
        let mut sequence = harness.sequence(0, &expected.prompt);
        let apart = distance(&harness.prompt_logits(&mut sequence, usize::MAX), want);
        assert!(apart < 1e-5, "{name}, {prefixes:?}: {apart:e}");
    }
}
