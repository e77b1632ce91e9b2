//! What a model computes: a list of layers, each of which has parts, and what each part keeps for a sequence.
//!
//! A family's file (in `families/`) produces a blueprint from a model's configuration, and the layers
//! that compute are built from blueprints alone. Blueprints can say more than Interbed computes:
//! [`Blueprint::refuse_uncomputed`] names the first thing that no layer computes yet.

mod computed;
mod network;
mod part;
mod rope;
mod size;
#[cfg(test)]
mod tests;

pub(crate) use computed::ROPES_MAX;
pub use interbed_kernels::{Activation, DecayForm, KeySharing};
pub use network::{Dense, Floor, Groups, Mixture, Router, RouterNorm, Scores, SharedExpert};
pub use part::{
    Attention, CompressedRows, GatedDelta, HeadNorms, KeySelection, KvRows, LatentAttention, Mamba, NormsOfHeads, Part,
    QueryGrowth, ShortConvolution, State, StreamMixer, TableLookup, ValueSource,
};
pub use rope::{Rope, RopeScaling};

/// Complete description of what a model computes. The numbers are consistent with one another and within the limits
/// that the constants of this type set.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// Number of rows of the embedding. Every token id is below this number.
    pub vocab_size: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Context length that the configuration states, in tokens. Some RoPE scalings extend it.
    pub positions: usize,
    /// Longest context that the model supports, in tokens, including its extension by RoPE scaling.
    pub context: usize,
    /// Number of residual streams, each of which is `hidden_size` wide.
    pub streams: usize,
    /// Tables, besides the embedding, in which rows are looked up for each token.
    pub tables: Vec<InputTable>,
    /// Number that embeddings are multiplied by.
    pub embedding_factor: f32,
    /// Rotary position encodings of queries and keys. The first is the model's main one. Each attention refers to at
    /// most one of them, by its index.
    pub ropes: Vec<Rope>,
    /// The decoder layers, in order.
    pub layers: Vec<DecoderLayer>,
    /// The norm and the matrix that turn hidden states into logits.
    pub head: Head,
}

/// A table, besides the embedding, in which rows are looked up for each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InputTable {
    /// Number of rows that are looked up for each token.
    pub rows: usize,
    /// Number of elements of a row.
    pub width: usize,
    /// Number that the rows are multiplied by.
    pub factor: f32,
    /// Number of token ids that determine a row: the token's own id and the ids of the tokens directly before it.
    pub ids: usize,
    /// The projection of the embedding that is added to the rows of a token; `None` if nothing is added.
    pub projection: Option<RowProjection>,
}

/// A projection of a token's embedding, which is normalised row by row and added to the rows that a table has for the
/// token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowProjection {
    /// Number that the products are multiplied by before they are normalised.
    pub factor: f32,
    /// The norm that is applied to each row.
    pub norm: Norm,
    /// Number that the sum of a row of the table and of its projection is multiplied by.
    pub sum_factor: f32,
}

/// A decoder layer. Its branches are computed one after another, and the result of each is added to the residual
/// streams.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderLayer {
    /// The branches, in the order in which they are computed.
    pub branches: Vec<Branch>,
    /// Whether the hidden state is multiplied by a learned factor after the last branch.
    pub has_factor: bool,
}

/// A branch of a layer: a [`Part`] and the operations that are applied to its input and to its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// The operation that turns the hidden state into the input of `part`.
    pub enter: Passage,
    /// The main computation of the branch, for example attention or a feed-forward network.
    pub part: Part,
    /// The operation that is applied to the result of `part` before the result is added to the residual streams.
    pub leave: Passage,
    /// Number that the result is multiplied by before it is added to the residual streams.
    pub factor: f32,
}

/// An operation between the residual streams and a [`Part`]. It is applied to the input or to the result of the part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Passage {
    /// Nothing is applied.
    Direct,
    /// A norm is applied.
    Norm(Norm),
    /// Several residual streams are mixed.
    Mixer(StreamMixer),
}

/// A root-mean-square norm (RMSNorm).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Name of the norm's weight in Hugging Face files, without the prefix of the layer and the suffix `.weight`. The
    /// name is empty if the norm has no weight.
    pub name: &'static str,
    /// Number that is added to the mean square.
    pub epsilon: f32,
    /// Number that is added to each element of the stored weight.
    pub offset: f32,
}

/// The norm and the matrix that turn hidden states into logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// How several residual streams are combined into one; `None` in models with one stream.
    pub mixer: Option<StreamMixer>,
    /// The norm that is applied to hidden states before they are multiplied by the head's matrix.
    pub norm: Norm,
    /// Number that the logits are divided by.
    pub divisor: f32,
    /// The bound `c` if logits are replaced by `c * tanh(logit / c)`; `None` if logits are not bounded.
    pub soft_cap: Option<f32>,
    /// Whether the head's matrix is the embedding, according to the configuration. The weight files may say otherwise
    /// and take precedence: see [`HeadSource`](crate::HeadSource).
    pub is_tied: bool,
}

impl InputTable {
    /// Returns the state that must be kept for a sequence so that rows can be looked up: the ids of the last `ids - 1`
    /// tokens. Returns `None` if a row depends only on the token's own id.
    pub fn state(&self) -> Option<State> {
        (self.ids > 1).then(|| State::LastTokens { count: self.ids - 1 })
    }
}

impl Passage {
    /// Returns the norm, or `None` if this is not [`Passage::Norm`].
    pub fn norm(&self) -> Option<Norm> {
        match self {
            Self::Norm(norm) => Some(*norm),
            Self::Direct | Self::Mixer(_) => None,
        }
    }
}

impl Blueprint {
    /// Largest accepted `vocab_size`.
    pub const VOCAB_SIZE_MAX: usize = 1 << 24;
    /// Largest accepted `hidden_size`.
    pub const HIDDEN_SIZE_MAX: usize = 1 << 20;
    /// Largest accepted inner width of a feed-forward network.
    pub const INNER_SIZE_MAX: usize = 1 << 22;
    /// Largest accepted number of layers.
    pub const LAYERS_MAX: usize = 10_000;
    /// Largest accepted number of query heads.
    pub const HEADS_MAX: usize = 1 << 14;
    /// Largest accepted number of elements of a head.
    pub const HEAD_DIM_MAX: usize = 4096;
    /// Longest accepted context, in tokens.
    pub const POSITIONS_MAX: usize = 1 << 31;
    /// Largest accepted number of parameters: 2^44. All known models are several times smaller.
    pub const PARAMETERS_MAX: u64 = 1 << 44;

    /// Chooses between the two sets of factors of [`RopeScaling::LongRope`]. `longest` is the length, in tokens, of the
    /// longest sequence that will be computed. The long set is chosen if both `longest` and `positions` exceed the
    /// original context. Rotations with other scalings are not changed.
    ///
    /// In Interbed, a token's result must not depend on later tokens. The longest possible sequence therefore decides,
    /// as in vLLM. `transformers` instead chooses anew in each forward pass, by the length of the sequence, and
    /// recomputes a sequence that grows beyond the original context.
    pub fn settle_length(&mut self, longest: usize) {
        for rope in &mut self.ropes {
            if let RopeScaling::LongRope { original_max, is_long, .. } = &mut rope.scaling {
                *is_long = longest.min(self.positions) > *original_max;
            }
        }
    }

    /// Returns all parts of all layers, including the parts within each [`Part::Sum`].
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.layers.iter().flat_map(|layer| &layer.branches).flat_map(|branch| branch.part.with_inner())
    }

    /// Returns the [`Attention`] of every [`Part::Attention`], in the order of the layers.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.parts().filter_map(|part| match part {
            Part::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// Returns each mixture of experts with the index of its layer.
    pub fn mixtures(&self) -> impl Iterator<Item = (usize, &Mixture)> {
        self.layers.iter().enumerate().flat_map(|(number, layer)| {
            let parts = layer.branches.iter().flat_map(|branch| branch.part.with_inner());
            parts.filter_map(move |part| match part {
                Part::Mixture(mixture) => Some((number, mixture)),
                _ => None,
            })
        })
    }

    /// Returns the first mixture of experts, or `None` if there is none. In a model that Interbed can compute, all
    /// mixtures are equal.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.mixtures().next().map(|(_, mixture)| mixture)
    }

    /// Returns the activation of each dense network and of each mixture.
    pub fn activations(&self) -> impl Iterator<Item = Activation> {
        self.parts().filter_map(|part| match part {
            Part::Dense(dense) => Some(dense.activation),
            Part::Mixture(mixture) => Some(mixture.activation),
            _ => None,
        })
    }

    /// Returns the inner width of the first dense network. If there is no dense network, returns the inner width of an
    /// expert or, without experts, 0.
    pub fn inner_size(&self) -> usize {
        let width = |part: &Part| match part {
            Part::Dense(dense) => Some(dense.width),
            _ => None,
        };
        self.parts().find_map(width).or(self.mixture().map(|mixture| mixture.expert_width)).unwrap_or(0)
    }

    /// Returns the factor of the first branch, or 1 if there are no branches.
    pub fn branch_factor(&self) -> f32 {
        self.layers.iter().flat_map(|layer| &layer.branches).next().map_or(1.0, |branch| branch.factor)
    }

    /// Returns the window of each attention, in the order of the layers. A window is the number of positions that a
    /// token sees, including its own. `None` means that a token sees all positions up to its own.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.attentions().map(|attention| attention.window).collect()
    }
}
