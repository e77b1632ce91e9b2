//! Rows of a table beside the embedding: looked up for each token, and joined with a projection of the embedding, at
//! the beginning of a pass. Later layers read them.

use interbed_device::{Command, PassNeeds, TensorArea};
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::{InputTable, RowProjection};
use crate::kept::Kept;
use crate::pass::{ForwardError, Linear, NormWeight, Pass, PassSize};

/// The layer that looks up the rows of each token.
pub(super) struct TableRows {
    spec: GroupSpec,
    /// `[vocab, rows * width]`
    table: TensorId,
    /// Makes the numbers that are normed, row by row, and added to the rows of the table.
    projection: Linear,
    norm: NormWeight,
    of_projection: RowProjection,
    /// Number that the rows of the table are multiplied by.
    multiplier: f32,
    /// Number of elements of a row.
    width: usize,
}

impl TableRows {
    /// Makes the layer of `table`, for `vocab` tokens and hidden states that are `hidden` wide.
    pub fn new(
        [vocab, hidden]: [usize; 2],
        (table, of_projection): (&InputTable, RowProjection),
        place: Place,
    ) -> Self {
        let (all, width) = (table.rows * table.width, table.width);
        let mut tensors = LayerTensors::new(place.group, "table", Role::Embedding, place.layer, "model.");
        let projection = tensors.linear("per_layer_model_projection", [all, hidden], false, Access::Sweep);
        let RowProjection { norm, .. } = of_projection;
        let weight = tensors.vector(&format!("{}.weight", norm.name), width);
        let norm = NormWeight { weight, offset: norm.offset, epsilon: norm.epsilon };
        let rows = tensors.matrix("embed_tokens_per_layer.weight", [vocab, all], Access::Rows);
        Self { spec: tensors.finish(), table: rows, projection, norm, of_projection, multiplier: table.factor, width }
    }
}

impl Layer for TableRows {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        Vec::new()
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area: TensorArea = needs.tensors.shared();
        area.take(size.tokens * self.projection.rows);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.projection.cols);
        needs.norm_cols = needs.norm_cols.max(self.width);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let rows = pass.table_rows();
        pass.look_up(self.table, self.multiplier, rows, self.projection.rows)?;
        let projected = pass.area().take(rows.len());
        let (x, RowProjection { factor, sum_factor, .. }) = (pass.hidden(), self.of_projection);
        pass.products(x, [&self.projection], [projected], None)?;
        let NormWeight { weight, offset, epsilon } = self.norm;
        let weight = &pass.weights.vector(weight);
        pass.submit(&[
            Command::Scale { x: projected, by: factor },
            Command::Norm { x: projected, weight, offset, epsilon, out: projected },
            Command::Add { sum: rows, branch: projected, scale: 1.0 },
            Command::Scale { x: rows, by: sum_factor },
        ])?;
        Ok(())
    }
}
