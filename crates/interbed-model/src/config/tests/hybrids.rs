//! Configurations of models whose layers partly keep a state instead of keys and values.

use serde_json::{Value, json};

use super::{attention, config, refusal};
use crate::blueprint::{Blueprint, DecayForm, GatedDelta, HeadNorms, KeySharing, Part, RopeScaling};
use crate::config::ModelConfig;
use crate::families::preset;
use crate::layers::group_specs;

/// A text model with the keys that published files have, and `more`.
fn hybrid(more: Value) -> Value {
    let mut value = json!({
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 1000, "head_dim": 16,
        "output_gate_type": "swish", "mlp_only_layers": [], "mtp_num_hidden_layers": 1, "eos_token_id": 44,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [11, 11, 10],
            "mrope_interleaved": true
        },
    });
    for (key, entry) in more.as_object().unwrap() {
        value[key] = entry.clone();
    }
    value
}

fn delta(blueprint: &Blueprint) -> GatedDelta {
    let found = blueprint.parts().find_map(|part| match part {
        Part::GatedDelta(delta) => Some(*delta),
        _ => None,
    });
    found.expect("a gated delta rule")
}

/// Which layers have attention.
fn attends(value: Value) -> Vec<bool> {
    let layers = config(value).blueprint.layers;
    layers.iter().map(|layer| matches!(layer.branches[0].part, Part::Attention(_))).collect()
}

#[test]
fn absent_keys_mean_what_they_mean_to_the_class() {
    let read = config(json!({"model_type": "qwen3_5_text", "rope_theta": 1e7}));
    let sizes = &read.blueprint;
    assert_eq!(
        (sizes.vocab_size, sizes.hidden_size, sizes.inner_size(), sizes.positions),
        (248_320, 4096, 12_288, 32_768)
    );
    let attention = attention(&read);
    assert_eq!((attention.heads, attention.kv_heads, attention.key_width, attention.scale), (16, 4, 256, 0.0625));
    let norms = attention.norms.unwrap();
    assert_eq!((attention.output_gate, norms.over, norms.offset), (true, HeadNorms::EachBefore, 1.0));
    assert_eq!((sizes.ropes[0].rotated, sizes.ropes[0].scaling.clone()), (64, RopeScaling::Default));
    let of = delta(sizes);
    assert_eq!((of.key_heads, of.value_heads, of.key_width, of.value_width, of.convolution), (16, 32, 128, 128, 4));
    assert_eq!((of.sharing, of.decay, of.norm.offset), (KeySharing::Neighbours, DecayForm::Logarithm, 0.0));
    assert_eq!((sizes.head.norm.offset, sizes.head.is_tied), (1.0, false));
    assert!(read.ends.eos_token_ids.is_empty() && read.ends.bos_token_id.is_none());
}

#[test]
fn a_list_or_an_interval_says_which_layers_attend() {
    let every = |interval: usize| (1..=8).map(|layer: usize| layer.is_multiple_of(interval)).collect::<Vec<_>>();
    assert_eq!(attends(hybrid(json!({}))), every(4));
    assert_eq!(attends(hybrid(json!({"full_attention_interval": 2}))), every(2));
    let mut types = vec!["linear_attention"; 8];
    (types[1], types[6]) = ("full_attention", "full_attention");
    let listed = attends(hybrid(json!({"layer_types": types, "full_attention_interval": 2})));
    assert_eq!(listed, (0..8).map(|layer| layer == 1 || layer == 6).collect::<Vec<_>>());
    assert!(refusal(hybrid(json!({"layer_types": vec!["linear_attention"; 8]}))).contains("without attention"));
    types[0] = "sliding_attention";
    assert!(refusal(hybrid(json!({"layer_types": types}))).contains("sliding_attention"));
    assert!(refusal(hybrid(json!({"layer_types": vec!["full_attention"; 3]}))).contains("a list of 3"));
}

#[test]
fn what_would_change_an_answer_is_refused_by_name() {
    for (key, value) in [
        ("output_gate_type", json!("sigmoid")),
        ("attn_output_gate", json!(false)),
        ("hidden_act", json!("gelu")),
        ("num_experts", json!(256)),
        ("linear_num_value_heads", json!(24)),
        ("linear_conv_kernel_dim", json!(1)),
        ("linear_conv_kernel_dim", json!(100)),
        ("linear_key_head_dim", json!(0)),
        ("rope_parameters", json!({"rope_type": "default"})),
        ("rope_parameters", json!(null)),
    ] {
        let message = refusal(hybrid(json!({key: value})));
        assert!(message.contains(key), "{message}");
    }
    assert!(refusal(hybrid(json!({"rope_parameters": null}))).contains("rope_theta is missing"));
    let classic = json!({"rope_parameters": null, "rope_theta": 5000.0, "rope_scaling": null});
    assert_eq!(config(hybrid(classic)).blueprint.ropes[0].theta, 5000.0);
    assert_eq!(config(hybrid(json!({}))).blueprint.ropes[0].rotated, 8);
}

#[test]
fn the_text_of_a_model_that_sees_is_read() {
    let whole = json!({
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 56,
        "text_config": hybrid(json!({})), "vision_config": {"model_type": "qwen3_5_vision"},
        "tie_word_embeddings": true, "eos_token_id": 46,
    });
    let read = config(whole);
    let mut inner = config(hybrid(json!({})));
    inner.blueprint.head.is_tied = true;
    assert_eq!(read.blueprint, inner.blueprint);
    assert_eq!((read.ends.eos_token_ids, read.tie_is_stated), (vec![44, 46], true));
}

fn config_of(name: &str) -> ModelConfig {
    ModelConfig::from_json(&preset(name).unwrap()).unwrap()
}

#[test]
fn published_sizes_have_the_parameters_and_tensors_of_their_files() {
    let large = config_of("qwen3.6-27b").blueprint;
    let tensors: usize = group_specs(&large).iter().map(|group| group.tensors.len()).sum();
    assert_eq!((tensors, large.num_parameters()), (851, 26_895_998_464));
    let bytes: u64 = group_specs(&large)
        .iter()
        .flat_map(|group| &group.tensors)
        .map(|tensor| tensor.shape.iter().map(|&size| size as u64).product::<u64>())
        .sum();
    assert_eq!(bytes, large.num_parameters());
    assert_eq!(config_of("qwen3.5-4b").blueprint.attentions().count(), 8);
}
