//! The parts of layers, and the states that they keep.

use interbed_kernels::{Activation, DecayForm, KeySharing, KvShape};

use super::network::{Dense, Mixture};
use super::{Branch, Norm};

/// The computation of a branch.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Attention with a row of keys and a row of values for each token.
    Attention(Attention),
    /// Attention with one row for each token, which serves as the key and the value of all heads.
    Latent(LatentAttention),
    /// A gated delta rule, which updates a recurrent state.
    GatedDelta(GatedDelta),
    /// A selective state space, which updates a recurrent state.
    Mamba(Mamba),
    /// A gated convolution over the last few tokens.
    Convolution(ShortConvolution),
    /// A feed-forward network that all tokens go through.
    Dense(Dense),
    /// A mixture of experts: each token goes through a few of them.
    Mixture(Mixture),
    /// A gated lookup in an input table.
    Table(TableLookup),
    /// Several branches that read the same input. Their results are added.
    Sum(Vec<Branch>),
}

/// Attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads. It divides the number of query heads.
    pub kv_heads: usize,
    /// Number of elements of a query or key head. It is even.
    pub key_width: usize,
    /// Number of elements of a value head.
    pub value_width: usize,
    /// Whether the query, key and value projections have biases.
    pub input_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// The norms of queries and keys; `None` if queries and keys are not normalised.
    pub norms: Option<NormsOfHeads>,
    /// Whether values are normalised by a norm without a weight.
    pub norms_values: bool,
    /// Index of the rotation in [`Blueprint::ropes`](super::Blueprint::ropes); `None` if queries and keys are not
    /// rotated.
    pub rope: Option<usize>,
    /// Number that attention scores are multiplied by before the softmax.
    pub scale: f32,
    /// How queries are scaled by position; `None` if they are not scaled.
    pub growth: Option<QueryGrowth>,
    /// How many positions a token sees, itself included; `None` means all positions up to its own.
    pub window: Option<usize>,
    /// Whether each head has an attention sink: a learned score that takes part in the softmax but has no value.
    pub sinks: bool,
    /// The bound `c` if scores are replaced by `c * tanh(score / c)`; `None` if scores are not bounded.
    pub soft_cap: Option<f32>,
    /// Whether the result of attention is multiplied by the sigmoid of a second query projection.
    pub output_gate: bool,
    /// Which projection produces the values.
    pub values: ValueSource,
    /// Whether the layer computes keys and values or reads those of another layer.
    pub rows: KvRows,
    /// How the keys that a query attends to are selected; `None` if a query attends to all keys within the window.
    pub selection: Option<KeySelection>,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormsOfHeads {
    /// Which elements each norm covers, and whether the norm is applied before or after rotation.
    pub over: HeadNorms,
    /// Number that is added to the mean square.
    pub epsilon: f32,
    /// Number that is added to each element of the stored weights.
    pub offset: f32,
}

/// What a norm of queries or keys covers, and when it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// Each head is normalised by itself, before rotation.
    EachBefore,
    /// Each head is normalised by itself, after rotation.
    EachAfter,
    /// All heads are normalised together, before rotation.
    Whole,
}

/// Scaling of queries by position. A query is multiplied by `1 + beta * ln(1 + floor(position / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// The factor of the logarithm.
    pub beta: f64,
    /// Number of successive positions that have the same factor.
    pub length: usize,
}

impl QueryGrowth {
    /// Returns the factor that multiplies a query at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.beta as f32 * ((1 + position / self.length) as f32).ln()
    }
}

/// Which projection produces the values of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    /// Values have their own projection.
    Projection,
    /// The projection of keys also produces the values.
    Keys,
}

/// Which layer computes the keys and values of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvRows {
    /// The layer computes its own keys and values.
    Own,
    /// The layer reads the keys and values of the earlier layer with this index.
    Of(usize),
}

/// Selection of keys by an index. The index has a small key for each group of one or more tokens. A query attends to
/// the groups whose index keys score best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySelection {
    /// Number of query heads of the index.
    pub heads: usize,
    /// Number of elements of an index key.
    pub width: usize,
    /// Number of tokens that share an index key.
    pub group: usize,
    /// Number of groups that a query attends to.
    pub chosen: usize,
}

/// Latent attention. Each token has one compressed row, which serves as the key and the value of all heads.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttention {
    /// Number of query heads.
    pub heads: usize,
    /// Rank of the query projection. `None` means that the projection is a single matrix instead of a product of two.
    pub query_rank: Option<usize>,
    /// Number of elements of a row that are not rotated. They serve as both key and value.
    pub row_width: usize,
    /// Number of elements of a row that are rotated, in addition to those of `row_width`. They serve as key and, in
    /// some models, also as value.
    pub rotated: usize,
    /// Number of elements that are not rotated in the key of one head. The model expands a row into the keys of all
    /// heads.
    pub key_width: usize,
    /// Number of elements in the value of one head. The model expands a row into the values of all heads.
    pub value_width: usize,
    /// Index of the rotation in [`Blueprint::ropes`](super::Blueprint::ropes).
    pub rope: usize,
    /// Number that attention scores are multiplied by before the softmax.
    pub scale: f32,
    /// How many positions a token sees, itself included; `None` means all positions up to its own.
    pub window: Option<usize>,
    /// Whether each head has an attention sink: a learned score that takes part in the softmax but has no value.
    pub sinks: bool,
    /// Number of groups of heads. The results of each group go through a low-rank output projection. 1 means a single
    /// output projection for all heads.
    pub output_groups: usize,
    /// Compressed rows that a query attends to besides the rows in its window; `None` if there are none.
    pub compressed: Option<CompressedRows>,
}

/// Rows that each stand for several tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedRows {
    /// Number of tokens that a row stands for.
    pub rate: usize,
    /// Whether a row also covers the tokens of the preceding row.
    pub overlaps: bool,
    /// How the rows that a query attends to are selected; `None` if a query attends to all rows.
    pub selection: Option<KeySelection>,
}

/// A gated delta rule. The inputs first go through a convolution. Each value head has a recurrent state, which decays
/// and is updated by the delta rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedDelta {
    /// Number of key heads, which is also the number of query heads.
    pub key_heads: usize,
    /// Number of value heads. Each value head has its own recurrent state.
    pub value_heads: usize,
    /// Number of elements of a query or key head.
    pub key_width: usize,
    /// Number of elements of a value head.
    pub value_width: usize,
    /// Which key head serves a value head. This depends on the file format of the weights.
    pub sharing: KeySharing,
    /// How weight files state the rates at which value heads decay. This depends on their format.
    pub decay: DecayForm,
    /// Number that is added to the square sums by which queries and keys are normalised.
    pub epsilon: f32,
    /// Number of rows that the convolution reads for a token, including the token's own row.
    pub convolution: usize,
    /// The norm that is applied to the result.
    pub norm: Norm,
}

/// A selective state space, as Mamba-2 has it. The inputs first go through a convolution. Each head has a recurrent
/// state, which decays by a factor that each token chooses. The result is multiplied by a gate and normalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba {
    /// Number of heads. Each head has its own recurrent state.
    pub heads: usize,
    /// Number of elements of a head.
    pub head_width: usize,
    /// Number of elements of a state for each element of a head.
    pub state_width: usize,
    /// Number of groups of neighbouring heads. The heads of a group share what a token writes to states and what it
    /// reads from them.
    pub groups: usize,
    /// How weight files state the rates at which heads decay. This depends on their format.
    pub decay: DecayForm,
    /// The smallest and the largest step that a token takes. The largest may be infinite.
    pub step_limits: [f32; 2],
    /// Number of rows that the convolution reads for a token, including the token's own row.
    pub convolution: usize,
    /// Whether the convolution has a bias.
    pub convolution_bias: bool,
    /// The norm that is applied to the gated result, to the part of each group by itself. The weight covers all groups.
    pub norm: Norm,
}

/// A gated convolution over the last few tokens, each of which has one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolution {
    /// Number of rows that the convolution reads for a token, including the token's own row.
    pub rows: usize,
    /// Number of elements of a row.
    pub width: usize,
    /// Whether the convolution and the projections before and after it have biases.
    pub bias: bool,
}

/// A lookup in an input table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLookup {
    /// Index of the table in [`Blueprint::tables`](super::Blueprint::tables).
    pub table: usize,
    /// Index of the row among those that the table has for a token.
    pub row: usize,
    /// Number of elements that the lookup yields for each token.
    pub width: usize,
    /// The function that is applied to a projection of the hidden state, which then multiplies the row.
    pub activation: Activation,
    /// The convolution over the results of the lookup: the number of rows that it reads for a token, and the distance
    /// in tokens between these rows. `None` means that there is no convolution.
    pub convolution: Option<(usize, usize)>,
}

/// Mixing of residual streams before or after a part, or before the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamMixer {
    /// Number of residual streams.
    pub streams: usize,
    /// Rank of the projection that computes the mixing weights. `None` means that the projection is a single matrix
    /// instead of a product of two.
    pub rank: Option<usize>,
    /// Number of rounds that make the mixing matrix doubly stochastic. 0 means that the matrix is not changed.
    pub rounds: usize,
    /// The norm that is applied to each stream.
    pub norm: Norm,
}

/// State that a part or an input table keeps for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A row of keys and a row of values for each token.
    Kv {
        /// Number of key and value heads, and the width of a head.
        shape: KvShape,
        /// How many positions a token sees, itself included; `None` means all. Rows of older positions are not needed.
        window: Option<usize>,
    },
    /// The part itself keeps nothing. It reads the keys and values of an earlier layer.
    SharedKv {
        /// Index of the layer that keeps the keys and values.
        layer: usize,
    },
    /// One row for each token: the row of latent attention, or the index key of a [`KeySelection`].
    LatentRows {
        /// Number of elements of a row.
        width: usize,
        /// How many positions a token sees, itself included; `None` means all.
        window: Option<usize>,
    },
    /// One row for every `rate` tokens, and the rows of tokens that are not yet compressed. The rows are those of
    /// latent attention, or the index keys of a [`KeySelection`].
    CompressedRows {
        /// Number of elements of a row.
        width: usize,
        /// Number of tokens that a row stands for.
        rate: usize,
    },
    /// The last rows of a convolution's input. The number of rows does not grow with the sequence.
    LastRows {
        /// Number of rows.
        rows: usize,
        /// Number of elements of a row.
        width: usize,
    },
    /// One matrix for each head. The matrix of an earlier position cannot be recovered from that of a later one.
    Matrix {
        /// Number of heads.
        heads: usize,
        /// Number of elements of a key.
        key_width: usize,
        /// Number of elements of a value.
        value_width: usize,
    },
    /// The ids of the last tokens.
    LastTokens {
        /// Number of token ids.
        count: usize,
    },
}

impl Part {
    /// Returns this part and, if it is a sum, all parts within the sum.
    pub fn with_inner(&self) -> Box<dyn Iterator<Item = &Part> + '_> {
        match self {
            Self::Sum(branches) => {
                let inner = branches.iter().flat_map(|branch| branch.part.with_inner());
                Box::new(std::iter::once(self).chain(inner))
            }
            _ => Box::new(std::iter::once(self)),
        }
    }

    /// Returns the states that the part keeps for a sequence. A prefix of a sequence can be reused only if the states
    /// of all parts exist at the position where the prefix ends.
    pub fn states(&self) -> Vec<State> {
        match self {
            Self::Attention(attention) => attention.states(),
            Self::Latent(latent) => latent.states(),
            Self::GatedDelta(delta) => delta.states().to_vec(),
            Self::Mamba(mamba) => mamba.states().to_vec(),
            Self::Convolution(convolution) => {
                vec![State::LastRows { rows: convolution.rows - 1, width: convolution.width }]
            }
            Self::Table(lookup) => match lookup.convolution {
                Some((rows, distance)) => {
                    vec![State::LastRows { rows: (rows - 1) * distance, width: lookup.width }]
                }
                None => Vec::new(),
            },
            Self::Dense(_) | Self::Mixture(_) => Vec::new(),
            Self::Sum(branches) => branches.iter().flat_map(|branch| branch.part.states()).collect(),
        }
    }
}

impl Attention {
    /// Returns the number of key and value heads, and the width of a head.
    pub fn kv_shape(&self) -> KvShape {
        KvShape { num_kv_heads: self.kv_heads, head_dim: self.key_width }
    }

    fn states(&self) -> Vec<State> {
        let rows = match self.rows {
            KvRows::Own => State::Kv { shape: self.kv_shape(), window: self.window },
            KvRows::Of(layer) => State::SharedKv { layer },
        };
        let index = self.selection.map(|selection| selection.state(self.window));
        std::iter::once(rows).chain(index).collect()
    }
}

impl KeySelection {
    fn state(self, window: Option<usize>) -> State {
        match self.group {
            0 | 1 => State::LatentRows { width: self.width, window },
            rate => State::CompressedRows { width: self.width, rate },
        }
    }
}

impl LatentAttention {
    fn states(&self) -> Vec<State> {
        let width = self.row_width + self.rotated;
        let mut states = vec![State::LatentRows { width, window: self.window }];
        if let Some(compressed) = self.compressed {
            states.push(State::CompressedRows { width, rate: compressed.rate });
            states.extend(compressed.selection.map(|selection| selection.state(None)));
        }
        states
    }
}

impl GatedDelta {
    /// Returns the number of elements of all keys of a token. There are as many of its queries.
    pub fn keys_width(&self) -> usize {
        self.key_heads * self.key_width
    }

    /// Returns the number of elements of all values of a token.
    pub fn values_width(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Returns the number of elements of a row of the convolution: queries, keys and values of a token.
    pub fn row_width(&self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    fn states(&self) -> [State; 2] {
        let &Self { value_heads: heads, key_width, value_width, convolution, .. } = self;
        let rows = State::LastRows { rows: convolution - 1, width: self.row_width() };
        [State::Matrix { heads, key_width, value_width }, rows]
    }
}

impl Mamba {
    /// Returns the number of elements of all heads of a token.
    pub fn inner_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Returns the number of elements of a row of the convolution: the heads of a token, and what it writes to the
    /// states of each group and reads from them.
    pub fn row_width(&self) -> usize {
        self.inner_width() + 2 * self.groups * self.state_width
    }

    fn states(&self) -> [State; 2] {
        let rows = State::LastRows { rows: self.convolution - 1, width: self.row_width() };
        [State::Matrix { heads: self.heads, key_width: self.state_width, value_width: self.head_width }, rows]
    }
}
