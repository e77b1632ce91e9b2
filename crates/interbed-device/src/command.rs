//! The operations of a pass, as commands to a device.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use interbed_kernels::{
    Activation, AttentionLayer, AttentionSpan, DeltaRule, KvLayer, RopeStyle, StateLayer, StateSpace, StateSpan,
};

use crate::{HostBuffer, KvFrame, PlacedBytes, Tensor, Weights};

/// The most products in one [`Command::Products`], and so the most bands of weights that one command can use.
pub const PRODUCTS_MAX: usize = 16;

/// The most results of one command's products. Each result belongs to a whole matrix, of which a command may have
/// several bands.
pub const OUTS_MAX: usize = 4;

/// The most numbers that [`Command::Best`] takes of a row.
pub const BEST_MAX: usize = 65;

/// The most numbers that a row of [`Command::Best`] may have.
pub const BEST_WIDTH_MAX: usize = 1 << 22;

/// The most places that one command reads and writes.
const ACCESSES_MAX: usize = 8 + 2 * PRODUCTS_MAX;

/// One operation. All numbers are f32 in [`Tensor`]s, whose shapes follow from their lengths.
///
/// A device reads everything that a command borrows before [`submit`](crate::Device::submit) returns, and copies what
/// it needs for longer; for [`Weights`], it keeps their memory alive instead.
pub enum Command<'a> {
    /// Writes numbers from the host: `values` is called once, with a slice as long as `out`.
    Fill {
        /// The tensor to fill, of any shape.
        out: Tensor,
        /// Writes all numbers of the slice.
        values: &'a dyn Fn(&mut [f32]),
    },
    /// Computes `out[i] = table[rows[i]] * multiplier`, for rows of a table.
    Gather {
        /// The table, `[any, width]`.
        table: &'a Weights,
        /// The numbers of the rows to gather, `[tokens]`.
        rows: &'a [u32],
        /// The factor of all numbers; 1.0 changes nothing.
        multiplier: f32,
        /// The result, `[tokens, width]`.
        out: Tensor,
    },
    /// Moves some rows, in ascending order, to the front of a tensor.
    KeepRows {
        /// The rows, `[tokens, width]`.
        tensor: Tensor,
        /// The width of a row, in numbers.
        width: usize,
        /// The numbers of the rows to keep.
        rows: &'a [u32],
    },
    /// Computes `out[t] = sum over s of factors[t][s] * from[places[t][s]]` for rows, in the order of `s`. With one
    /// place for each row of `out`, and factors of 1, this command gathers rows.
    Combine {
        /// The rows to combine, `[any, width]`.
        from: Tensor,
        /// Numbers in a row.
        width: usize,
        /// The numbers of the rows of `from`, `[rows of out, places of each]`.
        places: &'a [u32],
        /// The factors, in the shape of `places`.
        factors: &'a [f32],
        /// The result, `[any, width]`.
        out: Tensor,
    },
    /// `out = x / rms(x) * (weight + offset)`, for each row.
    Norm {
        /// The rows, `[tokens, width]`.
        x: Tensor,
        /// The weights of the norm, `[width]`. If `out` is `x`, they may be `[several, width]`: then rows of `x` take
        /// them in turns.
        weight: &'a Weights,
        /// Added to each element of the weight.
        offset: f32,
        /// Added to the mean square.
        epsilon: f32,
        /// The result, in the shape of `x`; may be `x` itself.
        out: Tensor,
    },
    /// `out = x / rms(x)`, for each row: a norm without weights.
    Normalise {
        /// The rows, `[rows, width]`.
        x: Tensor,
        /// Numbers in a row.
        width: usize,
        /// Added to the mean square.
        epsilon: f32,
        /// The result, in the shape of `x`; may be `x` itself.
        out: Tensor,
    },
    /// Computes `sum += branch * scale`, then writes the norm of `sum` to `out`.
    AddAndNorm {
        /// The sum, `[tokens, width]`, to which the branch is added.
        sum: Tensor,
        /// The branch, in the shape of `sum`.
        branch: Tensor,
        /// The factor of the branch; 1.0 changes nothing.
        scale: f32,
        /// The weights of the norm, `[width]`.
        weight: &'a Weights,
        /// Added to each element of the weight.
        offset: f32,
        /// Added to the mean square.
        epsilon: f32,
        /// The result, in the shape of `sum`.
        out: Tensor,
    },
    /// Computes `sum += branch * scale`.
    Add {
        /// The sum, of any shape, to which the branch is added.
        sum: Tensor,
        /// The branch, in the shape of `sum`.
        branch: Tensor,
        /// The factor of the branch; 1.0 changes nothing.
        scale: f32,
    },
    /// Computes `x *= by`.
    Scale {
        /// The numbers to scale, of any shape.
        x: Tensor,
        /// The factor.
        by: f32,
    },
    /// Computes `x *= by`, with a factor that is a weight.
    ScaleBy {
        /// The numbers to scale, of any shape.
        x: Tensor,
        /// The factor, `[1]`.
        by: &'a Weights,
    },
    /// Computes `out[t][r] = sum over c of x[t][c] * weights[r][c] + bias[r]`, for each of `products`. With `gate`,
    /// products come in pairs over the same rows; the first result of a pair becomes `gate(first) * second`, and the
    /// second result is scratch memory.
    Products {
        /// The activations, `[tokens, cols]`.
        x: Tensor,
        /// Numbers in a row of `x`.
        cols: usize,
        /// The bands to multiply with, in ascending order of rows for each `out`: at most [`PRODUCTS_MAX`], with at
        /// most [`OUTS_MAX`] results.
        products: &'a [BandProduct<'a>],
        /// The activation function of a gated network; `None` if products do not come in pairs.
        gate: Option<Activation>,
    },
    /// Computes `gate[t][c] = activation(gate[t][c]) * up[t][c]` (or the formula of [`Activation`]), for some columns
    /// `c`. [`Products`](Self::Products) with a `gate` does the same; this command serves pairs whose products were
    /// computed apart.
    Gate {
        /// The numbers to which the activation function is applied, and the result: `[tokens, width]`.
        gate: Tensor,
        /// The factors, in the shape of `gate`.
        up: Tensor,
        /// Numbers in a row of `gate` or `up`.
        width: usize,
        /// The columns that are computed.
        columns: Range<usize>,
        /// The activation function.
        activation: Activation,
    },
    /// `x = activation(x)`, for networks without a gate.
    Activate {
        /// Any shape.
        x: Tensor,
        /// The activation.
        activation: Activation,
    },
    /// `x = bound * tanh(x / bound)`: numbers far from 0 come near the bound and stay within it.
    Cap {
        /// The numbers to bound, of any shape.
        x: Tensor,
        /// The bound, above 0.
        bound: f32,
    },
    /// Rotates queries whose keys are stored already: [`StoreKv`](Self::StoreKv) rotates others.
    Rotate {
        /// The queries, `[tokens, heads, head_dim]`.
        q: Tensor,
        /// The number of heads of a token, and of numbers in a head.
        shape: [usize; 2],
        /// The way in which the elements of a head form pairs.
        style: RopeStyle,
        /// The cosines, `[tokens, pairs]`, with at most `head_dim / 2` pairs: the beginning of each head is rotated.
        cos: Tensor,
        /// The sines, in the shape of `cos`.
        sin: Tensor,
    },
    /// Rotates queries and keys, and writes keys and values into the KV of `sequences`.
    StoreKv {
        /// The place of the layer in a block.
        layer: KvLayer,
        /// The sequences of the batch.
        sequences: KvSequences<'a>,
        /// The way in which the elements of a head form pairs.
        style: RopeStyle,
        /// The cosines, `[tokens, pairs]`, with at most `head_dim / 2` pairs: the beginning of each head is rotated.
        cos: Tensor,
        /// The sines, in the shape of `cos`.
        sin: Tensor,
        /// The queries, `[tokens, heads, head_dim]`.
        q: Tensor,
        /// The keys, `[tokens, num_kv_heads, head_dim]`.
        k: Tensor,
        /// The values, in the shape of `k`.
        v: Tensor,
    },
    /// Computes the attention of every token to the KV of the token's own sequence, as far as that KV is held: see
    /// [`attention`](interbed_kernels::attention).
    Attend {
        /// The computation of the layer.
        layer: AttentionLayer,
        /// The frame of this layer that holds the KV of the sequences; `None` if the KV blocks hold the KV.
        frame: Option<&'a KvFrame>,
        /// The sequences of the batch, or some of them.
        sequences: KvSequences<'a>,
        /// A score for each head that takes its share of the attention and has no value: `[heads]`, not scaled.
        sinks: Option<&'a Weights>,
        /// The queries, `[tokens, heads, head_dim]`.
        q: Tensor,
        /// The state that is passed on from command to command, `[tokens, heads, ATTENTION_STATE]`, if part of a
        /// sequence is held at another time; otherwise empty.
        state: Tensor,
        /// The result, in the shape of `q`.
        out: Tensor,
    },
    /// Convolves each channel of the rows of each sequence with the channel's own taps, adds a bias if there is one,
    /// and applies SiLU: see [`convolve`](interbed_kernels::convolve). Continues from the rows of the sequence's state,
    /// and leaves the last rows there.
    Convolve {
        /// The place of the layer's state in a block of states.
        layer: StateLayer,
        /// The sequences of the batch, in the order of their rows.
        sequences: &'a [StateSpan],
        /// The taps, `[channels, taps]`, oldest input first.
        weights: &'a Weights,
        /// The bias, `[channels]`.
        bias: Option<&'a Weights>,
        /// The inputs, and the result: `[tokens, channels]`.
        x: Tensor,
    },
    /// Convolves the product of two projections of each token, and multiplies the result by a third: see
    /// [`short_convolution`](interbed_kernels::short_convolution). Continues from the rows of the sequence's state, and
    /// leaves the last rows there.
    ShortConvolution {
        /// The place of the layer's state in a block of states.
        layer: StateLayer,
        /// The sequences of the batch, in the order of their rows.
        sequences: &'a [StateSpan],
        /// The taps, `[channels, taps]`, oldest input first.
        weights: &'a Weights,
        /// Added to each result of the convolution, if the model has it: `[channels]`.
        bias: Option<&'a Weights>,
        /// The projections: `[tokens, b | c | x]`, that is `[channels]` three times. The products of `b` and `x` are
        /// convolved, and `c` multiplies the result.
        projections: Tensor,
        /// The result, `[tokens, channels]`.
        out: Tensor,
    },
    /// Computes the gated delta rule for each token, and changes the matrices of the sequences' states: see
    /// [`delta_rule`](interbed_kernels::delta_rule).
    DeltaRule {
        /// The place of the layer's state in a block of states.
        layer: StateLayer,
        /// The sequences of the batch, in the order of their rows.
        sequences: &'a [StateSpan],
        /// The computation of the layer.
        rule: DeltaRule,
        /// The rates at which heads forget, in the form that the rule names: `[value_heads]`.
        rates: &'a Weights,
        /// Added to `a`: `[value_heads]`.
        bias: &'a Weights,
        /// Queries, keys and values: `[tokens, q | k | v]`, that is `[key_heads, key_width]` twice and then
        /// `[value_heads, value_width]`. Its content is unspecified afterwards.
        qkv: Tensor,
        /// How much heads forget, before the softplus: `[tokens, value_heads]`. Its content is unspecified afterwards.
        a: Tensor,
        /// How much heads learn, before the sigmoid: `[tokens, value_heads]`. Its content is unspecified afterwards.
        b: Tensor,
        /// The result, `[tokens, value_heads, value_width]`.
        out: Tensor,
    },
    /// Computes the state space for each token, and changes the matrices of the sequences' states: see
    /// [`state_space`](interbed_kernels::state_space).
    StateSpace {
        /// The place of the layer's state in a block of states.
        layer: StateLayer,
        /// The sequences of the batch, in the order of their rows.
        sequences: &'a [StateSpan],
        /// The computation of the layer.
        space: StateSpace,
        /// The rates at which heads forget, in the form that the space names: `[heads]`.
        rates: &'a Weights,
        /// Added to the steps: `[heads]`.
        bias: &'a Weights,
        /// The factors with which `x` is added to the results: `[heads]`.
        skip: &'a Weights,
        /// What each token brings: `[tokens, x | B | C]`, that is `[heads, head_width]` and then
        /// `[groups, state_width]` twice.
        xbc: Tensor,
        /// How far each head steps, before the softplus: `[tokens, heads]`. Its content is unspecified afterwards.
        steps: Tensor,
        /// Room in the shape of `steps`. Its content is unspecified afterwards.
        decays: Tensor,
        /// The result, `[tokens, heads, head_width]`.
        out: Tensor,
    },
    /// Takes the greatest numbers of each row, greatest first and among equals the first, and writes each as a pair of
    /// the number's place in the row and the number. NaN comes before all others, and -0.0 equals 0.0.
    Best {
        /// The rows, `[rows, width]`, with at most [`BEST_WIDTH_MAX`] numbers in a row.
        x: Tensor,
        /// Numbers in a row.
        width: usize,
        /// The number of pairs wanted of each row: at most `width` and [`BEST_MAX`].
        count: usize,
        /// The result, `[rows, count, 2]`.
        out: Tensor,
    },
    /// Copies bytes of weights into the device's own memory.
    CopyWeights {
        /// Host memory that holds the bytes. If the device [shares](crate::Device::share) that memory, the bytes are
        /// read when the command is executed, and the device keeps the memory until then.
        from: &'a Arc<HostBuffer>,
        /// The bytes of `from` that are copied.
        range: Range<usize>,
        /// Memory that [`Device::allocate`](crate::Device::allocate) gave.
        to: &'a PlacedBytes,
        /// The byte of `to` at which the copy begins.
        at: usize,
    },
    /// Copies whole blocks, as pairs `(source, destination)` of the same group, one after the other.
    CopyBlocks {
        /// The pairs `(source, destination)` of block numbers.
        copies: &'a [(u32, u32)],
    },
    /// Notes that the content of a tensor is not needed any more. The content is unspecified until the tensor is
    /// written again.
    Discard {
        /// The tensor, of any shape.
        tensor: Tensor,
    },
    /// Copies a tensor to host memory, where the host reads it: see [`Device::downloaded`](crate::Device::downloaded).
    Download {
        /// The tensor, of any shape.
        from: Tensor,
    },
}

/// A product of activations with some rows of a matrix.
#[derive(Debug, Clone)]
pub struct BandProduct<'a> {
    /// The weights of the band's rows, `[rows, cols]`.
    pub weights: &'a Weights,
    /// The numbers of the band's rows in the whole matrix.
    pub rows: Range<usize>,
    /// The bias of the whole matrix.
    pub bias: Option<&'a Weights>,
    /// The result of the whole matrix, `[tokens, all rows]`.
    pub out: Tensor,
}

/// The place of the KV of a batch's sequences.
#[derive(Debug, Clone, Copy)]
pub struct KvSequences<'a> {
    /// One span for each sequence, in the order of their rows.
    pub spans: &'a [AttentionSpan],
    /// The block tables of the sequences. Each span names a part of them.
    pub tables: &'a [u32],
}

/// A place that a command reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// Some numbers in tensor memory.
    Tensor(Tensor),
    /// Some columns of a tensor of rows.
    Columns {
        /// The tensor of which the columns are a part, `[rows, any]`.
        tensor: Tensor,
        /// The first column.
        start: usize,
        /// The column behind the last column.
        end: usize,
    },
    /// The blocks of KV and of states.
    Kv,
    /// The place where the host reads a downloaded tensor.
    Host(Tensor),
    /// Some bytes of weights in the device's own memory, by its number.
    Weights {
        /// The number of the memory, from [`PlacedBytes::number`].
        memory: usize,
        /// The first byte of the weights.
        start: usize,
        /// The byte after the last byte of the weights.
        end: usize,
    },
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl Operand {
    /// Returns whether a write to one of the two places may change what is read from the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(one), Self::Tensor(other)) | (Self::Host(one), Self::Host(other)) => one.overlaps(other),
            (&Self::Columns { tensor, start, end }, &Self::Columns { tensor: of, start: from, end: to }) => {
                if tensor == of { start < to && from < end } else { tensor.overlaps(&of) }
            }
            (Self::Columns { tensor, .. }, Self::Tensor(other))
            | (Self::Tensor(other), Self::Columns { tensor, .. }) => tensor.overlaps(other),
            (Self::Kv, Self::Kv) => true,
            (&Self::Weights { memory, start, end }, &Self::Weights { memory: of, start: from, end: to }) => {
                memory == of && start < to && from < end
            }
            _ => false,
        }
    }
}

/// A place that a command uses, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The place.
    pub place: Operand,
    /// Whether the command writes the place; a written place may be read as well.
    pub writes: bool,
}

impl Use {
    /// Returns whether two commands with these uses must be executed in order.
    pub fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.place.overlaps(&other.place)
    }
}

impl Command<'_> {
    /// Returns everything that the command reads and writes, except weights in host memory. Barriers are derived from
    /// these uses.
    pub fn uses(&self) -> ArrayVec<Use, ACCESSES_MAX> {
        let mut uses = Uses(ArrayVec::new());
        match *self {
            Self::Fill { out, .. } => uses.writes(out),
            Self::Gather { out, table, .. } => uses.reads_weights(table).writes(out),
            Self::KeepRows { tensor, .. } => uses.writes(tensor),
            Self::Combine { from, out, .. } => uses.reads(from).writes(out),
            Self::Norm { x, out, weight, .. } => uses.reads_weights(weight).reads(x).writes(out),
            Self::Normalise { x, out, .. } => uses.reads(x).writes(out),
            Self::AddAndNorm { sum, branch, out, weight, .. } => {
                uses.reads_weights(weight).writes(sum).reads(branch).writes(out)
            }
            Self::Add { sum, branch, .. } => uses.writes(sum).reads(branch),
            Self::Scale { x, .. } | Self::Activate { x, .. } | Self::Cap { x, .. } => uses.writes(x),
            Self::ScaleBy { x, by } => uses.reads_weights(by).writes(x),
            Self::Rotate { q, cos, sin, .. } => uses.reads(cos).reads(sin).writes(q),
            Self::Discard { tensor } => uses.writes(tensor),
            Self::Products { x, products, .. } => {
                uses.reads(x);
                for product in products {
                    let Range { start, end } = product.rows;
                    uses.writes(Operand::Columns { tensor: product.out, start, end });
                    uses.reads_weights(product.weights).reads_weights(product.bias);
                }
                &mut uses
            }
            Self::Gate { gate, up, columns: Range { start, end }, .. } => uses
                .writes(Operand::Columns { tensor: gate, start, end })
                .reads(Operand::Columns { tensor: up, start, end }),
            Self::StoreKv { cos, sin, q, k, v, .. } => {
                uses.reads(cos).reads(sin).writes(q).writes(k).reads(v).writes(Operand::Kv)
            }
            Self::Attend { frame, sinks, q, state, out, .. } => {
                uses.reads_weights(sinks).reads(q);
                if frame.is_none() {
                    uses.reads(Operand::Kv);
                }
                uses.writes(state).writes(out)
            }
            Self::Convolve { weights, bias, x, .. } => {
                uses.reads_weights(weights).reads_weights(bias).writes(x).writes(Operand::Kv)
            }
            Self::ShortConvolution { weights, bias, projections, out, .. } => {
                uses.reads_weights(weights).reads_weights(bias).reads(projections).writes(out).writes(Operand::Kv)
            }
            Self::DeltaRule { rates, bias, qkv, a, b, out, .. } => {
                uses.reads_weights(rates).reads_weights(bias).writes(qkv).writes(a).writes(b).writes(out);
                uses.writes(Operand::Kv)
            }
            Self::StateSpace { rates, bias, skip, xbc, steps, decays, out, .. } => {
                uses.reads_weights(rates).reads_weights(bias).reads_weights(skip).reads(xbc);
                uses.writes(steps).writes(decays).writes(out).writes(Operand::Kv)
            }
            Self::Best { x, out, .. } => uses.reads(x).writes(out),
            Self::CopyWeights { ref range, to, at, .. } => {
                let memory = to.number().expect("copies go to a device's own memory");
                uses.writes(Operand::Weights { memory, start: at, end: at + range.len() })
            }
            Self::CopyBlocks { .. } => uses.writes(Operand::Kv),
            Self::Download { from } => uses.reads(from).writes(Operand::Host(from)),
        };
        uses.0
    }
}

/// The uses of one command, each once.
struct Uses(ArrayVec<Use, ACCESSES_MAX>);

impl Uses {
    fn reads(&mut self, place: impl Into<Operand>) -> &mut Self {
        self.add(place.into(), false)
    }

    /// Notes that the place is written, and may be read as well.
    fn writes(&mut self, place: impl Into<Operand>) -> &mut Self {
        self.add(place.into(), true)
    }

    /// Notes that the weights are read, if there are any and they lie in the device's own memory.
    fn reads_weights<'w>(&mut self, weights: impl Into<Option<&'w Weights>>) -> &mut Self {
        if let Some((memory, range)) = weights.into().map(Weights::place)
            && let Some(memory) = memory.number()
        {
            self.reads(Operand::Weights { memory, start: range.start, end: range.end });
        }
        self
    }

    fn add(&mut self, place: Operand, writes: bool) -> &mut Self {
        let used = Use { place, writes };
        // Bands of one matrix have the same bias.
        if !self.0.contains(&used) {
            self.0.push(used);
        }
        self
    }
}

/// Writes the result of [`Command::Best`] for one row to `out` `[count, 2]`. The row is read once, and each number is
/// put in its place among the numbers that are kept.
pub(crate) fn best_of_row(row: &[f32], out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<2>();
    let is_before = |one: f32, other: f32| one > other || one.is_nan() && !other.is_nan();
    for (place, &number) in row.iter().enumerate() {
        let kept = place.min(out.len());
        let at = out[..kept].partition_point(|&[_, other]| !is_before(number, other));
        if at < out.len() {
            out[at..].rotate_right(1);
            out[at] = [place as f32, number + 0.0];
        }
    }
}
