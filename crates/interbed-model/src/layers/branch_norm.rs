//! Norms of a branch: one of what the branch reads, and one of its result.

use interbed_device::{Command, PassNeeds, Tensor};

use super::tensors::LayerTensors;
use crate::blueprint::{Branch, Passage};
use crate::pass::{ForwardError, NormWeight, Pass};

/// Applies the norms of a branch and adds its result to the hidden states.
pub(super) struct BranchNorm {
    before: Option<NormWeight>,
    after: Option<NormWeight>,
    width: usize,
    /// Number that the branch's result is multiplied by before it is added.
    factor: f32,
}

impl BranchNorm {
    /// Creates the norms of a branch and adds their weights to `tensors`. Each row that the norms read has `width`
    /// elements.
    pub fn new(branch: &Branch, width: usize, tensors: &mut LayerTensors) -> Self {
        let mut norm = |passage: &Passage| {
            let norm = passage.norm()?;
            let weight = tensors.vector(&format!("{}.weight", norm.name), width);
            Some(NormWeight { weight, offset: norm.offset, epsilon: norm.epsilon })
        };
        let (before, after) = (norm(&branch.enter), norm(&branch.leave));
        Self { before, after, width, factor: branch.factor }
    }

    /// Adds to `needs` the memory that these norms need.
    pub fn plan(&self, needs: &mut PassNeeds) {
        needs.norm_cols = needs.norm_cols.max(self.width);
    }

    /// Computes the input of the branch, `[rows, hidden]`.
    pub fn begin(&self, pass: &mut Pass<'_>) -> Result<Tensor, ForwardError> {
        match self.before {
            Some(norm) => pass.norm(norm),
            None => {
                pass.settle_branch()?;
                Ok(pass.hidden())
            }
        }
    }

    /// Computes the input that this branch would have if the hidden states stayed as they are now. An earlier layer
    /// calls this method, before it writes to [`Pass::branch`], to predict which experts the branch will choose.
    /// Returns `out`, which then holds the input. If the branch has no norm before it, returns the hidden states
    /// themselves.
    pub fn peek(&self, pass: &mut Pass<'_>, out: Tensor) -> Result<Tensor, ForwardError> {
        let x = pass.hidden();
        let Some(NormWeight { weight, offset, epsilon }) = self.before else { return Ok(x) };
        let weight = &pass.weights.vector(weight);
        pass.submit(&[Command::Norm { x, weight, offset, epsilon, out }])?;
        Ok(out)
    }

    /// Ends the branch. The layer must have left the result of the branch in [`Pass::branch`]. If the model has a norm
    /// after the branch, applies this norm to the result. Then schedules the addition of the result to the hidden
    /// states.
    pub fn end(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        if let Some(NormWeight { weight, offset, epsilon }) = self.after {
            let (branch, weight) = (pass.branch(), &pass.weights.vector(weight));
            pass.submit(&[Command::Norm { x: branch, weight, offset, epsilon, out: branch }])?;
        }
        pass.add_branch(self.factor);
        Ok(())
    }
}
