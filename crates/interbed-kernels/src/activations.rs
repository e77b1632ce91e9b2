//! Converts activations, the input of matrix products, to the form that the weights' type requires.

use crate::matmul::{Form, bf16, panel, tiles};
use crate::pool::Pool;
use crate::share::Share;
use crate::{DType, Level, coded, quantized};

impl Level {
    /// Returns whether products with weights of the plain type `dtype` round the activations to the type of the
    /// weights. If this is `false`, the activations stay in f32.
    pub fn rounds_activations(self, dtype: DType) -> bool {
        matches!(Form::of(self, dtype), Form::Bf16 | Form::Tiles)
    }
}

/// The form of the activations in scratch memory, and the level of the kernels that read this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedForm {
    level: Level,
    form: Form,
}

/// The activations of some tokens, `[tokens, cols]`, that are the input of several products. Consecutive products that
/// need the activations in the same form share one conversion to this form.
pub struct Activations<'a> {
    x: &'a [f32],
    cols: usize,
    /// The prepared form, followed by one work area per thread.
    scratch: &'a mut [f32],
    prepared: Option<PreparedForm>,
}

/// The activations that one thread reads for its share of a product.
#[derive(Clone, Copy)]
pub(crate) struct PreparedActivations<'a> {
    pub tokens: usize,
    pub cols: usize,
    pub packed: Packed<'a>,
}

/// Activations in one of the forms that [`Form`] lists.
#[derive(Clone, Copy)]
pub(crate) enum Packed<'a> {
    Plain(&'a [f32]),
    Bf16(&'a [u16]),
    Tiles(&'a [u16]),
    Bytes(quantized::PreparedBytes<'a>),
}

impl<'a> Activations<'a> {
    /// Wraps activations `x` with `cols` elements per token. `scratch` needs [`Activations::scratch_len`] elements,
    /// which may hold anything.
    ///
    /// # Panics
    /// Panics if `x` is not whole rows of `cols` elements.
    pub fn new(x: &'a [f32], cols: usize, scratch: &'a mut [f32]) -> Self {
        Self::resume(x, cols, scratch, None)
    }

    /// Wraps activations that an earlier product may already have converted, so that a later product need not convert
    /// them again. For instance, the bands of one matrix can share one conversion if they are multiplied one after the
    /// other. `prepared` is the form of the activations that `scratch` still holds, which [`prepared`](Self::prepared)
    /// returned after the earlier product. `None` means that `scratch` holds no converted activations.
    ///
    /// # Panics
    /// Panics if `x` is not whole rows of `cols` elements.
    pub fn resume(x: &'a [f32], cols: usize, scratch: &'a mut [f32], prepared: Option<PreparedForm>) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols));
        Self { x, cols, scratch, prepared }
    }

    /// Returns the form of the activations in scratch memory, or `None` if they have not been converted.
    pub fn prepared(&self) -> Option<PreparedForm> {
        self.prepared
    }

    /// Returns the number of f32 elements of scratch memory that products of up to `tokens` rows of up to `cols`
    /// elements may need on `threads` threads, at any level and with any weights.
    pub fn scratch_len(tokens: usize, cols: usize, threads: usize) -> usize {
        PAGE + packed_len(tokens, cols) + threads * work_len(tokens, cols)
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.x.len() / self.cols
    }

    /// Converts the activations to `form`, unless they have that form already, and splits off the threads' work areas.
    pub(crate) fn prepare(
        &mut self,
        pool: &Pool,
        level: Level,
        form: Form,
    ) -> (PreparedActivations<'_>, Share<'_, f32>) {
        let (x, cols, tokens) = (self.x, self.cols, self.tokens());
        let work_len = pool.threads() * work_len(tokens, cols);
        let (left, work) = self.scratch.split_at_mut(self.scratch.len() - work_len);
        let wanted = self.prepared.replace(PreparedForm { level, form }) != Some(PreparedForm { level, form });
        let packed = match form {
            Form::Plain => Packed::Plain(x),
            Form::Bf16 => {
                let start = mid_page(left);
                let packed = bytemuck::cast_slice_mut(&mut left[start..][..packed_len(tokens, cols)]);
                if wanted {
                    bf16::pack(pool, level, x, cols, packed);
                }
                Packed::Bf16(packed)
            }
            Form::Tiles => {
                let packed = bytemuck::cast_slice_mut(&mut left[..packed_len(tokens, cols)]);
                if wanted {
                    tiles::pack(pool, level, x, cols, packed);
                }
                Packed::Tiles(packed)
            }
            Form::Bytes(group) => {
                let packed = bytemuck::cast_slice_mut(&mut left[..packed_len(tokens, cols)]);
                Packed::Bytes(quantized::prepare(pool, level, group, x, cols, packed, wanted))
            }
        };
        (PreparedActivations { tokens, cols, packed }, Share::new(work))
    }
}

/// The number of elements of f32 in a page of memory.
const PAGE: usize = 4096 / size_of::<f32>();

/// Returns the number of elements from the start of `scratch` to the middle of a page. Weight rows are whole pages in
/// most models and begin at a page. Activations that begin in the middle of a page compete less with weights for lines
/// of the L1 cache. With 8 tokens of 2048 columns, products took 1.1 times as long when both began at a page.
fn mid_page(scratch: &[f32]) -> usize {
    (scratch.as_ptr().addr() / size_of::<f32>()).wrapping_neg().wrapping_add(PAGE / 2) % PAGE
}

/// Returns the number of elements of scratch memory that the largest form needs.
fn packed_len(tokens: usize, cols: usize) -> usize {
    // 16-bit elements in whole steps of 32 columns, or bytes with their scales.
    let halves = tokens * cols.next_multiple_of(32) / 2;
    let bytes = quantized::scratch_bytes(tokens, cols.next_multiple_of(32)).div_ceil(size_of::<f32>());
    halves.max(bytes)
}

/// Returns the number of elements of a thread's work area, for the form that needs most, with weights that are decoded
/// first.
pub(crate) fn work_len(tokens: usize, cols: usize) -> usize {
    coded::panel_len(cols) + tiles::work_len(tokens).max(panel::WORK_LEN)
}
