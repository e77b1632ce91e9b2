//! The norm of a branch: of what it reads, or of what it gives.

use interbed_device::{Command, PassNeeds, Tensor};
use interbed_weights::TensorId;

use super::tensors::LayerTensors;
use crate::config::{ModelConfig, NormPlace};
use crate::pass::{ForwardError, Pass};

/// Norms a branch, and adds it to the hidden states.
pub struct BranchNorm {
    weight: TensorId,
    place: NormPlace,
    width: usize,
    epsilon: f32,
    /// The factor of the branch before it is added.
    residual: f32,
}

impl BranchNorm {
    /// The norm of a branch, which is called `names` where it comes before and where it comes after.
    pub fn new(config: &ModelConfig, tensors: &mut LayerTensors, [before, after]: [&str; 2]) -> Self {
        let name = match config.norm_place {
            NormPlace::Before => before,
            NormPlace::After => after,
        };
        Self {
            weight: tensors.vector(&format!("{name}.weight"), config.hidden_size),
            place: config.norm_place,
            width: config.hidden_size,
            epsilon: config.rms_norm_eps,
            residual: config.residual_multiplier,
        }
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
        match self.place {
            NormPlace::Before => pass.norm(self.weight, self.epsilon),
            NormPlace::After => {
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
        if self.place == NormPlace::After {
            return Ok(x);
        }
        let weight = &pass.weights.vector(self.weight);
        pass.submit(&[Command::Norm { x, weight, epsilon: self.epsilon, out }])?;
        Ok(out)
    }

    /// Adds the branch, which the layer has left in [`Pass::branch`].
    ///
    /// # Errors
    /// If the device failed.
    pub fn end(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        if self.place == NormPlace::After {
            let (branch, weight) = (pass.branch(), &pass.weights.vector(self.weight));
            pass.submit(&[Command::Norm { x: branch, weight, epsilon: self.epsilon, out: branch }])?;
        }
        pass.add_branch(self.residual);
        Ok(())
    }
}
