//! Selects the kernel of a product by the weights' type, the level and the number of tokens.
//!
//! | weights | level | tokens | kernel | activations |
//! |---|---|---|---|---|
//! | bf16, coded bf16 | with AMX | any | [`Kernel::Tiles`] | [`Form::Tiles`] |
//! | coded bf16 | with bf16 dot products | up to [`bf16::CODED_TOKENS`] | [`Kernel::CodedRows`] | [`Form::Bf16`] |
//! | bf16, coded bf16 | with bf16 dot products | few | [`Kernel::DotRows`] | [`Form::Bf16`] |
//! | bf16, coded bf16 | with bf16 dot products | many | [`Kernel::DotPanels`] | [`Form::Bf16`] |
//! | f32, f16, bf16, coded bf16, fp8 | any other | few | [`Kernel::Rows`] | [`Form::Plain`] |
//! | f32, f16, bf16, coded bf16, fp8 | any other | many | [`Kernel::Panels`] | [`Form::Plain`] |
//! | quantized | any | by [`Layout::of`] | [`Kernel::Bytes`] | [`Form::Bytes`] |
//!
//! [`panel::tokens_min`] is the number of tokens that separates few from many.

use super::{bf16, panel, tiles, vector};
use crate::quantized::{Group, Layout};
use crate::{DType, Level, cache, coded};

/// The number of tokens from which a product is limited by arithmetic rather than by reading weights.
const MANY_TOKENS: usize = 64;

/// Number of rows of a chunk of work for many tokens, such that the outputs of a chunk stay in the cache.
const CHUNK_ROWS: usize = panel::ROWS;

/// Bytes of weights in a chunk of work for few tokens, which are enough to be read at full speed.
const CHUNK_BYTES: usize = 256 << 10;

/// The form of the activations that a kernel reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The activations stay in f32.
    Plain,
    /// The activations are rounded to bf16, `[tokens, cols]`, with rows padded with zeros.
    Bf16,
    /// The activations are rounded to bf16, in the order in which AMX reads the second operand of a product.
    Tiles,
    /// The activations are rounded to 8-bit integers, with one scale for each group.
    Bytes(Group),
}

impl Form {
    /// Returns the form that products with weights of `dtype` read.
    pub(crate) fn of(level: Level, dtype: DType) -> Self {
        // The form does not depend on the number of tokens.
        Kernel::of(level, dtype, 1).form()
    }
}

/// The way in which a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Multiplies a few rows of weights by the activations of a few tokens at a time, in f32.
    Rows,
    /// Multiplies panels of weights by the activations of all tokens, in f32. Each panel is widened only once.
    Panels,
    /// Multiplies like [`Kernel::Rows`], with dot products of pairs of bf16.
    DotRows,
    /// Multiplies like [`Kernel::DotRows`], and decodes coded weights in registers.
    CodedRows,
    /// Multiplies like [`Kernel::Panels`], with dot products of pairs of bf16.
    DotPanels,
    /// Multiplies AMX tiles of bf16.
    Tiles,
    /// Computes dot products of bytes.
    Bytes(Group, Layout),
}

impl Kernel {
    /// Returns the kernel for products of `tokens` tokens with weights of this type.
    pub fn of(level: Level, weights: DType, tokens: usize) -> Self {
        let many = tokens >= panel::tokens_min(level, weights.is_decoded());
        let is_coded = matches!(weights, DType::CodedBf16 { .. });
        match weights.decoded() {
            DType::BF16 if tiles::runs_at(level) => Self::Tiles,
            DType::BF16 if bf16::runs_at(level) && many => Self::DotPanels,
            DType::BF16 if bf16::runs_at(level) && is_coded && (1..=bf16::CODED_TOKENS).contains(&tokens) => {
                Self::CodedRows
            }
            DType::BF16 if bf16::runs_at(level) => Self::DotRows,
            DType::F32 | DType::F16 | DType::BF16 if many => Self::Panels,
            DType::F32 | DType::F16 | DType::BF16 => Self::Rows,
            quantised => Self::Bytes(Group::of(quantised), Layout::of(level, tokens)),
        }
    }

    /// Returns the form in which the kernel reads activations.
    pub fn form(self) -> Form {
        match self {
            Self::Rows | Self::Panels => Form::Plain,
            Self::DotRows | Self::CodedRows | Self::DotPanels => Form::Bf16,
            Self::Tiles => Form::Tiles,
            Self::Bytes(group, _) => Form::Bytes(group),
        }
    }

    /// Returns whether the kernel itself decodes weights. For other kernels, they are decoded first.
    pub fn decodes(self) -> bool {
        matches!(self, Self::Panels | Self::DotPanels | Self::CodedRows)
    }

    /// Returns the number of rows in a chunk, which one thread computes at a time. Each row has `row_bytes` bytes.
    pub fn chunk_rows(self, tokens: usize, row_bytes: usize) -> usize {
        let in_panels = matches!(self, Self::Panels | Self::DotPanels);
        if in_panels || tokens >= MANY_TOKENS { CHUNK_ROWS } else { CHUNK_BYTES / row_bytes }
    }

    /// Returns the number of rows to decode at a time. Each row has `cols` weights of type `weights`. With few tokens,
    /// the decoded rows are used only once, so the number is chosen such that these rows fit into the L1 data cache.
    pub fn rows_decoded(self, weights: DType, tokens: usize, cols: usize) -> usize {
        let most = coded::panel_rows(weights);
        if tokens > vector::TILE_TOKENS || self == Self::Tiles {
            return most;
        }
        let fitting = cache::sizes().first / 2 / (cols * weights.decoded().block_bytes());
        (fitting / vector::TILE_ROWS * vector::TILE_ROWS).clamp(vector::TILE_ROWS, most)
    }
}
