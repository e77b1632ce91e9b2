//! The operations of a pass, as a device is asked for them.

use std::ops::Range;

use arrayvec::ArrayVec;
use strata_kernels::{Activation, AttentionLayer, AttentionSpan, KvLayer, RopeStyle};

use crate::{Tensor, Weights};

/// Products of one [`Command::Products`], at most: as many bands of weights as are at hand together.
pub const PRODUCTS_MAX: usize = 16;

/// Results of one command's products, at most: each is that of a whole matrix, of which a command may have several
/// bands.
pub const OUTS_MAX: usize = 4;

/// Places that one command reads and writes, at most.
const ACCESSES_MAX: usize = 8;

/// One operation. Numbers are f32 in [`Tensor`]s; shapes follow from the lengths.
///
/// A device reads everything that a command borrows before [`submit`](crate::Device::submit) returns, and keeps what it
/// needs for longer; of [`Weights`] it keeps the memory alive.
pub enum Command<'a> {
    /// Writes numbers that the host knows: `values` is called once, with as many as `out` has.
    Fill {
        /// Any shape.
        out: Tensor,
        /// Writes all of them.
        values: &'a dyn Fn(&mut [f32]),
    },
    /// `out[i] = table[rows[i]] * multiplier`.
    Gather {
        /// `[any, width]`
        table: &'a Weights,
        /// `[tokens]`
        rows: &'a [u32],
        /// 1.0 for none.
        multiplier: f32,
        /// `[tokens, width]`
        out: Tensor,
    },
    /// Keeps some rows, in ascending order, at the front of a tensor.
    KeepRows {
        /// `[tokens, width]`
        tensor: Tensor,
        /// Numbers of a row.
        width: usize,
        /// Those to keep.
        rows: &'a [u32],
    },
    /// `out = x / rms(x) * weight`, for each row.
    Norm {
        /// `[tokens, width]`
        x: Tensor,
        /// `[width]`
        weight: &'a Weights,
        /// Added to the mean square.
        epsilon: f32,
        /// As `x`; may be `x` itself.
        out: Tensor,
    },
    /// `sum += branch * scale`, then the norm of `sum` to `out`.
    AddAndNorm {
        /// `[tokens, width]`
        sum: Tensor,
        /// As `sum`.
        branch: Tensor,
        /// 1.0 for none.
        scale: f32,
        /// `[width]`
        weight: &'a Weights,
        /// Added to the mean square.
        epsilon: f32,
        /// As `sum`.
        out: Tensor,
    },
    /// `sum += branch * scale`.
    Add {
        /// Any shape.
        sum: Tensor,
        /// As `sum`.
        branch: Tensor,
        /// 1.0 for none.
        scale: f32,
    },
    /// `x *= by`.
    Scale {
        /// Any shape.
        x: Tensor,
        /// The factor.
        by: f32,
    },
    /// `out[t][r] = sum over c of x[t][c] * weights[r][c] + bias[r]`, for each of `products`. With `gate`, they come in
    /// pairs of the same rows, and the first of a pair becomes `gate(first) * second`, the second scratch.
    Products {
        /// `[tokens, cols]`
        x: Tensor,
        /// Numbers of a row of `x`.
        cols: usize,
        /// The rows of matrices that are at hand, in ascending order for each `out`: no more than [`PRODUCTS_MAX`],
        /// with no more than [`OUTS_MAX`] results.
        products: &'a [BandProduct<'a>],
        /// What stands between the two products of a gated network.
        gate: Option<Activation>,
    },
    /// Rotates queries and keys, and writes keys and values into the KV of `sequences`.
    StoreKv {
        /// Where in a block.
        layer: KvLayer,
        /// The batch.
        sequences: KvSequences<'a>,
        /// Which elements of a head are pairs.
        style: RopeStyle,
        /// `[tokens, head_dim / 2]`
        cos: Tensor,
        /// As `cos`.
        sin: Tensor,
        /// `[tokens, heads, head_dim]`
        q: Tensor,
        /// `[tokens, num_kv_heads, head_dim]`
        k: Tensor,
        /// As `k`.
        v: Tensor,
    },
    /// Attention of every token to the KV of its own sequence.
    Attend {
        /// What the layer computes.
        layer: AttentionLayer,
        /// The batch.
        sequences: KvSequences<'a>,
        /// `[tokens, heads, head_dim]`
        q: Tensor,
        /// As `q`.
        out: Tensor,
    },
    /// Copies whole KV blocks, each `(source, destination)` after those before it.
    CopyBlocks {
        /// The copies.
        copies: &'a [(u32, u32)],
    },
    /// What a tensor holds is not needed any more, and unspecified until it is written again.
    Discard {
        /// Any shape.
        tensor: Tensor,
    },
    /// Brings a tensor to where the host reads it: see [`Device::downloaded`](crate::Device::downloaded).
    Download {
        /// Any shape.
        from: Tensor,
    },
}

/// Some rows of a matrix, multiplied with activations.
#[derive(Debug, Clone)]
pub struct BandProduct<'a> {
    /// Those rows, `[rows, cols]`.
    pub weights: &'a Weights,
    /// Which rows of the whole matrix they are.
    pub rows: Range<usize>,
    /// The whole matrix's bias.
    pub bias: Option<&'a Weights>,
    /// The whole matrix's result, `[tokens, all rows]`.
    pub out: Tensor,
}

/// Where the KV of a batch's sequences lies.
#[derive(Debug, Clone, Copy)]
pub struct KvSequences<'a> {
    /// One for each sequence, in the order of their rows.
    pub spans: &'a [AttentionSpan],
    /// The block tables that spans name parts of.
    pub tables: &'a [u32],
}

/// What a command reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// Some numbers.
    Tensor(Tensor),
    /// The KV blocks.
    Kv,
    /// Where the host reads a tensor that was downloaded.
    Host(Tensor),
}

impl Operand {
    /// Whether a write to one may change what is read from the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(one), Self::Tensor(other)) | (Self::Host(one), Self::Host(other)) => one.overlaps(other),
            (Self::Kv, Self::Kv) => true,
            _ => false,
        }
    }
}

/// A place that a command uses, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Which.
    pub place: Operand,
    /// Whether it is written; it may be read as well.
    pub writes: bool,
}

impl Use {
    /// Whether two commands that use these must be executed in order.
    pub fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.place.overlaps(&other.place)
    }
}

impl Command<'_> {
    /// Everything that the command reads and writes, weights excepted: barriers follow from it.
    pub fn uses(&self) -> ArrayVec<Use, ACCESSES_MAX> {
        let mut uses = ArrayVec::new();
        let mut add = |place, writes| {
            let used = Use { place, writes };
            // Bands of one matrix have their result in common.
            if !uses.contains(&used) {
                uses.push(used);
            }
        };
        match *self {
            Self::Fill { out, .. } | Self::Gather { out, .. } => add(Operand::Tensor(out), true),
            Self::KeepRows { tensor, .. } => add(Operand::Tensor(tensor), true),
            Self::Norm { x, out, .. } => {
                add(Operand::Tensor(x), false);
                add(Operand::Tensor(out), true);
            }
            Self::AddAndNorm { sum, branch, out, .. } => {
                add(Operand::Tensor(sum), true);
                add(Operand::Tensor(branch), false);
                add(Operand::Tensor(out), true);
            }
            Self::Add { sum, branch, .. } => {
                add(Operand::Tensor(sum), true);
                add(Operand::Tensor(branch), false);
            }
            Self::Scale { x, .. } => add(Operand::Tensor(x), true),
            Self::Discard { tensor } => add(Operand::Tensor(tensor), true),
            Self::Products { x, products, .. } => {
                add(Operand::Tensor(x), false);
                products.iter().for_each(|product| add(Operand::Tensor(product.out), true));
            }
            Self::StoreKv { cos, sin, q, k, v, .. } => {
                add(Operand::Tensor(cos), false);
                add(Operand::Tensor(sin), false);
                add(Operand::Tensor(q), true);
                add(Operand::Tensor(k), true);
                add(Operand::Tensor(v), false);
                add(Operand::Kv, true);
            }
            Self::Attend { q, out, .. } => {
                add(Operand::Tensor(q), false);
                add(Operand::Kv, false);
                add(Operand::Tensor(out), true);
            }
            Self::CopyBlocks { .. } => add(Operand::Kv, true),
            Self::Download { from } => {
                add(Operand::Tensor(from), false);
                add(Operand::Host(from), true);
            }
        }
        uses
    }
}
