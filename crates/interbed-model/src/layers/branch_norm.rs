//! The norms of a branch: of what it reads, and of what it gives.

use interbed_device::{Command, PassNeeds, Tensor};
use interbed_weights::TensorId;

use super::tensors::LayerTensors;
use crate::blueprint::{Branch, Passage};
use crate::pass::{ForwardError, Pass};

/// Norms a branch, and adds it to the hidden states.
pub(super) struct BranchNorm {
    before: Option<Norm>,
    after: Option<Norm>,
    width: usize,
    /// The factor of the branch before it is added.
    factor: f32,
}

/// A norm and its weight.
#[derive(Clone, Copy)]
struct Norm {
    weight: TensorId,
    epsilon: f32,
}

impl BranchNorm {
    /// The norms of a branch of `width` elements.
    pub fn new(branch: &Branch, width: usize, tensors: &mut LayerTensors) -> Self {
        let mut norm = |passage: &Passage| {
            let norm = passage.norm()?;
            let weight = tensors.vector(&format!("{}.weight", norm.name), width);
            Some(Norm { weight, epsilon: norm.epsilon })
        };
        let (before, after) = (norm(&branch.enter), norm(&branch.leave));
        Self { before, after, width, factor: branch.factor }
    }

    /// Adds to `needs` what it needs.
    pub fn plan(&self, needs: &mut PassNeeds) {
        needs.norm_cols = needs.norm_cols.max(self.width);
    }

    /// What the branch reads, `[rows, hidden]`.
    ///
    /// # Errors
    /// If the device failed.
    pub fn begin(&self, pass: &mut Pass<'_>) -> Result<Tensor, ForwardError> {
        match self.before {
            Some(Norm { weight, epsilon }) => pass.norm(weight, epsilon),
            None => {
                pass.settle_branch()?;
                Ok(pass.hidden())
            }
        }
    }

    /// What the branch would read if it came now, from a layer below whose branch is not yet written; `out` is room for
    /// it.
    ///
    /// # Errors
    /// If the device failed.
    pub fn peek(&self, pass: &mut Pass<'_>, out: Tensor) -> Result<Tensor, ForwardError> {
        let x = pass.hidden();
        let Some(Norm { weight, epsilon }) = self.before else { return Ok(x) };
        let weight = &pass.weights.vector(weight);
        pass.submit(&[Command::Norm { x, weight, epsilon, out }])?;
        Ok(out)
    }

    /// Adds the branch, which the layer has left in [`Pass::branch`].
    ///
    /// # Errors
    /// If the device failed.
    pub fn end(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        if let Some(Norm { weight, epsilon }) = self.after {
            let (branch, weight) = (pass.branch(), &pass.weights.vector(weight));
            pass.submit(&[Command::Norm { x: branch, weight, epsilon, out: branch }])?;
        }
        pass.add_branch(self.factor);
        Ok(())
    }
}
