//! The input of matrix products, in the form that the weights' type asks for.

use crate::matmul::{bf16, tiles};
use crate::pool::Pool;
use crate::share::Share;
use crate::{DType, Level};

/// How activations lie while they are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they came, in f32.
    Plain,
    /// Rounded to bf16, `[tokens, cols]` with rows padded by zeros.
    Bf16,
    /// Rounded to bf16, in the order in which AMX reads its second operand.
    Tiles,
}

impl Form {
    /// The form that products with weights of `dtype` read.
    pub(crate) fn of(level: Level, dtype: DType) -> Self {
        match dtype {
            DType::BF16 if tiles::runs_at(level) => Form::Tiles,
            DType::BF16 if bf16::runs_at(level) => Form::Bf16,
            DType::F32 | DType::F16 | DType::BF16 => Form::Plain,
            quantised => unreachable!("no loader yields {quantised} yet"),
        }
    }
}

/// Tokens' activations `[tokens, cols]`, which several products read. They are brought into another form at most once
/// for all products that ask for the same.
pub struct Activations<'a> {
    x: &'a [f32],
    cols: usize,
    /// The prepared form, then one work area a thread.
    scratch: &'a mut [f32],
    form: Form,
}

/// What a thread's share of a product reads.
#[derive(Clone, Copy)]
pub(crate) struct Prepared<'a> {
    pub form: Form,
    pub tokens: usize,
    pub cols: usize,
    pub x: &'a [f32],
    /// What [`Form`] says, but for [`Form::Plain`].
    pub packed: &'a [u16],
}

impl<'a> Activations<'a> {
    /// Activations `x` of `cols` a token. The scratch, of unspecified content, has [`Activations::scratch_len`].
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn new(x: &'a [f32], cols: usize, scratch: &'a mut [f32]) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols));
        Self { x, cols, scratch, form: Form::Plain }
    }

    /// Numbers of scratch that products of up to `tokens` rows of up to `cols` may need on `threads` threads, at any
    /// level and with any weights.
    pub const fn scratch_len(tokens: usize, cols: usize, threads: usize) -> usize {
        packed_len(tokens, cols) + threads * tiles::work_len(tokens)
    }

    /// Rows.
    pub fn tokens(&self) -> usize {
        self.x.len() / self.cols
    }

    /// Brings the activations into `form`, and cuts off the threads' work areas.
    pub(crate) fn prepare(&mut self, pool: &Pool, level: Level, form: Form) -> (Prepared<'_>, Share<'_, f32>) {
        let (x, cols, tokens) = (self.x, self.cols, self.tokens());
        let (packed, work) = self.scratch.split_at_mut(packed_len(tokens, cols));
        let packed: &mut [u16] = bytemuck::cast_slice_mut(packed);
        if self.form != form {
            match form {
                Form::Plain => {}
                Form::Bf16 => bf16::pack(pool, level, x, cols, packed),
                Form::Tiles => tiles::pack(pool, level, x, cols, packed),
            }
            self.form = form;
        }
        (Prepared { form, tokens, cols, x, packed }, Share::new(work))
    }
}

/// Pairs of 16-bit numbers in a packed form: whole steps of 32 columns, and a cache line to align by.
const fn packed_len(tokens: usize, cols: usize) -> usize {
    tokens * cols.next_multiple_of(32) / 2 + 16
}
