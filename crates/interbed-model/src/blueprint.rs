//! What a model computes: a list of layers, each of parts, and what each part keeps for a sequence.
//!
//! A family's file ([`families`](crate::families)) produces a blueprint from a model's configuration, and the layers
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

/// The complete description of what a model computes. Every number is within the limits below and consistent with the
/// others.
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
    /// Rows that a token adds beside its embedding.
    pub tables: Vec<InputTable>,
    /// The factor of the embeddings.
    pub embedding_factor: f32,
    /// The rotations of which attention names one or none. The first is the model's main one.
    pub ropes: Vec<Rope>,
    /// The decoder layers, in order.
    pub layers: Vec<DecoderLayer>,
    /// What follows the last layer.
    pub head: Head,
}

/// Rows that are looked up for each token beside its embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InputTable {
    /// Rows for each token.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// The factor of the rows.
    pub factor: f32,
    /// Number of preceding token ids by which rows are chosen, the token's own included.
    pub ids: usize,
}

/// A decoder layer: branches that are computed in turn, each of which adds to the residual streams.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderLayer {
    /// The branches.
    pub branches: Vec<Branch>,
    /// Whether the hidden state is multiplied by a learned factor after the last branch.
    pub has_factor: bool,
}

/// A part with what precedes and follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// What the hidden state goes through before the part.
    pub enter: Passage,
    /// What is computed.
    pub part: Part,
    /// What the part's result goes through before it is added.
    pub leave: Passage,
    /// The factor of the result.
    pub factor: f32,
}

/// What lies between the residual streams and a part, on either side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Passage {
    /// Nothing.
    Direct,
    /// A norm.
    Norm(Norm),
    /// A mixer of residual streams.
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

/// What follows the last layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// How several residual streams become one; `None` where there is one.
    pub mixer: Option<StreamMixer>,
    /// The last norm.
    pub norm: Norm,
    /// The divisor of the logits.
    pub divisor: f32,
    /// The bound `c` of `c * tanh(logit / c)`, if logits are bounded.
    pub soft_cap: Option<f32>,
    /// Whether the head's matrix is the embedding. The weight files settle it, see
    /// [`HeadSource`](crate::HeadSource).
    pub is_tied: bool,
}

impl InputTable {
    /// What the table keeps for a sequence: the ids before a pass's first token by which its rows are chosen too.
    pub fn state(&self) -> Option<State> {
        (self.ids > 1).then(|| State::LastTokens { count: self.ids - 1 })
    }
}

impl Passage {
    /// The norm, if it is one.
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

    /// Settles which of two sets of factors holds, if the model has two: the one for sequences beyond its original
    /// context, unless no sequence is longer than `longest` tokens. `transformers` decides anew for each pass, by the
    /// length that a sequence then has, and computes all of it again when it passes that border; here what a token
    /// gives must not depend on what comes after it, so the longest sequence that may come decides, as in vLLM.
    pub fn settle_length(&mut self, longest: usize) {
        for rope in &mut self.ropes {
            if let RopeScaling::LongRope { original_max, is_long, .. } = &mut rope.scaling {
                *is_long = longest.min(self.positions) > *original_max;
            }
        }
    }

    /// All parts of all layers, those inside sums included.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.layers.iter().flat_map(|layer| &layer.branches).flat_map(|branch| branch.part.with_inner())
    }

    /// The attention parts, in the order of the layers.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.parts().filter_map(|part| match part {
            Part::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// The mixture of each layer that has one, with the number of the layer.
    pub fn mixtures(&self) -> impl Iterator<Item = (usize, &Mixture)> {
        self.layers.iter().enumerate().flat_map(|(number, layer)| {
            let parts = layer.branches.iter().flat_map(|branch| branch.part.with_inner());
            parts.filter_map(move |part| match part {
                Part::Mixture(mixture) => Some((number, mixture)),
                _ => None,
            })
        })
    }

    /// The first mixture; in models that Interbed computes, all mixtures of a model are alike.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.mixtures().next().map(|(_, mixture)| mixture)
    }

    /// The activations of all networks.
    pub fn activations(&self) -> impl Iterator<Item = Activation> {
        self.parts().filter_map(|part| match part {
            Part::Dense(dense) => Some(dense.activation),
            Part::Mixture(mixture) => Some(mixture.activation),
            _ => None,
        })
    }

    /// Width of the first dense network, or of an expert if all networks are mixtures; 0 without networks.
    pub fn inner_size(&self) -> usize {
        let width = |part: &Part| match part {
            Part::Dense(dense) => Some(dense.width),
            _ => None,
        };
        self.parts().find_map(width).or(self.mixture().map(|mixture| mixture.expert_width)).unwrap_or(0)
    }

    /// The factor of the first branch; 1 without branches.
    pub fn branch_factor(&self) -> f32 {
        self.layers.iter().flat_map(|layer| &layer.branches).next().map_or(1.0, |branch| branch.factor)
    }

    /// For each attention, how many positions a token sees (itself included), or `None` for all.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.attentions().map(|attention| attention.window).collect()
    }
}
