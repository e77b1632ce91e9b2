//! A model as a list of groups: embedding, then (layer, attention), (layer, feed-forward), …, then the head.
//!
//! Weight streaming acquires and releases weights at exactly these seams (W4). The order of the tensors within a group
//! is the order in which the forward pass takes them, so the two files change together.

use strata_weights::{Access, GroupSpec, TensorSpec};

use crate::config::ModelConfig;

/// The first group: the embedding.
pub const EMBEDDING: usize = 0;

/// The group of `layer`'s attention.
pub const fn attention(layer: usize) -> usize {
    1 + 2 * layer
}

/// The group of `layer`'s feed-forward network.
pub const fn ffn(layer: usize) -> usize {
    2 + 2 * layer
}

/// The last group: final norm and head.
pub const fn head(num_layers: usize) -> usize {
    1 + 2 * num_layers
}

/// Every group of the model, in the order of a pass, with the tensors that it needs.
pub fn group_specs(config: &ModelConfig) -> Vec<GroupSpec> {
    let embedding = TensorSpec::new(EMBEDDING_TENSOR, [config.vocab_size, config.hidden_size]).by(Access::Rows);
    let mut groups = vec![group("embedding", [embedding])];
    for layer in 0..config.num_layers {
        groups.push(group(format!("layer {layer}, attention"), attention_tensors(config, layer)));
        groups.push(group(format!("layer {layer}, ffn"), ffn_tensors(config, layer)));
    }
    // A tied head is the embedding again: the same tensor in two groups, held once.
    let head = if config.tied_embeddings { EMBEDDING_TENSOR } else { HEAD_TENSOR };
    let head_tensors = [
        TensorSpec::new("model.norm.weight", [config.hidden_size]),
        TensorSpec::new(head, [config.vocab_size, config.hidden_size]),
    ];
    groups.push(group("head", head_tensors));
    groups
}

/// The embedding's tensor.
pub const EMBEDDING_TENSOR: &str = "model.embed_tokens.weight";

/// The head's tensor, where it is not the embedding.
pub const HEAD_TENSOR: &str = "lm_head.weight";

fn attention_tensors(config: &ModelConfig, layer: usize) -> Vec<TensorSpec> {
    let hidden = config.hidden_size;
    let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    let name = |suffix: &str| format!("model.layers.{layer}.{suffix}");
    let mut tensors = vec![TensorSpec::new(name("input_layernorm.weight"), [hidden])];
    for (projection, rows) in [("q", q), ("k", kv), ("v", kv)] {
        tensors.push(TensorSpec::new(name(&format!("self_attn.{projection}_proj.weight")), [rows, hidden]));
        if config.qkv_bias {
            tensors.push(TensorSpec::new(name(&format!("self_attn.{projection}_proj.bias")), [rows]));
        }
    }
    if config.qk_norm {
        tensors.push(TensorSpec::new(name("self_attn.q_norm.weight"), [config.head_dim]));
        tensors.push(TensorSpec::new(name("self_attn.k_norm.weight"), [config.head_dim]));
    }
    tensors.push(TensorSpec::new(name("self_attn.o_proj.weight"), [hidden, q]));
    if config.output_bias {
        tensors.push(TensorSpec::new(name("self_attn.o_proj.bias"), [hidden]));
    }
    tensors
}

fn ffn_tensors(config: &ModelConfig, layer: usize) -> Vec<TensorSpec> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let name = |suffix: &str| format!("model.layers.{layer}.{suffix}");
    let mut tensors = vec![TensorSpec::new(name("post_attention_layernorm.weight"), [hidden])];
    for (projection, shape) in [("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])] {
        // The activation takes a row of gate and the same row of up.
        let access = if projection == "up" { Access::SweepBeside } else { Access::Sweep };
        tensors.push(TensorSpec::new(name(&format!("mlp.{projection}_proj.weight")), shape).by(access));
        if config.mlp_bias {
            tensors.push(TensorSpec::new(name(&format!("mlp.{projection}_proj.bias")), [shape[0]]));
        }
    }
    tensors
}

fn group(name: impl Into<String>, tensors: impl Into<Vec<TensorSpec>>) -> GroupSpec {
    GroupSpec { name: name.into(), tensors: tensors.into() }
}
