//! Tests the convolution against a simple f64 reference, and that a token's result and the state after it do not depend
//! on passes, batch and threads.

use interbed_kernels::{Level, Matrix, StateShape, StateSpan, convolve};
use proptest::prelude::*;

use crate::states::{FIRST, StateBlocks, lengths, passes};
use crate::support::{DTYPES, Numbers, assert_close, bits, encode, kernel_levels, pool};

struct Case {
    blocks: StateBlocks,
    weights: Vec<u8>,
    dtype: interbed_kernels::DType,
    /// The weights as they were rounded, `[channels, taps]`.
    taps: Vec<f32>,
    /// `[channels]`, or nothing.
    bias: Vec<f32>,
    /// `[tokens, channels]`
    x: Vec<f32>,
}

impl Case {
    fn new(channels: usize, taps: usize, tokens: usize, dtype: usize, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let shape = StateShape { rows: taps - 1, channels, heads: 1, key_width: 2, value_width: 3 };
        let (weights, rounded) = encode(DTYPES[dtype], &numbers.take(channels * taps));
        let x = numbers.take(tokens * channels).iter().map(|x| x * 4.0).collect();
        let bias = if seed.is_multiple_of(2) { numbers.take(channels) } else { Vec::new() };
        Self { blocks: StateBlocks::new(shape), weights, dtype: DTYPES[dtype], taps: rounded, bias, x }
    }

    fn channels(&self) -> usize {
        self.blocks.layer.shape().channels
    }

    fn run(&mut self, level: Level, threads: usize, spans: &[StateSpan], x: &mut [f32]) {
        let weights = Matrix::new(self.dtype, self.channels(), self.taps.len() / self.channels(), &self.weights);
        let bias: Vec<u8> = self.bias.iter().flat_map(|bias| bias.to_le_bytes()).collect();
        let bias = (!bias.is_empty()).then(|| Matrix::new(interbed_kernels::DType::F32, 1, self.channels(), &bias));
        let layer = self.blocks.layer;
        convolve(&pool(threads), level, &layer, self.blocks.bytes[..].as_mut().into(), spans, weights, bias, x);
    }

    /// Computes all tokens as one sequence in passes of these lengths, each with up to `drafts` drafts, all of them
    /// right. Returns the results and the last state's rows.
    fn in_passes(&mut self, level: Level, threads: usize, lengths: &[usize], drafts: usize) -> [Vec<u32>; 2] {
        let (channels, spans, mut row, mut x) = (self.channels(), passes(lengths, drafts), 0, Vec::new());
        for span in &spans {
            let mut own = self.x[row * channels..][..span.tokens * channels].to_vec();
            self.run(level, threads, &[*span], &mut own);
            let again: Vec<f32> = x.split_off(row * channels);
            assert_eq!(bits(&again), bits(&own[..again.len()]), "a draft is another when it is computed again");
            x.extend(own);
            row += span.stored_after;
        }
        let [rows, _] = self.blocks.state(spans[spans.len() - 1].to);
        [bits(&x), bits(&rows)]
    }

    fn reference(&self) -> Vec<f64> {
        let (channels, tokens) = (self.channels(), self.x.len() / self.channels());
        let taps = self.taps.len() / channels;
        let mut out = Vec::new();
        for token in 0..tokens {
            for channel in 0..channels {
                let terms = (0..taps).filter(|tap| token + tap + 1 >= taps).map(|tap| {
                    let row = token + tap + 1 - taps;
                    f64::from(self.taps[channel * taps + tap]) * f64::from(self.x[row * channels + channel])
                });
                let sum = terms.sum::<f64>() + self.bias.get(channel).map_or(0.0, |&bias| f64::from(bias));
                out.push(sum / (1.0 + (-sum).exp()));
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_the_reference_in_any_passes(
        channels in 1usize..700, taps in 1usize..8, tokens in 1usize..40, dtype in 0usize..3, threads in 1usize..4,
        cuts in any::<u64>(), seed in any::<u64>(), drafts in 0usize..10,
    ) {
        let case = Case::new(channels, taps, tokens, dtype, seed);
        let want = case.reference();
        for level in kernel_levels() {
            let mut own = Case { blocks: case.blocks.clone(), weights: case.weights.clone(), dtype: case.dtype,
                taps: case.taps.clone(), bias: case.bias.clone(), x: case.x.clone() };
            let [whole, state] = own.in_passes(level, 1, &[tokens], 0);
            let got: Vec<f32> = whole.iter().map(|&bits| f32::from_bits(bits)).collect();
            assert_close(&got, &want, 2e-6, level.name());
            own.blocks.assert_untouched_but(&[FIRST], false);
            // The state is the last inputs, as they were.
            let rows = taps - 1;
            let before = vec![0.0; rows.saturating_sub(tokens) * channels];
            let last = [&before[..], &case.x[tokens.saturating_sub(rows) * channels..]].concat();
            prop_assert_eq!(&state, &bits(&last));
            prop_assert_eq!(own.in_passes(level, threads, &lengths(tokens, cuts), drafts), [whole, state]);
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let (channels, taps) = (530, 4);
    let level = Level::detect();
    let mut case = Case::new(channels, taps, 12, 0, 5);
    let [whole, state] = case.in_passes(level, 1, &[12], 0);
    let part = |rows: std::ops::Range<usize>| whole[rows.start * channels..rows.end * channels].to_vec();
    // A state for each of three sequences, which begin where the one sequence is after 3, 5 and 0 tokens.
    let mut x = case.x[..8 * channels].to_vec();
    let first = [(3, FIRST + 1), (5, FIRST + 2)];
    for (tokens, to) in first {
        let mut x = case.x[..tokens * channels].to_vec();
        case.run(level, 1, &[StateSpan { tokens, from: None, to, stored_after: tokens }], &mut x);
    }
    x = [&case.x[3 * channels..4 * channels], &case.x[5 * channels..12 * channels], &x[..2 * channels]].concat();
    let spans = [
        StateSpan { tokens: 1, from: Some(FIRST + 1), to: FIRST + 1, stored_after: 1 },
        StateSpan { tokens: 7, from: Some(FIRST + 2), to: FIRST + 4, stored_after: 7 },
        StateSpan { tokens: 2, from: None, to: FIRST + 5, stored_after: 1 },
    ];
    case.run(level, 3, &spans, &mut x);
    assert_eq!(bits(&x), [part(3..4), part(5..12), part(0..2)].concat());
    assert_eq!(bits(&case.blocks.state(FIRST + 4)[0]), state);
}

#[test]
fn channels_are_the_same_on_any_number_of_threads() {
    let on = |threads: usize| Case::new(3001, 4, 20, 2, 7).in_passes(Level::detect(), threads, &[7, 1, 12], 3);
    assert!(on(1) == on(2) && on(1) == on(5));
}

#[test]
fn states_of_others_are_not_written() {
    let refused = |spans: &[StateSpan]| {
        let mut case = Case::new(20, 4, 4, 0, 5);
        let mut x = case.x.clone();
        let run = std::panic::AssertUnwindSafe(|| case.run(Level::detect(), 1, spans, &mut x));
        std::panic::catch_unwind(run).is_err()
    };
    let span = |from: Option<u32>, to: u32| StateSpan { tokens: 2, from, to, stored_after: 2 };
    assert!(!refused(&[span(Some(FIRST), FIRST), span(Some(FIRST + 2), FIRST + 1)]));
    assert!(!refused(&[span(Some(FIRST + 2), FIRST), span(Some(FIRST + 2), FIRST + 1)]), "both go on from one");
    assert!(refused(&[span(None, FIRST), span(None, FIRST)]), "both write one");
    assert!(refused(&[span(None, FIRST), span(Some(FIRST), FIRST + 1)]), "one reads what the other writes");
    assert!(refused(&[span(None, FIRST - 1), span(None, FIRST)]), "a block of another group");
    assert!(refused(&[span(None, FIRST + 6), span(None, FIRST)]), "beyond the last");
    assert!(refused(&[span(Some(2), FIRST + 1), span(None, FIRST)]), "from a block of the trunk");
    let after = |stored_after: usize| [StateSpan { stored_after, ..span(None, FIRST) }, span(None, FIRST + 1)];
    assert!(!refused(&after(1)) && refused(&after(0)) && refused(&after(3)), "behind a token that is not there");
}
