//! Valid configurations as they are found in the wild, and invalid ones.

mod checkpoints;
mod hybrids;
mod short_convolutions;
mod state_spaces;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::blueprint::{Activation, Attention, HeadNorms, Part, Rope, RopeScaling};
use crate::families::{preset, preset_names};
use crate::generation_config::GenerationConfig;

fn config(value: Value) -> ModelConfig {
    ModelConfig::from_json(&value.to_string()).unwrap_or_else(|error| panic!("{error}\n{value:#}"))
}

/// The message with which a configuration is refused.
fn refusal(value: Value) -> String {
    match ModelConfig::from_json(&value.to_string()) {
        Err(error) => error.to_string(),
        Ok(config) => panic!("{value} was accepted as {config:?}"),
    }
}

/// The first attention of a model.
fn attention(config: &ModelConfig) -> &Attention {
    config.blueprint.attentions().next().expect("an attention")
}

/// Which norms of heads the first attention has.
fn head_norms(config: &ModelConfig) -> Option<HeadNorms> {
    attention(config).norms.map(|norms| norms.over)
}

/// Whether the first dense network has biases.
fn network_bias(config: &ModelConfig) -> bool {
    config.blueprint.parts().any(|part| matches!(part, Part::Dense(dense) if dense.bias))
}

/// `{"model_type": "llama"}` with more keys.
fn llama(more: Value) -> Value {
    with("llama", more)
}

fn with(model_type: &str, more: Value) -> Value {
    let mut object = json!({ "model_type": model_type });
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

#[test]
fn absent_keys_mean_what_they_mean_to_each_class() {
    let llama = config(json!({"model_type": "llama"}));
    assert_eq!(
        (llama.blueprint.vocab_size, llama.blueprint.hidden_size, llama.blueprint.inner_size()),
        (32_000, 4096, 11_008)
    );
    assert_eq!(
        (
            llama.blueprint.layers.len(),
            attention(&llama).heads,
            attention(&llama).kv_heads,
            attention(&llama).key_width
        ),
        (32, 32, 32, 128)
    );
    assert_eq!((llama.blueprint.positions, llama.blueprint.head.norm.epsilon), (2048, 1e-6));
    assert_eq!(llama.blueprint.ropes[0], Rope::new(10_000.0, RopeScaling::Default, 128));
    assert_eq!((llama.ends.bos_token_id, llama.ends.eos_token_ids.as_slice()), (Some(1), &[2][..]));
    assert_eq!(
        (attention(&llama).input_bias, attention(&llama).output_bias, network_bias(&llama), head_norms(&llama)),
        (false, false, false, None)
    );
    assert_eq!(
        (llama.blueprint.head.is_tied, llama.blueprint.activations().next(), llama.dtype),
        (false, Some(Activation::Silu), None)
    );
    assert_eq!(attention(&llama).scale, 128f32.sqrt().recip());
    assert_eq!(
        (llama.blueprint.embedding_factor, llama.blueprint.branch_factor(), llama.blueprint.head.divisor),
        (1.0, 1.0, 1.0)
    );

    let mistral = config(json!({"model_type": "mistral"}));
    assert_eq!((attention(&mistral).kv_heads, mistral.blueprint.inner_size()), (8, 14_336));
    assert_eq!(mistral.blueprint.positions, 131_072);
    assert_eq!(mistral.blueprint.windows(), vec![Some(4096); 32]);

    let qwen2 = config(json!({"model_type": "qwen2"}));
    assert_eq!((attention(&qwen2).input_bias, attention(&qwen2).output_bias, head_norms(&qwen2)), (true, false, None));
    assert_eq!((qwen2.blueprint.vocab_size, qwen2.blueprint.positions), (151_936, 32_768));
    assert_eq!((qwen2.ends.bos_token_id, qwen2.ends.eos_token_ids.len()), (None, 0));
    assert_eq!(qwen2.blueprint.windows(), vec![None; 32]);

    let qwen3 = config(json!({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 32}));
    assert_eq!(
        (attention(&qwen3).key_width, attention(&qwen3).input_bias, head_norms(&qwen3)),
        (128, false, Some(HeadNorms::EachBefore))
    );

    let granite = config(json!({"model_type": "granite"}));
    assert_eq!(attention(&granite).scale, 1.0, "Granite's own default");

    let arcee = config(json!({"model_type": "arcee"}));
    let sizes = &arcee.blueprint;
    assert_eq!(
        (sizes.vocab_size, sizes.hidden_size, sizes.inner_size(), sizes.positions),
        (32_000, 2560, 18_432, 4096)
    );
    assert_eq!((sizes.layers.len(), attention(&arcee).heads, attention(&arcee).kv_heads), (32, 32, 32));
    assert_eq!((sizes.head.norm.epsilon, sizes.activations().next()), (1e-5, Some(Activation::SquaredRelu)));
    // Beyond the default vocabulary, so that they count with a larger one only.
    let arcee = config(json!({"model_type": "arcee", "vocab_size": 128_004}));
    assert_eq!((arcee.ends.bos_token_id, arcee.ends.eos_token_ids.as_slice()), (Some(128_000), &[128_001][..]));
    assert!(sizes.parts().any(|part| matches!(part, Part::Dense(dense) if !dense.gated && !dense.bias)));

    let minicpm = config(json!({"model_type": "minicpm"}));
    assert!(minicpm.blueprint.head.is_tied);
    assert_eq!(
        (minicpm.blueprint.embedding_factor, minicpm.blueprint.branch_factor(), minicpm.blueprint.head.divisor),
        (1.0, 1.0, 1.0)
    );
}

#[test]
fn scales_of_minicpm_and_granite() {
    for model_type in ["minicpm", "fm9g", "fm9g7b"] {
        let scaled = config(with(
            model_type,
            json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "num_hidden_layers": 40,
                   "hidden_size": 2304, "num_attention_heads": 36}),
        ));
        assert_eq!(scaled.blueprint.embedding_factor, 12.0);
        assert_eq!(scaled.blueprint.branch_factor(), (1.4 / 40f64.sqrt()) as f32);
        assert_eq!(scaled.blueprint.head.divisor, 9.0);
        assert_eq!(attention(&scaled).scale, 0.125);
    }
    let granite = config(with(
        "granite",
        json!({"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8,
               "attention_multiplier": 0.0078125}),
    ));
    assert_eq!((granite.blueprint.embedding_factor, granite.blueprint.branch_factor()), (12.0, 0.22));
    assert_eq!((granite.blueprint.head.divisor, attention(&granite).scale), (8.0, 0.0078125));
    let unread = config(llama(json!({"scale_emb": 12, "attention_multiplier": 3})));
    assert_eq!((unread.blueprint.embedding_factor, attention(&unread).scale), (1.0, 128f32.sqrt().recip()));
}

#[test]
fn both_spellings_say_the_same() {
    let classic = config(llama(json!({
        "rope_theta": 500_000.0, "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "linear", "factor": 4},
    })));
    let modern = config(llama(json!({
        "dtype": "bfloat16", "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000},
    })));
    assert_eq!(classic, modern);
    assert_eq!(classic.dtype, Some(DType::BF16));
    assert_eq!(classic.blueprint.ropes[0], Rope::new(500_000.0, RopeScaling::Linear { factor: 4.0 }, 128));
    let both = config(llama(json!({
        "rope_theta": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 2, "rope_theta": 7.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 9.0},
    })));
    assert_eq!(both.blueprint.ropes[0], Rope::new(7.0, RopeScaling::Linear { factor: 2.0 }, 128));
    let empty = config(llama(json!({"rope_scaling": {}, "rope_parameters": {"rope_theta": 9.0}})));
    assert_eq!(empty.blueprint.ropes[0], Rope::new(9.0, RopeScaling::Default, 128));
    let named_by_class = config(json!({"architectures": ["Qwen2ForCausalLM"]}));
    assert_eq!(named_by_class.family.name, "Qwen2");
}

fn scaling(rope: Value, more: Value) -> RopeScaling {
    let mut value = llama(more);
    value["rope_scaling"] = rope;
    config(value).blueprint.ropes[0].scaling.clone()
}

#[test]
fn rope_parameters_are_resolved_as_the_reference_resolves_them() {
    let dynamic = scaling(
        json!({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 1024}),
        json!({"max_position_embeddings": 4096}),
    );
    assert_eq!(dynamic, RopeScaling::Dynamic { factor: 2.0, original_max: 4096 });

    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192});
    let expected =
        |original_max| RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max };
    assert_eq!(scaling(llama3.clone(), json!({})), expected(8192));
    let outer = json!({"original_max_position_embeddings": 77});
    assert_eq!(scaling(llama3, outer), expected(77), "the key outside wins");

    let yarn = |more: Value| {
        let mut rope = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        for (key, value) in more.as_object().unwrap() {
            rope[key] = value.clone();
        }
        match scaling(rope, json!({"max_position_embeddings": 4096})) {
            RopeScaling::Yarn { factor, original_max, beta_fast, beta_slow, attention_factor, truncate } => {
                (factor, original_max, beta_fast, beta_slow, attention_factor, truncate)
            }
            other => panic!("expected yarn, got {other:?}"),
        }
    };
    let mscale = |by: f64, scale: f64| 0.1 * by * scale.ln() + 1.0;
    assert_eq!(yarn(json!({})), (4.0, 512, 32.0, 1.0, mscale(1.0, 4.0), true));
    assert_eq!(
        yarn(json!({"beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5, "truncate": false, "mscale": 3})),
        (4.0, 512, 16.0, 2.0, 1.5, false)
    );
    assert_eq!(yarn(json!({"mscale": 0.7, "mscale_all_dim": 0.3})).4, mscale(0.7, 4.0) / mscale(0.3, 4.0));
    assert_eq!(yarn(json!({"mscale": 0.7})).4, mscale(1.0, 4.0), "one of the two alone changes nothing");
    assert_eq!(yarn(json!({"mscale": 0.7, "mscale_all_dim": 0})).4, mscale(1.0, 4.0));
    assert_eq!(yarn(json!({"factor": 0.5})).4, 1.0);
    assert_eq!(yarn(json!({"factor": null})).0, 8.0, "inferred from the two contexts");
    assert_eq!(yarn(json!({"original_max_position_embeddings": null})).1, 4096);
}

#[test]
fn rope_that_cannot_be_computed_is_refused() {
    let refused = |rope: Value| refusal(llama(json!({"rope_scaling": rope})));
    for (rope, said) in [
        (json!({"type": "longrope", "factor": 2}), "longrope"),
        (json!({"type": "linear"}), "rope_scaling.factor is missing"),
        (json!({"factor": 2.0}), "rope_scaling.rope_type is missing"),
        (json!({"type": "linear", "factor": 0}), "rope_scaling.factor is 0"),
        (json!({"type": "linear", "factor": -3}), "rope_scaling.factor is -3"),
        (json!({"type": "linear", "factor": "2"}), "expected a number"),
        (json!({"type": "linear", "factor": 1e300}), "1e+300, expected a number above 0, below 3.4"),
        (json!({"type": 7}), "rope_scaling.type is 7"),
        (json!({"type": "yarn"}), "rope_scaling.factor is missing"),
        (json!({"type": "yarn", "factor": 2, "original_max_position_embeddings": 0}), "is 0"),
        (json!({"type": "yarn", "factor": 2, "mscale": 1, "mscale_all_dim": -14.426950408889635}), "mscale_all_dim"),
        (json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}), "low_freq_factor"),
        (json!({"type": "default", "rope_theta": 1.0}), "rope_scaling.rope_theta is 1.0"),
        (json!({"full_attention": {"rope_type": "default"}}), "layer to layer"),
        (json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
        (json!([1]), "expected an object"),
    ] {
        let message = refused(rope.clone());
        assert!(message.contains(said), "{rope}: {message}");
    }
    let narrow = json!({"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2}});
    assert!(refusal(llama(narrow)).contains("head_dim is 2"));
    assert!(refusal(llama(json!({"rope_theta": 0}))).contains("rope_theta is 0"));
}

#[test]
fn windows_layer_by_layer() {
    let windows = |model_type: &str, more: Value| {
        let mut value = with(model_type, more);
        value["num_hidden_layers"] = json!(4);
        config(value).blueprint.windows()
    };
    assert_eq!(windows("mistral", json!({"sliding_window": null})), [None; 4]);
    assert_eq!(windows("mistral", json!({"sliding_window": 7})), [Some(7); 4]);
    assert_eq!(windows("llama", json!({"sliding_window": 7})), [None; 4]);
    for qwen in ["qwen2", "qwen3"] {
        assert_eq!(windows(qwen, json!({"sliding_window": 7, "max_window_layers": 0})), [None; 4]);
        let on = json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2});
        assert_eq!(windows(qwen, on), [None, None, Some(7), Some(7)]);
        assert_eq!(windows(qwen, json!({"use_sliding_window": true, "max_window_layers": 3}))[3], Some(4096));
        assert_eq!(windows(qwen, json!({"use_sliding_window": true, "sliding_window": 7})), [None; 4], "from 28 on");
        let null = json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0});
        assert_eq!(windows(qwen, null), [None; 4]);
        let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
        let named =
            json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 0, "layer_types": kinds});
        assert_eq!(windows(qwen, named), [Some(7), None, Some(7), None]);
    }
    let qwen = |more: Value| refusal(with("qwen2", more));
    assert!(
        qwen(json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}))
            .contains("sliding_window is missing")
    );
    assert!(qwen(json!({"num_hidden_layers": 2, "layer_types": ["full_attention"]})).contains("a list of 1"));
    assert!(qwen(json!({"num_hidden_layers": 1, "layer_types": ["mamba"]})).contains("mamba"));
    assert!(qwen(json!({"layer_types": 3})).contains("a list of strings"));
    assert!(refusal(with("mistral", json!({"sliding_window": 0}))).contains("sliding_window is 0"));
}

#[test]
fn layers_with_a_window_may_rotate_in_a_way_of_their_own() {
    let ropes = |model_type: &str, more: Value| {
        let blueprint = config(with(model_type, more)).blueprint;
        let ropes: Vec<_> = blueprint.ropes.iter().map(|rope| (rope.theta, rope.scaling.clone())).collect();
        (ropes, blueprint.attentions().map(|attention| attention.rope.unwrap()).collect::<Vec<_>>())
    };
    let (plain, stretched) = (RopeScaling::Default, RopeScaling::Linear { factor: 8.0 });
    let bases = [(1e6, stretched.clone()), (1e4, plain.clone())];
    let old = json!({"num_hidden_layers": 7, "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    assert_eq!(ropes("gemma3_text", old), (bases.to_vec(), vec![1, 1, 1, 1, 1, 0, 1]));
    let old =
        json!({"num_hidden_layers": 3, "sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 50});
    assert_eq!(ropes("gemma3_text", old), (vec![(5e5, plain.clone()), (50.0, plain.clone())], vec![1, 0, 1]));
    let kinds = ["full_attention", "sliding_attention"];
    let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0});
    let new = |sliding: Value| {
        let parameters = json!({"full_attention": full, "sliding_attention": sliding});
        json!({"num_hidden_layers": 2, "layer_types": kinds, "rope_parameters": parameters})
    };
    let (both, of_layers) = ([(300.0, stretched), (20.0, plain.clone())], vec![0, 1]);
    for family in ["gemma3_text", "olmo3"] {
        let sliding = json!({"rope_type": "default", "rope_theta": 20.0});
        assert_eq!(ropes(family, new(sliding)), (both.to_vec(), of_layers.clone()));
        // What is not said of one type of layer is its family's default, not the other type's.
        assert_eq!(ropes(family, new(Value::Null)).0[1], (if family == "olmo3" { 5e5 } else { 1e4 }, plain.clone()));
        let null = json!({"num_hidden_layers": 4, "sliding_window": null});
        assert!(refusal(with(family, null)).contains("sliding_window is missing"));
        let all = json!({"num_hidden_layers": 1, "sliding_window": null, "layer_types": ["full_attention"]});
        assert_eq!(ropes(family, all).0.len(), 1, "no layer has a window");
        let flat = refusal(with(family, json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})));
        assert!(flat.contains("under full_attention and sliding_attention alone"), "{flat}");
        let mut twice = new(Value::Null);
        twice["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
        assert!(refusal(with(family, twice)).contains("remove one of both"));
        let mut third = new(Value::Null);
        third["rope_parameters"]["chunked_attention"] = json!({});
        assert!(refusal(with(family, third)).contains("rope_parameters.chunked_attention"));
        let wrong = refusal(with(family, new(json!({"rope_theta": 0.5}))));
        assert!(wrong.contains("rope_parameters.sliding_attention.rope_theta"), "{wrong}");
    }
    let elsewhere = refusal(with("qwen3", new(Value::Null)));
    assert!(elsewhere.contains("rope parameters that differ from layer to layer"), "{elsewhere}");
}

#[test]
fn a_language_model_is_read_out_of_the_model_around_it() {
    // As the file of the 4B size has it: the rest is what the class takes for granted.
    let text = json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    });
    let whole = json!({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text});
    let read = config(whole.clone());
    let published = ModelConfig::from_json(&crate::families::preset("gemma-3-4b").unwrap()).unwrap();
    assert_eq!(read.blueprint, Blueprint { vocab_size: 262_208, ..published.blueprint });
    assert_eq!((read.ends.bos_token_id, read.ends.eos_token_ids), (Some(2), vec![1, 106]));
    let mut unnamed = whole.clone();
    unnamed["text_config"].as_object_mut().unwrap().remove("model_type");
    assert_eq!(config(unnamed).family.name, "Gemma3");
    let mut other = whole;
    other["text_config"] = llama(json!({}));
    assert_eq!(config(other).family.name, "Llama");
    let both = config(with("gemma3_text", json!({"hidden_act": "silu", "hidden_activation": "gelu_new"})));
    assert_eq!(both.blueprint.activations().next(), Some(Activation::GeluTanh), "the class reads one of both");
    for (key, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("use_bidirectional_attention", json!(true)),
    ] {
        let message = refusal(with("gemma3_text", json!({key: value})));
        assert!(message.contains(key), "{message}");
    }
}

#[test]
fn biases_follow_the_keys_that_each_class_reads() {
    let biases = |model_type: &str| {
        let config = config(with(model_type, json!({"attention_bias": true, "mlp_bias": true})));
        (attention(&config).input_bias, attention(&config).output_bias, network_bias(&config))
    };
    assert_eq!(biases("llama"), (true, true, true));
    assert_eq!(biases("granite"), (true, true, true));
    assert_eq!(biases("qwen3"), (true, true, false));
    assert_eq!(biases("minicpm"), (true, true, false));
    assert_eq!(biases("qwen2"), (true, false, false));
    assert_eq!(biases("mistral"), (false, false, false));
}

#[test]
fn token_ids_in_every_form() {
    let ids = |more: Value| {
        let config = config(llama(more));
        (config.ends.bos_token_id, config.ends.eos_token_ids)
    };
    assert_eq!(ids(json!({"bos_token_id": 5, "eos_token_id": 7})), (Some(5), vec![7]));
    assert_eq!(ids(json!({"bos_token_id": null, "eos_token_id": [7, 8]})), (None, vec![7, 8]));
    assert_eq!(ids(json!({"eos_token_id": null})), (Some(1), vec![]));
    assert_eq!(ids(json!({"bos_token_id": -1, "eos_token_id": [-1, 99_999_999, 3]})), (None, vec![3]));
    for bad in [json!("</s>"), json!(1.5), json!([[1]]), json!({}), json!(true), json!(1u64 << 40)] {
        assert!(refusal(llama(json!({"eos_token_id": bad}))).contains("eos_token_id"), "{bad}");
    }
}

#[test]
fn activations_by_every_name() {
    for (name, activation) in [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("relu2", Activation::SquaredRelu),
    ] {
        assert_eq!(config(llama(json!({"hidden_act": name}))).blueprint.activations().next(), Some(activation));
        assert_eq!(config(llama(json!({"hidden_activation": name}))).blueprint.activations().next(), Some(activation));
    }
    assert!(refusal(llama(json!({"hidden_act": "relu6"}))).contains("relu6"));
}

#[test]
fn every_size_has_limits_and_says_them() {
    let sizes = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ];
    for key in sizes {
        for bad in [json!(0), json!(-1), json!(1.5), json!(1u64 << 40), json!(u64::MAX), json!(1e300)] {
            let message = refusal(llama(json!({key: bad})));
            assert!(message.contains(key) && message.contains("from 1 to"), "{bad}: {message}");
        }
        for bad in [json!("4096"), json!([]), json!(true)] {
            let message = refusal(llama(json!({key: bad})));
            assert!(message.contains(key) && message.contains("expected a whole number"), "{bad}: {message}");
        }
    }
    assert_eq!(config(llama(json!({"hidden_size": 8192.0}))).blueprint.hidden_size, 8192);
    for (more, said) in [
        (json!({"num_attention_heads": 32, "num_key_value_heads": 5}), "a divisor of num_attention_heads"),
        (json!({"num_attention_heads": 4, "num_key_value_heads": 8}), "a divisor of num_attention_heads"),
        (json!({"hidden_size": 100, "num_attention_heads": 32}), "a multiple of num_attention_heads"),
        (json!({"hidden_size": 96, "num_attention_heads": 32}), "hidden_size / num_attention_heads is 3"),
        (json!({"head_dim": 63}), "head_dim is 63"),
        (json!({"hidden_size": 1 << 20, "num_attention_heads": 1}), "hidden_size / num_attention_heads is 1048576"),
        (json!({"rms_norm_eps": -1e-6}), "rms_norm_eps is -1e-6"),
        (json!({"rms_norm_eps": 1e300}), "rms_norm_eps is 1e+300"),
        (json!({"attention_bias": "yes"}), "expected true or false"),
        (json!({"tie_word_embeddings": 1}), "expected true or false"),
        (
            json!({"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 10_000, "head_dim": 64}),
            "the number of parameters",
        ),
    ] {
        let message = refusal(llama(more.clone()));
        assert!(message.contains(said), "{more}: {message}");
    }
    assert!(refusal(with("minicpm", json!({"dim_model_base": 0}))).contains("dim_model_base is 0"));
    assert!(refusal(with("granite", json!({"logits_scaling": 0}))).contains("logits_scaling is 0"));
}

#[test]
fn what_we_cannot_run_is_refused_by_name() {
    let message = refusal(json!({"model_type": "mamba2"}));
    assert!(message.contains("mamba2") && message.contains("llama, mistral, qwen2, qwen3, minicpm"), "{message}");
    assert!(refusal(json!({"architectures": ["GptOssForCausalLM"]})).contains("GptOssForCausalLM"));
    assert!(refusal(json!({})).contains("model_type is missing"));
    assert!(refusal(json!({"model_type": 7})).contains("model_type is 7"));
    let long = refusal(json!({"model_type": "x".repeat(1 << 20)}));
    assert!(long.len() < 600, "a message stays readable");
    assert!(refusal(llama(json!({"quantization_config": {"quant_method": "gptq"}}))).contains("gptq"));
    assert!(refusal(llama(json!({"num_local_experts": 8}))).contains("without experts"));
    assert!(ModelConfig::from_json(&llama(json!({"num_experts": 0, "quantization_config": null})).to_string()).is_ok());
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for text in ["", "{", "[]", "null", "\u{0}", "{\"model_type\": NaN}", "{\"model_type\":\"llama\"} x"] {
        let error = ModelConfig::from_json(text).unwrap_err();
        assert!(matches!(error.problem, ConfigProblem::Json(_)), "{text}: {error}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
    assert!(matches!(ModelConfig::from_json(&deep).unwrap_err().problem, ConfigProblem::Json(_)));
}

#[test]
fn files_are_named_in_messages() {
    let dir = tempfile::tempdir().unwrap();
    let message = ModelConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(message.contains("config.json: cannot read it"), "{message}");
    assert_eq!(GenerationConfig::from_dir(dir.path()).unwrap(), GenerationConfig::default());
    std::fs::write(dir.path().join("config.json"), [0xff, 0xfe]).unwrap();
    assert!(matches!(ModelConfig::from_dir(dir.path()).unwrap_err().problem, ConfigProblem::Read(_)));
    std::fs::write(dir.path().join("generation_config.json"), "{").unwrap();
    let message = GenerationConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(message.contains("generation_config.json: not valid JSON"), "{message}");
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::create_dir(dir.path().join("sub/config.json")).unwrap();
    assert!(ModelConfig::from_dir(dir.path().join("sub")).is_err());
}

#[test]
fn generation_configs_as_found_and_as_refused() {
    let parse = |value: Value| GenerationConfig::from_json(&value.to_string());
    let found = json!({"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": true, "temperature": 0.6, "top_p": 0.9,
                       "top_k": 20, "repetition_penalty": 1.05, "transformers_version": "5.0.0", "min_p": null});
    let expected = GenerationConfig {
        bos_token_id: Some(1),
        eos_token_ids: vec![2, 3],
        do_sample: Some(true),
        temperature: Some(0.6),
        top_p: Some(0.9),
        top_k: Some(20),
        min_p: None,
        repetition_penalty: Some(1.05),
    };
    assert_eq!(parse(found).unwrap(), expected);
    assert_eq!(parse(json!({"eos_token_id": 2, "top_k": -1})).unwrap().top_k, Some(0));
    for bad in [
        json!({"temperature": -1}),
        json!({"temperature": 1e300}),
        json!({"temperature": "hot"}),
        json!({"top_p": 0}),
        json!({"top_p": 1.1}),
        json!({"top_k": -2}),
        json!({"top_k": 1u64 << 40}),
        json!({"min_p": 2}),
        json!({"repetition_penalty": 0}),
        json!({"repetition_penalty": 1e-300}),
        json!({"do_sample": 1}),
        json!({"eos_token_id": {}}),
    ] {
        let key = bad.as_object().unwrap().keys().next().unwrap().clone();
        assert!(parse(bad).unwrap_err().to_string().contains(&key), "{key}");
    }
}

#[test]
fn presets_have_the_sizes_their_names_promise() {
    let billions = |name: &str| config_of(name).blueprint.num_parameters() as f64 / 1e9;
    fn config_of(name: &str) -> ModelConfig {
        ModelConfig::from_json(&preset(name).unwrap()).unwrap()
    }
    for (name, expected) in [
        ("llama-2-7b", 6.738_415_616),
        ("llama-3-8b", 8.030_261_248),
        ("llama-3.1-8b", 8.030_261_248),
        ("llama-3.2-1b", 1.235_814_400),
        ("llama-3.2-3b", 3.212_749_824),
        ("llama-3-70b", 70.553_706_496),
        ("mistral-7b", 7.241_732_096),
        ("qwen2.5-0.5b", 0.494_032_768),
        ("qwen2.5-7b", 7.615_616_512),
        ("qwen3-0.6b", 0.596_049_920),
        ("qwen3-8b", 8.190_735_360),
        ("qwen3-32b", 32.762_123_264),
        ("qwen3-30b-a3b", 30.532_122_624),
        ("mixtral-8x7b", 46.702_792_704),
        ("olmoe-1b-7b", 6.919_161_856),
        ("lfm2-350m", 0.354_483_968),
        ("lfm2-700m", 0.742_489_344),
        ("lfm2-1.2b", 1.170_340_608),
        ("lfm2-2.6b", 2.569_272_320),
    ] {
        assert_eq!(billions(name), expected, "{name}");
    }
    // What would take memory by the number alone, and windows by rules of their own, are refused.
    let mixture = |more: Value| {
        let mut config = json!({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 20,
            "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 1});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ModelConfig::from_json(&config.to_string()).map_err(|error| error.to_string())
    };
    assert!(mixture(json!({"num_experts": 16_384})).unwrap_err().contains("experts of all layers"));
    assert!(mixture(json!({"use_sliding_window": true})).unwrap_err().contains("use_sliding_window"));
    assert!(mixture(json!({"num_experts": 4, "num_experts_per_tok": 5})).unwrap_err().contains("num_experts_per_tok"));
    assert!(mixture(json!({"use_sliding_window": false})).is_ok());
    // A token goes through 8 of 128 experts, or 2 of 8.
    assert_eq!(config_of("qwen3-30b-a3b").blueprint.active_parameters(), 3_353_032_704);
    assert_eq!(config_of("mixtral-8x7b").blueprint.active_parameters(), 12_879_925_248);
    for name in preset_names() {
        let config = config_of(name);
        assert!(!config.ends.eos_token_ids.is_empty(), "{name}");
    }
    assert_eq!(preset("jiuge-7b"), preset("fm9g-7b"));
    assert_eq!(config_of("fm9g-7b").family.name, "MiniCpm");
    assert_eq!(config_of("mistral-7b").blueprint.windows()[31], Some(4096));
    assert_eq!(preset("llama-9"), None);
}

/// Any small JSON value.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..70_000).prop_map(Value::from),
        "(yarn|llama3|dynamic|sliding_attention|gelu|[a-z]{0,3})".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("(type|rope_type|factor|rope_theta|mscale)", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_value_of_any_key_panics(
        model_type in prop::sample::select(Family::model_types()),
        entries in prop::collection::vec((prop::sample::select(vec![
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
            "rope_parameters", "hidden_act", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
            "scale_emb", "scale_depth", "dim_model_base", "eos_token_id", "torch_dtype", "quantization_config",
            "text_config", "moe_topk", "num_experts", "original_max_position_embeddings", "partial_rotary_factor",
        ]), any_value()), 0..5),
    ) {
        let mut value = json!({"model_type": model_type});
        for (key, entry) in entries {
            value[key] = entry;
        }
        if let Ok(config) = ModelConfig::from_json(&value.to_string()) {
            prop_assert!(config.blueprint.num_parameters() <= Blueprint::PARAMETERS_MAX);
            let keeping = config.blueprint.parts().filter(|part| !part.states().is_empty());
            prop_assert_eq!(keeping.count(), config.blueprint.layers.len());
            let (of, head) = (attention(&config), &config.blueprint.head);
            prop_assert!(of.heads.is_multiple_of(of.kv_heads) && of.key_width.is_multiple_of(2));
            prop_assert!(head.norm.epsilon.is_finite() && config.blueprint.branch_factor().is_finite());
            prop_assert!(config.blueprint.head.divisor.is_normal() && attention(&config).scale.is_finite());
        }
        let _ = GenerationConfig::from_json(&value.to_string());
    }
}
