//! The head: a last norm, and a logit for every token of the vocabulary, unless hidden states are wanted.

use interbed_device::{BEST_MAX, BEST_WIDTH_MAX, Command, PassNeeds, Tensor, TensorArea};
use interbed_weights::{Access, GroupSpec, Role};

use super::embedding::EMBEDDING_TENSOR;
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::Blueprint;
use crate::kept::Kept;
use crate::pass::{ForwardError, Linear, NormWeight, Pass, PassSize};

/// Name of the head's tensor, in models whose head is not tied to the embedding.
pub const HEAD_TENSOR: &str = "lm_head.weight";

/// The most rows of logits that the head computes at once. This limit bounds the memory for logits, however many rows a
/// batch wants. For each group of this many rows, the head goes through its weights once. Streamed weights are read
/// from disk each time.
pub const LOGIT_ROWS: usize = 64;

/// The layer that computes logits, or finished hidden states.
pub(super) struct Head {
    spec: GroupSpec,
    norm: NormWeight,
    head: Linear,
    /// Number that the normed hidden states are multiplied by. Some models divide before the head and others after it;
    /// multiplying before is cheaper and just as exact.
    scale: f32,
    /// The bound of the logits, if they have one.
    cap: Option<f32>,
}

impl Head {
    /// Creates the head, which comes after the last decoder layer. `place` is its position in the model.
    pub(super) fn new(blueprint: &Blueprint, place: Place) -> Self {
        let (hidden, vocab, head) = (blueprint.hidden_size, blueprint.vocab_size, &blueprint.head);
        let mut tensors = LayerTensors::new(place.group, "head", Role::Head, place.layer, "");
        let weight = tensors.vector(&format!("{}.weight", head.norm.name), hidden);
        let norm = NormWeight { weight, offset: head.norm.offset, epsilon: head.norm.epsilon };
        // A tied head is the embedding again: the same tensor in two groups, held once.
        let name = if head.is_tied { EMBEDDING_TENSOR } else { HEAD_TENSOR };
        let weight = tensors.matrix(name, [vocab, hidden], Access::Sweep);
        let matrix = Linear { weight, bias: None, rows: vocab, cols: hidden };
        Self { spec: tensors.finish(), norm, head: matrix, scale: 1.0 / head.divisor, cap: head.soft_cap }
    }

    /// Takes room for the normed hidden states and for the logits. The greatest logits later overwrite the hidden
    /// states.
    fn scratch(&self, rows: usize, area: &mut TensorArea) -> [Tensor; 2] {
        [self.head.cols.max(2 * BEST_MAX), self.head.rows].map(|width| area.take(rows * width))
    }
}

impl Layer for Head {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        Vec::new()
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area = needs.tensors.shared();
        self.scratch(LOGIT_ROWS.min(size.logit_rows), &mut area);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.head.cols);
        needs.norm_cols = needs.norm_cols.max(self.head.cols);
        needs.best_width = needs.best_width.max(self.head.rows);
    }

    /// Computes the logits of the wanted rows, which are the only ones left, or just their norm where hidden states are
    /// wanted.
    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let (width, vocab) = (self.head.cols, self.head.rows);
        let wanted = pass.batch.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        assert_eq!(
            pass.rows(),
            wanted.len(),
            "the last layer whose tokens see each other keeps the rows that are wanted"
        );
        pass.settle_branch()?;
        let hidden = pass.hidden();
        let [normed, logits] = self.scratch(LOGIT_ROWS.min(wanted.len()), &mut pass.area());
        let mut first = 0;
        for (is_hidden, wanted) in pass.batch.wanted_runs(LOGIT_ROWS) {
            let hidden = hidden.part(first * width..(first + wanted.len()) * width);
            let (best, count) = (normed, pass.batch.wanted_best(first..first + wanted.len()));
            first += wanted.len();
            let (normed, logits) = (normed.first(wanted.len() * width), logits.first(wanted.len() * vocab));
            let NormWeight { weight, offset, epsilon } = self.norm;
            let weight = &pass.weights.vector(weight);
            let norm = Command::Norm { x: hidden, weight, offset, epsilon, out: normed };
            if is_hidden {
                pass.submit(&[norm])?;
                pass.deliver(wanted, normed, width)?;
                continue;
            }
            pass.submit(&[norm, Command::Scale { x: normed, by: self.scale }])?;
            pass.products(normed, [&self.head], [logits], None)?;
            if let Some(bound) = self.cap {
                pass.submit(&[Command::Cap { x: logits, bound }])?;
            }
            let count = count.map(|count| count.clamp(1, vocab));
            match count.filter(|&count| pass.prefers_best() && count <= BEST_MAX && vocab <= BEST_WIDTH_MAX) {
                Some(count) => {
                    // The normed hidden states are no longer needed, so their room is used for the greatest logits.
                    let out = best.first(wanted.len() * count * 2);
                    pass.submit(&[Command::Best { x: logits, width: vocab, count, out }])?;
                    pass.deliver_best(wanted, out, count)?;
                }
                None => pass.deliver(wanted, logits, vocab)?,
            }
        }
        Ok(())
    }
}
