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

/// Complete description of what a model computes. Every number is within the limits of [`Blueprint`]'s constants and
/// consistent with the other numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// Rows of the embedding; token ids are below this number.
    pub vocab_size: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// The context that the configuration states, in tokens; some scalings of rope stretch it.
    pub positions: usize,
    /// The longest context that the model is made for, in tokens.
    pub context: usize,
    /// Number of residual streams, each of the hidden width.
    pub streams: usize,
    /// Tables whose rows are looked up for each token in addition to its embedding.
    pub tables: Vec<InputTable>,
    /// The factor of the embeddings.
    pub embedding_factor: f32,
    /// The rotations of queries and keys; each attention refers to one of them, or to none. The first is the model's
    /// main one.
    pub ropes: Vec<Rope>,
    /// The decoder layers, in order.
    pub layers: Vec<DecoderLayer>,
    /// The norm and the matrix that turn hidden states into logits.
    pub head: Head,
}

/// A table whose rows are looked up for each token in addition to its embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InputTable {
    /// Number of rows that are looked up for each token.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Number that the rows are multiplied by.
    pub factor: f32,
    /// Number of token ids that choose a row: the token's own and those before it.
    pub ids: usize,
}

/// A decoder layer: branches that are computed in turn, each of which adds to the residual streams.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderLayer {
    /// The branches, in the order in which they are computed.
    pub branches: Vec<Branch>,
    /// Whether the hidden state is multiplied by a learned factor after the last branch.
    pub has_factor: bool,
}

/// A part with what precedes and follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// What the hidden state goes through before the part.
    pub enter: Passage,
    /// The computation between both passages.
    pub part: Part,
    /// What the part's result goes through before it is added.
    pub leave: Passage,
    /// Number that the result is multiplied by before it is added.
    pub factor: f32,
}

/// What lies between the residual streams and a part, on either side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Passage {
    /// The hidden state passes unchanged.
    Direct,
    /// The hidden state is normed.
    Norm(Norm),
    /// Several residual streams are mixed.
    Mixer(StreamMixer),
}

/// A root-mean-square norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Name of the weight within the layer, without `.weight`, as Hugging Face files have it; empty if the norm has no
    /// weight.
    pub name: &'static str,
    /// Number that is added to the mean square.
    pub epsilon: f32,
    /// Number that is added to each element of the stored weight.
    pub offset: f32,
}

/// The norm and the matrix that turn hidden states into logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// How several residual streams become one; `None` in models with one stream.
    pub mixer: Option<StreamMixer>,
    /// The norm of the hidden states before the head's matrix.
    pub norm: Norm,
    /// Number that the logits are divided by.
    pub divisor: f32,
    /// The bound `c` of `c * tanh(logit / c)`, if logits are bounded.
    pub soft_cap: Option<f32>,
    /// Whether the head's matrix is the embedding. The weight files settle it, see
    /// [`HeadSource`](crate::HeadSource).
    pub is_tied: bool,
}

impl InputTable {
    /// Returns what the table keeps for a sequence: the last token ids, which choose rows of the next pass; `None` if
    /// only a token's own id counts.
    pub fn state(&self) -> Option<State> {
        (self.ids > 1).then(|| State::LastTokens { count: self.ids - 1 })
    }
}

impl Passage {
    /// Returns the norm, if this passage is one.
    pub fn norm(&self) -> Option<Norm> {
        match self {
            Self::Norm(norm) => Some(*norm),
            Self::Direct | Self::Mixer(_) => None,
        }
    }
}

impl Blueprint {
    /// Largest `vocab_size`.
    pub const VOCAB_SIZE_MAX: usize = 1 << 24;
    /// Largest `hidden_size`.
    pub const HIDDEN_SIZE_MAX: usize = 1 << 20;
    /// Largest width of a feed-forward network.
    pub const INNER_SIZE_MAX: usize = 1 << 22;
    /// Most layers.
    pub const LAYERS_MAX: usize = 10_000;
    /// Most query heads.
    pub const HEADS_MAX: usize = 1 << 14;
    /// Widest head.
    pub const HEAD_DIM_MAX: usize = 4096;
    /// Longest context.
    pub const POSITIONS_MAX: usize = 1 << 31;
    /// Most parameters in all: 2^44, several times those of the largest known model.
    pub const PARAMETERS_MAX: u64 = 1 << 44;

    /// Settles which of LongRoPE's two sets of factors is used, in models that have two: the long set, unless no
    /// sequence is longer than `longest` tokens or than the original context. `transformers` decides anew for each pass
    /// by the length of the sequence, and recomputes a sequence that grows beyond the original context. Here a token's
    /// result must not depend on later tokens, so the longest possible sequence decides, as in vLLM.
    pub fn settle_length(&mut self, longest: usize) {
        for rope in &mut self.ropes {
            if let RopeScaling::LongRope { original_max, is_long, .. } = &mut rope.scaling {
                *is_long = longest.min(self.positions) > *original_max;
            }
        }
    }

    /// Returns all parts of all layers, including the parts inside sums.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.layers.iter().flat_map(|layer| &layer.branches).flat_map(|branch| branch.part.with_inner())
    }

    /// Returns the attention parts, in the order of the layers.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.parts().filter_map(|part| match part {
            Part::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// Returns the mixture of each layer that has one, with the number of the layer.
    pub fn mixtures(&self) -> impl Iterator<Item = (usize, &Mixture)> {
        self.layers.iter().enumerate().flat_map(|(number, layer)| {
            let parts = layer.branches.iter().flat_map(|branch| branch.part.with_inner());
            parts.filter_map(move |part| match part {
                Part::Mixture(mixture) => Some((number, mixture)),
                _ => None,
            })
        })
    }

    /// Returns the first mixture; in models that Interbed computes, all mixtures of a model are alike.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.mixtures().next().map(|(_, mixture)| mixture)
    }

    /// Returns the activations of all dense networks and mixtures.
    pub fn activations(&self) -> impl Iterator<Item = Activation> {
        self.parts().filter_map(|part| match part {
            Part::Dense(dense) => Some(dense.activation),
            Part::Mixture(mixture) => Some(mixture.activation),
            _ => None,
        })
    }

    /// Returns the width of the first dense network, or of an expert if all networks are mixtures; 0 without networks.
    pub fn inner_size(&self) -> usize {
        let width = |part: &Part| match part {
            Part::Dense(dense) => Some(dense.width),
            _ => None,
        };
        self.parts().find_map(width).or(self.mixture().map(|mixture| mixture.expert_width)).unwrap_or(0)
    }

    /// Returns the factor of the first branch; 1 without branches.
    pub fn branch_factor(&self) -> f32 {
        self.layers.iter().flat_map(|layer| &layer.branches).next().map_or(1.0, |branch| branch.factor)
    }

    /// Returns for each attention how many positions a token sees (itself included), or `None` if it sees all.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.attentions().map(|attention| attention.window).collect()
    }
}
