use proptest::prelude::*;

use super::*;

const EOS: TokenId = 2;

/// Samples for a sequence without history.
fn sample(logits: &[f32], params: &SamplingParams, generated: usize) -> TokenId {
    let state = SamplerState::new(&[], logits.len(), params);
    Sampler::default().sample(&mut logits.to_vec(), params, &state, generated, &[EOS]).token
}

/// Returns the logits after bias and penalties, and the token that is chosen greedily.
fn processed(
    logits: &[f32],
    params: &SamplingParams,
    prompt: &[TokenId],
    generated: &[TokenId],
) -> (Vec<f32>, TokenId) {
    let params = SamplingParams { temperature: 0.0, ..params.clone() };
    let mut state = SamplerState::new(prompt, logits.len(), &params);
    generated.iter().for_each(|&token| state.record(token));
    let mut logits = logits.to_vec();
    let token = Sampler::default().sample(&mut logits, &params, &state, generated.len(), &[EOS]).token;
    (logits, token)
}

/// Returns the probabilities after temperature, `min_p`, `top_k` and `top_p`, computed in a plain way.
fn naive_distribution(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / f64::from(params.temperature)).collect();
    let best = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scaled.iter().map(|logit| (logit - best).exp()).collect();
    weights.iter_mut().filter(|weight| **weight < f64::from(params.min_p)).for_each(|weight| *weight = 0.0);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.iter().skip(params.top_k.unwrap_or(usize::MAX)).for_each(|&token| weights[token] = 0.0);
    let reach = f64::from(params.top_p) * weights.iter().sum::<f64>();
    let mut reached = 0.0;
    for token in order {
        if reached > 0.0 && reached >= reach {
            weights[token] = 0.0;
        }
        reached += weights[token];
    }
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Checks that many draws follow the naive distribution, by Pearson's chi-square, with a bound far outside of what
/// chance gives. The draws are the same in every run.
fn check_distribution(logits: &[f32], params: &SamplingParams) {
    let draws = 20_000;
    let mut counts = vec![0u32; logits.len()];
    (0..draws).for_each(|position| counts[sample(logits, params, position) as usize] += 1);
    let (mut chi_square, mut degrees) = (0.0, -1.0);
    for (token, probability) in naive_distribution(logits, params).into_iter().enumerate() {
        let (expect, count) = (probability * draws as f64, f64::from(counts[token]));
        if probability == 0.0 {
            assert_eq!(count, 0.0, "token {token} is excluded by {params:?}");
        } else {
            chi_square += (count - expect).powi(2) / expect;
            degrees += 1.0;
        }
    }
    let bound = degrees + 4.0 * f64::sqrt(2.0 * f64::max(degrees, 0.0)) + 1e-6;
    assert!(chi_square <= bound, "chi-square {chi_square} at {degrees} degrees of freedom: {counts:?} {params:?}");
}

const LOGITS: [f32; 8] = [1.0, 2.5, -0.5, 2.0, 0.0, 2.5, 1.5, -3.0];

#[test]
fn draws_follow_the_softmax() {
    check_distribution(&LOGITS, &SamplingParams::default());
    check_distribution(&[0.0; 5], &SamplingParams { seed: 9, ..SamplingParams::default() });
}

#[test]
fn draws_follow_temperature() {
    for temperature in [0.1, 0.7, 2.0, 100.0] {
        check_distribution(&LOGITS, &SamplingParams { temperature, ..SamplingParams::default() });
    }
}

#[test]
fn draws_follow_top_k() {
    for k in [1, 2, 3, 5, 8, 9, usize::MAX] {
        check_distribution(&LOGITS, &SamplingParams { top_k: Some(k), ..SamplingParams::default() });
    }
}

#[test]
fn draws_follow_top_p() {
    for top_p in [0.0, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0] {
        check_distribution(&LOGITS, &SamplingParams { top_p, ..SamplingParams::default() });
    }
}

#[test]
fn draws_follow_min_p() {
    for min_p in [0.01, 0.3, 0.9, 1.0] {
        check_distribution(&LOGITS, &SamplingParams { min_p, ..SamplingParams::default() });
    }
}

#[test]
fn draws_follow_all_limits_together() {
    let params =
        SamplingParams { temperature: 0.8, top_k: Some(5), top_p: 0.85, min_p: 0.05, seed: 4, ..Default::default() };
    check_distribution(&LOGITS, &params);
    // More tokens than are sorted at a time.
    let logits: Vec<f32> = (0..500u32).map(|token| (token * 37 % 101) as f32 / 40.0).collect();
    for (top_k, top_p) in [(None, 0.9), (Some(300), 0.9), (Some(300), 1.0), (None, 0.05)] {
        check_distribution(&logits, &SamplingParams { top_k, top_p, ..SamplingParams::default() });
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    for temperature in [0.0, 1e-6, -0.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        assert_eq!(sample(&LOGITS, &params, 0), 1);
        assert_eq!(sample(&[f32::NAN, -1.0, -1.0], &params, 0), 1);
    }
    assert_eq!(sample(&LOGITS, &SamplingParams { top_k: Some(1), ..SamplingParams::default() }, 3), 1);
}

#[test]
fn limits_keep_the_lowest_of_equals() {
    let half = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    let one = SamplingParams { top_k: Some(1), ..SamplingParams::default() };
    for position in 0..20 {
        // The first reaches one half exactly, so the second is not needed.
        assert_eq!(sample(&[0.0, 0.0], &half, position), 0);
        assert_eq!(sample(&[-0.0, 0.0], &one, position), 0);
    }
}

#[test]
fn no_row_of_logits_panics() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let cold = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let narrow = SamplingParams { top_k: Some(3), top_p: 0.5, min_p: 0.1, ..SamplingParams::default() };
    for params in [SamplingParams { logprobs: Some(3), ..SamplingParams::default() }, cold, narrow] {
        for (logits, allowed) in [
            (vec![], 0..1),
            (vec![nan; 4], 0..1),
            (vec![-inf; 4], 0..1),
            (vec![nan, -inf, nan, -5.0], 3..4),
            (vec![1.0, inf, 3.0, nan], 1..2),
            (vec![0.0, inf, inf, -inf], 1..3),
            (vec![f32::MAX, f32::MIN, -f32::MAX], 0..1),
            (vec![f32::MIN, f32::MIN], 0..2),
            (vec![1e-45, -1e-45, 0.0], 0..3),
        ] {
            for position in 0..20 {
                let token = sample(&logits, &params, position);
                assert!(allowed.contains(&token), "{token} from {logits:?} with {params:?}");
            }
        }
    }
}

#[test]
fn no_early_end_before_min_tokens() {
    let mut logits = LOGITS;
    (logits[EOS as usize], logits[7]) = (10.0, 9.0);
    let params = SamplingParams { min_tokens: 2, stop_token_ids: vec![7], ..SamplingParams::default() };
    let greedy = |params: &SamplingParams, generated| processed(&logits, params, &[], &vec![0; generated]).1;
    assert_eq!([0, 1, 2, 3].map(|generated| greedy(&params, generated)), [1, 1, 2, 2]);
    let cold = SamplingParams { temperature: 1.0, ..params.clone() };
    assert!((0..2).all(|generated| ![EOS, 7].contains(&sample(&logits, &cold, generated))));
    // No bias brings them back.
    let biased = SamplingParams { logit_bias: vec![(EOS, 100.0), (7, 100.0)], ..params.clone() };
    assert_eq!(greedy(&biased, 1), 1);
    // An ignored EOS ends nothing; a stop token still does.
    let ignoring = SamplingParams { ignore_eos: true, ..params };
    assert_eq!(greedy(&ignoring, 0), EOS);
    assert_eq!(processed(&logits, &ignoring, &[], &[]).0[7], f32::NEG_INFINITY);
}

#[test]
fn bias_moves_logits() {
    let params = SamplingParams { logit_bias: vec![(4, 5.0), (1, -100.0), (1000, 3.0)], ..SamplingParams::default() };
    let (logits, token) = processed(&LOGITS, &params, &[], &[]);
    assert_eq!((logits[4], logits[1], token), (5.0, -97.5, 4));
}

#[test]
fn repetition_penalty_covers_prompt_and_output() {
    let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
    let (logits, token) = processed(&LOGITS, &params, &[1, 1, 2, 4, 1000], &[3, 3]);
    assert_eq!(logits, [1.0, 1.25, -1.0, 1.0, 0.0, 2.5, 1.5, -3.0]);
    assert_eq!(token, 5);
}

#[test]
fn presence_and_frequency_penalties_cover_the_output_alone() {
    let params = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..SamplingParams::default() };
    let (logits, _) = processed(&LOGITS, &params, &[0, 1, 2], &[1, 5, 5, 5]);
    assert_eq!(logits, [1.0, 1.75, -0.5, 2.0, 0.0, 1.25, 1.5, -3.0]);
    let rewarded = SamplingParams { presence_penalty: -1.0, ..SamplingParams::default() };
    assert_eq!(processed(&LOGITS, &rewarded, &[], &[5]).1, 5);
}

#[test]
fn all_penalties_apply_in_order() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: vec![(1, 1.5)],
        ..SamplingParams::default()
    };
    // Bias first, then repetition, then the others: (2.5 + 1.5) / 2 - 2 * 0.25 - 0.5.
    assert_eq!(processed(&LOGITS, &params, &[], &[1, 1]).0[1], 1.0);
}

#[test]
fn a_history_without_penalties_costs_nothing() {
    let mut state = SamplerState::new(&[1, 2, 3], 8, &SamplingParams::default());
    state.record(4);
    assert!(state.occurrences.is_empty());
}

#[test]
fn logprobs_are_those_of_the_model() {
    let params = SamplingParams {
        temperature: 0.5,
        logit_bias: vec![(7, 100.0)],
        logprobs: Some(3),
        top_k: Some(1),
        ..SamplingParams::default()
    };
    let state = SamplerState::new(&[], 8, &params);
    let sampled = Sampler::default().sample(&mut LOGITS.to_vec(), &params, &state, 0, &[EOS]);
    let log_sum = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
    let expect = |token: TokenId, rank| TokenLogprob {
        token,
        logprob: (f64::from(LOGITS[token as usize]) - log_sum) as f32,
        rank,
    };
    let logprobs = sampled.logprobs.expect("they were asked for");
    let close = |a: &TokenLogprob, b: &TokenLogprob| {
        (a.token, a.rank) == (b.token, b.rank) && (a.logprob - b.logprob).abs() < 1e-6
    };
    assert_eq!(sampled.token, 7);
    assert!(close(&logprobs.chosen, &expect(7, 8)), "{logprobs:?}");
    // Of the equals 1 and 5 the lower comes first.
    let top = [expect(1, 1), expect(5, 2), expect(3, 3)];
    assert!(logprobs.top.len() == 3 && logprobs.top.iter().zip(&top).all(|(a, b)| close(a, b)), "{logprobs:?}");
}

#[test]
fn logprobs_without_a_top_name_the_chosen_token_alone() {
    let logprobs = Sampler::default().position_logprobs(&[0.0, 0.0], 1, 0);
    let chosen = TokenLogprob { token: 1, logprob: 0.5f32.ln(), rank: 2 };
    assert_eq!(logprobs, PositionLogprobs { chosen, top: vec![] });
}

#[test]
fn logprobs_of_broken_rows_are_numbers() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (row, expect) in [([nan; 4], 0.25f32.ln()), ([-inf; 4], 0.25f32.ln()), ([nan, inf, inf, 0.0], 0.5f32.ln())] {
        let logprobs = Sampler::default().position_logprobs(&row, 1, 10);
        assert_eq!(logprobs.chosen.logprob, expect);
        assert!(logprobs.top.len() == 4 && logprobs.top.iter().all(|token| !token.logprob.is_nan()));
    }
    // No such token: impossible, and ranked last.
    let chosen = Sampler::default().position_logprobs(&[1.0, 2.0], 9, 0).chosen;
    assert_eq!((chosen.logprob, chosen.rank), (f32::NEG_INFINITY, 3));
}

// A change here changes the output of every seeded request: users would notice.
#[test]
fn draws_are_fixed_for_ever() {
    let draws = |seed| -> Vec<_> {
        (0..12).map(|at| sample(&LOGITS, &SamplingParams { seed, ..Default::default() }, at)).collect()
    };
    assert_eq!(draws(0), DRAWS_OF_SEED_0);
    assert_eq!(draws(u64::MAX), DRAWS_OF_SEED_MAX);
}

// From another implementation of ChaCha8 (key: the seed; stream: the position) and of the softmax.
const DRAWS_OF_SEED_0: [TokenId; 12] = [5, 5, 6, 5, 3, 5, 0, 5, 3, 5, 5, 5];
const DRAWS_OF_SEED_MAX: [TokenId; 12] = [5, 1, 5, 3, 3, 1, 3, 6, 2, 5, 5, 5];

#[test]
fn uniforms_are_spread_over_seeds_as_well_as_positions() {
    let count = 10_000;
    for values in [
        (0..count).map(|position| uniform(7, position)).collect::<Vec<_>>(),
        (0..count).map(|seed| uniform(seed as u64, 7)).collect(),
    ] {
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
        let mean = values.iter().sum::<f64>() / count as f64;
        assert!((mean - 0.5).abs() < 4.0 * (1.0 / 12.0 / count as f64).sqrt(), "{mean}");
        let mut tenths = [0; 10];
        values.iter().for_each(|value| tenths[(value * 10.0) as usize] += 1);
        assert!(tenths.iter().all(|&tenth: &i32| (tenth - 1000).abs() < 130), "{tenths:?}");
    }
}

#[test]
fn scratch_is_reused() {
    let params = SamplingParams { top_p: 0.9, logprobs: Some(2), ..SamplingParams::default() };
    let state = SamplerState::new(&[], 8, &params);
    let mut sampler = Sampler::default();
    let mut memory = Vec::new();
    for generated in 0..10 {
        sampler.sample(&mut LOGITS.to_vec(), &params, &state, generated, &[]);
        memory.push((sampler.raw.as_ptr(), sampler.candidates.as_ptr()));
    }
    assert!(memory.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Generates rows of any bit patterns, and rows of ordinary values with many ties.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![any::<u32>().prop_map(f32::from_bits), (-8i8..8).prop_map(|half| f32::from(half) / 2.0)];
    prop::collection::vec(logit, 1..200)
}

fn ordinary_logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-80i8..80).prop_map(|tenth| f32::from(tenth) / 10.0), 1..200)
}

prop_compose! {
    fn any_params()(
        temperature in prop_oneof![Just(0.0f32), 0.01f32..100.0],
        top_k in prop::option::of(1usize..250),
        top_p in prop_oneof![Just(1.0f32), 0.001f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..=1.0],
        repetition_penalty in prop_oneof![Just(1.0f32), 0.01f32..100.0],
        presence_penalty in -2.0f32..2.0,
        frequency_penalty in -2.0f32..2.0,
        logit_bias in prop::collection::vec((0u32..250, -100.0f32..100.0), 0..4),
        seed in any::<u64>(),
        min_tokens in 0usize..8,
        logprobs in prop::option::of(0usize..250),
    ) -> SamplingParams {
        SamplingParams {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias,
            seed, min_tokens, logprobs, ..SamplingParams::default()
        }
    }
}

proptest! {
    /// Checks that every row gives a token of the vocabulary, and that a used sampler gives the same token as a new
    /// one.
    #[test]
    fn a_sample_depends_on_its_arguments_alone(
        logits in any_logits(),
        other in any_logits(),
        params in any_params(),
        history in prop::collection::vec(0u32..250, 0..6),
    ) {
        let mut state = SamplerState::new(&history, logits.len(), &params);
        history.iter().take(3).for_each(|&token| state.record(token));
        let mut used = Sampler::default();
        used.sample(&mut other.clone(), &params, &SamplerState::new(&[], other.len(), &params), 0, &[]);
        let expect = Sampler::default().sample(&mut logits.clone(), &params, &state, 3, &[EOS]);
        let got = used.sample(&mut logits.clone(), &params, &state, 3, &[EOS]);
        // Compared as text, since NaN differs from itself; there must be none.
        let (got_text, expect_text) = (format!("{got:?}"), format!("{expect:?}"));
        prop_assert!(!got_text.contains("NaN"));
        prop_assert_eq!(got_text, expect_text);
        prop_assert!((got.token as usize) < logits.len());
        let possible = |token: TokenId| {
            let ruled_out = token == EOS && params.min_tokens > 3;
            !ruled_out && nan_to_worst(logits[token as usize]) > f32::NEG_INFINITY
        };
        // Penalties may bring extreme logits down to minus infinity.
        let any = (0..logits.len() as TokenId).any(|token| possible(token) && !history.contains(&token));
        prop_assert!(possible(got.token) || !any);
    }

    /// Checks that no token is drawn that a limit excludes.
    #[test]
    fn limits_hold(logits in ordinary_logits(), params in any_params(), position in 0usize..1000) {
        let params = SamplingParams { logit_bias: vec![], min_tokens: 0, ..params };
        let token = sample(&logits, &params, position) as usize;
        let better = |&&other: &&f32| other > logits[token];
        prop_assert!(logits.iter().filter(better).count() < params.top_k.unwrap_or(usize::MAX));
        if params.temperature == 0.0 {
            prop_assert_eq!(logits.iter().filter(better).count(), 0);
        } else {
            let free = SamplingParams { top_k: None, top_p: 1.0, min_p: 0.0, ..params.clone() };
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            let weight = (f64::from(logits[token] - best) / f64::from(params.temperature)).exp();
            prop_assert!(weight >= f64::from(params.min_p) * (1.0 - 1e-5));
            // The share of better tokens is largest when nothing else has been left out.
            let shares = naive_distribution(&logits, &free);
            let above = (0..logits.len()).filter(|&other| logits[other] > logits[token]);
                let share: f64 = above.map(|at| shares[at]).sum();
            prop_assert!(share < f64::from(params.top_p) + 1e-5);
        }
    }

    /// Checks that the log-probabilities of a whole row are a distribution, in order.
    #[test]
    fn logprobs_are_a_distribution(logits in ordinary_logits(), chosen in any::<prop::sample::Index>()) {
        let chosen = chosen.index(logits.len());
        let logprobs = Sampler::default().position_logprobs(&logits, chosen as TokenId, logits.len());
        let sum: f64 = logprobs.top.iter().map(|token| f64::from(token.logprob).exp()).sum();
        prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
        prop_assert!(logprobs.top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
        prop_assert!(logprobs.top.iter().zip(1..).all(|(token, rank)| token.rank == rank));
        prop_assert_eq!(logprobs.top[logprobs.chosen.rank as usize - 1], logprobs.chosen);
    }
}

/// Returns the greatest logits of a row, greatest first and among equal ones the first, as devices give them.
fn best_of(logits: &[f32], count: usize) -> Vec<(TokenId, f32)> {
    let mut all: Vec<(TokenId, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all.truncate(count);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checks that the greatest logits of a row give the token that the whole row gives.
    #[test]
    fn the_best_of_a_row_give_the_token_of_the_row(
        // Few values, so that there are ties; infinities of both signs among them.
        codes in prop::collection::vec(0u8..24, 1..150),
        spread in prop::sample::select(vec![0.0f32, 1e-3, 0.5, 30.0]),
        greedy in any::<bool>(),
        top_k in 0usize..70,
        top_p in prop::sample::select(vec![1.0f32, 0.99, 0.6, 1e-6]),
        min_p in prop::sample::select(vec![0.0f32, 0.01, 0.9]),
        seed in any::<u64>(),
    ) {
        let value = |code: u8| match code {
            0 => f32::NEG_INFINITY,
            23 if seed % 3 == 0 => f32::INFINITY,
            1 => -0.0,
            2 => 0.0,
            code => (f32::from(code) - 11.0) * spread,
        };
        let logits: Vec<f32> = codes.into_iter().map(value).collect();
        let temperature = if greedy { 0.0 } else { 0.8 };
        let params = SamplingParams { temperature, top_k: Some(top_k), top_p, min_p, seed, ..Default::default() };
        let Some(count) = best_wanted(&params, 0) else {
            prop_assert!(top_k > 64);
            return Ok(());
        };
        let state = SamplerState::new(&[], logits.len(), &params);
        for generated in 0..20 {
            let whole = sample(&logits, &params, generated);
            let best = best_of(&logits, count);
            let few = Sampler::default().sample_best(best.into_iter(), &params, &state, generated);
            prop_assert_eq!(few, Sampled { token: whole, logprobs: None });
        }
    }
}

#[test]
fn whole_rows_are_wanted_where_the_best_do_not_suffice() {
    let plain = SamplingParams { top_k: Some(5), ..Default::default() };
    assert_eq!(best_wanted(&plain, 0), Some(6));
    assert_eq!(best_wanted(&SamplingParams { temperature: 0.0, ..Default::default() }, 0), Some(1));
    for params in [
        SamplingParams { top_k: None, ..plain.clone() },
        SamplingParams { top_k: Some(65), ..plain.clone() },
        SamplingParams { top_k: None, top_p: 0.5, ..plain.clone() },
        SamplingParams { repetition_penalty: 1.1, ..plain.clone() },
        SamplingParams { presence_penalty: 0.1, ..plain.clone() },
        SamplingParams { frequency_penalty: 0.1, ..plain.clone() },
        SamplingParams { logit_bias: vec![(3, 1.0)], ..plain.clone() },
        SamplingParams { allowed_token_ids: vec![3], ..plain.clone() },
        SamplingParams { bad_words: vec![vec![3]], ..plain.clone() },
        SamplingParams { logprobs: Some(0), ..plain.clone() },
        SamplingParams { min_tokens: 1, ..plain.clone() },
    ] {
        assert_eq!(best_wanted(&params, 0), None, "{params:?}");
    }
    assert_eq!(best_wanted(&SamplingParams { min_tokens: 1, ..plain }, 1), Some(6));
}

#[test]
fn only_allowed_tokens_are_drawn() {
    let params = SamplingParams { allowed_token_ids: vec![2, 5, 7], ..SamplingParams::default() };
    let drawn: std::collections::BTreeSet<_> = (0..2000).map(|position| sample(&LOGITS, &params, position)).collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [2, 5, 7]);
    // The distribution among them is the model's own.
    let alone: Vec<f32> =
        (0..8).map(|id| if [2, 5, 7].contains(&id) { LOGITS[id] } else { f32::NEG_INFINITY }).collect();
    for position in 0..200 {
        assert_eq!(sample(&LOGITS, &params, position), sample(&alone, &SamplingParams::default(), position));
    }
    // A bias does not bring back what is not allowed, and min_tokens rules out ends among what is.
    let biased = SamplingParams { logit_bias: vec![(1, 100.0)], temperature: 0.0, min_tokens: 1, ..params };
    assert_eq!(
        (sample(&LOGITS, &biased, 0), sample(&LOGITS, &SamplingParams { temperature: 0.0, ..biased.clone() }, 1)),
        (5, 5)
    );
    let ends = SamplingParams { allowed_token_ids: vec![EOS, 7], ..biased };
    assert_eq!((sample(&LOGITS, &ends, 0), sample(&LOGITS, &ends, 1)), (7, EOS));
}

#[test]
fn bad_words_are_not_completed() {
    let params = SamplingParams {
        temperature: 0.0,
        bad_words: vec![vec![5], vec![1, 3], vec![3, 3, 1]],
        ..SamplingParams::default()
    };
    let next = |generated: &[TokenId]| processed(&LOGITS, &params, &[1, 3], generated).1;
    assert_eq!(next(&[]), 1, "the prompt does not count, and 5 is ruled out everywhere");
    // Token 3 is the second best where 1 is ruled out.
    assert_eq!((next(&[1]), next(&[3]), next(&[3, 3])), (1, 1, 3));
    assert_eq!((next(&[0, 3, 3]), next(&[3, 3, 0]), next(&[3, 3, 3])), (3, 1, 3));
    let logits = processed(&LOGITS, &params, &[], &[3, 1]).0;
    assert_eq!((logits[3], logits[5], logits[1]), (f32::NEG_INFINITY, f32::NEG_INFINITY, LOGITS[1]));
    // Each continuation goes by its own tokens.
    let mut state = SamplerState::new(&[], 8, &params);
    let mut other = state.continuation(1);
    state.record(1);
    other.record(0);
    let logits = |state| {
        let mut logits = LOGITS.to_vec();
        Sampler::default().sample(&mut logits, &params, state, 1, &[EOS]);
        logits[3]
    };
    assert_eq!((logits(&state), logits(&other)), (f32::NEG_INFINITY, LOGITS[3]));
}
