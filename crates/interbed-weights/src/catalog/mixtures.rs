//! Presents the tensors of mixtures under one set of names, whatever their files call them, and experts that are stored
//! in one piece as tensors of their own. A few tensors of other layers are treated likewise. No byte is moved: each
//! entry names bytes of the file as they lie.
//!
//! | here, in layer N | also called |
//! |---|---|
//! | `mlp.gate.weight` | `block_sparse_moe.gate.weight`, `block_sparse_moe.router.layer.weight`, `mlp.router.weight`, |
//! | | `mlp.gate.wg.weight`, `router.proj.weight` |
//! | `mlp.gate.{scale,per_expert_scale}` | `router.{scale,per_expert_scale}` |
//! | `mlp.gate.bias` | `mlp.router.bias` |
//! | `mlp.gate.e_score_correction_bias` `[E]` | `block_sparse_moe.e_score_correction_bias`, `mlp.moe_statics.…` |
//! | `mlp.experts.X.{gate,up,down}_proj.weight` | `block_sparse_moe.experts.X.{w1,w3,w2}.weight` |
//! | gate and up of all experts | `mlp.experts.gate_up_proj`, `block_sparse_moe.input_linear.weight`, |
//! | | `experts.gate_up_proj` `[E, 2I, H]` |
//! | down of all experts | `mlp.experts.down_proj`, `block_sparse_moe.output_linear.weight`, |
//! | | `experts.down_proj` `[E, H, I]` |
//! | up of all experts, which have no gates | `mlp.experts.up_proj` `[E, I, H]` |
//! | `mlp.shared_experts.{gate,up,down}_proj.weight` | `mlp.shared_expert.…`, `mlp.shared_mlp.…` |
//! | `self_attn.{q,k}_norm.weight` | `self_attn.{query,key}_layernorm.weight` |
//! | `self_attn.{q,k}_norm.weight` | `self_attn.{q,k}_layernorm.weight` |
//! | `self_attn.o_proj.weight` | `self_attn.out_proj.weight` |
//! | `input_layernorm.weight`, `post_attention_layernorm.weight` | `operator_norm.weight`, `ffn_norm.weight` |
//! | `mlp.…` | `feed_forward.…` as in `block_sparse_moe.…`, with `expert_bias` for the bias of the choice |
//! | `{linear_attn,mamba}.conv1d.weight`, `conv.conv.weight` `[C, 1, taps]` | the same in the shape `[C, taps]` |
//! | `mamba.{A_log,D}` `[heads]`, `mamba.norm.weight` `[width]` | the same in a shape of two dimensions |
//!
//! GGUF's names have become the left ones when these rules are applied. The names `mlp.experts.all.…` stand for tensors
//! in which GGUF stores all experts.

use super::CatalogEntry;

/// Names of tensors within a layer: the one in files, and the one used here.
const RENAMED: [(&str, &str); 23] = [
    ("mlp.router.weight", "mlp.gate.weight"),
    ("mlp.router.bias", "mlp.gate.bias"),
    ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
    ("block_sparse_moe.router.layer.weight", "mlp.gate.weight"),
    ("mlp.gate.wg.weight", "mlp.gate.weight"),
    ("router.proj.weight", "mlp.gate.weight"),
    ("router.scale", "mlp.gate.scale"),
    ("router.per_expert_scale", "mlp.gate.per_expert_scale"),
    ("self_attn.query_layernorm.weight", "self_attn.q_norm.weight"),
    ("self_attn.key_layernorm.weight", "self_attn.k_norm.weight"),
    ("block_sparse_moe.e_score_correction_bias", CHOICE_BIAS),
    ("mlp.moe_statics.e_score_correction_bias", CHOICE_BIAS),
    ("mlp.gate.e_score_correction_bias", CHOICE_BIAS),
    ("operator_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("self_attn.q_layernorm.weight", "self_attn.q_norm.weight"),
    ("self_attn.k_layernorm.weight", "self_attn.k_norm.weight"),
    ("self_attn.out_proj.weight", "self_attn.o_proj.weight"),
    ("feed_forward.w1.weight", "mlp.gate_proj.weight"),
    ("feed_forward.w3.weight", "mlp.up_proj.weight"),
    ("feed_forward.w2.weight", "mlp.down_proj.weight"),
    ("feed_forward.gate.weight", "mlp.gate.weight"),
    ("feed_forward.expert_bias", CHOICE_BIAS),
];

const CHOICE_BIAS: &str = "mlp.gate.e_score_correction_bias";

/// Tensors that hold matrices of all experts: the name within a layer, and which matrices of an expert follow each
/// other in the tensor.
const OF_ALL: [(&str, &[&str]); 13] = [
    ("mlp.experts.gate_up_proj", &["gate_proj.weight", "up_proj.weight"]),
    ("mlp.experts.up_proj", &["up_proj.weight"]),
    ("mlp.experts.down_proj", &["down_proj.weight"]),
    ("feed_forward.experts.gate_up_proj", &["gate_proj.weight", "up_proj.weight"]),
    ("feed_forward.experts.down_proj", &["down_proj.weight"]),
    ("block_sparse_moe.input_linear.weight", &["gate_proj.weight", "up_proj.weight"]),
    ("block_sparse_moe.output_linear.weight", &["down_proj.weight"]),
    ("experts.gate_up_proj", &["gate_proj.weight", "up_proj.weight"]),
    ("experts.down_proj", &["down_proj.weight"]),
    ("mlp.experts.all.gate_up_proj.weight", &["gate_proj.weight", "up_proj.weight"]),
    ("mlp.experts.all.gate_proj.weight", &["gate_proj.weight"]),
    ("mlp.experts.all.up_proj.weight", &["up_proj.weight"]),
    ("mlp.experts.all.down_proj.weight", &["down_proj.weight"]),
];

/// Names of an expert's matrices in files that number the experts: the one in files, and the one used here.
const NUMBERED: [(&str, &str); 3] =
    [("w1.weight", "gate_proj.weight"), ("w3.weight", "up_proj.weight"), ("w2.weight", "down_proj.weight")];

/// Maximum number of experts of a layer; the largest known model has 896.
pub(super) const EXPERTS_MAX: usize = 1 << 14;

/// Minimum number of bytes of one matrix of an expert.
pub(super) const PART_BYTES_LEAST: usize = 64;

/// Returns what a file's tensor is called here: the whole tensor under another name, or its parts with a name each.
/// Returns nothing if the tensor keeps its name and shape.
pub(super) fn known_here(name: &str, entry: &CatalogEntry) -> Vec<(String, CatalogEntry)> {
    let Some((layer, within)) = within_layer(name) else { return Vec::new() };
    let named = |within: &str, entry: CatalogEntry| vec![(format!("model.layers.{layer}.{within}"), entry)];
    if let Some((_, here)) = RENAMED.iter().find(|(file, _)| *file == within) {
        let flat = *here == CHOICE_BIAS && entry.shape.len() > 1;
        let shape = if flat { vec![entry.shape.iter().product()] } else { entry.shape.clone() };
        let entry = CatalogEntry { shape, ..entry.clone() };
        return if *here == within && !flat { Vec::new() } else { named(here, entry) };
    }
    // GGUF has them by experts; so do we, in one vector.
    if is_of_biases(within) && entry.shape.len() == 2 {
        return named(within, CatalogEntry { shape: vec![entry.shape.iter().product()], ..entry.clone() });
    }
    // A vector in some files, a matrix of one row in others.
    if within == "mlp.shared_expert_gate.weight" && entry.shape.len() == 1 {
        return named(within, CatalogEntry { shape: vec![1, entry.shape[0]], ..entry.clone() });
    }
    if matches!(within, "mamba.A_log" | "mamba.D" | "mamba.norm.weight") && entry.shape.len() == 2 {
        return named(within, CatalogEntry { shape: vec![entry.shape.iter().product()], ..entry.clone() });
    }
    if matches!(within, "linear_attn.conv1d.weight" | "conv.conv.weight" | "mamba.conv1d.weight")
        && let &[channels, taps] = entry.shape.as_slice()
    {
        return named(within, CatalogEntry { shape: vec![channels, 1, taps], ..entry.clone() });
    }
    if let Some(rest) = ["mlp.shared_expert.", "mlp.shared_mlp."].iter().find_map(|other| within.strip_prefix(other)) {
        return named(&format!("mlp.shared_experts.{rest}"), entry.clone());
    }
    let of_experts = ["block_sparse_moe.experts.", "feed_forward.experts."];
    let of_expert = of_experts.iter().find_map(|prefix| within.strip_prefix(prefix));
    if let Some((expert, matrix)) = of_expert.and_then(|rest| rest.split_once('.'))
        && let Some((_, here)) = NUMBERED.iter().find(|(file, _)| *file == matrix)
    {
        return named(&format!("mlp.experts.{expert}.{here}"), entry.clone());
    }
    let of_all = OF_ALL.iter().find(|(file, _)| *file == within);
    of_all.and_then(|(_, matrices)| of_each(layer, entry, matrices)).unwrap_or_default()
}

/// Returns whether this is the name of the biases of all experts' gate, up or down matrices.
fn is_of_biases(within: &str) -> bool {
    let matrix = within.strip_prefix("mlp.experts.all.").and_then(|rest| rest.strip_suffix("_proj.bias"));
    matrix.is_some_and(|matrix| matches!(matrix, "gate" | "up" | "down"))
}

/// Cuts a tensor `[experts, rows, cols]` into the matrices of each expert. The rows of each expert are the rows of
/// `matrices`, one matrix after the other. Returns `None` if the tensor has another shape.
fn of_each(layer: &str, entry: &CatalogEntry, matrices: &[&str]) -> Option<Vec<(String, CatalogEntry)>> {
    let &[experts, rows, cols] = entry.shape.as_slice() else { return None };
    let parts = experts.checked_mul(matrices.len()).filter(|_| (1..=EXPERTS_MAX).contains(&experts))?;
    let is_whole = rows.is_multiple_of(matrices.len()) && entry.bytes.is_multiple_of(parts as u64);
    // An entry for each expert takes memory, which its bytes must be worth.
    if !is_whole || entry.bytes < (parts * PART_BYTES_LEAST) as u64 || layer.parse::<u32>().is_err() {
        return None;
    }
    let bytes = entry.bytes / parts as u64;
    let part = |index: usize| {
        let (expert, matrix) = (index / matrices.len(), matrices[index % matrices.len()]);
        let name = format!("model.layers.{layer}.mlp.experts.{expert}.{matrix}");
        let (offset, shape) = (entry.offset + index as u64 * bytes, vec![rows / matrices.len(), cols]);
        (name, CatalogEntry { offset, bytes, shape, ..entry.clone() })
    };
    Some((0..parts).map(part).collect())
}

/// Splits a tensor's name into the number of its layer and the name within the layer.
pub(super) fn within_layer(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("model.layers.")?.split_once('.')
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::*;
    use crate::safetensors::ElementType;

    fn entry(shape: &[usize]) -> CatalogEntry {
        let bytes = shape.iter().product::<usize>() as u64 * 2;
        let element_type = ElementType::Known(DType::BF16);
        CatalogEntry { file: 1, offset: 1000, bytes, shape: shape.to_vec(), element_type, scales: None }
    }

    #[test]
    fn every_spelling_becomes_one() {
        for (file, here) in [
            ("block_sparse_moe.experts.7.w3.weight", "mlp.experts.7.up_proj.weight"),
            ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
            ("mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"),
            ("feed_forward.experts.7.w2.weight", "mlp.experts.7.down_proj.weight"),
            ("feed_forward.w1.weight", "mlp.gate_proj.weight"),
            ("ffn_norm.weight", "post_attention_layernorm.weight"),
        ] {
            let known = known_here(&format!("model.layers.3.{file}"), &entry(&[4, 6]));
            assert_eq!(known, [(format!("model.layers.3.{here}"), entry(&[4, 6]))]);
        }
        for kept in ["mlp.gate.weight", "mlp.experts.7.up_proj.weight", "mlp.gate.e_score_correction_bias"] {
            assert!(known_here(&format!("model.layers.3.{kept}"), &entry(&[6])).is_empty(), "{kept}");
        }
        let flat = known_here("model.layers.3.mlp.moe_statics.e_score_correction_bias", &entry(&[1, 6]));
        assert_eq!(flat[0].1.shape, [6]);
        for name in ["linear_attn.conv1d.weight", "conv.conv.weight"] {
            let convolution = known_here(&format!("model.layers.3.{name}"), &entry(&[6, 4]));
            assert_eq!(convolution[0].1.shape, [6, 1, 4]);
        }
        assert!(known_here("model.layers.3.linear_attn.conv1d.weight", &entry(&[6, 1, 4])).is_empty());
    }

    #[test]
    fn experts_in_one_piece_become_many() {
        let parts = known_here("model.layers.0.mlp.experts.gate_up_proj", &entry(&[3, 8, 10]));
        assert_eq!(parts.len(), 6);
        assert_eq!(parts[3].0, "model.layers.0.mlp.experts.1.up_proj.weight");
        assert_eq!((parts[3].1.offset, parts[3].1.bytes, &parts[3].1.shape[..]), (1000 + 3 * 80, 80, &[4, 10][..]));
        // So small that the entries would be larger.
        assert!(known_here("model.layers.0.mlp.experts.gate_up_proj", &entry(&[16384, 2, 0])).is_empty());
        assert!(known_here("model.layers.0.mlp.experts.gate_up_proj", &entry(&[16384, 2, 1])).is_empty());
        assert!(known_here("model.layers.0.mlp.experts.gate_up_proj", &entry(&[3, 7, 5])).is_empty());
        assert!(known_here("model.layers.0.mlp.experts.down_proj", &entry(&[8, 5])).is_empty());
    }
}
