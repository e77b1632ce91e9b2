//! Hunyuan with mixtures and a shared expert.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::hunyuan_dense::{self, refuse_others};
use super::shared::habits::Habits;
use super::shared::experts::{self, EXACT, EXPERTS_MAX, same_in_layers};
use super::{Family, GgufForm};
use crate::blueprint::{Blueprint, HeadNorms, Mixture};
use crate::config_error::ConfigProblem;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    name: "HunyuanMoe",
    model_types: &["hunyuan_v1_moe"],
    gguf: Some(GgufForm::new(&["hunyuan-moe"], RopeStyle::Halves)),
    habits: Habits { has_experts: true, inner_is_of_experts: true, ..hunyuan_dense::HABITS },
    read: |keys, mut decoder| {
        refuse_others(keys, &[("use_cla", false), ("use_qk_norm", true), ("use_mixed_mlp_moe", true)])?;
        decoder.norm_heads(HeadNorms::EachAfter);
        let router = experts::softmax(Some(EXACT));
        experts::refuse_other_routers(keys, &router)?;
        let width = decoder.inner;
        let [count, chosen] = read_counts(keys, width, decoder.layers)?;
        let mixture = Mixture {
            experts: count,
            chosen,
            expert_width: width,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: experts::shared(1, width),
        };
        let all = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, all)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// Reads how many experts there are, and how many a token goes through. Layers that differ are refused, as no model
/// with such layers has been published; so are experts that are not as wide as networks, with one shared expert.
fn read_counts(keys: &Keys<'_>, width: usize, layers: usize) -> Result<[usize; 2], ConfigProblem> {
    let fields = match keys {
        Keys::Json(fields) => fields,
        Keys::Gguf(gguf) => {
            let key = "expert_shared_feed_forward_length";
            let shared = gguf.of_experts(key)?.filter(|&shared| shared > 0 && shared != width as u64);
            if let Some(other) = shared {
                let hint = "one shared expert, as wide as the others, is known of this architecture";
                return Err(gguf.unsupported(key, &Value::from(other), hint));
            }
            return Ok([experts::count(keys, "num_experts", 1)?, experts::chosen(keys, "moe_topk", 1)?]);
        }
    };
    let same = |key: &str, max| same_in_layers(fields, key, max, layers);
    let widths = same("moe_intermediate_size", Blueprint::INNER_SIZE_MAX)?;
    let shared = same("num_shared_expert", EXPERTS_MAX)?;
    for (key, found, known) in [("moe_intermediate_size", widths, width), ("num_shared_expert", shared, 1)] {
        if let Some(other) = found.filter(|&found| found != known) {
            let hint = "experts are known as wide as intermediate_size, with one shared expert";
            return Err(fields.unsupported(key, &Value::from(other), hint));
        }
    }
    let chosen = same("moe_topk", EXPERTS_MAX)?.or(same("num_experts_per_tok", EXPERTS_MAX)?);
    Ok([same("num_experts", EXPERTS_MAX)?.unwrap_or(1), chosen.unwrap_or(1)])
}
