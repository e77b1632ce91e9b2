//! Mixtral: Mistral with mixtures.

use interbed_kernels::RopeStyle;
use serde_json::{Value, json};

use super::mistral;
use super::presets::{Config, with};
use super::shared::habits::Habits;
use super::shared::experts::{self, EXACT};
use super::shared::windows;
use super::{Family, GgufForm, GgufWriting};
use crate::blueprint::Mixture;

pub(super) static FAMILY: Family = Family {
    name: "Mixtral",
    model_types: &["mixtral"],
    gguf: Some(GgufForm {
        fits: |keys| Ok(keys.of_experts("expert_count")?.is_some_and(|experts| experts > 0)),
        ..GgufForm::new(&["llama"], RopeStyle::Neighbours)
            .written(GgufWriting { normalises: true, ..GgufWriting::PLAIN })
    }),
    habits: Habits {
        inner: 14_336,
        kv_heads: Some(8),
        positions: 131_072,
        epsilon: 1e-5,
        theta: 1_000_000.0,
        has_experts: true,
        inner_is_of_experts: true,
        slides_in_gguf: |_| true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        if let Some(fields) = keys.json() {
            decoder.windows = vec![windows::read(fields)?; decoder.layers];
        }
        let router = experts::softmax(Some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        experts::refuse_shared(keys)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_local_experts", 8)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 2)?,
            expert_width: decoder.inner,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: None,
        };
        let all = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, all)?;
        Ok(decoder.blueprint())
    },
    presets: &[
        ("mixtral-8x7b", mixtral_8x7b),
    ],
    ..Family::PLAIN
};

fn mixtral_8x7b() -> Config {
    let more = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
        "num_experts_per_tok": 2, "rope_theta": 1_000_000.0, "sliding_window": null,
    });
    with(Value::Object(mistral::mistral_7b()), more)
}
