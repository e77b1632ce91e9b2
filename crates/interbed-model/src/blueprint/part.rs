//! The parts of layers, and the states that they keep.

use interbed_kernels::KvShape;

use super::network::{Dense, Mixture};
use super::{Branch, Norm};

/// What a branch computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Attention over keys and values of each token.
    Attention(Attention),
    /// Attention over one row for each token that serves as key and value of all heads.
    Latent(LatentAttention),
    /// A recurrent state that is decayed, corrected by a delta rule, and read.
    GatedDelta(GatedDelta),
    /// A gated convolution over the last few rows.
    Convolution(ShortConvolution),
    /// A network that all tokens go through.
    Dense(Dense),
    /// Networks of which each token goes through a few.
    Mixture(Mixture),
    /// A gated lookup in rows that belong to tokens.
    Table(TableLookup),
    /// The sum of branches that read the same input.
    Sum(Vec<Branch>),
}

/// Attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides the number of query heads.
    pub kv_heads: usize,
    /// Elements of a query or key head; even.
    pub key_width: usize,
    /// Elements of a value head.
    pub value_width: usize,
    /// Whether the query, key and value projections have biases.
    pub input_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// The norms of queries and keys.
    pub norms: Option<NormsOfHeads>,
    /// Whether values are normed, without a weight.
    pub norms_values: bool,
    /// Index of the rotation among [`Blueprint::ropes`](super::Blueprint::ropes); `None` if positions are not encoded.
    pub rope: Option<usize>,
    /// The factor of the scores.
    pub scale: f32,
    /// How queries grow with their positions.
    pub growth: Option<QueryGrowth>,
    /// How many positions a token sees, itself included; `None` means all.
    pub window: Option<usize>,
    /// Whether each head has a sink: a score that takes part in the softmax and has no value.
    pub sinks: bool,
    /// The bound `c` of `c * tanh(score / c)`, if scores are bounded.
    pub soft_cap: Option<f32>,
    /// Whether the sigmoid of a second query projection multiplies the result.
    pub output_gate: bool,
    /// Where values come from.
    pub values: ValueSource,
    /// Where rows of keys and values come from.
    pub rows: KvRows,
    /// How the keys that a query sees are selected; `None` if it sees all within its window.
    pub selection: Option<KeySelection>,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormsOfHeads {
    /// What is normed together, and when.
    pub over: HeadNorms,
    /// Number that is added to the mean square.
    pub epsilon: f32,
    /// Number that is added to each element of the stored weights.
    pub offset: f32,
}

/// What a norm of queries or keys covers, and when it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// Each head by itself, before rotation.
    EachBefore,
    /// Each head by itself, after rotation.
    EachAfter,
    /// All heads together, before rotation.
    Whole,
}

/// Growth of queries: each is multiplied by `1 + beta * ln(1 + floor(position / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// The factor of the logarithm.
    pub beta: f64,
    /// Positions before the first step.
    pub length: usize,
}

impl QueryGrowth {
    /// The factor of a query at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.beta as f32 * ((1 + position / self.length) as f32).ln()
    }
}

/// Where values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    /// A projection of their own.
    Projection,
    /// The projection of the keys.
    Keys,
}

/// Where an attention's rows of keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvRows {
    /// The layer computes its own.
    Own,
    /// The layer reads those of an earlier layer, given by its number.
    Of(usize),
}

/// Selection of keys by an index: small keys of each token, of which groups with the best scores are attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySelection {
    /// Query heads of the index.
    pub heads: usize,
    /// Elements of an index key.
    pub width: usize,
    /// Tokens that share an index key.
    pub group: usize,
    /// Groups that are attended to.
    pub chosen: usize,
}

/// Attention over compressed rows of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Rank of the query projection; `None` if it is in one piece.
    pub query_rank: Option<usize>,
    /// Elements of a row that serve as key and value.
    pub row_width: usize,
    /// Elements of a row, beside these or among them, that are rotated.
    pub rotated: usize,
    /// Elements of a key head that are not rotated, once the row is unpacked.
    pub key_width: usize,
    /// Elements of a value head, once the row is unpacked.
    pub value_width: usize,
    /// Index of the rotation.
    pub rope: usize,
    /// The factor of the scores.
    pub scale: f32,
    /// How many positions a token sees, itself included; `None` means all.
    pub window: Option<usize>,
    /// Whether each head has a sink.
    pub sinks: bool,
    /// Groups of heads whose results share an output projection of a lower rank; 1 for one projection.
    pub output_groups: usize,
    /// Rows of several tokens in one, beside those in the window.
    pub compressed: Option<CompressedRows>,
}

/// Rows that stand for several tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedRows {
    /// Tokens of a row.
    pub rate: usize,
    /// Whether a row also covers the tokens of the row before.
    pub overlaps: bool,
    /// How rows are selected; `None` if all are attended to.
    pub selection: Option<KeySelection>,
}

/// A recurrent state of each head, updated by a delta rule with decay, after a convolution of its inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_width: usize,
    /// Elements of a value head.
    pub value_width: usize,
    /// Rows of the convolution, the token's own included.
    pub convolution: usize,
    /// The norm of the result.
    pub norm: Norm,
}

/// A gated convolution over the last few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolution {
    /// Rows, the token's own included.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Whether its projections have biases.
    pub bias: bool,
}

/// A lookup in the rows of an input table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLookup {
    /// Index of the table among [`Blueprint::tables`](super::Blueprint::tables).
    pub table: usize,
    /// Elements of the token's rows that this part reads.
    pub width: usize,
    /// Rows of a convolution over the results, and the distance between them; `None` without one.
    pub convolution: Option<(usize, usize)>,
}

/// A mixer between residual streams and a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamMixer {
    /// Residual streams.
    pub streams: usize,
    /// Rank of the projection that computes the weights; `None` if it is in one piece.
    pub rank: Option<usize>,
    /// Rounds in which the matrix is made doubly stochastic; 0 if it is not.
    pub rounds: usize,
    /// The norm of each stream.
    pub norm: Norm,
}

/// What a part keeps for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A row of keys and one of values for each token.
    Kv {
        /// The heads.
        shape: KvShape,
        /// How many positions a token sees, itself included; `None` means all. Older rows are not needed.
        window: Option<usize>,
    },
    /// The rows of an earlier layer.
    SharedKv {
        /// The number of that layer.
        layer: usize,
    },
    /// One row for each token.
    LatentRows {
        /// Elements of a row.
        width: usize,
        /// How many positions a token sees, itself included; `None` means all.
        window: Option<usize>,
    },
    /// One row for so many tokens, and the rows of tokens that are not yet compressed.
    CompressedRows {
        /// Elements of a row.
        width: usize,
        /// Tokens of a row.
        rate: usize,
    },
    /// The last rows of a convolution's input; their size does not grow with the sequence.
    LastRows {
        /// Rows.
        rows: usize,
        /// Elements of a row.
        width: usize,
    },
    /// A matrix of each head, which cannot be truncated to an earlier position.
    Matrix {
        /// Heads.
        heads: usize,
        /// Elements of a key.
        key_width: usize,
        /// Elements of a value.
        value_width: usize,
    },
    /// The last token ids.
    LastTokens {
        /// How many.
        count: usize,
    },
}

impl Part {
    /// This part, and the parts inside it if it is a sum.
    pub fn with_inner(&self) -> Box<dyn Iterator<Item = &Part> + '_> {
        match self {
            Self::Sum(branches) => {
                let inner = branches.iter().flat_map(|branch| branch.part.with_inner());
                Box::new(std::iter::once(self).chain(inner))
            }
            _ => Box::new(std::iter::once(self)),
        }
    }

    /// What the part keeps for a sequence. A prefix of a sequence is reusable only if all states of all parts exist at
    /// one position.
    pub fn states(&self) -> Vec<State> {
        match self {
            Self::Attention(attention) => attention.states(),
            Self::Latent(latent) => latent.states(),
            Self::GatedDelta(delta) => delta.states().to_vec(),
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
    /// The heads of a row of keys or values.
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
    fn states(&self) -> [State; 2] {
        let &Self { key_heads, value_heads: heads, key_width, value_width, convolution, .. } = self;
        let width = 2 * key_heads * key_width + heads * value_width;
        [State::Matrix { heads, key_width, value_width }, State::LastRows { rows: convolution - 1, width }]
    }
}
