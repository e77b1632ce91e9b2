//! GGUF's names of tensors and Hugging Face's for the same.

/// Names outside layers: GGUF's, Hugging Face's.
const OUTSIDE: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Names within a layer, without `.weight` or `.bias`.
const INSIDE: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// `model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; `None` for names that mean nothing to us.
pub fn hugging_face_name(name: &str) -> Option<String> {
    if let Some((_, known)) = OUTSIDE.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*known).to_owned());
    }
    let (layer, tensor, part) = parts(name.strip_prefix("blk.")?)?;
    let (_, known) = INSIDE.iter().find(|(gguf, _)| *gguf == tensor)?;
    Some(format!("model.layers.{layer}.{known}.{part}"))
}

/// `blk.3.attn_q.weight` for `model.layers.3.self_attn.q_proj.weight`; `None` for names that GGUF files do not have.
pub fn gguf_name(name: &str) -> Option<String> {
    if let Some((known, _)) = OUTSIDE.iter().find(|(_, face)| *face == name) {
        return Some((*known).to_owned());
    }
    let (layer, tensor, part) = parts(name.strip_prefix("model.layers.")?)?;
    let (known, _) = INSIDE.iter().find(|(_, face)| *face == tensor)?;
    Some(format!("blk.{layer}.{known}.{part}"))
}

/// Layer, tensor, and "weight" or "bias". A number must be written as we write it, so that no two names become one.
fn parts(name: &str) -> Option<(usize, &str, &str)> {
    let (layer, rest) = name.split_once('.')?;
    let (tensor, part) = rest.rsplit_once('.')?;
    let number: usize = layer.parse().ok()?;
    (number.to_string() == layer && matches!(part, "weight" | "bias")).then_some((number, tensor, part))
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
        ] {
            assert_eq!(hugging_face_name(gguf).as_deref(), Some(face));
            assert_eq!(gguf_name(face).as_deref(), Some(gguf));
        }
        for name in
            ["rope_freqs.weight", "blk.01.attn_q.weight", "blk.+1.attn_q.weight", "blk.1.attn_q", "blk..attn_q.weight"]
        {
            assert_eq!(hugging_face_name(name), None, "{name}");
        }
    }
}
