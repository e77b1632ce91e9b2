//! The tensors that all layers use in common.

use arrayvec::ArrayVec;
use interbed_device::{Tensor, TensorArea};

use crate::blueprint::{Blueprint, Part, ROPES_MAX};

/// The tensors that all layers use in common during a forward pass.
#[derive(Debug, Clone)]
pub struct SharedTensors {
    /// The hidden states, `[tokens, hidden]`.
    pub(super) hidden: Tensor,
    /// The normed hidden states, `[tokens, hidden]`.
    pub(super) normed: Tensor,
    /// The values that a layer adds to the hidden states, `[tokens, hidden]`.
    pub(super) branch: Tensor,
    /// The cosines and sines of the rows' positions for each kind of rotation in the model, `[2, tokens, rotated / 2]`
    /// each.
    pub(super) rotations: ArrayVec<Tensor, ROPES_MAX>,
    /// The result of the first term of a sum, `[tokens, hidden]`; empty if the model has no sums.
    pub(super) first_term: Tensor,
    /// The rows that each token has in a table beside the embedding, `[tokens, rows, width]`; empty if there is none.
    pub(super) table_rows: Tensor,
}

/// How many elements the tensors that all layers use in common have for each token.
#[derive(Debug, Clone)]
pub struct SharedWidths {
    hidden: usize,
    /// For each kind of rotation in the model, how many elements of a head are rotated.
    rotated: ArrayVec<usize, ROPES_MAX>,
    first_term: usize,
    table_rows: usize,
}

impl SharedWidths {
    /// Returns the widths of a model.
    pub fn of(blueprint: &Blueprint) -> Self {
        let hidden = blueprint.hidden_size;
        let has_sums = blueprint.parts().any(|part| matches!(part, Part::Sum(_)));
        let first_term = if has_sums { hidden } else { 0 };
        let table_rows = blueprint.tables.iter().map(|table| table.rows * table.width).sum();
        let rotated = blueprint.ropes.iter().map(|rope| rope.rotated).collect();
        Self { hidden, rotated, first_term, table_rows }
    }
}

impl SharedTensors {
    /// Reserves the tensors for `tokens` rows in `area`.
    pub fn take(area: &mut TensorArea, tokens: usize, widths: &SharedWidths) -> Self {
        let hidden = widths.hidden;
        Self {
            hidden: area.take(tokens * hidden),
            normed: area.take(tokens * hidden),
            branch: area.take(tokens * hidden),
            rotations: widths.rotated.iter().map(|rotated| area.take(tokens * rotated)).collect(),
            first_term: area.take(tokens * widths.first_term),
            table_rows: area.take(tokens * widths.table_rows),
        }
    }
}
