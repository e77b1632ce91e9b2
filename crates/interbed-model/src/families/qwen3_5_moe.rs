//! Qwen 3.5 and 3.6 with experts: the layers of Qwen 3.5, with a mixture and a shared expert behind a gate in each.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::qwen3_5;
use super::shared::experts::{self, EXACT};
use super::shared::habits::Habits;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::{Mixture, SharedExpert};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

pub(super) static FAMILY: Family = Family {
    name: "Qwen3.5Moe",
    model_types: &["qwen3_5_moe_text"],
    within: &["qwen3_5_moe"],
    gguf: Some(GgufForm::new(&["qwen35moe"], RopeStyle::Halves).written(GgufWriting {
        normalises: true,
        has_expert_width: true,
        ..qwen3_5::WRITTEN
    })),
    habits: Habits {
        hidden: 2048,
        inner: WIDTH,
        layers: 40,
        kv_heads: Some(2),
        has_experts: true,
        ..qwen3_5::HABITS
    },
    read: |keys, mut decoder| {
        keys.json().map(refuse_other).transpose()?;
        qwen3_5::read_hybrid(keys, &mut decoder)?;
        let router = experts::softmax(Some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 256)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 8)?,
            expert_width: experts::width(keys, "moe_intermediate_size", WIDTH, decoder.inner)?,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: Some(SharedExpert { width: experts::shared_width(keys, WIDTH, decoder.inner)?, gated: true }),
        };
        let layers = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    presets: &[("qwen3.6-35b-a3b", || {
        qwen_3_5_moe(json!({
            "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
            "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH,
        }))
    })],
    ..Family::PLAIN
};

/// The inner width of an expert, unless the configuration says otherwise.
const WIDTH: usize = 512;

/// Refuses what the class of this architecture does not compute: dense layers, and weights of experts that are not
/// divided by their sum.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    let refused = |key: &str, found: &Value| {
        Err(fields.unsupported(key, found, "this architecture is known with experts in each layer, weighed to 1"))
    };
    match fields.get("mlp_only_layers") {
        Some(Value::Array(dense)) if dense.is_empty() => {}
        Some(other) => return refused("mlp_only_layers", other),
        None => {}
    }
    match fields.flag("norm_topk_prob")? {
        Some(false) => refused("norm_topk_prob", &Value::Bool(false)),
        Some(true) | None => Ok(()),
    }
}

fn qwen_3_5_moe(more: Value) -> Config {
    let base = json!({ "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text" });
    with(Value::Object(qwen3_5::published(base)), more)
}
