//! The parts of layers, and the states that they keep.

use interbed_kernels::KvShape;

use super::network::{Dense, Mixture};
use super::{Branch, Norm};

/// The computation of a branch.
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
    /// A mixture of experts: networks of which each token goes through a few.
    Mixture(Mixture),
    /// A gated lookup in the rows of an input table.
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
    /// Whether values are normed by a norm that has no weight.
    pub norms_values: bool,
    /// Index of the rotation among [`Blueprint::ropes`](super::Blueprint::ropes); `None` if positions are not encoded.
    pub rope: Option<usize>,
    /// Number that the scores are multiplied by before the softmax.
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
    /// Which projection makes the values of an attention.
    pub values: ValueSource,
    /// Where rows of keys and values come from.
    pub rows: KvRows,
    /// How the keys that a query sees are selected; `None` if it sees all within its window.
    pub selection: Option<KeySelection>,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormsOfHeads {
    /// Which elements are normed together, and whether before or after rotation.
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
    /// Returns the factor of a query at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.beta as f32 * ((1 + position / self.length) as f32).ln()
    }
}

/// Which projection makes the values of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    /// Values have a projection of their own.
    Projection,
    /// Values are made by the projection of the keys.
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

/// Selection of keys by an index. The index has a small key for each token or group of tokens; a query attends to the
/// groups whose index keys score best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySelection {
    /// Number of query heads that the index has.
    pub heads: usize,
    /// Elements of an index key.
    pub width: usize,
    /// Number of tokens that share an index key.
    pub group: usize,
    /// Number of groups that a query attends to.
    pub chosen: usize,
}

/// Attention over compressed rows of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Rank of the query projection, which then is a product of two matrices; `None` if it is one matrix.
    pub query_rank: Option<usize>,
    /// Elements of a row that are used both as key and as value.
    pub row_width: usize,
    /// Elements of a row that are rotated; they may be among the elements that are key and value, or apart from them.
    pub rotated: usize,
    /// Elements of a key head that are not rotated, once the row is unpacked.
    pub key_width: usize,
    /// Elements of a value head, once the row is unpacked.
    pub value_width: usize,
    /// Index of the rotation among [`Blueprint::ropes`](super::Blueprint::ropes).
    pub rope: usize,
    /// Number that the scores are multiplied by before the softmax.
    pub scale: f32,
    /// How many positions a token sees, itself included; `None` means all.
    pub window: Option<usize>,
    /// Whether each head has a sink: a score that takes part in the softmax and has no value.
    pub sinks: bool,
    /// Groups of heads whose results share an output projection of a lower rank; 1 for one projection.
    pub output_groups: usize,
    /// Rows that each stand for several tokens and are attended to besides those in the window.
    pub compressed: Option<CompressedRows>,
}

/// Rows that stand for several tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedRows {
    /// Number of tokens that a row stands for.
    pub rate: usize,
    /// Whether a row also covers the tokens of the preceding row.
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
    /// Number of rows that the convolution reads, the token's own included.
    pub convolution: usize,
    /// The norm of the result.
    pub norm: Norm,
}

/// A gated convolution over the last few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolution {
    /// Number of rows that the convolution reads, the token's own included.
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
    /// Elements that this part reads of the rows that were looked up for a token.
    pub width: usize,
    /// Number of rows of a convolution over the results, and the distance between these rows; `None` without a
    /// convolution.
    pub convolution: Option<(usize, usize)>,
}

/// A mixer between residual streams and a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamMixer {
    /// Number of residual streams.
    pub streams: usize,
    /// Rank of the projection that computes the mixing weights, which then is a product of two matrices; `None` if it
    /// is one matrix.
    pub rank: Option<usize>,
    /// Number of rounds that make the mixing matrix doubly stochastic; 0 if it stays as computed.
    pub rounds: usize,
    /// The norm of each stream.
    pub norm: Norm,
}

/// What a part keeps for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A row of keys and one of values for each token.
    Kv {
        /// Number of key and value heads, and their width.
        shape: KvShape,
        /// How many positions a token sees, itself included; `None` means all. Older rows are not needed.
        window: Option<usize>,
    },
    /// Nothing of its own: the part reads the keys and values of an earlier layer.
    SharedKv {
        /// Number of the layer that keeps the keys and values.
        layer: usize,
    },
    /// One row for each token.
    LatentRows {
        /// Elements of a row.
        width: usize,
        /// How many positions a token sees, itself included; `None` means all.
        window: Option<usize>,
    },
    /// One row for every `rate` tokens, and the rows of tokens that are not yet compressed.
    CompressedRows {
        /// Elements of a row.
        width: usize,
        /// Number of tokens that a row stands for.
        rate: usize,
    },
    /// The last rows of a convolution's input; their size does not grow with the sequence.
    LastRows {
        /// Number of rows.
        rows: usize,
        /// Elements of a row.
        width: usize,
    },
    /// One matrix for each head, which cannot be taken back to an earlier position.
    Matrix {
        /// Number of heads.
        heads: usize,
        /// Elements of a key.
        key_width: usize,
        /// Elements of a value.
        value_width: usize,
    },
    /// The last token ids.
    LastTokens {
        /// Number of token ids.
        count: usize,
    },
}

impl Part {
    /// Returns this part and, if it is a sum, the parts inside it.
    pub fn with_inner(&self) -> Box<dyn Iterator<Item = &Part> + '_> {
        match self {
            Self::Sum(branches) => {
                let inner = branches.iter().flat_map(|branch| branch.part.with_inner());
                Box::new(std::iter::once(self).chain(inner))
            }
            _ => Box::new(std::iter::once(self)),
        }
    }

    /// Returns what the part keeps for a sequence. A prefix of a sequence can be reused only if the states of all parts
    /// exist at one position.
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
    /// Returns the number and width of the heads that a row of keys or values has.
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
