//! Which kernel computes a product: the one table of weights' type, level and number of tokens.
//!
//! | weights | level | tokens | kernel | activations |
//! |---|---|---|---|---|
//! | bf16, coded bf16 | with AMX | any | [`Kernel::Tiles`] | [`Form::Tiles`] |
//! | bf16, coded bf16 | with bf16 dot products | few | [`Kernel::DotRows`] | [`Form::Bf16`] |
//! | bf16, coded bf16 | with bf16 dot products | many | [`Kernel::DotPanels`] | [`Form::Bf16`] |
//! | f32, f16, bf16, coded bf16, fp8 | any other | few | [`Kernel::Rows`] | [`Form::Plain`] |
//! | f32, f16, bf16, coded bf16, fp8 | any other | many | [`Kernel::Panels`] | [`Form::Plain`] |
//! | quantised | any | as [`Layout::of`] says | [`Kernel::Bytes`] | [`Form::Bytes`] |
//!
//! Few and many are apart at [`panel::tokens_min`].

use super::{bf16, panel, tiles, vector};
use crate::quantized::Layout;
use crate::{DType, Level, cache, coded};

/// Tokens from which a product is bound by arithmetic rather than by reading weights.
const MANY_TOKENS: usize = 64;

/// Rows of a chunk of work where tokens are many, so that its outputs stay in the cache.
const CHUNK_ROWS: usize = panel::ROWS;

/// Bytes of weights in a chunk of work where tokens are few: enough to be read at full speed.
const CHUNK_BYTES: usize = 256 << 10;

/// How activations lie while they are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they came, in f32.
    Plain,
    /// Rounded to bf16, `[tokens, cols]` with rows padded by zeros.
    Bf16,
    /// Rounded to bf16, in the order in which AMX reads its second operand.
    Tiles,
    /// Rounded to bytes, with a scale for each 32.
    Bytes,
}

impl Form {
    /// The form that products with weights of `dtype` read.
    pub(crate) fn of(level: Level, dtype: DType) -> Self {
        // However many tokens there are.
        Kernel::of(level, dtype, 1).form()
    }
}

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// A few rows of weights with a few tokens at a time, in f32.
    Rows,
    /// Panels of weights that are widened once for all tokens, in f32.
    Panels,
    /// As [`Kernel::Rows`], with dot products of pairs of bf16.
    DotRows,
    /// As [`Kernel::Panels`], with dot products of pairs of bf16.
    DotPanels,
    /// AMX tiles of bf16.
    Tiles,
    /// Dot products of bytes.
    Bytes(Layout),
}

impl Kernel {
    /// The kernel for products of `tokens` with weights of this type.
    pub fn of(level: Level, weights: DType, tokens: usize) -> Self {
        let many = tokens >= panel::tokens_min(level, weights.is_decoded());
        match weights.decoded() {
            DType::BF16 if tiles::runs_at(level) => Self::Tiles,
            DType::BF16 if bf16::runs_at(level) && many => Self::DotPanels,
            DType::BF16 if bf16::runs_at(level) => Self::DotRows,
            DType::F32 | DType::F16 | DType::BF16 if many => Self::Panels,
            DType::F32 | DType::F16 | DType::BF16 => Self::Rows,
            _quantised => Self::Bytes(Layout::of(level, tokens)),
        }
    }

    /// The form in which it reads activations.
    pub fn form(self) -> Form {
        match self {
            Self::Rows | Self::Panels => Form::Plain,
            Self::DotRows | Self::DotPanels => Form::Bf16,
            Self::Tiles => Form::Tiles,
            Self::Bytes(_) => Form::Bytes,
        }
    }

    /// Whether it reads coded weights as they are; for the others they are decoded first.
    pub fn decodes(self) -> bool {
        matches!(self, Self::Panels | Self::DotPanels)
    }

    /// Rows of `row_bytes` that a thread computes at a time.
    pub fn chunk_rows(self, tokens: usize, row_bytes: usize) -> usize {
        if self.decodes() || tokens >= MANY_TOKENS { CHUNK_ROWS } else { CHUNK_BYTES / row_bytes }
    }

    /// Rows of `cols` weights that are stored as `weights` to decode at a time. Weights for few tokens are used once:
    /// they should still be in the first-level cache then.
    pub fn rows_decoded(self, weights: DType, tokens: usize, cols: usize) -> usize {
        let most = coded::panel_rows(weights);
        if tokens > vector::TILE_TOKENS || self == Self::Tiles {
            return most;
        }
        let fitting = cache::sizes().first / 2 / (cols * weights.decoded().block_bytes());
        (fitting / vector::TILE_ROWS * vector::TILE_ROWS).clamp(vector::TILE_ROWS, most)
    }
}
