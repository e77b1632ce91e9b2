//! How many parameters a model has.

use super::{
    Attention, Blueprint, Branch, GatedDelta, HeadNorms, InputTable, KvRows, Mamba, Mixture, Part, Passage,
    ShortConvolution, ValueSource,
};

impl Blueprint {
    /// Returns the number of parameters of the model. The matrix of a tied head is the embedding and is not counted
    /// again. Returns `u64::MAX` if the number does not fit in a `u64`.
    pub fn num_parameters(&self) -> u64 {
        self.count_parameters().unwrap_or(u64::MAX)
    }

    /// Returns the number of elements in the matrices of experts, over all layers. Shared experts are not counted.
    pub fn expert_parameters(&self) -> u64 {
        let of = |mixture: &Mixture| {
            let matrix = (self.hidden_size as u64).saturating_mul(mixture.expert_width as u64);
            let each = matrix.saturating_mul(mixture.expert_matrices() as u64);
            (mixture.experts as u64).saturating_mul(each)
        };
        self.mixtures().fold(0, |sum: u64, (_, mixture)| sum.saturating_add(of(mixture)))
    }

    /// Returns the number of parameters that are used for one token. All rows of the embedding are counted as used.
    pub fn active_parameters(&self) -> u64 {
        let experts = self.expert_parameters() as f64;
        let idle = self.mixture().map_or(0.0, |mixture| experts * (1.0 - mixture.expected_share(1)));
        self.num_parameters().saturating_sub(idle.round() as u64)
    }

    /// Returns the number of elements of all weights together, or `None` beyond 2^64. Parts that no layer computes
    /// count as nothing.
    pub(crate) fn count_parameters(&self) -> Option<u64> {
        let hidden = self.hidden_size as u64;
        let mut sum = 0u64;
        for branch in self.layers.iter().flat_map(|layer| &layer.branches) {
            sum = sum.checked_add(branch_parameters(branch, hidden)?)?;
        }
        sum = sum.checked_add(self.layers.iter().filter(|layer| layer.has_factor).count() as u64)?;
        for table in &self.tables {
            sum = sum.checked_add(table_parameters(table, [self.vocab_size as u64, hidden])?)?;
        }
        let embedding = (self.vocab_size as u64).checked_mul(hidden)?;
        let ends = embedding.checked_mul(if self.head.is_tied { 1 } else { 2 })?.checked_add(hidden)?;
        sum.checked_add(ends)
    }
}

fn branch_parameters(branch: &Branch, hidden: u64) -> Option<u64> {
    let part = match &branch.part {
        Part::Attention(attention) => attention_parameters(attention, hidden)?,
        Part::Dense(dense) => dense.parameters(hidden)?,
        Part::Mixture(mixture) => mixture.parameters(hidden)?,
        Part::Sum(branches) => {
            let each = branches.iter().map(|branch| branch_parameters(branch, hidden));
            each.sum::<Option<u64>>()?
        }
        Part::GatedDelta(delta) => delta_parameters(delta, hidden)?,
        Part::Convolution(convolution) => convolution_parameters(convolution, hidden)?,
        Part::Table(lookup) => (2 * hidden).checked_mul(lookup.width as u64)?,
        Part::Mamba(mamba) => mamba_parameters(mamba, hidden)?,
        Part::Latent(_) => 0,
    };
    let norms = [branch.enter, branch.leave].iter().filter(|passage| has_weight(passage)).count() as u64;
    part.checked_add(norms * hidden)
}

/// Returns the number of elements of a table that has rows for each token id, and of the projection that is added to
/// them. A table whose rows depend on several ids counts as nothing.
fn table_parameters(table: &InputTable, [vocab, hidden]: [u64; 2]) -> Option<u64> {
    let all = (table.rows as u64).checked_mul(table.width as u64)?;
    let of_rows = if table.ids == 1 { all.checked_mul(vocab)? } else { 0 };
    let of_projection = if table.projection.is_some() { all.checked_mul(hidden)? + table.width as u64 } else { 0 };
    of_rows.checked_add(of_projection)
}

fn has_weight(passage: &Passage) -> bool {
    passage.norm().is_some_and(|norm| !norm.name.is_empty())
}

fn attention_parameters(attention: &Attention, hidden: u64) -> Option<u64> {
    let width = |heads: usize, width: usize| (heads as u64).checked_mul(width as u64);
    let is_own = attention.rows == KvRows::Own;
    let queries = width(attention.heads, attention.key_width)?;
    let keys = if is_own { width(attention.kv_heads, attention.key_width)? } else { 0 };
    let has_values = is_own && attention.values == ValueSource::Projection;
    let values = if has_values { width(attention.kv_heads, attention.value_width)? } else { 0 };
    let results = width(attention.heads, attention.value_width)?;
    let gates = if attention.output_gate { results } else { 0 };
    let inputs = queries.checked_add(gates)?.checked_add(keys)?.checked_add(values)?;
    let matrices = hidden.checked_mul(inputs.checked_add(results)?)?;
    let normed = match attention.norms.map(|norms| norms.over) {
        None => 0,
        Some(HeadNorms::EachBefore | HeadNorms::EachAfter) => (1 + u64::from(is_own)) * attention.key_width as u64,
        Some(HeadNorms::Whole) => queries.checked_add(keys)?,
    };
    let flag = |value: bool| u64::from(value);
    let vectors = [
        normed,
        flag(attention.input_bias) * inputs,
        flag(attention.output_bias) * hidden,
        flag(attention.sinks) * attention.heads as u64,
    ];
    vectors.iter().try_fold(matrices, |sum, &part| sum.checked_add(part))
}

fn delta_parameters(delta: &GatedDelta, hidden: u64) -> Option<u64> {
    let size = |value: usize| value as u64;
    let (row, values) = (size(delta.row_width()), size(delta.values_width()));
    // Queries, keys and values, the gate and the output, and for each value head the strength and the step of updates.
    let rows = row.checked_add(2 * values)?.checked_add(2 * size(delta.value_heads))?;
    let convolution = row.checked_mul(size(delta.convolution))?;
    let vectors = 2 * size(delta.value_heads) + size(delta.value_width);
    hidden.checked_mul(rows)?.checked_add(convolution)?.checked_add(vectors)
}

fn convolution_parameters(convolution: &ShortConvolution, hidden: u64) -> Option<u64> {
    let (width, taps) = (convolution.width as u64, convolution.rows as u64);
    // Three projections before the convolution, and one after it.
    let matrices = hidden.checked_mul(width)?.checked_mul(4)?;
    let biases = if convolution.bias { (4 * width).checked_add(hidden)? } else { 0 };
    matrices.checked_add(width.checked_mul(taps)?)?.checked_add(biases)
}

fn mamba_parameters(mamba: &Mamba, hidden: u64) -> Option<u64> {
    let size = |value: usize| value as u64;
    let (row, inner, heads) = (size(mamba.row_width()), size(mamba.inner_width()), size(mamba.heads));
    // The gate and the output, the row of the convolution, and the step of each head.
    let rows = row.checked_add(2 * inner)?.checked_add(heads)?;
    let convolution = row.checked_mul(size(mamba.convolution) + u64::from(mamba.convolution_bias))?;
    hidden.checked_mul(rows)?.checked_add(convolution)?.checked_add(3 * heads + inner)
}
