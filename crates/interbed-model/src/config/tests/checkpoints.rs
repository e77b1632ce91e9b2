//! What checkpoints say of quantised weights, of a language model within another, and of two sets of rope factors.

use serde_json::{Value, json};

use super::{attention, head_norms, llama, refusal};
use crate::blueprint::{HeadNorms, QueryGrowth, RopeScaling};
use crate::config::ModelConfig;

fn read(value: Value) -> ModelConfig {
    ModelConfig::from_json(&value.to_string()).unwrap()
}

#[test]
fn fp8_is_read_and_all_else_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut quantization = json!({
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
            "modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0"
        });
        quantization[key] = value;
        llama(json!({"quantization_config": quantization}))
    };
    for (key, value) in [
        ("fmt", json!("float8_e4m3fn")),
        ("weight_block_size", json!(null)),
        ("fmt", json!(null)),
        ("activation_scheme", json!("static")),
        ("dequantize", json!(false)),
        ("ignored_layers", json!(["lm_head"])),
        ("kv_cache_scheme", json!(null)),
        ("kv_cache_scheme", json!("static")),
        ("modules_to_convert", json!(null)),
        ("modules_to_convert", json!(["embed_tokens"])),
        ("modules_to_not_convert", json!(["gate", "e_score_correction_bias", "lm_head"])),
        ("scale_fmt", json!("float")),
        ("what_nobody_has_set", json!(null)),
    ] {
        read(with(key, value));
    }
    for (key, value) in [
        ("quant_method", json!("compressed-tensors")),
        ("fmt", json!("e5m2")),
        ("weight_block_size", json!([64, 128])),
        ("weight_block_size", json!("128")),
        ("weight_block_size", json!([1, 128])),
        ("num_bits", json!(4)),
        ("config_groups", json!({"group_0": {"weights": {"strategy": "channel"}}})),
    ] {
        let message = refusal(with(key, value));
        assert!(message.contains(&format!("quantization_config.{key}")), "{message}");
    }
    assert!(refusal(llama(json!({"quantization_config": {}}))).contains("quant_method"));
    assert!(refusal(llama(json!({"quantization_config": [1]}))).contains("an object"));
}

fn ministral() -> Value {
    json!({
        "model_type": "ministral3", "hidden_size": 64, "head_dim": 16, "vocab_size": 100, "num_hidden_layers": 2,
        "tie_word_embeddings": true, "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100, "llama_4_scaling_beta": 0.1
        }
    })
}

#[test]
fn a_language_model_within_another_is_read() {
    let inner = read(ministral());
    assert_eq!(attention(&inner).growth, Some(QueryGrowth { beta: 0.1, length: 100 }));
    let nested = read(json!({"model_type": "mistral3", "text_config": ministral(), "dtype": "bfloat16"}));
    assert_eq!((nested.family.name, nested.dtype), ("Ministral3", Some(interbed_kernels::DType::BF16)));
    assert!(!nested.tie_is_stated && nested.blueprint.ropes[0] == inner.blueprint.ropes[0]);
    let untied = read(json!({"model_type": "mistral3", "text_config": ministral(), "tie_word_embeddings": false}));
    assert!(untied.tie_is_stated && !untied.blueprint.head.is_tied);
    let ends = |outer: Option<Value>, inner: Option<Value>| {
        let (mut whole, mut text) = (json!({"model_type": "mistral3"}), ministral());
        whole.as_object_mut().unwrap().extend(outer.map(|ids| ("eos_token_id".to_owned(), ids)));
        text.as_object_mut().unwrap().extend(inner.map(|ids| ("eos_token_id".to_owned(), ids)));
        whole["text_config"] = text;
        let config = read(whole);
        (config.ends.eos_token_ids, config.ends.are_stated)
    };
    assert_eq!(ends(Some(json!([7, 9, 100])), Some(json!(9))), (vec![9, 7], true));
    assert_eq!(ends(Some(json!(7)), None), (vec![7], true));
    assert_eq!(ends(None, Some(json!([9]))), (vec![9], true));
    assert!(!ends(None, None).1);
    assert!(refusal(json!({"model_type": "mistral3"})).contains("text_config is missing"));
    let gptq =
        json!({"model_type": "mistral3", "text_config": ministral(), "quantization_config": {"quant_method": "x"}});
    assert!(refusal(gptq).contains("quant_method"));
    let mut text = ministral();
    text["model_type"] = json!("mistral4");
    assert!(refusal(json!({"model_type": "mistral3", "text_config": text})).contains("mistral4"));
}

#[test]
fn queries_grow_in_steps() {
    let growth = QueryGrowth { beta: 0.5, length: 10 };
    assert_eq!([0, 9].map(|position| growth.factor(position)), [1.0; 2]);
    assert_eq!([10, 19].map(|position| growth.factor(position)), [1.0 + 0.5 * 2f32.ln(); 2]);
    let mut without = ministral();
    without["rope_parameters"]["llama_4_scaling_beta"] = json!(0.0);
    assert_eq!(attention(&read(without)).growth, None);
    let mut unsaid = ministral();
    unsaid["rope_parameters"].as_object_mut().unwrap().remove("original_max_position_embeddings");
    assert!(refusal(unsaid).contains("original_max_position_embeddings"));
    let mut none = ministral();
    none["rope_parameters"] = json!(null);
    assert!(refusal(none).contains("rope_parameters is missing"));
}

fn phi(more: Value) -> Value {
    let mut value = json!({
        "model_type": "phi3", "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 100, "num_hidden_layers": 2,
        "partial_rotary_factor": 0.25, "max_position_embeddings": 400, "original_max_position_embeddings": 100,
        "rope_scaling": {"type": "su", "short_factor": [1, 2], "long_factor": [3, 4]}
    });
    for (key, entry) in more.as_object().unwrap() {
        value[key] = entry.clone();
    }
    value
}

#[test]
fn the_longest_sequence_decides_between_two_sets_of_factors() {
    let is_long = |config: &ModelConfig| match config.blueprint.ropes[0].scaling {
        RopeScaling::LongRope { is_long, .. } => is_long,
        ref other => panic!("{other:?}"),
    };
    let mut config = read(phi(json!({})));
    assert_eq!((config.blueprint.ropes[0].rotated, config.blueprint.context), (4, 400));
    assert!(is_long(&config));
    for (longest, long) in [(100, false), (101, true), (usize::MAX, true)] {
        config.blueprint.settle_length(longest);
        assert_eq!(is_long(&config), long, "{longest}");
    }
    let RopeScaling::LongRope { short, long, attention_factor, .. } = &config.blueprint.ropes[0].scaling else {
        panic!("longrope")
    };
    assert_eq!((short, long), (&vec![1.0, 2.0], &vec![3.0, 4.0]));
    assert!((attention_factor - (1.0 + 4f64.ln() / 100f64.ln()).sqrt()).abs() < 1e-12);
    assert!(!is_long(&read(phi(json!({"max_position_embeddings": 100})))));
}

#[test]
fn factors_that_make_no_sense_are_refused() {
    for (scaling, said) in [
        (json!({"type": "longrope", "short_factor": [1, 2]}), "long_factor is missing"),
        (json!({"type": "longrope", "short_factor": [1, 2, 3], "long_factor": [1, 2]}), "short_factor"),
        (json!({"type": "longrope", "short_factor": [1, 0], "long_factor": [1, 2]}), "short_factor"),
        (json!({"type": "longrope", "short_factor": [1, 2], "long_factor": "x"}), "long_factor"),
        (json!({"type": "linear", "factor": 2}), "longrope"),
    ] {
        let message = refusal(phi(json!({"rope_scaling": scaling})));
        assert!(message.contains(said), "{message}");
    }
    assert!(refusal(phi(json!({"original_max_position_embeddings": 1}))).contains("original_max_position_embeddings"));
}

#[test]
fn phi_has_a_window_only_where_the_context_is_longer() {
    assert_eq!(read(phi(json!({"sliding_window": 400}))).blueprint.windows(), [None; 2]);
    assert_eq!(read(phi(json!({"sliding_window": 300}))).blueprint.windows(), [Some(300); 2]);
}

fn hunyuan(more: Value) -> Value {
    let mut value = json!({
        "model_type": "hunyuan_v1_moe", "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 100,
        "num_hidden_layers": 2, "intermediate_size": 24, "num_experts": 4, "moe_topk": [2, 2],
        "moe_intermediate_size": [24, 24], "num_shared_expert": 1,
        "rope_scaling": {"type": "dynamic", "alpha": 16.0, "factor": 1.0}
    });
    for (key, entry) in more.as_object().unwrap() {
        value[key] = entry.clone();
    }
    value
}

#[test]
fn hunyuan_has_a_stretched_base_and_norms_after_rotation() {
    let config = read(hunyuan(json!({})));
    let (norms, scaling) = (head_norms(&config), &config.blueprint.ropes[0].scaling);
    assert_eq!((norms, scaling), (Some(HeadNorms::EachAfter), &RopeScaling::Default));
    assert!((config.blueprint.ropes[0].theta - 10_000.0 * 16f64.powf(16.0 / 14.0)).abs() < 1e-6);
    let mixture = config.blueprint.mixture().unwrap();
    assert_eq!((mixture.experts, mixture.chosen, mixture.expert_width), (4, 2, 24));
    for (more, said) in [
        (json!({"moe_topk": [2, 1]}), "moe_topk"),
        (json!({"moe_topk": [2]}), "moe_topk"),
        (json!({"moe_intermediate_size": 16}), "moe_intermediate_size"),
        (json!({"num_shared_expert": [2, 2]}), "num_shared_expert"),
        (json!({"use_cla": true}), "use_cla"),
        (json!({"use_qk_norm": false}), "use_qk_norm"),
        (json!({"use_mixed_mlp_moe": false}), "use_mixed_mlp_moe"),
    ] {
        let message = refusal(hunyuan(more));
        assert!(message.contains(said), "{message}");
    }
    let dense = read(json!({"model_type": "hunyuan_v1_dense", "use_mixed_mlp_moe": false}));
    assert_eq!((head_norms(&dense), dense.blueprint.mixture()), (Some(HeadNorms::EachAfter), None));
}

#[test]
fn stretched_positions_are_never_guessed() {
    for model in ["gpt_oss", "ministral3"] {
        for parameters in [json!(null), json!({})] {
            let said = refusal(json!({
                "model_type": model, "hidden_size": 64, "head_dim": 16, "vocab_size": 100, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 4, "rope_parameters": parameters,
            }));
            assert!(said.contains("rope_parameters"), "{model}: {said}");
        }
    }
    for factors in [json!({"factor": 4.0}), json!({"short_factor": [1.0], "long_factor": [2.0]})] {
        let said = refusal(json!({
            "model_type": "phi3", "hidden_size": 64, "vocab_size": 100, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "rope_scaling": factors,
        }));
        assert!(said.contains("rope_type"), "{said}");
    }
    let said = refusal(json!({
        "model_type": "hunyuan_v1_dense", "hidden_size": 64, "head_dim": 16, "vocab_size": 100, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "rope_scaling": {"type": "dynamic", "alpha": 1e38, "factor": 1.0},
    }));
    assert!(said.contains("alpha"), "{said}");
}
