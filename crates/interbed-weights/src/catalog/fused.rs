//! Presents matrices that some files have in one piece as the tensors that they consist of. No byte is moved: rows of a
//! matrix follow each other, so each part is a run of the file's bytes.
//!
//! | here, in layer N | as one |
//! |---|---|
//! | `self_attn.{q,k,v}_proj.weight` | `self_attn.qkv_proj.weight`: as many rows of q as `o_proj` has columns |
//! | `mlp.{gate,up}_proj.weight` | `mlp.gate_up_proj.weight`, or a double `mlp.up_proj.weight` without a gate |
//! | `mlp.{gate,up}_proj.weight`, or those of `mlp.shared_experts` | `shared_mlp.input_linear.weight` |
//! | `mlp.down_proj.weight`, or that of `mlp.shared_experts` | `shared_mlp.output_linear.weight` |
//! | `mamba.in_proj_{z,xbc,dt}.weight` | `mamba.in_proj.weight`: as many rows of z as `mamba.out_proj` has columns, |
//! | | and as many rows of dt as `mamba.A_log` has elements |
//!
//! The shared network of a layer is its shared expert if the layer has a router (`mlp.gate.weight`).

use std::collections::BTreeMap;

use super::CatalogEntry;

const QKV: &str = "self_attn.qkv_proj.weight";
const GATE_UP: &str = "mlp.gate_up_proj.weight";
const UP: &str = "mlp.up_proj.weight";
const SHARED_IN: &str = "shared_mlp.input_linear.weight";
const SHARED_OUT: &str = "shared_mlp.output_linear.weight";
const SPACE_IN: &str = "mamba.in_proj.weight";

/// A matrix that files store in one piece: its name, and for each part the name and the entry.
pub(super) struct Fused {
    pub(super) name: String,
    pub(super) parts: Vec<(String, CatalogEntry)>,
}

/// Returns all matrices that have to be cut into parts. Matrices whose shapes do not fit, and those whose scales are
/// another tensor, stay as they are.
pub(super) fn fused(tensors: &BTreeMap<String, CatalogEntry>) -> Vec<Fused> {
    let cut = |(name, entry): (&String, &CatalogEntry)| {
        let within = |suffix: &str| name.strip_suffix(suffix).filter(|layer| layer.starts_with("model.layers."));
        let columns = |tensor: String| tensors.get(&tensor).and_then(|entry| entry.shape.get(1).copied());
        let has_router = |layer: &str| tensors.contains_key(&format!("{layer}mlp.gate.weight"));
        let (layer, parts): (_, &[_]) = if let Some(layer) = within(SHARED_IN) {
            let inner = entry.shape.first().filter(|rows| rows.is_multiple_of(2))? / 2;
            match has_router(layer) {
                true => (layer, &[("mlp.shared_experts.gate_proj", inner), ("mlp.shared_experts.up_proj", inner)]),
                false => (layer, &[("mlp.gate_proj", inner), ("mlp.up_proj", inner)]),
            }
        } else if let Some(layer) = within(SHARED_OUT) {
            let rows = *entry.shape.first()?;
            let name = if has_router(layer) { "mlp.shared_experts.down_proj" } else { "mlp.down_proj" };
            (layer, &[(name, rows)])
        } else if let Some(layer) = within(SPACE_IN) {
            let all = *entry.shape.first()?;
            let inner = columns(format!("{layer}mamba.out_proj.weight"))?;
            let heads = *tensors.get(&format!("{layer}mamba.A_log"))?.shape.first()?;
            let row = all.checked_sub(inner)?.checked_sub(heads)?;
            (layer, &[("mamba.in_proj_z", inner), ("mamba.in_proj_xbc", row), ("mamba.in_proj_dt", heads)])
        } else if let Some(layer) = within(QKV) {
            let all = *entry.shape.first()?;
            let q = columns(format!("{layer}self_attn.o_proj.weight"))?;
            let kv = all.checked_sub(q).filter(|kv| kv.is_multiple_of(2))? / 2;
            (layer, &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)])
        } else {
            let (layer, is_up) =
                within(GATE_UP).map(|layer| (layer, false)).or(within(UP).map(|layer| (layer, true)))?;
            let inner = columns(format!("{layer}mlp.down_proj.weight"))?;
            let fits = entry.shape.first().is_some_and(|&rows| Some(rows) == inner.checked_mul(2));
            if !fits || is_up && tensors.contains_key(&format!("{layer}mlp.gate_proj.weight")) {
                return None;
            }
            (layer, &[("mlp.gate_proj", inner), ("mlp.up_proj", inner)])
        };
        Some(Fused { name: name.clone(), parts: cut_rows(layer, entry, parts)? })
    };
    tensors.iter().filter_map(cut).collect()
}

/// Cuts a matrix into parts, each given by its name and its number of rows. Returns `None` if the matrix has another
/// number of rows in all.
fn cut_rows(layer: &str, entry: &CatalogEntry, parts: &[(&str, usize)]) -> Option<Vec<(String, CatalogEntry)>> {
    let &[rows, cols] = entry.shape.as_slice() else { return None };
    let fits = rows > 0 && entry.bytes.is_multiple_of(rows as u64) && entry.scales.is_none();
    if !fits || parts.iter().map(|(_, rows)| rows).sum::<usize>() != rows {
        return None;
    }
    let row_bytes = entry.bytes / rows as u64;
    let mut offset = entry.offset;
    let part = |&(name, rows): &(&str, usize)| {
        let bytes = rows as u64 * row_bytes;
        let own = CatalogEntry { offset, bytes, shape: vec![rows, cols], ..entry.clone() };
        offset += bytes;
        (format!("{layer}{name}.weight"), own)
    };
    Some(parts.iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::*;
    use crate::safetensors::ElementType;

    fn tensors(all: &[(&str, [usize; 2])]) -> BTreeMap<String, CatalogEntry> {
        let entry = |shape: [usize; 2]| CatalogEntry {
            file: 0,
            offset: 100,
            bytes: 2 * (shape[0] * shape[1]) as u64,
            shape: shape.to_vec(),
            element_type: ElementType::Known(DType::BF16),
            scales: None,
        };
        all.iter().map(|&(name, shape)| (format!("model.layers.3.{name}"), entry(shape))).collect()
    }

    #[test]
    fn rows_are_shared_out() {
        let all = tensors(&[(QKV, [16, 5]), ("self_attn.o_proj.weight", [5, 8]), (GATE_UP, [6, 5])]);
        let cut = fused(&all);
        assert_eq!(cut.len(), 1, "there is no down_proj to tell the width");
        let parts: Vec<_> = cut[0].parts.iter().map(|(name, e)| (&name[15..], e.offset, e.shape[0], e.bytes)).collect();
        let want = [
            ("self_attn.q_proj.weight", 100, 8, 80),
            ("self_attn.k_proj.weight", 180, 4, 40),
            ("self_attn.v_proj.weight", 220, 4, 40),
        ];
        assert_eq!(parts, want);
        let all = tensors(&[(UP, [6, 5]), ("mlp.down_proj.weight", [5, 3])]);
        let names: Vec<_> = fused(&all)[0].parts.iter().map(|(name, _)| name[15..].to_owned()).collect();
        assert_eq!(names, ["mlp.gate_proj.weight", "mlp.up_proj.weight"]);
    }

    #[test]
    fn state_spaces_and_shared_networks_are_shared_out() {
        let names = |all: &[(&str, [usize; 2])]| -> Vec<_> {
            let cut = fused(&tensors(all));
            let parts = cut.iter().flat_map(|fused| &fused.parts);
            parts.map(|(name, entry)| (name[15..].to_owned(), entry.offset, entry.shape[0])).collect()
        };
        let space = [(SPACE_IN, [17, 5]), ("mamba.out_proj.weight", [5, 6]), ("mamba.A_log", [2, 1])];
        let want = [("z", 100, 6), ("xbc", 160, 9), ("dt", 250, 2)];
        let want = want.map(|(part, offset, rows)| (format!("mamba.in_proj_{part}.weight"), offset, rows));
        assert_eq!(names(&space), want);
        let shared = [(SHARED_IN, [6, 5]), (SHARED_OUT, [5, 3])];
        let named = |stem: &str| {
            let parts = [("gate", 100, 3), ("up", 130, 3), ("down", 100, 5)];
            parts.map(|(part, offset, rows)| (format!("{stem}.{part}_proj.weight"), offset, rows))
        };
        assert_eq!(names(&shared), named("mlp"));
        let beside = [shared[0], shared[1], ("mlp.gate.weight", [4, 5])];
        assert_eq!(names(&beside), named("mlp.shared_experts"));
    }

    #[test]
    fn what_does_not_fit_stays() {
        for all in [
            tensors(&[(QKV, [15, 5]), ("self_attn.o_proj.weight", [5, 8])]),
            tensors(&[(QKV, [6, 5]), ("self_attn.o_proj.weight", [5, 8])]),
            tensors(&[(UP, [6, 5]), ("mlp.down_proj.weight", [5, 6])]),
            tensors(&[(UP, [6, 5]), ("mlp.down_proj.weight", [5, 3]), ("mlp.gate_proj.weight", [6, 5])]),
        ] {
            assert!(fused(&all).is_empty());
        }
    }
}
