//! Feed-forward networks: dense ones, and mixtures of experts.

use interbed_kernels::Activation;

/// A feed-forward network that all tokens go through: products with one or two matrices, an activation, and a product
/// back to the hidden width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    /// Width of the network between its first and its last matrix.
    pub width: usize,
    /// The function that is applied to the gate's product or, without a gate, to the first product.
    pub activation: Activation,
    /// Whether a gate multiplies the first product; without one, the activation is applied to that product.
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

/// A mixture of experts in place of a dense feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    /// Number of experts in a layer.
    pub experts: usize,
    /// Number of experts that each token goes through.
    pub chosen: usize,
    /// Width of one expert.
    pub expert_width: usize,
    /// The function that is applied to the product of an expert's gate.
    pub activation: Activation,
    /// How experts are chosen for a token.
    pub router: Router,
    /// Whether the router and the matrices of experts have biases.
    pub biases: bool,
    /// The expert that all tokens go through in addition, if there is one.
    pub shared: Option<SharedExpert>,
}

/// How experts are chosen for a token, and how their results are weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// How the router's product becomes scores.
    pub scores: Scores,
    /// Whether a bias is added to the scores for the choice; the weights of results are made without it.
    pub choice_bias: bool,
    /// Groups of experts, if a token chooses among the experts of its best groups only.
    pub groups: Option<Groups>,
    /// How a sum near zero is avoided if the weights of a token's experts are divided by their sum; `None` if they are
    /// not divided.
    pub normalise: Option<Floor>,
    /// Number that the weights of all experts are multiplied by.
    pub scale: f32,
    /// Whether a table names the experts of each token id, and scores only weigh their results.
    pub by_token: bool,
}

/// How the router's product becomes scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// A score is the softmax over the products of all experts.
    Softmax,
    /// A score is the sigmoid of an expert's product.
    Sigmoid,
    /// The experts with the largest products are chosen, and the softmax over the chosen ones weighs them.
    SoftmaxOfChosen,
    /// A score is the square root of the softplus of an expert's product.
    RootOfSoftplus,
}

/// Division of the experts into groups of equal size; a token chooses within some of the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups in a layer; it divides the number of experts and leaves at least two in each group.
    pub count: usize,
    /// Number of groups that a token chooses within: those in which the two best scores have the largest sum.
    pub kept: usize,
}

/// How a sum of weights is kept from zero before weights are divided by it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    /// The number is added to the sum.
    Plus(f32),
    /// The sum is replaced by the number if it is smaller.
    Least(f32),
}

/// A dense network that all tokens go through in addition to their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Width of the network.
    pub width: usize,
    /// Whether the result is multiplied by the sigmoid of a learned vector's product with the token.
    pub gated: bool,
}

impl Mixture {
    /// Returns the number of elements of the experts, the router and the shared expert, or `None` beyond 2^64.
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

    /// Returns the share of a layer's experts that `tokens` tokens together go through, if all experts are equally
    /// likely.
    pub fn expected_share(&self, tokens: usize) -> f64 {
        1.0 - (1.0 - self.chosen as f64 / self.experts as f64).powf(tokens as f64)
    }
}
