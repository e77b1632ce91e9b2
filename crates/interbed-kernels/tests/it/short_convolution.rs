//! Tests the gated convolution against a simple f64 reference, and that a token's result and the state after it do not
//! depend on passes, batch and threads.

use interbed_kernels::{DType, Level, Matrix, ShortConvolutionOperands, StateShape, StateSpan, short_convolution};
use proptest::prelude::*;

use crate::states::{FIRST, StateBlocks, lengths, passes};
use crate::support::{DTYPES, Numbers, assert_close, bits, encode, kernel_levels, pool};

#[derive(Clone)]
struct Case {
    blocks: StateBlocks,
    dtype: DType,
    weights: Vec<u8>,
    bias: Option<Vec<u8>>,
    /// The weights as they were rounded, `[channels, taps]`.
    taps: Vec<f32>,
    /// The biases as they were rounded, `[channels]`; zeros if there are none.
    added: Vec<f32>,
    /// `[tokens, b | c | x]`
    projections: Vec<f32>,
}

impl Case {
    fn new([channels, taps, tokens, dtype]: [usize; 4], has_bias: bool, seed: u64) -> Self {
        let (mut numbers, dtype) = (Numbers(seed), DTYPES[dtype]);
        let shape = StateShape { rows: taps - 1, channels, ..StateShape::default() };
        let (weights, taps) = encode(dtype, &numbers.take(channels * taps));
        let (bias, added) = encode(dtype, &numbers.take(channels));
        let added = if has_bias { added } else { vec![0.0; channels] };
        let projections = numbers.take(tokens * 3 * channels).iter().map(|x| x * 2.0).collect();
        let bias = has_bias.then_some(bias);
        Self { blocks: StateBlocks::new(shape), dtype, weights, bias, taps, added, projections }
    }

    fn channels(&self) -> usize {
        self.added.len()
    }

    fn run(&mut self, level: Level, threads: usize, spans: &[StateSpan], projections: &[f32]) -> Vec<f32> {
        let channels = self.channels();
        let mut out = vec![f32::NAN; projections.len() / 3];
        let operands = ShortConvolutionOperands {
            weights: Matrix::new(self.dtype, channels, self.taps.len() / channels, &self.weights),
            bias: self.bias.as_deref().map(|bias| Matrix::new(self.dtype, 1, channels, bias)),
            projections,
            out: &mut out,
        };
        let layer = self.blocks.layer;
        short_convolution(&pool(threads), level, &layer, self.blocks.bytes[..].as_mut().into(), spans, operands);
        out
    }

    /// The projections of some tokens.
    fn rows(&self, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let width = 3 * self.channels();
        self.projections[tokens.start * width..tokens.end * width].to_vec()
    }

    /// Computes all tokens as one sequence in passes of these lengths, each with up to `drafts` drafts, all of them
    /// right. Returns the results and the last state's rows.
    fn in_passes(&mut self, level: Level, threads: usize, lengths: &[usize], drafts: usize) -> [Vec<u32>; 2] {
        let (channels, spans, mut row, mut out) = (self.channels(), passes(lengths, drafts), 0, Vec::new());
        for span in &spans {
            let own = self.run(level, threads, &[*span], &self.rows(row..row + span.tokens));
            let again: Vec<f32> = out.split_off(row * channels);
            assert_eq!(bits(&again), bits(&own[..again.len()]), "a draft is another when it is computed again");
            out.extend(own);
            row += span.stored_after;
        }
        let [rows, _] = self.blocks.state(spans[spans.len() - 1].to);
        [bits(&out), bits(&rows)]
    }

    /// What is convolved: `[tokens, channels]`.
    fn gated(&self) -> Vec<f32> {
        let channels = self.channels();
        let gated = |row: &[f32]| (0..channels).map(|c| row[c] * row[2 * channels + c]).collect::<Vec<_>>();
        self.projections.chunks(3 * channels).flat_map(gated).collect()
    }

    fn reference(&self) -> Vec<f64> {
        let (channels, gated) = (self.channels(), self.gated());
        let taps = self.taps.len() / channels;
        let result = |token: usize, channel: usize| {
            let terms = (0..taps).filter(|tap| token + tap + 1 >= taps).map(|tap| {
                let row = token + tap + 1 - taps;
                f64::from(self.taps[channel * taps + tap]) * f64::from(gated[row * channels + channel])
            });
            let convolved = f64::from(self.added[channel]) + terms.sum::<f64>();
            convolved * f64::from(self.projections[(3 * token + 1) * channels + channel])
        };
        let tokens = gated.len() / channels;
        (0..tokens)
            .flat_map(|token| (0..channels).map(move |channel| (token, channel)))
            .map(|(t, c)| result(t, c))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_the_reference_in_any_passes(
        channels in 1usize..700, taps in 1usize..8, tokens in 1usize..40, dtype in 0usize..3, threads in 1usize..4,
        cuts in any::<u64>(), seed in any::<u64>(), drafts in 0usize..10, has_bias in any::<bool>(),
    ) {
        let case = Case::new([channels, taps, tokens, dtype], has_bias, seed);
        let want = case.reference();
        for level in kernel_levels() {
            let mut own = case.clone();
            let [whole, state] = own.in_passes(level, 1, &[tokens], 0);
            let got: Vec<f32> = whole.iter().map(|&bits| f32::from_bits(bits)).collect();
            assert_close(&got, &want, 2e-6, level.name());
            own.blocks.assert_untouched_but(&[FIRST], false);
            // The state is what was convolved last.
            let rows = taps - 1;
            let before = vec![0.0; rows.saturating_sub(tokens) * channels];
            let last = [&before[..], &case.gated()[tokens.saturating_sub(rows) * channels..]].concat();
            prop_assert_eq!(&state, &bits(&last));
            prop_assert_eq!(own.in_passes(level, threads, &lengths(tokens, cuts), drafts), [whole, state]);
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let (channels, level) = (530, Level::detect());
    let mut case = Case::new([channels, 3, 12, 0], true, 5);
    let [whole, state] = case.in_passes(level, 1, &[12], 0);
    let part = |rows: std::ops::Range<usize>| whole[rows.start * channels..rows.end * channels].to_vec();
    // Three sequences, which begin where the one sequence is after 3, 5 and 0 tokens.
    for (tokens, to) in [(3, FIRST + 1), (5, FIRST + 2)] {
        let rows = case.rows(0..tokens);
        case.run(level, 1, &[StateSpan { tokens, from: None, to, stored_after: tokens }], &rows);
    }
    let rows = [case.rows(3..4), case.rows(5..12), case.rows(0..2)].concat();
    let spans = [
        StateSpan { tokens: 1, from: Some(FIRST + 1), to: FIRST + 1, stored_after: 1 },
        StateSpan { tokens: 7, from: Some(FIRST + 2), to: FIRST + 4, stored_after: 7 },
        StateSpan { tokens: 2, from: None, to: FIRST + 5, stored_after: 1 },
    ];
    let out = case.run(level, 3, &spans, &rows);
    assert_eq!(bits(&out), [part(3..4), part(5..12), part(0..2)].concat());
    assert_eq!(bits(&case.blocks.state(FIRST + 4)[0]), state);
}

#[test]
fn channels_are_the_same_on_any_number_of_threads() {
    let on = |threads: usize| Case::new([3001, 3, 20, 2], false, 7).in_passes(Level::detect(), threads, &[7, 1, 12], 3);
    assert!(on(1) == on(2) && on(1) == on(5));
}
