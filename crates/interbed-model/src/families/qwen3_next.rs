//! Qwen 3 Next and Coder Next: the layers of Qwen 3.5, with a mixture and a shared expert behind a gate in most.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::presets::{Config, with};
use super::shared::experts::{self, EXACT};
use super::shared::habits::Habits;
use super::{Family, GgufForm, GgufWriting};
use super::{qwen2_moe, qwen3_5};
use crate::blueprint::{KeySharing, Mixture, Part, SharedExpert};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

pub(super) static FAMILY: Family = Family {
    name: "Qwen3Next",
    model_types: &["qwen3_next"],
    gguf: Some(GgufForm::new(&["qwen3next"], RopeStyle::Halves).written(GgufWriting {
        normalises: true,
        has_expert_width: true,
        ..qwen3_5::WRITTEN
    })),
    habits: Habits {
        vocab_size: 151_936,
        hidden: 2048,
        inner: 5632,
        layers: 48,
        kv_heads: Some(2),
        has_experts: true,
        ..qwen3_5::HABITS
    },
    read: |keys, mut decoder| {
        keys.json().map(refuse_other).transpose()?;
        qwen3_5::read_hybrid(keys, &mut decoder)?;
        // Converters leave the order of value heads alone.
        if let Some((Part::GatedDelta(delta), _)) = &mut decoder.recurrence {
            delta.sharing = KeySharing::Neighbours;
        }
        let router = experts::softmax(experts::normalises(keys, true, true)?.then_some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_experts", 512)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 10)?,
            expert_width: experts::width(keys, "moe_intermediate_size", WIDTH, decoder.inner)?,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: Some(SharedExpert { width: experts::shared_width(keys, WIDTH, decoder.inner)?, gated: true }),
        };
        let layers = match keys.json() {
            Some(fields) => qwen2_moe::sparse_layers(fields, decoder.layers)?,
            None => vec![true; decoder.layers],
        };
        decoder.use_experts(keys, mixture, layers)?;
        Ok(decoder.blueprint())
    },
    presets: &[("qwen3-next-80b-a3b", || {
        qwen_3_next(json!({
            "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16,
            "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH,
        }))
    })],
    ..Family::PLAIN
};

/// The inner width of an expert, unless the configuration says otherwise.
const WIDTH: usize = 512;

/// Refuses keys of another width than values: files group inputs by key heads, whose number the tensors tell for equal
/// widths only.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    let width = |key: &str| fields.get(key).cloned().unwrap_or_else(|| json!(128));
    let (keys, values) = (width("linear_key_head_dim"), width("linear_value_head_dim"));
    match keys == values {
        true => Ok(()),
        false => {
            let known = "this architecture is known with keys as wide as values";
            Err(fields.unsupported("linear_value_head_dim", &values, known))
        }
    }
}

fn qwen_3_next(more: Value) -> Config {
    let base = json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 151_936,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "eos_token_id": 151_645,
    });
    let all = with(Value::Object(qwen3_5::published(json!({}))), base);
    with(Value::Object(all), more)
}
