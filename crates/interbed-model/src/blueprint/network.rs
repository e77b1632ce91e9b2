//! Feed-forward networks: dense ones, and mixtures of experts.

use interbed_kernels::Activation;

/// A feed-forward network that all tokens go through: an input projection, optionally a gate projection, an activation,
/// and a projection back to the hidden width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    /// Inner width of the network.
    pub width: usize,
    /// The function that is applied to the result of the gate projection or, without a gate, of the input projection.
    pub activation: Activation,
    /// Whether the network has a gate projection. If it has one, the activation is applied to the result of the gate
    /// projection, which then multiplies the result of the input projection.
    pub gated: bool,
    /// Whether the projections have biases.
    pub bias: bool,
}

impl Dense {
    /// Returns the number of the weights' elements, or `None` beyond 2^64.
    pub(super) fn parameters(&self, hidden: u64) -> Option<u64> {
        let (inner, matrices) = (self.width as u64, if self.gated { 3 } else { 2 });
        let biases = if self.bias { (matrices - 1) * inner + hidden } else { 0 };
        hidden.checked_mul(inner)?.checked_mul(matrices)?.checked_add(biases)
    }
}

/// A mixture of experts, in place of a dense feed-forward network or beside one.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    /// Number of experts in a layer, not counting the shared expert.
    pub experts: usize,
    /// Number of experts that are chosen for each token.
    pub chosen: usize,
    /// Inner width of one expert.
    pub expert_width: usize,
    /// The function that is applied to the result of an expert's gate projection or, without a gate, of its input
    /// projection. The shared expert has the same.
    pub activation: Activation,
    /// Whether experts have a gate projection. The shared expert has one if they have.
    pub gated: bool,
    /// How experts are chosen for a token, and how their results are weighted.
    pub router: Router,
    /// Whether the router and the matrices of experts have biases.
    pub biases: bool,
    /// The shared expert, which all tokens go through in addition to their chosen experts; `None` if there is none.
    pub shared: Option<SharedExpert>,
}

/// How experts are chosen for a token, and how their results are weighted.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// How router logits become scores.
    pub scores: Scores,
    /// Whether a bias is added to the scores when experts are chosen. The weights of the experts' results are computed
    /// without this bias.
    pub choice_bias: bool,
    /// The groups that a layer's experts are divided into. The router first chooses the best groups for a token and
    /// then chooses experts only from these groups. `None` means that it chooses from all experts.
    pub groups: Option<Groups>,
    /// Whether the weights of a token's chosen experts are divided by their sum. `None` means that they are not. If
    /// they are, the [`Floor`] says how a divisor near zero is avoided.
    pub normalise: Option<Floor>,
    /// Number that the weights of all experts are multiplied by.
    pub scale: f32,
    /// The norm of what the router reads; `None` if the router reads what the experts read.
    pub own_norm: Option<RouterNorm>,
    /// Whether the weight of each expert's result is multiplied by a learned factor of the expert at last.
    pub expert_factors: bool,
    /// Whether the experts of a token are read from a table by the token's id. If so, the scores only determine the
    /// weights of the experts' results.
    pub by_token: bool,
}

/// A root-mean-square norm of the hidden state, whose result a router reads. The result is multiplied by a learned
/// vector and by a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterNorm {
    /// Number that is added to the mean square.
    pub epsilon: f32,
    /// Number that the result is multiplied by.
    pub factor: f32,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Scores are the softmax of the router logits of all experts.
    Softmax,
    /// A score is the sigmoid of an expert's router logit.
    Sigmoid,
    /// The experts with the largest router logits are chosen. The weights of their results are the softmax of the
    /// logits of the chosen experts.
    SoftmaxOfChosen,
    /// A score is the square root of the softplus of an expert's router logit.
    RootOfSoftplus,
}

/// Division of a layer's experts into groups of equal size. A token's experts are chosen only from some of the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups in a layer. It divides the number of experts, and each group has at least two experts.
    pub count: usize,
    /// Number of groups from which a token's experts are chosen. These are the groups whose two best scores have the
    /// largest sum.
    pub kept: usize,
}

/// Correction of the sum by which the weights of a token's experts are divided. It keeps this divisor away from zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    /// This number is added to the sum. 0 leaves the sum unchanged.
    Plus(f32),
    /// If the sum is smaller than this number, the number replaces the sum.
    Least(f32),
}

/// A dense network that all tokens go through in addition to their chosen experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width of the network.
    pub width: usize,
    /// Whether the result is multiplied by the sigmoid of the dot product of a learned vector and the token's hidden
    /// state.
    pub gated: bool,
}

impl Mixture {
    /// Returns how many matrices an expert has.
    pub fn expert_matrices(&self) -> usize {
        if self.gated { 3 } else { 2 }
    }

    /// Returns the number of elements of the experts, the router and the shared expert, or `None` beyond 2^64.
    pub(super) fn parameters(&self, hidden: u64) -> Option<u64> {
        let size = |value: usize| value as u64;
        let matrices = self.expert_matrices() as u64;
        let expert = hidden.checked_mul(size(self.expert_width))?.checked_mul(matrices)?;
        let of_biases = if self.biases { 2 * size(self.expert_width) + hidden + 1 } else { 0 };
        let of_each = u64::from(self.router.choice_bias) + u64::from(self.router.expert_factors);
        let router = hidden + of_each + of_biases;
        let of_norm = if self.router.own_norm.is_some() { hidden } else { 0 };
        let experts = expert.checked_add(router)?.checked_mul(size(self.experts))?.checked_add(of_norm)?;
        let shared = match self.shared {
            Some(SharedExpert { width, gated }) => {
                hidden.checked_mul(size(width))?.checked_mul(matrices)? + if gated { hidden } else { 0 }
            }
            None => 0,
        };
        experts.checked_add(shared)
    }

    /// Returns the share of a layer's experts, from 0 to 1, that a batch of `tokens` tokens is expected to use. An
    /// expert is used if it is chosen for at least one of the tokens. All experts are assumed to be equally likely.
    pub fn expected_share(&self, tokens: usize) -> f64 {
        1.0 - (1.0 - self.chosen as f64 / self.experts as f64).powf(tokens as f64)
    }
}
