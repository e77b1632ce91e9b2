//! Computes a causal convolution of each channel with taps of its own, which continues from a sequence's state.
//!
//! A channel's result is a chain of multiply-adds over its taps, oldest first, and at last its bias. Channels are
//! independent, so threads divide the channels, and the order of every sum depends on nothing else.

use std::ops::Range;

use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch, exp};
use crate::state::States;
use crate::{KvBytesMut, Level, Matrix, Share, StateLayer, StateSpan};

/// The maximum number of taps of a channel.
pub const TAPS_MAX: usize = 8;

/// The number of channels that are computed at a time: their last inputs stay in the L1 cache.
pub(crate) const BLOCK: usize = 512;

/// The cost of an activation, in multiply-adds.
const ACTIVATION_COST: usize = 16;

/// Computes, in place, `x[t][c] = silu(sum over j of weights[c][j] * x[t - taps + 1 + j][c] + bias[c])` for the rows of
/// each sequence. Rows before a span's first are those of the state `from`, or zero. The last inputs of the first
/// [`StateSpan::stored_after`] tokens become those of the state `to`.
///
/// - `blocks`: the memory of all blocks, with the states of the spans
/// - `weights`: `[channels, taps]`, of a plain type
/// - `bias`: `[channels]`, of a plain type, or `None` for zeros
/// - `x`: `[tokens, channels]`
///
/// # Panics
/// Panics if the lengths disagree, or there are more than [`TAPS_MAX`] taps, or a span names a block that does not
/// exist or is another span's. In these cases, nothing has been written.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn convolve(
    pool: &Pool,
    level: Level,
    layer: &StateLayer,
    blocks: KvBytesMut<'_>,
    spans: &[StateSpan],
    weights: Matrix<'_>,
    bias: Option<Matrix<'_>>,
    x: &mut [f32],
) {
    let states = States::new(layer, blocks, spans);
    let (channels, taps) = (states.shape().channels, states.shape().rows + 1);
    let tokens: usize = spans.iter().map(|span| span.tokens).sum();
    let weights = weights.flat();
    assert!(taps <= TAPS_MAX && weights.cols() == channels * taps);
    assert!(x.len() == tokens * channels && bias.is_none_or(|bias| bias.rows() == 1 && bias.cols() == channels));
    let operands = Operands { states, spans, weights, bias, channels, taps, x: Share::new(x) };
    pool.split(channels, LANES, tokens * (taps + ACTIVATION_COST), |own| {
        let (mut work, end) = (Work::new(), own.end);
        for first in own.step_by(BLOCK) {
            let own = first..end.min(first + BLOCK);
            let (operands, work) = (&operands, &mut work);
            dispatch!(level, convolve_block::<_>(operands: &Operands<'_>, own: Range<usize>, work: &mut Work));
        }
    });
}

/// The operands that all threads share.
struct Operands<'a> {
    states: States<'a>,
    spans: &'a [StateSpan],
    weights: Matrix<'a>,
    bias: Option<Matrix<'a>>,
    channels: usize,
    taps: usize,
    x: Share<'a, f32>,
}

/// One number for each channel of a block.
pub(crate) type Row = [[f32; LANES]; BLOCK / LANES];

/// A thread's working memory.
pub(crate) struct Work {
    /// The taps of a block's channels, `[tap, channel]`.
    pub(crate) taps: [Row; TAPS_MAX],
    /// The biases of a block's channels.
    pub(crate) bias: Row,
    /// The last inputs. The input of row `t` of a span is in place `(t + taps - 1) % taps`.
    pub(crate) inputs: [Row; TAPS_MAX],
    pub(crate) result: Row,
}

impl Work {
    pub(crate) fn new() -> Self {
        const ROW: Row = [[0.0; LANES]; BLOCK / LANES];
        Self { taps: [ROW; TAPS_MAX], bias: ROW, inputs: [ROW; TAPS_MAX], result: ROW }
    }

    /// Reads the taps of some channels.
    #[inline(always)]
    pub(crate) fn read_taps(&mut self, weights: Matrix<'_>, own: &Range<usize>, count: usize) {
        let mut widened = [0.0; LANES * TAPS_MAX];
        for (vector, first) in own.clone().step_by(LANES).enumerate() {
            let channels = LANES.min(own.end - first);
            weights.columns(first * count..(first + channels) * count).widen_row(0, &mut widened[..channels * count]);
            // Where the number is known, the compiler turns whole vectors.
            match count {
                4 => self.put_taps(&widened, vector, 4),
                _ => self.put_taps(&widened, vector, count),
            }
        }
    }

    /// Reads the biases of some channels; without biases, they are zeros.
    pub(crate) fn read_bias(&mut self, bias: Option<Matrix<'_>>, own: &Range<usize>) {
        let to = &mut self.bias.as_flattened_mut()[..own.len()];
        match bias {
            Some(bias) => bias.columns(own.clone()).widen_row(0, to),
            None => to.fill(0.0),
        }
    }

    /// Begins a span: reads the last inputs of some channels from the state that the span goes on from.
    ///
    /// # Safety
    /// No other thread touches the columns of these channels.
    pub(crate) unsafe fn begin(&mut self, states: &States<'_>, span: &StateSpan, own: &Range<usize>) {
        let shape = states.shape();
        for row in 0..shape.rows {
            let to = &mut self.inputs[row].as_flattened_mut()[..own.len()];
            match span.from {
                // SAFETY: the state has these rows, and the rest is guaranteed by the caller.
                Some(from) => to.copy_from_slice(unsafe { piece(states.rows(from), row * shape.channels, own) }),
                None => to.fill(0.0),
            }
        }
    }

    /// Writes the last inputs of some channels to the state that the span leaves, behind `tokens` tokens of the span.
    ///
    /// # Safety
    /// No other thread touches the columns of these channels.
    pub(crate) unsafe fn keep(&self, states: &States<'_>, span: &StateSpan, own: &Range<usize>, tokens: usize) {
        let shape = states.shape();
        for row in 0..shape.rows {
            let from = &self.inputs[(tokens + row) % (shape.rows + 1)].as_flattened()[..own.len()];
            // SAFETY: the state has these rows, and the rest is guaranteed by the caller.
            unsafe { piece(states.rows(span.to), row * shape.channels, own) }.copy_from_slice(from);
        }
    }

    /// Puts the taps `[channel, tap]` of one vector of channels in their places. Channels that are not there get any.
    #[inline(always)]
    fn put_taps(&mut self, widened: &[f32; LANES * TAPS_MAX], vector: usize, count: usize) {
        for tap in 0..count {
            for channel in 0..LANES {
                self.taps[tap][vector][channel] = widened[channel * count + tap];
            }
        }
    }
}

/// Convolves some channels of all sequences.
#[inline(always)]
fn convolve_block<S: Simd>(s: S, operands: &Operands<'_>, own: Range<usize>, work: &mut Work) {
    let &Operands { ref states, spans, weights, bias, channels, taps, x } = operands;
    let (rows, width) = (taps - 1, own.len());
    work.read_taps(weights, &own, taps);
    work.read_bias(bias, &own);
    let mut first_row = 0;
    for span in spans {
        // SAFETY: no other thread touches the columns of these channels.
        unsafe { work.begin(states, span, &own) };
        for token in 0..span.tokens {
            // SAFETY: each channel is in one thread's share only.
            let x = unsafe { x.slice((first_row + token) * channels + own.start, width) };
            work.inputs[(token + rows) % taps].as_flattened_mut()[..width].copy_from_slice(x);
            for vector in 0..width.div_ceil(LANES) {
                let mut sum = s.mul(s.load(&work.taps[0][vector]), s.load(&work.inputs[token % taps][vector]));
                for tap in 1..taps {
                    let input = s.load(&work.inputs[(token + tap) % taps][vector]);
                    sum = s.fma(s.load(&work.taps[tap][vector]), input, sum);
                }
                if bias.is_some() {
                    sum = s.add(sum, s.load(&work.bias[vector]));
                }
                let denominator = s.add(s.splat(1.0), exp(s, s.mul(sum, s.splat(-1.0))));
                s.store(s.div(sum, denominator), &mut work.result[vector]);
            }
            x.copy_from_slice(&work.result.as_flattened()[..width]);
            if token + 1 == span.stored_after {
                // SAFETY: as above.
                unsafe { work.keep(states, span, &own, token + 1) };
            }
        }
        first_row += span.tokens;
    }
}

/// Returns the elements `own` of the row that begins at element `at`.
///
/// # Safety
/// The elements are readable and writable, and nothing else touches them while they are in use.
unsafe fn piece<'a>(start: *mut f32, at: usize, own: &Range<usize>) -> &'a mut [f32] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(start.add(at + own.start), own.len()) }
}
