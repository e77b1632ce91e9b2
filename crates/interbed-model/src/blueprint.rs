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
pub use interbed_kernels::Activation;
pub use network::{Dense, Floor, Groups, Mixture, Router, Scores, SharedExpert};
pub use part::{
    Attention, CompressedRows, GatedDelta, HeadNorms, KeySelection, KvRows, LatentAttention, NormsOfHeads, Part,
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
    /// Tables in which rows are looked up for each token, in addition to the embedding.
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

/// A table in which rows are looked up for each token, in addition to the embedding.
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

/// A branch of a layer: a [`Part`], what is applied to the input of the part, and what is applied to its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// What is applied to the hidden state before the part.
    pub enter: Passage,
    /// The computation between `enter` and `leave`.
    pub part: Part,
    /// What is applied to the part's result before the result is added to the residual streams.
    pub leave: Passage,
    /// Number that the result is multiplied by before it is added to the residual streams.
    pub factor: f32,
}

/// What is applied between the residual streams and a part, either to the part's input or to its result.
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
    /// Returns the state that the table keeps for a sequence: the ids of the last tokens. Returns `None` if only a
    /// token's own id determines a row.
    pub fn state(&self) -> Option<State> {
        (self.ids > 1).then(|| State::LastTokens { count: self.ids - 1 })
    }
}

impl Passage {
    /// Returns the norm if this is [`Passage::Norm`], or else `None`.
    pub fn norm(&self) -> Option<Norm> {
        match self {
            Self::Norm(norm) => Some(*norm),
            Self::Direct | Self::Mixer(_) => None,
        }
    }
}

impl Blueprint {
    /// Largest `vocab_size` that is accepted.
    pub const VOCAB_SIZE_MAX: usize = 1 << 24;
    /// Largest `hidden_size` that is accepted.
    pub const HIDDEN_SIZE_MAX: usize = 1 << 20;
    /// Largest inner width of a feed-forward network that is accepted.
    pub const INNER_SIZE_MAX: usize = 1 << 22;
    /// Largest number of layers that is accepted.
    pub const LAYERS_MAX: usize = 10_000;
    /// Largest number of query heads that is accepted.
    pub const HEADS_MAX: usize = 1 << 14;
    /// Largest number of elements of a head that is accepted.
    pub const HEAD_DIM_MAX: usize = 4096;
    /// Longest context that is accepted, in tokens.
    pub const POSITIONS_MAX: usize = 1 << 31;
    /// Largest number of parameters that is accepted: 2^44. The largest known model has several times fewer.
    pub const PARAMETERS_MAX: u64 = 1 << 44;

    /// Chooses between LongRoPE's two sets of factors, in models that have both. The long set is chosen if both
    /// `longest` and the context that the configuration states are longer than the original context. `longest` is the
    /// length, in tokens, of the longest sequence that will be computed.
    ///
    /// `transformers` chooses anew in each forward pass, by the length of the sequence, and recomputes a sequence that
    /// grows beyond the original context. In Interbed, a token's result must not depend on later tokens, so the longest
    /// possible sequence decides, as in vLLM.
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

    /// Returns the attention of each [`Part::Attention`], in the order of the layers.
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

    /// Returns, for each attention in the order of the layers, how many positions a token sees, itself included. `None`
    /// means all positions up to its own.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.attentions().map(|attention| attention.window).collect()
    }
}
