//! Norms of a branch: one of what the branch reads, and one of its result. Two branches may be added up first.

use interbed_device::{Command, PassNeeds, Tensor};
use interbed_weights::TensorId;

use super::tensors::LayerTensors;
use crate::blueprint::{Branch, Passage};
use crate::pass::{ForwardError, NormWeight, Pass};

/// A branch that one layer computes, and how its result reaches the hidden states.
#[derive(Clone, Copy)]
pub(super) struct Seat<'a> {
    /// The branch, whose part the layer computes.
    pub branch: &'a Branch,
    /// The branch whose part is the sum that `branch` belongs to, and whether `branch` is the last term of this sum.
    /// `None` if `branch` is no term of a sum.
    pub sum: Option<(&'a Branch, bool)>,
    /// Whether the hidden states are multiplied by a learned factor after this branch.
    pub has_factor: bool,
}

/// Applies the norms of a branch and adds its result to the hidden states.
pub(super) struct BranchNorm {
    before: Option<NormWeight>,
    after: Option<NormWeight>,
    width: usize,
    /// Number that the branch's result is multiplied by before it is added.
    factor: f32,
    term: Term,
    /// The factor that the hidden states are multiplied by after the branch, `[1]`; `None` if they are not.
    factor_after: Option<TensorId>,
}

/// The place of a branch in a sum of two branches.
#[derive(Clone, Copy)]
enum Term {
    /// The branch is no term of a sum.
    Alone,
    /// The result waits for that of the other term.
    First,
    /// The sum is normed, if it has a norm, and multiplied by the number before it is added to the hidden states.
    Last(Option<NormWeight>, f32),
}

impl BranchNorm {
    /// Creates the norms of a branch and adds their weights to `tensors`. Each row that the norms read has `width`
    /// elements.
    pub fn new(seat: Seat<'_>, width: usize, tensors: &mut LayerTensors) -> Self {
        let Seat { branch, sum, has_factor } = seat;
        let mut norm = |passage: &Passage| {
            let norm = passage.norm()?;
            let weight = tensors.vector(&format!("{}.weight", norm.name), width);
            Some(NormWeight { weight, offset: norm.offset, epsilon: norm.epsilon })
        };
        let (before, after) = (norm(&branch.enter), norm(&branch.leave));
        // A term without a norm of its own reads what the whole sum reads.
        let before = before.or_else(|| norm(&sum?.0.enter));
        let term = match sum {
            None => Term::Alone,
            Some((_, false)) => Term::First,
            Some((sum, true)) => Term::Last(norm(&sum.leave), sum.factor),
        };
        let factor_after = has_factor.then(|| tensors.vector("layer_scalar", 1));
        Self { before, after, width, factor: branch.factor, term, factor_after }
    }

    /// Adds to `needs` the memory that these norms need.
    pub fn plan(&self, needs: &mut PassNeeds) {
        needs.norm_cols = needs.norm_cols.max(self.width);
    }

    /// Computes the input of the branch, `[rows, hidden]`.
    pub fn begin(&self, pass: &mut Pass<'_>) -> Result<Tensor, ForwardError> {
        pass.begin_branch(matches!(self.term, Term::First));
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
    /// states. The result of the first term of a sum instead stays where it is, and the last term adds it to its own.
    pub fn end(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let branch = pass.branch();
        norm_in_place(pass, self.after, branch)?;
        match self.term {
            Term::Alone => pass.add_branch(self.factor),
            Term::First => scale(pass, branch, self.factor)?,
            Term::Last(after, factor) => {
                scale(pass, branch, self.factor)?;
                pass.add_first_term()?;
                norm_in_place(pass, after, branch)?;
                pass.add_branch(factor);
            }
        }
        if let Some(factor) = self.factor_after {
            pass.settle_branch()?;
            let (x, by) = (pass.hidden(), &pass.weights.vector(factor));
            pass.submit(&[Command::ScaleBy { x, by }])?;
        }
        Ok(())
    }
}

fn norm_in_place(pass: &mut Pass<'_>, norm: Option<NormWeight>, x: Tensor) -> Result<(), ForwardError> {
    if let Some(NormWeight { weight, offset, epsilon }) = norm {
        let weight = &pass.weights.vector(weight);
        pass.submit(&[Command::Norm { x, weight, offset, epsilon, out: x }])?;
    }
    Ok(())
}

fn scale(pass: &mut Pass<'_>, x: Tensor, by: f32) -> Result<(), ForwardError> {
    if by != 1.0 {
        pass.submit(&[Command::Scale { x, by }])?;
    }
    Ok(())
}
