//! Tests the state space against a simple f64 reference, and that a token's result and the state after it do not depend
//! on passes, batch and threads.

use interbed_kernels::{
    DType, DecayForm, Level, Matrix, StateShape, StateSpace, StateSpaceOperands, StateSpan, state_space,
};
use proptest::prelude::*;

use crate::states::{FIRST, StateBlocks, lengths, passes};
use crate::support::{Numbers, assert_close, bits, fused_levels, kernel_levels, pool};

#[derive(Clone)]
struct Case {
    blocks: StateBlocks,
    space: StateSpace,
    /// `[tokens, x | B | C]`
    xbc: Vec<f32>,
    /// `[tokens, heads]`
    steps: Vec<f32>,
    /// `[heads]`
    rates: Vec<f32>,
    bias: Vec<f32>,
    skip: Vec<f32>,
}

impl Case {
    fn new(groups: usize, each: usize, [state_width, head_width]: [usize; 2], tokens: usize, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let heads = groups * each;
        let shape = StateShape { rows: 2, channels: 5, heads, key_width: state_width, value_width: head_width };
        let decay = if seed.is_multiple_of(3) { DecayForm::Logarithm } else { DecayForm::NegativeRate };
        let limits = if seed.is_multiple_of(2) { [0.0, f32::INFINITY] } else { [0.1, 0.9] };
        let space = StateSpace { groups, decay, limits };
        let scaled = |numbers: &mut Numbers, count: usize, by: f32| -> Vec<f32> {
            numbers.take(count).iter().map(|x| x * by).collect()
        };
        let rates = scaled(&mut numbers, heads, 2.0);
        Self {
            blocks: StateBlocks::new(shape),
            space,
            xbc: scaled(&mut numbers, tokens * space.width(&shape), 3.0),
            steps: scaled(&mut numbers, tokens * heads, 4.0),
            rates: match decay {
                DecayForm::Logarithm => rates,
                DecayForm::NegativeRate => rates.iter().map(|rate| -rate.exp()).collect(),
            },
            bias: scaled(&mut numbers, heads, 1.0),
            skip: scaled(&mut numbers, heads, 1.0),
        }
    }

    fn shape(&self) -> StateShape {
        self.blocks.layer.shape()
    }

    /// Computes the tokens of these rows as one pass over `spans`.
    fn run(&mut self, level: Level, threads: usize, spans: &[StateSpan], rows: &[usize]) -> Vec<f32> {
        let shape = self.shape();
        let of = |numbers: &[f32], width: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| &numbers[row * width..(row + 1) * width]).copied().collect()
        };
        let (xbc, mut steps) = (of(&self.xbc, self.space.width(&shape)), of(&self.steps, shape.heads));
        let mut decays = vec![f32::NAN; steps.len()];
        let mut out = vec![f32::NAN; rows.len() * shape.heads * shape.value_width];
        let vectors = [&self.rates, &self.bias, &self.skip]
            .map(|numbers| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
        let [rates, bias, skip] = vectors.each_ref().map(|bytes| Matrix::new(DType::F32, 1, shape.heads, bytes));
        let operands =
            StateSpaceOperands { xbc: &xbc, steps: &mut steps, decays: &mut decays, rates, bias, skip, out: &mut out };
        let (layer, space) = (self.blocks.layer, self.space);
        state_space(&pool(threads), level, &layer, self.blocks.bytes[..].as_mut().into(), spans, &space, operands);
        out
    }

    /// Computes all tokens as one sequence in passes of these lengths, each with up to `drafts` drafts, all of them
    /// right. Returns the results and the last matrices.
    fn in_passes(&mut self, level: Level, threads: usize, lengths: &[usize], drafts: usize) -> [Vec<f32>; 2] {
        let width = self.shape().heads * self.shape().value_width;
        let (spans, mut row, mut out) = (passes(lengths, drafts), 0, Vec::new());
        for span in &spans {
            let rows: Vec<_> = (row..row + span.tokens).collect();
            let own = self.run(level, threads, &[*span], &rows);
            let again: Vec<f32> = out.split_off(row * width);
            assert_eq!(bits(&again), bits(&own[..again.len()]), "a draft is another when it is computed again");
            out.extend(own);
            row += span.stored_after;
        }
        let [_, matrices] = self.blocks.state(spans[spans.len() - 1].to);
        [out, matrices]
    }

    /// The results, and the matrices after the last token.
    fn reference(&self) -> [Vec<f64>; 2] {
        let (shape, space) = (self.shape(), self.space);
        let (heads, height, width) = (shape.heads, shape.key_width, shape.value_width);
        let (all, tokens) = (space.width(&shape), self.steps.len() / heads);
        let mut states = vec![0.0f64; heads * height * width];
        let mut out = Vec::new();
        for token in 0..tokens {
            let row: Vec<f64> = self.xbc[token * all..][..all].iter().map(|&x| f64::from(x)).collect();
            for head in 0..heads {
                let group = head / (heads / space.groups);
                let enters = &row[heads * width + group * height..][..height];
                let leaves = &row[heads * width + (space.groups + group) * height..][..height];
                let rate = match space.decay {
                    DecayForm::Logarithm => -f64::from(self.rates[head]).exp(),
                    DecayForm::NegativeRate => f64::from(self.rates[head]),
                };
                let step = f64::from(self.steps[token * heads + head]) + f64::from(self.bias[head]);
                let step = step.exp().ln_1p().clamp(f64::from(space.limits[0]), f64::from(space.limits[1]));
                let state = &mut states[head * height * width..][..height * width];
                for column in 0..width {
                    let x = row[head * width + column];
                    let mut sum = f64::from(self.skip[head]) * x;
                    for index in 0..height {
                        let number = &mut state[index * width + column];
                        *number = (rate * step).exp() * *number + enters[index] * step * x;
                        sum += leaves[index] * *number;
                    }
                    out.push(sum);
                }
            }
        }
        [out, states]
    }
}

fn of_bits(results: &[Vec<f32>; 2]) -> [Vec<u32>; 2] {
    results.each_ref().map(|numbers| bits(numbers))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_the_reference_in_any_passes(
        groups in 1usize..4, each in 1usize..4, state_width in 1usize..70, head_width in 1usize..80,
        tokens in 1usize..24, threads in 1usize..4, cuts in any::<u64>(), seed in any::<u64>(), drafts in 0usize..10,
    ) {
        let case = Case::new(groups, each, [state_width, head_width], tokens, seed);
        let [want, want_states] = case.reference();
        for level in kernel_levels() {
            let mut own = case.clone();
            let whole = own.in_passes(level, 1, &[tokens], 0);
            assert_close(&whole[0], &want, 1e-5, level.name());
            assert_close(&whole[1], &want_states, 1e-5, level.name());
            own.blocks.assert_untouched_but(&[FIRST], true);
            let in_passes = own.in_passes(level, threads, &lengths(tokens, cuts), drafts);
            prop_assert_eq!(of_bits(&in_passes), of_bits(&whole), "{}", level.name());
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_to_the_bit() {
    let case = Case::new(2, 2, [128, 128], 9, 6);
    let results: Vec<_> = fused_levels().map(|level| of_bits(&case.clone().in_passes(level, 2, &[4, 5], 3))).collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let level = Level::detect();
    let mut case = Case::new(2, 3, [32, 48], 12, 9);
    let [whole, state] = case.in_passes(level, 1, &[12], 0);
    let width = case.shape().heads * case.shape().value_width;
    let part = |rows: std::ops::Range<usize>| bits(&whole[rows.start * width..rows.end * width]);
    for (tokens, to) in [(3, FIRST + 1), (5, FIRST + 2)] {
        case.run(
            level,
            1,
            &[StateSpan { tokens, from: None, to, stored_after: tokens }],
            &(0..tokens).collect::<Vec<_>>(),
        );
    }
    let spans = [
        StateSpan { tokens: 1, from: Some(FIRST + 1), to: FIRST + 1, stored_after: 1 },
        StateSpan { tokens: 7, from: Some(FIRST + 2), to: FIRST + 4, stored_after: 7 },
        StateSpan { tokens: 2, from: None, to: FIRST + 5, stored_after: 1 },
    ];
    let rows: Vec<_> = (3..4).chain(5..12).chain(0..2).collect();
    let together = case.run(level, 3, &spans, &rows);
    assert_eq!(bits(&together), [part(3..4), part(5..12), part(0..2)].concat());
    assert_eq!(bits(&case.blocks.state(FIRST + 4)[1]), bits(&state));
}

#[test]
fn heads_are_the_same_on_any_number_of_threads() {
    let case = Case::new(2, 4, [128, 100], 9, 12);
    let on = |threads: usize| of_bits(&case.clone().in_passes(Level::detect(), threads, &[4, 1, 4], 2));
    assert!(on(1) == on(2) && on(1) == on(5));
}

#[test]
fn tall_matrices_and_many_heads_agree_with_the_reference() {
    for (groups, widths) in [(1, [300, 20]), (70, [4, 3])] {
        let mut case = Case::new(groups, 1, widths, 6, 5);
        let [want, states] = case.reference();
        let [out, matrices] = case.in_passes(Level::detect(), 2, &[2, 4], 1);
        assert_close(&out, &want, 1e-5, "results");
        assert_close(&matrices, &states, 1e-5, "matrices");
    }
}

#[test]
fn states_may_go_on_for_long() {
    let mut case = Case::new(1, 2, [64, 32], 700, 3);
    let [want, states] = case.reference();
    let [out, matrices] = case.in_passes(Level::detect(), 2, &[700], 0);
    assert_close(&out, &want, 1e-5, "results");
    assert_close(&matrices, &states, 1e-5, "matrices");
}
