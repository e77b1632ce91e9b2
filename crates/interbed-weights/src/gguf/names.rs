//! GGUF's names of tensors and Hugging Face's for the same.
//!
//! What GGUF stores of all experts in one tensor has no name of Hugging Face's: `mlp.experts.all.…` stands for it.

use std::collections::HashSet;

/// Names outside layers: GGUF's, Hugging Face's.
const OUTSIDE: [(&str, &str); 7] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    // A last norm that some call a norm of embeddings.
    ("token_embd_norm.weight", "model.embedding_norm.weight"),
    ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
];

/// Names within a layer, without `.weight` or `.bias`.
const INSIDE: [(&str, &str); 44] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    (FUSED_INPUT, "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    (NETWORK_NORM, "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    (RESULT_NORM, "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    // What the norm before the network is called beside one behind attention, see `TensorNames`.
    (NETWORK_NORM, "pre_feedforward_layernorm"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_up_exps", "mlp.experts.all.gate_up_proj"),
    ("ffn_gate_exps", "mlp.experts.all.gate_proj"),
    ("ffn_up_exps", "mlp.experts.all.up_proj"),
    ("ffn_down_exps", "mlp.experts.all.down_proj"),
    // What the matrix is called in layers that keep a state, see `TensorNames`.
    (FUSED_INPUT, "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    (CONVOLUTION, "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    // What these are called in layers with a state space, see `TensorNames`.
    (SPACE_INPUT, "mamba.in_proj"),
    (CONVOLUTION, "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

/// Vectors within a layer whose names end as no others do.
const VECTORS: [(&str, &str); 10] = [
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ffn_gate_inp.scale", "mlp.gate.scale"),
    ("ffn_down_exps.scale", "mlp.gate.per_expert_scale"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_dt.bias", "mamba.dt_bias"),
    ("ssm_d", "mamba.D"),
];

/// Names of the matrices of one expert, as files had them before all experts of a layer became one tensor.
const OF_ONE: [(&str, &str); 3] = [("ffn_gate", "gate_proj"), ("ffn_up", "up_proj"), ("ffn_down", "down_proj")];

/// GGUF's names of the norm before a feed-forward network and of the norm behind attention. Hugging Face's files call
/// either `post_attention_layernorm`; in layers that have both, the former is `pre_feedforward_layernorm`.
const NETWORK_NORM: &str = "ffn_norm";
const RESULT_NORM: &str = "post_attention_norm";

/// GGUF's name of the matrix that makes queries, keys and values, both of attention and of layers that keep a state
/// instead. Only the latter have a convolution.
const FUSED_INPUT: &str = "attn_qkv";
const CONVOLUTION: &str = "ssm_conv1d";

/// GGUF's name of the matrix that makes all that a state space needs of a token. Other layers that keep a state do not
/// have it.
const SPACE_INPUT: &str = "ssm_in";

/// Translates the tensor names of one GGUF file to Hugging Face names. Some GGUF names can stand for two Hugging Face
/// names; which one is right depends on the other tensors in the file.
pub struct TensorNames {
    /// Layers that norm both the result of attention and the input of the feed-forward network.
    both: HashSet<usize>,
    /// Layers that keep a state instead of keys and values.
    recurrent: HashSet<usize>,
    /// Layers that have a state space.
    spaces: HashSet<usize>,
}

impl TensorNames {
    /// Creates a translator for a file whose tensors have these names.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let layers_with = |wanted: &'static str| {
            let of_wanted = names.clone().filter_map(move |name| {
                let (layer, tensor, part) = parts(name.strip_prefix("blk.")?)?;
                (tensor == wanted && part == "weight").then_some(layer)
            });
            of_wanted.collect::<HashSet<_>>()
        };
        Self {
            both: &layers_with(NETWORK_NORM) & &layers_with(RESULT_NORM),
            recurrent: layers_with(CONVOLUTION),
            spaces: layers_with(SPACE_INPUT),
        }
    }

    /// Returns the Hugging Face name of a tensor, such as `model.layers.3.self_attn.q_proj.weight` for
    /// `blk.3.attn_q.weight`; `None` for names that Interbed does not know.
    pub fn hugging_face_name(&self, name: &str) -> Option<String> {
        let layer = name.strip_prefix("blk.").and_then(|within| number(within.split_once('.')?.0));
        if layer.is_some_and(|layer| self.spaces.contains(&layer)) {
            return hugging_face_name(name).map(|face| face.replacen(".linear_attn.", ".mamba.", 1));
        }
        match name.strip_prefix("blk.").and_then(parts) {
            Some((layer, NETWORK_NORM, part)) if self.both.contains(&layer) => {
                Some(format!("model.layers.{layer}.pre_feedforward_layernorm.{part}"))
            }
            Some((layer, FUSED_INPUT, part)) if self.recurrent.contains(&layer) => {
                Some(format!("model.layers.{layer}.linear_attn.in_proj_qkv.{part}"))
            }
            _ => hugging_face_name(name),
        }
    }
}

/// `model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; `None` for names that mean nothing to us.
fn hugging_face_name(name: &str) -> Option<String> {
    if let Some((_, known)) = OUTSIDE.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*known).to_owned());
    }
    let within = name.strip_prefix("blk.")?;
    for (gguf, face) in VECTORS {
        if let Some(layer) = within.strip_suffix(gguf).and_then(|layer| layer.strip_suffix('.')) {
            return number(layer).map(|layer| format!("model.layers.{layer}.{face}"));
        }
    }
    let (layer, tensor, part) = parts(within)?;
    if let Some((matrix, expert)) = tensor.split_once('.')
        && number(expert).is_some()
    {
        let (_, known) = OF_ONE.iter().find(|(gguf, _)| *gguf == matrix)?;
        return number(expert).map(|expert| format!("model.layers.{layer}.mlp.experts.{expert}.{known}.{part}"));
    }
    let (_, known) = INSIDE.iter().find(|(gguf, _)| *gguf == tensor)?;
    Some(format!("model.layers.{layer}.{known}.{part}"))
}

/// Returns the GGUF name for a Hugging Face name, such as `blk.3.attn_q.weight` for
/// `model.layers.3.self_attn.q_proj.weight`; `None` if GGUF has no such tensor.
pub fn gguf_name(name: &str) -> Option<String> {
    if let Some((known, _)) = OUTSIDE.iter().find(|(_, face)| *face == name) {
        return Some((*known).to_owned());
    }
    let within = name.strip_prefix("model.layers.")?;
    for (gguf, face) in VECTORS {
        if let Some(layer) = within.strip_suffix(face).and_then(|layer| layer.strip_suffix('.')) {
            return number(layer).map(|layer| format!("blk.{layer}.{gguf}"));
        }
    }
    let (layer, tensor, part) = parts(within)?;
    let (known, _) = INSIDE.iter().find(|(_, face)| *face == tensor)?;
    Some(format!("blk.{layer}.{known}.{part}"))
}

/// Splits a name into layer, tensor, and "weight" or "bias". A number must be written as we write it, so that no two
/// names become one.
fn parts(name: &str) -> Option<(usize, &str, &str)> {
    let (layer, rest) = name.split_once('.')?;
    let (tensor, part) = rest.rsplit_once('.')?;
    number(layer).filter(|_| matches!(part, "weight" | "bias")).map(|layer| (layer, tensor, part))
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (gguf, face) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
            ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("blk.3.post_ffw_norm.weight", "model.layers.3.post_feedforward_layernorm.weight"),
            ("blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"),
            ("blk.3.exp_probs_b.bias", "model.layers.3.mlp.gate.e_score_correction_bias"),
            ("blk.3.attn_sinks.weight", "model.layers.3.self_attn.sinks"),
            ("blk.3.ffn_down_exps.bias", "model.layers.3.mlp.experts.all.down_proj.bias"),
            ("blk.3.ffn_up_shexp.weight", "model.layers.3.mlp.shared_experts.up_proj.weight"),
            ("blk.3.attn_qkv.weight", "model.layers.3.self_attn.qkv_proj.weight"),
            ("blk.3.attn_gate.weight", "model.layers.3.linear_attn.in_proj_z.weight"),
            ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
            ("blk.3.proj.weight", "model.layers.3.per_layer_projection.weight"),
            ("blk.3.ffn_gate_inp.scale", "model.layers.3.mlp.gate.scale"),
            ("blk.3.layer_output_scale.weight", "model.layers.3.layer_scalar"),
            ("blk.3.ssm_alpha.weight", "model.layers.3.linear_attn.in_proj_a.weight"),
            ("blk.3.ssm_a", "model.layers.3.linear_attn.A_log"),
            ("blk.3.ssm_dt.bias", "model.layers.3.linear_attn.dt_bias"),
            ("blk.3.shortconv.in_proj.bias", "model.layers.3.conv.in_proj.bias"),
            ("blk.3.shortconv.conv.weight", "model.layers.3.conv.conv.weight"),
            ("token_embd_norm.weight", "model.embedding_norm.weight"),
        ] {
            assert_eq!(hugging_face_name(gguf).as_deref(), Some(face));
            assert_eq!(gguf_name(face).as_deref(), Some(gguf));
        }
        assert_eq!(
            hugging_face_name("blk.3.ffn_gate.7.weight").as_deref(),
            Some("model.layers.3.mlp.experts.7.gate_proj.weight")
        );
        let names = ["blk.2.ffn_norm.weight", "blk.2.post_attention_norm.weight", "blk.3.ffn_norm.weight"];
        let names = TensorNames::new(names.into_iter());
        for (gguf, face) in [
            ("blk.2.ffn_norm.weight", "model.layers.2.pre_feedforward_layernorm.weight"),
            ("blk.2.post_attention_norm.weight", "model.layers.2.post_attention_layernorm.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ] {
            assert_eq!(names.hugging_face_name(gguf).as_deref(), Some(face), "layers with both norms");
        }
        let names = ["blk.2.ssm_conv1d.weight", "blk.2.attn_qkv.weight", "blk.3.attn_qkv.weight"];
        let names = TensorNames::new(names.into_iter());
        for (gguf, face) in [
            ("blk.2.attn_qkv.weight", "model.layers.2.linear_attn.in_proj_qkv.weight"),
            ("blk.3.attn_qkv.weight", "model.layers.3.self_attn.qkv_proj.weight"),
        ] {
            assert_eq!(names.hugging_face_name(gguf).as_deref(), Some(face), "a layer with a convolution");
            assert_eq!(gguf_name(face).as_deref(), Some(gguf));
        }
        let names = ["blk.2.ssm_in.weight", "blk.3.ssm_conv1d.weight"];
        let names = TensorNames::new(names.into_iter());
        for (gguf, face) in [
            ("blk.2.ssm_in.weight", "model.layers.2.mamba.in_proj.weight"),
            ("blk.2.ssm_conv1d.bias", "model.layers.2.mamba.conv1d.bias"),
            ("blk.2.ssm_a", "model.layers.2.mamba.A_log"),
            ("blk.2.ssm_d", "model.layers.2.mamba.D"),
            ("blk.2.ssm_dt.bias", "model.layers.2.mamba.dt_bias"),
            ("blk.2.ssm_out.weight", "model.layers.2.mamba.out_proj.weight"),
            ("blk.2.ffn_up.weight", "model.layers.2.mlp.up_proj.weight"),
            ("blk.3.ssm_out.weight", "model.layers.3.linear_attn.out_proj.weight"),
        ] {
            assert_eq!(names.hugging_face_name(gguf).as_deref(), Some(face), "a layer with a state space, or without");
            assert_eq!(gguf_name(face).as_deref(), Some(gguf));
        }
        for name in
            ["rope_freqs.weight", "blk.01.attn_q.weight", "blk.+1.attn_q.weight", "blk.1.attn_q", "blk..attn_q.weight"]
        {
            assert_eq!(hugging_face_name(name), None, "{name}");
        }
    }
}
