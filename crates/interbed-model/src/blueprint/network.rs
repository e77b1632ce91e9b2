//! Feed-forward networks: dense ones, and mixtures of experts.

use interbed_kernels::Activation;

/// A feed-forward network that all tokens go through: a gated product, then one back to the hidden width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    /// Width between the products.
    pub width: usize,
    /// What the gate's product goes through before it multiplies the other.
    pub activation: Activation,
    /// Whether a gate multiplies the first product; without one, the activation is applied to that product.
    pub gated: bool,
    /// Whether the projections have biases.
    pub bias: bool,
}

impl Dense {
    /// Elements of the weights, or `None` beyond 2^64.
    pub(super) fn parameters(&self, hidden: u64) -> Option<u64> {
        let (inner, matrices) = (self.width as u64, if self.gated { 3 } else { 2 });
        let biases = if self.bias { (matrices - 1) * inner + hidden } else { 0 };
        hidden.checked_mul(inner)?.checked_mul(matrices)?.checked_add(biases)
    }
}

/// A mixture of experts in place of a dense feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts that each token goes through.
    pub chosen: usize,
    /// Width of one expert.
    pub expert_width: usize,
    /// What the gates' products of experts go through.
    pub activation: Activation,
    /// How a token chooses.
    pub router: Router,
    /// Whether the router and the matrices of experts have biases.
    pub biases: bool,
    /// What all tokens go through as well.
    pub shared: Option<SharedExpert>,
}

/// How tokens choose experts and weigh what these give.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// How the router's product becomes scores.
    pub scores: Scores,
    /// Whether a bias is added to the scores, for the choice only.
    pub choice_bias: bool,
    /// Only experts of the best groups are chosen.
    pub groups: Option<Groups>,
    /// If the weights of a token's experts are divided by their sum: what is done to a sum near zero.
    pub normalise: Option<Floor>,
    /// The factor of all weights.
    pub scale: f32,
    /// Whether a table gives the experts of each token id, so that scores only weigh them.
    pub by_token: bool,
}

/// How the router's product becomes scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// The largest are chosen as they are; the softmax is over the chosen ones.
    SoftmaxOfChosen,
    /// Root of the softplus, each by itself.
    RootOfSoftplus,
}

/// Experts in groups of equal size, of which only some are chosen from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Groups of a layer; divides the experts, into at least two each.
    pub count: usize,
    /// Groups that are kept: those with the largest sum of their two best.
    pub kept: usize,
}

/// What keeps a sum of weights from zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    /// This is added.
    Plus(f32),
    /// It is no less than this.
    Least(f32),
}

/// A dense network beside the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its width.
    pub width: usize,
    /// Whether its result is multiplied by a sigmoid of a product with the token.
    pub gated: bool,
}

impl Mixture {
    /// Elements of the experts, the router and the shared expert, or `None` beyond 2^64.
    pub(super) fn parameters(&self, hidden: u64) -> Option<u64> {
        let size = |value: usize| value as u64;
        let expert = hidden.checked_mul(size(self.expert_width))?.checked_mul(3)?;
        let of_biases = if self.biases { 2 * size(self.expert_width) + hidden + 1 } else { 0 };
        let router = hidden + u64::from(self.router.choice_bias) + of_biases;
        let experts = expert.checked_add(router)?.checked_mul(size(self.experts))?;
        let shared = match self.shared {
            Some(SharedExpert { width, gated }) => {
                hidden.checked_mul(size(width))?.checked_mul(3)? + if gated { hidden } else { 0 }
            }
            None => 0,
        };
        experts.checked_add(shared)
    }

    /// The share of a layer's experts that `tokens` tokens together go through, if each expert is as likely.
    pub fn expected_share(&self, tokens: usize) -> f64 {
        1.0 - (1.0 - self.chosen as f64 / self.experts as f64).powf(tokens as f64)
    }
}
