//! Configurations of models whose layers are partly state spaces.

use serde_json::{Value, json};

use super::{config, refusal};
use crate::blueprint::{Blueprint, DecayForm, Mamba, Part, Scores};
use crate::config::ModelConfig;
use crate::families::preset;
use crate::layers::group_specs;

/// `base` with the keys of `more` added or replaced.
fn with(mut base: Value, more: Value) -> Value {
    for (key, entry) in more.as_object().unwrap() {
        base[key] = entry.clone();
    }
    base
}

fn granite(more: Value) -> Value {
    let base = json!({
        "model_type": "granitemoehybrid", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
        "num_local_experts": 0, "layer_types": ["mamba", "attention", "mamba"],
    });
    with(base, more)
}

fn nemotron(more: Value) -> Value {
    let base = json!({
        "model_type": "nemotron_h", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 16,
        "hybrid_override_pattern": "M-*E",
    });
    with(base, more)
}

fn mamba(blueprint: &Blueprint) -> Mamba {
    let found = blueprint.parts().find_map(|part| match part {
        Part::Mamba(mamba) => Some(*mamba),
        _ => None,
    });
    found.expect("a state space")
}

/// A letter for each branch of each layer.
fn letters(blueprint: &Blueprint) -> String {
    let of_part = |part: &Part| match part {
        Part::Mamba(_) => 'M',
        Part::Attention(attention) if attention.rope.is_none() => '*',
        Part::Attention(_) => '@',
        Part::Dense(_) => '-',
        Part::Mixture(_) => 'E',
        _ => '?',
    };
    blueprint.parts().map(of_part).collect()
}

#[test]
fn layers_are_what_their_types_say() {
    let read = config(granite(json!({}))).blueprint;
    assert_eq!(letters(&read), "M-*-M-");
    assert_eq!((read.inner_size(), read.head.is_tied), (1024, false), "the shared network is the only one");
    let rotated = config(granite(json!({"position_embedding_type": "rope", "num_local_experts": 4})));
    assert_eq!(letters(&rotated.blueprint), "ME@EME");
    let mixture = rotated.blueprint.mixture().unwrap();
    assert_eq!((mixture.expert_width, mixture.shared.unwrap().width), (11_008, 1024));
    let modern = json!({"layer_types": ["linear_attention", "full_attention", "full_attention"]});
    assert_eq!(letters(&config(granite(modern)).blueprint), "M-*-*-");
    let pattern = config(nemotron(json!({"moe_intermediate_size": 24}))).blueprint;
    assert_eq!(letters(&pattern), "M-*E");
    let words = json!({"layers_block_type": ["mamba", "mlp", "attention", "moe"], "hybrid_override_pattern": null});
    assert_eq!(letters(&config(nemotron(words)).blueprint), "M-*E");
}

#[test]
fn absent_keys_mean_what_they_mean_to_the_classes() {
    let of = mamba(&config(granite(json!({"mamba_d_head": "auto"}))).blueprint);
    assert_eq!((of.heads, of.head_width, of.state_width, of.groups, of.convolution), (4, 16, 256, 1, 4));
    assert_eq!((of.convolution_bias, of.step_limits), (true, [0.0, f32::INFINITY]));
    assert_eq!((of.decay, of.norm.name), (DecayForm::Logarithm, "mamba.norm"));
    let read = config(nemotron(json!({}))).blueprint;
    let of = mamba(&read);
    assert_eq!((of.heads, of.head_width, of.state_width, of.groups, of.convolution), (16, 64, 128, 8, 4));
    let mixture = read.mixture().unwrap();
    assert_eq!((mixture.experts, mixture.chosen, mixture.expert_width, mixture.gated), (8, 2, 7688, false));
    assert_eq!((mixture.router.scores, mixture.router.choice_bias), (Scores::Sigmoid, true));
    assert_eq!(read.head.norm.epsilon, 1e-5);
}

#[test]
fn limits_of_steps_may_be_infinite() {
    let limits = |written: &str| {
        let text = nemotron(json!({"eos_token_id": 1, "note": "no \\\" Infinity"})).to_string();
        let text = text.replacen('{', &format!("{{\"time_step_limit\": {written},"), 1);
        mamba(&ModelConfig::from_json(&text).unwrap().blueprint).step_limits
    };
    assert_eq!(limits("[0.0, Infinity]"), [0.0, f32::INFINITY]);
    assert_eq!(limits("[0.5, {\"__float__\": \"Infinity\"}]"), [0.5, f32::INFINITY]);
    assert_eq!(limits("[0.5, 2]"), [0.5, 2.0]);
    assert!(refusal(nemotron(json!({"time_step_limit": [2, 1]}))).contains("time_step_limit"));
}

#[test]
fn what_is_not_computed_is_refused() {
    for (value, key) in [
        (granite(json!({"hidden_act": "gelu"})), "hidden_act"),
        (granite(json!({"mamba_proj_bias": true})), "mamba_proj_bias"),
        (granite(json!({"mamba_d_conv": 9})), "mamba_d_conv"),
        (granite(json!({"mamba_n_groups": 3})), "mamba_n_groups"),
        (granite(json!({"mamba_d_head": "auto", "mamba_n_heads": 5})), "mamba_n_heads"),
        (granite(json!({"position_embedding_type": "alibi"})), "position_embedding_type"),
        (granite(json!({"layer_types": ["mamba", "window", "mamba"]})), "layer_types"),
        (nemotron(json!({"use_bias": true})), "use_bias"),
        (nemotron(json!({"attention_bias": true})), "attention_bias"),
        (nemotron(json!({"moe_latent_size": 16})), "moe_latent_size"),
        (nemotron(json!({"mamba_hidden_act": "gelu"})), "mamba_hidden_act"),
        (nemotron(json!({"hybrid_override_pattern": "M-X"})), "hybrid_override_pattern"),
        (nemotron(json!({"hybrid_override_pattern": null})), "hybrid_override_pattern"),
    ] {
        assert!(refusal(value).contains(key), "{key}");
    }
}

#[test]
fn published_sizes_have_as_many_parameters_as_they_say() {
    for (name, total, active) in [
        ("granite-4.0-h-350m", 0.34, 0.34),
        ("granite-4.0-h-1b", 1.46, 1.46),
        ("granite-4.0-h-micro", 3.19, 3.19),
        ("granite-4.0-h-tiny", 6.94, 1.5),
        ("granite-4.0-h-small", 32.2, 9.0),
        ("nemotron-h-8b", 8.1, 8.1),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.6),
    ] {
        let blueprint = ModelConfig::from_json(&preset(name).unwrap()).unwrap().blueprint;
        blueprint.refuse_uncomputed().unwrap();
        let tensors = group_specs(&blueprint).into_iter().flat_map(|group| group.tensors);
        let listed: u64 = tensors.map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
        let head = if blueprint.head.is_tied { blueprint.vocab_size * blueprint.hidden_size } else { 0 };
        assert_eq!(listed - head as u64, blueprint.num_parameters(), "{name}");
        let [got, used] = [blueprint.num_parameters(), blueprint.active_parameters()].map(|count| count as f64 / 1e9);
        assert!((got / total - 1.0).abs() < 0.02, "{name} has {got} billion parameters");
        assert!((used / active - 1.0).abs() < 0.1, "{name} uses {used} billion parameters");
    }
}
