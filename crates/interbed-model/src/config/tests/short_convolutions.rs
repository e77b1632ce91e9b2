//! Configurations of models whose layers partly have a gated convolution in place of attention.

use serde_json::{Value, json};

use super::{attention, config, refusal};
use crate::blueprint::{Blueprint, Floor, HeadNorms, Part, Scores, ShortConvolution, State};
use crate::config::ModelConfig;
use crate::families::preset;
use crate::layers::group_specs;

/// A model with the keys that published files have, and `more`.
fn model(more: Value) -> Value {
    let mut value = json!({
        "model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000, "num_attention_heads": 4,
        "num_key_value_heads": 2, "full_attn_idxs": [1], "block_ff_dim": 300, "block_auto_adjust_ff_dim": true,
    });
    for (key, entry) in more.as_object().unwrap() {
        value[key] = entry.clone();
    }
    value
}

/// The convolution of the model, and in which layers it is.
fn convolutions(blueprint: &Blueprint) -> (ShortConvolution, Vec<usize>) {
    let of = |layer: usize| match blueprint.layers[layer].branches[0].part {
        Part::Convolution(convolution) => Some((layer, convolution)),
        _ => None,
    };
    let found: Vec<_> = (0..blueprint.layers.len()).filter_map(of).collect();
    (found[0].1, found.into_iter().map(|(layer, _)| layer).collect())
}

#[test]
fn absent_keys_mean_what_they_mean_to_the_class() {
    let read = config(json!({"model_type": "lfm2", "full_attn_idxs": [31]}));
    let sizes = &read.blueprint;
    // Two thirds of 12,288.
    assert_eq!(
        (sizes.vocab_size, sizes.hidden_size, sizes.inner_size(), sizes.positions),
        (65_536, 2560, 8192, 128_000)
    );
    let attention = attention(&read);
    assert_eq!((attention.heads, attention.kv_heads, attention.key_width), (32, 8, 80));
    assert_eq!(attention.norms.unwrap().over, HeadNorms::EachBefore);
    assert_eq!((sizes.ropes[0].theta, sizes.head.norm.epsilon, sizes.head.is_tied), (1e6, 1e-5, true));
    assert_eq!(sizes.head.norm.name, "model.embedding_norm");
    let (convolution, layers) = convolutions(sizes);
    assert_eq!(convolution, ShortConvolution { rows: 3, width: 2560, bias: false });
    assert_eq!(layers, (0..31).collect::<Vec<_>>());
    assert_eq!((read.ends.bos_token_id, read.ends.eos_token_ids), (Some(1), vec![2]));
    // Without a list, all layers attend.
    let all = config(json!({"model_type": "lfm2"})).blueprint;
    assert_eq!(all.attentions().count(), 32);
}

#[test]
fn lists_of_types_or_of_numbers_say_which_layers_attend() {
    assert_eq!(convolutions(&config(model(json!({}))).blueprint).1, [0, 2, 3]);
    let types = json!(["full_attention", "conv", "conv", "full_attention"]);
    assert_eq!(convolutions(&config(model(json!({"layer_types": types}))).blueprint).1, [1, 2]);
    assert!(refusal(model(json!({"layer_types": ["conv", "conv", "conv", "conv"]}))).contains("without attention"));
    assert!(refusal(model(json!({"layer_types": ["conv"]}))).contains("a list of 1"));
    let sliding = json!(["sliding_attention", "conv", "conv", "full_attention"]);
    assert!(refusal(model(json!({"layer_types": sliding}))).contains("sliding_attention"));
    assert!(refusal(model(json!({"full_attn_idxs": ["1"]}))).contains("full_attn_idxs"));
}

#[test]
fn the_width_of_networks_is_worked_out_as_the_class_does() {
    let inner = |more: Value| config(model(more)).blueprint.inner_size();
    assert_eq!(inner(json!({})), 256);
    assert_eq!(inner(json!({"block_multiple_of": 8})), 200);
    assert_eq!(inner(json!({"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3})), 264);
    // Without a factor there is no multiple either.
    assert_eq!(inner(json!({"block_ff_dim": 302, "block_ffn_dim_multiplier": null})), 201);
    assert_eq!(inner(json!({"block_auto_adjust_ff_dim": false})), 300);
    // The first of two names counts.
    assert_eq!(inner(json!({"block_auto_adjust_ff_dim": false, "intermediate_size": 400})), 300);
    let modern = json!({"block_ff_dim": null, "block_auto_adjust_ff_dim": false, "intermediate_size": 400});
    assert_eq!(inner(modern), 400);
    assert!(refusal(model(json!({"block_ff_dim": 1, "block_multiple_of": 1}))).contains("block_ff_dim"));
    assert!(refusal(model(json!({"block_ffn_dim_multiplier": 1e6}))).contains("block_ff_dim"));
}

#[test]
fn other_names_and_biases_are_read() {
    let more = json!({"norm_eps": 1e-3, "rms_norm_eps": 1e-6, "tie_embedding": false, "tie_word_embeddings": true,
        "conv_L_cache": 4, "conv_bias": true, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}});
    let read = config(model(more)).blueprint;
    assert_eq!(convolutions(&read).0, ShortConvolution { rows: 4, width: 64, bias: true });
    assert_eq!((read.head.norm.epsilon, read.head.is_tied, read.ropes[0].theta), (1e-3, false, 5e6));
    assert_eq!(read.attentions().next().unwrap().norms.unwrap().epsilon, 1e-3);
    for taps in [1, 100] {
        assert!(refusal(model(json!({"conv_L_cache": taps}))).contains("conv_L_cache"));
    }
    let bytes: u64 = group_specs(&read)
        .iter()
        .flat_map(|group| &group.tensors)
        .map(|tensor| tensor.shape.iter().map(|&size| size as u64).product::<u64>())
        .sum();
    assert_eq!(bytes, read.num_parameters());
}

#[test]
fn experts_are_chosen_as_the_class_does() {
    let mixed = |more: Value| {
        let mut value = model(json!({"model_type": "lfm2_moe", "block_ff_dim": null, "num_experts": 8}));
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    let read = config(mixed(json!({}))).blueprint;
    let mixture = read.mixture().unwrap();
    assert_eq!((mixture.experts, mixture.chosen, mixture.expert_width), (8, 4, 1792));
    let router = &mixture.router;
    assert_eq!((router.scores, router.choice_bias, router.scale), (Scores::Sigmoid, true, 1.0));
    assert_eq!(router.normalise, Some(Floor::Plus(1e-6)));
    // The width of dense layers is as it is stated.
    assert_eq!((read.mixtures().count(), read.inner_size()), (2, 7168));
    let other = json!({"num_dense_layers": 0, "use_expert_bias": false, "norm_topk_prob": false,
        "routed_scaling_factor": 2.5});
    let read = config(mixed(other)).blueprint;
    let router = &read.mixture().unwrap().router;
    assert_eq!((router.choice_bias, router.normalise, router.scale), (false, None, 2.5));
    assert_eq!(read.mixtures().count(), 4);
    assert!(refusal(mixed(json!({"num_dense_layers": 5}))).contains("num_dense_layers"));
}

#[test]
fn a_published_size_keeps_two_rows_in_most_layers() {
    let of = |name: &str| ModelConfig::from_json(&preset(name).unwrap()).unwrap().blueprint;
    let dense = of("lfm2-1.2b");
    let rows = State::LastRows { rows: 2, width: 2048 };
    let kept = |blueprint: &Blueprint| blueprint.parts().filter(|part| part.states() == [rows]).count();
    assert_eq!((kept(&dense), dense.attentions().count()), (10, 6));
    let mixed = of("lfm2-8b-a1b");
    assert_eq!((kept(&mixed), mixed.attentions().count(), mixed.mixtures().count()), (18, 6, 22));
    let [all, active] = [mixed.num_parameters(), mixed.active_parameters()].map(|count| count as f64 / 1e9);
    assert!((8.3..8.4).contains(&all) && (1.5..1.6).contains(&active), "{all} {active}");
}
