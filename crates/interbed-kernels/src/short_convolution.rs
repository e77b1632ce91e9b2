//! Computes a gated causal convolution of a few tokens, which continues from a sequence's state.
//!
//! What is convolved is the product of two projections, and a third multiplies the result. A channel's result is a
//! chain of multiply-adds over its taps, oldest first. Channels are independent, so threads divide the channels, and
//! the order of every sum depends on nothing else.

use std::ops::Range;

use crate::convolution::{BLOCK, TAPS_MAX, Work};
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch};
use crate::state::States;
use crate::{KvBytesMut, Level, Matrix, Share, StateLayer, StateSpan};

/// The number of projections that a row of the input has.
const INPUTS: usize = 3;

/// The cost of reading the projections of a channel and writing its result, in multiply-adds.
const TRAFFIC_COST: usize = 4;

/// The operands of [`short_convolution`].
#[derive(Debug)]
pub struct ShortConvolutionOperands<'a> {
    /// The taps, `[channels, taps]`, oldest input first; of a plain type.
    pub weights: Matrix<'a>,
    /// Added to each result of the convolution: `[channels]`, of a plain type.
    pub bias: Option<Matrix<'a>>,
    /// The projections of each token: `[tokens, b | c | x]`, `[channels]` each.
    pub projections: &'a [f32],
    /// The result, `[tokens, channels]`.
    pub out: &'a mut [f32],
}

/// Computes `out[t][n] = c[t][n] * (bias[n] + sum over j of weights[n][j] * z[t - taps + 1 + j][n])` for the rows of
/// each sequence, where `z[t][n] = b[t][n] * x[t][n]`. Rows of `z` before a span's first are those of the state `from`,
/// or zero. The last rows of `z` of the first [`StateSpan::stored_after`] tokens become those of the state `to`.
///
/// `blocks` is the memory of all blocks, with the states of the spans.
///
/// # Panics
/// Panics if the lengths disagree, or there are more than [`TAPS_MAX`] taps, or a span names a block that does not
/// exist or is another span's. In these cases, nothing has been written.
pub fn short_convolution(
    pool: &Pool,
    level: Level,
    layer: &StateLayer,
    blocks: KvBytesMut<'_>,
    spans: &[StateSpan],
    operands: ShortConvolutionOperands<'_>,
) {
    let states = States::new(layer, blocks, spans);
    let (channels, taps) = (states.shape().channels, states.shape().rows + 1);
    let tokens: usize = spans.iter().map(|span| span.tokens).sum();
    let ShortConvolutionOperands { weights, bias, projections, out } = operands;
    let (weights, bias) = (weights.flat(), bias.map(|bias| bias.flat()));
    assert!(taps <= TAPS_MAX && weights.cols() == channels * taps);
    assert!(bias.is_none_or(|bias| bias.cols() == channels));
    assert!(projections.len() == tokens * INPUTS * channels && out.len() == tokens * channels);
    let out = Share::new(out);
    let shared = Shared { states, spans, weights, bias, channels, taps, projections, out };
    pool.split(channels, LANES, tokens * (taps + TRAFFIC_COST), |own| {
        let (mut work, end) = (Work::new(), own.end);
        for first in own.step_by(BLOCK) {
            let own = first..end.min(first + BLOCK);
            let (shared, work) = (&shared, &mut work);
            dispatch!(level, compute_block::<_>(shared: &Shared<'_>, own: Range<usize>, work: &mut Work));
        }
    });
}

/// What all threads share.
struct Shared<'a> {
    states: States<'a>,
    spans: &'a [StateSpan],
    weights: Matrix<'a>,
    bias: Option<Matrix<'a>>,
    channels: usize,
    taps: usize,
    projections: &'a [f32],
    out: Share<'a, f32>,
}

/// Computes some channels of all sequences.
#[inline(always)]
fn compute_block<S: Simd>(s: S, shared: &Shared<'_>, own: Range<usize>, work: &mut Work) {
    let &Shared { ref states, spans, weights, bias, channels, taps, projections, out } = shared;
    let (rows, width) = (taps - 1, own.len());
    work.read_taps(weights, &own, taps);
    work.read_bias(bias, &own);
    let mut first_row = 0;
    for span in spans {
        // SAFETY: no other thread touches the columns of these channels.
        unsafe { work.begin(states, span, &own) };
        for token in 0..span.tokens {
            let row = &projections[(first_row + token) * INPUTS * channels..][..INPUTS * channels];
            let part = |index: usize| &row[index * channels..][own.clone()];
            let [b, c, x] = [part(0), part(1), part(2)];
            let newest = work.inputs[(token + rows) % taps].as_flattened_mut();
            newest.iter_mut().zip(b.iter().zip(x)).for_each(|(to, (b, x))| *to = b * x);
            // Where the input of each tap is.
            let places: [usize; TAPS_MAX] = std::array::from_fn(|tap| (token + tap) % taps);
            for vector in 0..width.div_ceil(LANES) {
                let mut sum = s.load(&work.bias[vector]);
                for (tap, &place) in places[..taps].iter().enumerate() {
                    sum = s.fma(s.load(&work.taps[tap][vector]), s.load(&work.inputs[place][vector]), sum);
                }
                s.store(sum, &mut work.result[vector]);
            }
            // SAFETY: each channel is in one thread's share only.
            let out = unsafe { out.slice((first_row + token) * channels + own.start, width) };
            let results = work.result.as_flattened();
            out.iter_mut().zip(c.iter().zip(results)).for_each(|(out, (c, result))| *out = c * result);
            if token + 1 == span.stored_after {
                // SAFETY: as above.
                unsafe { work.keep(states, span, &own, token + 1) };
            }
        }
        first_row += span.tokens;
    }
}
