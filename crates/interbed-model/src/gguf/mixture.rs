//! What metadata says of experts.
//!
//! Whether the weights of a token's experts are divided by their sum is not in most files: it follows from the
//! architecture, as in llama.cpp.

use interbed_weights::Metadata;
use serde_json::{Value, json};

use crate::config::{Architecture, ConfigProblem, Mixture, ModelConfig};

/// Keys that other keys of the same file are read by.
pub(super) trait ExpertKeys {
    /// A whole number, if it is there.
    fn count(&self, key: &str) -> Result<Option<u64>, ConfigProblem>;
    /// A number, if it is there.
    fn number(&self, key: &str) -> Result<Option<f64>, ConfigProblem>;
    /// A flag, if it is there.
    fn flag(&self, key: &str) -> Result<Option<bool>, ConfigProblem>;
}

/// How scores are made, by the format's numbers.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;
const SOFTMAX_OF_CHOSEN: u64 = 3;

/// Adds the keys of a mixture to a `config.json` of `model_type`, which has experts. `inner` is the width of dense
/// networks.
///
/// # Errors
/// A key of the wrong type, or a way of scoring that the architecture is not known with.
pub(super) fn add_to_config(
    keys: &impl ExpertKeys,
    model_type: &str,
    inner: u64,
    json: &mut Value,
) -> Result<(), ConfigProblem> {
    let experts = keys.count("expert_count")?.unwrap_or(0);
    let chosen = keys.count("expert_used_count")?.unwrap_or(0);
    let width = keys.count("expert_feed_forward_length")?.filter(|&width| width > 0);
    let shared = keys.count("expert_shared_count")?.unwrap_or(0);
    let shared_width = keys.count("expert_shared_feed_forward_length")?.filter(|&width| width > 0);
    let scores = keys.count("expert_gating_func")?.filter(|&scores| scores > 0);
    let own = match model_type {
        "glm4_moe" | "minimax_m2" => SIGMOID,
        "granitemoe" | "gpt_oss" => SOFTMAX_OF_CHOSEN,
        _ => SOFTMAX,
    };
    // llama.cpp calls both kinds of softmax by the first number in files of Granite.
    if let Some(other) = scores.filter(|&scores| scores != own && (own, scores) != (SOFTMAX_OF_CHOSEN, SOFTMAX)) {
        let (key, found) = ("expert_gating_func".to_owned(), other.to_string());
        return Err(ConfigProblem::Unsupported { key, found, hint: "no model of this architecture scores so" });
    }
    if model_type != "glm4_moe" {
        let refused = |key: &str, found: String| ConfigProblem::Unsupported {
            key: key.to_owned(),
            found,
            hint: "no published model of this architecture has it, so it is not computed",
        };
        if let Some(scale) = keys.number("expert_weights_scale")?.filter(|&scale| scale != 0.0 && scale != 1.0) {
            return Err(refused("expert_weights_scale", scale.to_string()));
        }
        if let Some(groups) = keys.count("expert_group_count")?.filter(|&groups| groups > 1) {
            return Err(refused("expert_group_count", groups.to_string()));
        }
        let normalises = !matches!(model_type, "qwen2_moe" | "olmoe" | "granitemoe" | "gpt_oss");
        if let Some(other) = keys.flag("expert_weights_norm")?.filter(|&other| other != normalises) {
            return Err(refused("expert_weights_norm", other.to_string()));
        }
    }
    json["num_experts_per_tok"] = json!(chosen);
    match model_type {
        "qwen2_moe" => {
            json["num_experts"] = json!(experts);
            json["moe_intermediate_size"] = json!(width.unwrap_or(inner / chosen.max(1)));
            json["shared_expert_intermediate_size"] = json!(shared_width.unwrap_or(inner));
            json["norm_topk_prob"] = json!(false);
        }
        "qwen3_moe" => {
            json["num_experts"] = json!(experts);
            json["moe_intermediate_size"] = json!(width.unwrap_or(inner));
            json["norm_topk_prob"] = json!(true);
        }
        "olmoe" => {
            json["num_experts"] = json!(experts);
            json["intermediate_size"] = json!(width.unwrap_or(inner));
            json["norm_topk_prob"] = json!(false);
        }
        "mixtral" | "granitemoe" => {
            json["num_local_experts"] = json!(experts);
            json["intermediate_size"] = json!(width.unwrap_or(inner));
            if let Some(width) = shared_width {
                let (key, found) = ("expert_shared_feed_forward_length".to_owned(), width.to_string());
                return Err(ConfigProblem::Unsupported { key, found, hint: "this architecture has no shared expert" });
            }
        }
        "minimax_m2" | "gpt_oss" => {
            json["num_local_experts"] = json!(experts);
            json["intermediate_size"] = json!(width.unwrap_or(inner));
        }
        "glm4_moe" => {
            json["n_routed_experts"] = json!(experts);
            json["moe_intermediate_size"] = json!(width.unwrap_or(inner));
            json["n_shared_experts"] = json!(shared);
            json["first_k_dense_replace"] = json!(keys.count("leading_dense_block_count")?.unwrap_or(0));
            json["n_group"] = json!(keys.count("expert_group_count")?.unwrap_or(1).max(1));
            json["topk_group"] = json!(keys.count("expert_group_used_count")?.unwrap_or(1).max(1));
            json["norm_topk_prob"] = json!(keys.flag("expert_weights_norm")?.unwrap_or(true));
            let scale = keys.number("expert_weights_scale")?.filter(|&scale| scale != 0.0);
            json["routed_scaling_factor"] = json!(scale.unwrap_or(1.0));
        }
        "hunyuan_v1_moe" => {
            json["num_experts"] = json!(experts);
            json["intermediate_size"] = json!(width.unwrap_or(inner));
            json["moe_topk"] = json!(chosen);
            let shared = shared_width.filter(|&shared| Some(shared) != width);
            if let Some(other) = shared {
                let (key, found) = ("expert_shared_feed_forward_length".to_owned(), other.to_string());
                let hint = "one shared expert, as wide as the others, is known of this architecture";
                return Err(ConfigProblem::Unsupported { key, found, hint });
            }
        }
        "ernie4_5_moe" => {
            json["moe_num_experts"] = json!(experts);
            json["moe_k"] = json!(chosen);
            json["moe_intermediate_size"] = json!(width.unwrap_or(inner));
            json["moe_num_shared_experts"] = json!(shared);
            json["moe_layer_start_index"] = json!(keys.count("leading_dense_block_count")?.unwrap_or(0));
            json["moe_layer_interval"] = json!(keys.count("interleave_moe_layer_step")?.unwrap_or(1).max(1));
        }
        _ => {}
    }
    Ok(())
}

/// Writes what [`add_to_config`] reads; `key` makes the full name of a key.
pub(super) fn describe(config: &ModelConfig, mixture: &Mixture, key: impl Fn(&str) -> String, metadata: &mut Metadata) {
    metadata.set(key("expert_count"), mixture.experts as u32);
    metadata.set(key("expert_used_count"), mixture.chosen as u32);
    use Architecture::{GptOss, Qwen2Moe, Qwen3Moe};
    if matches!(config.architecture, GptOss | Qwen2Moe | Qwen3Moe) {
        metadata.set(key("expert_feed_forward_length"), mixture.expert_width as u32);
    }
    if let Some(shared) = mixture.shared {
        metadata.set(key("expert_shared_feed_forward_length"), shared.width as u32);
    }
}
