//! Beam search over the simulated model: the same hypotheses as a plain search that has no blocks and no passes.

use std::sync::atomic::Ordering;

use interbed_engine::{
    BeamParams, Event, EventStream, FinishReason, PreemptionMode, Request, RequestError, SubmitError,
};
use proptest::prelude::*;

use crate::sim::{
    EOS, Shape, VOCAB, assert_idle_and_whole, collect, eventually, expected_greedy, fingerprint, greedy, logits_of,
    prompt, start, teach_short_answers,
};

/// A continuation, and why it ended.
pub type Hypothesis = (Vec<u32>, FinishReason);

fn beam(prompt: Vec<u32>, max_tokens: usize, width: usize) -> Request {
    let mut request = greedy(prompt, max_tokens);
    request.params.ignore_eos = false;
    // Some hypotheses are to end early.
    request.params.stop_token_ids = (1..8).collect();
    request.beam = Some(BeamParams { width, ..BeamParams::default() });
    request.explain_miss = true;
    request
}

/// Tokens by falling logit, with their log-probabilities.
fn ranked(history: &[u32]) -> Vec<(u32, f32)> {
    let logits = logits_of(fingerprint(history));
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - best).exp()).sum();
    let mut order: Vec<u32> = (0..VOCAB as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let logprob = |token: u32| (f64::from(logits[token as usize] - best) - sum.ln()) as f32;
    order.into_iter().map(|token| (token, logprob(token))).collect()
}

fn expected(request: &Request, wanted: usize) -> Vec<Hypothesis> {
    searched(request, wanted, ranked)
}

/// Beam search as one would write it down, to the very end. `ranked` tells the most likely tokens after others, best
/// first.
pub fn searched(
    request: &Request,
    wanted: usize,
    mut ranked: impl FnMut(&[u32]) -> Vec<(u32, f32)>,
) -> Vec<Hypothesis> {
    let (params, sampling) = (request.beam.unwrap(), &request.params);
    let reason = |token| match token {
        EOS if !sampling.ignore_eos => Some(FinishReason::EndOfSequence),
        _ => sampling.stop_token_ids.contains(&token).then_some(FinishReason::StopToken(token)),
    };
    let score = |generated: usize, logprob: f64| {
        logprob / ((request.prompt.len() + generated) as f64).powf(f64::from(params.length_penalty))
    };
    let mut live = vec![(Vec::new(), 0.0)];
    let mut finished = Vec::new();
    for step in 1..=sampling.max_tokens {
        let mut going_on = Vec::new();
        for (parent, (tokens, logprob)) in live.iter().enumerate() {
            let next = ranked(&[&request.prompt[..], tokens].concat());
            let allowed = next.into_iter().filter(|&(token, _)| reason(token).is_none() || step > sampling.min_tokens);
            for (token, more) in allowed.take(2 * params.width) {
                let (tokens, logprob) = ([&tokens[..], &[token]].concat(), logprob + f64::from(more));
                match reason(token) {
                    Some(reason) => finished.push((score(step - 1, logprob), (tokens, reason))),
                    None => going_on.push((parent, token, (tokens, logprob))),
                }
            }
        }
        going_on.sort_by(|a, b| b.2.1.total_cmp(&a.2.1).then((a.0, a.1).cmp(&(b.0, b.1))));
        going_on.truncate(params.width);
        if step == sampling.max_tokens {
            let ended = going_on.drain(..).map(|(_, _, (tokens, logprob))| (tokens, logprob));
            finished.extend(ended.map(|(tokens, logprob)| (score(step, logprob), (tokens, FinishReason::Length))));
        }
        going_on.sort_by_key(|&(parent, ..)| parent);
        live = going_on.into_iter().map(|(_, _, beam)| beam).collect();
    }
    finished.sort_by(|a, b| b.0.total_cmp(&a.0));
    finished.into_iter().take(wanted).map(|(_, hypothesis)| hypothesis).collect()
}

fn hypotheses(streams: Vec<EventStream>) -> Vec<Hypothesis> {
    streams.into_iter().map(collect).map(|ended| (ended.tokens, ended.reason)).collect()
}

#[test]
fn the_best_hypotheses_in_any_company() {
    let requests: Vec<_> = [(1, 1), (2, 5), (4, 18), (3, 20), (6, 33)]
        .map(|(width, length)| beam(prompt(length as u32, length), 12, width))
        .into();
    let shapes = [
        // Blocks, sequences, tokens a pass: room for all, one after the other, in small chunks, and under pressure.
        (256, 32, 128),
        (256, 6, 16),
        (256, 7, 7),
        (33, 32, 64),
    ];
    for prefix_caching in [true, false] {
        for (blocks, max_num_seqs, max_num_batched_tokens) in shapes {
            let shape = Shape { blocks, prefix_caching, max_num_seqs, max_num_batched_tokens, ..Shape::default() };
            let (engine, controls) = start(shape);
            teach_short_answers(&engine);
            controls.close_gate();
            let others: Vec<_> = (20..30).map(|seed| greedy(prompt(seed, 11), 30)).collect();
            let streams: Vec<_> = others.iter().map(|other| engine.handle().submit(other.clone()).unwrap()).collect();
            let submit = |request: &Request| {
                let wanted = request.beam.unwrap().width.div_ceil(2);
                (request.clone(), wanted, engine.handle().submit_many(request.clone(), wanted).unwrap())
            };
            let searches: Vec<_> = requests.iter().map(submit).collect();
            controls.open_gate();
            for (request, wanted, streams) in searches {
                assert_eq!(hypotheses(streams), expected(&request, wanted), "{shape:?}");
            }
            for (other, stream) in others.iter().zip(streams) {
                assert_eq!(collect(stream).tokens, expected_greedy(&other.prompt, &other.params));
            }
            assert_idle_and_whole(&engine);
            assert!(blocks > 40 || engine.handle().status().preemptions > 0, "the test needs preemptions");
        }
    }
}

#[test]
fn searches_make_room_for_each_other() {
    for (prefix_caching, swap_blocks, fail_every) in
        [(true, 0, 0), (false, 0, 0), (true, 30, 0), (false, 30, 0), (false, 30, 2)]
    {
        let preemption = PreemptionMode::Swap;
        let (engine, controls) =
            start(Shape { blocks: 26, prefix_caching, swap_blocks, preemption, ..Shape::default() });
        controls.fail_every_swap.store(fail_every, Ordering::Relaxed);
        teach_short_answers(&engine);
        // Each may need 21 blocks: five of the prompt, and of each beam four.
        let requests: Vec<_> = (0..3).map(|seed| beam(prompt(seed, 20), 16, 4)).collect();
        // The others come when the first one runs.
        assert_idle_and_whole(&engine);
        let steps = engine.handle().status().steps;
        controls.close_gate();
        let submit = |request: &Request| engine.handle().submit_many(request.clone(), 4).unwrap();
        let first = submit(&requests[0]);
        controls.allow(1);
        eventually(&engine, "a first pass", |status| status.steps > steps);
        let others: Vec<_> = requests[1..].iter().map(submit).collect();
        controls.open_gate();
        let streams = std::iter::once(first).chain(others);
        for (request, streams) in requests.iter().zip(streams) {
            assert_eq!(hypotheses(streams), expected(request, 4));
        }
        assert_idle_and_whole(&engine);
        let status = engine.handle().status();
        assert!(status.preemptions > 0, "the test needs preemptions to mean anything");
        assert!(swap_blocks == 0 || status.preemptions_swap > 0, "the test needs swaps to mean anything");
        assert!(fail_every == 0 || status.kv.swaps_failed > 0, "the test needs failures to mean anything");
    }
}

#[test]
fn of_width_one_it_is_greedy() {
    let (engine, _) = start(Shape::default());
    let mut request = beam(prompt(5, 9), 20, 1);
    request.params.stop_token_ids.clear();
    request.params.ignore_eos = true;
    let greedy = expected_greedy(&request.prompt, &request.params);
    let found = hypotheses(engine.handle().submit_many(request, 1).unwrap());
    assert_eq!(found, [(greedy, FinishReason::Length)]);
}

#[test]
fn beams_share_what_they_have_in_common() {
    let (engine, controls) = start(Shape::default());
    let mut request = beam(prompt(3, 42), 9, 4);
    request.params.ignore_eos = true;
    request.params.stop_token_ids.clear();
    hypotheses(engine.handle().submit_many(request, 4).unwrap());
    // The prompt once, and each beam's token in each step but the last.
    assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 42 + 4 * 8);
    // Copies are made only where a shared block is written to.
    assert!((1..4 * 8).contains(&controls.blocks_copied.load(Ordering::Relaxed)));
    assert_idle_and_whole(&engine);
}

#[test]
fn log_probabilities_are_told() {
    let (engine, _) = start(Shape::default());
    let mut request = beam(prompt(3, 10), 5, 3);
    request.params.logprobs = Some(2);
    let mut stream = engine.handle().submit(request.clone()).unwrap();
    let mut history = request.prompt.clone();
    while let Some(event) = stream.blocking_next() {
        if let Event::Token { id, logprobs } = event {
            let (logprobs, ranked) = (logprobs.expect("they are wanted"), ranked(&history));
            let top: Vec<_> = logprobs.top.iter().map(|top| (top.token, top.logprob)).collect();
            assert_eq!(top, ranked[..2]);
            assert_eq!(ranked[logprobs.chosen.rank as usize - 1], (id, logprobs.chosen.logprob));
            history.push(id);
        }
    }
    assert!(history.len() > 10);
}

#[test]
fn a_search_that_could_never_run_is_refused() {
    let (engine, _) = start(Shape { blocks: 16, max_num_seqs: 8, ..Shape::default() });
    let refused = engine.handle().submit_many(beam(prompt(1, 4), 5, 9), 1).unwrap_err();
    assert!(matches!(refused, SubmitError::Invalid(invalid) if invalid.param == "best_of"));
    let refused = engine.handle().submit_many(beam(prompt(1, 4), 5, 3), 4).unwrap_err();
    assert!(matches!(refused, SubmitError::Invalid(invalid) if invalid.param == "n"));
    // Two blocks of the prompt, and of each of seven beams two: one more token needs three.
    let streams = engine.handle().submit_many(beam(prompt(1, 8), 9, 7), 1).unwrap();
    assert_eq!(hypotheses(streams).len(), 1);
    let refused = engine.handle().submit_many(beam(prompt(1, 8), 10, 7), 2).unwrap_err();
    assert!(matches!(refused, SubmitError::Invalid(invalid) if invalid.param == "max_tokens"));
    assert_idle_and_whole(&engine);
}

#[test]
fn nobody_left_to_hear_of_it_ends_it() {
    let (engine, controls) = start(Shape::default());
    controls.close_gate();
    let request = beam(prompt(1, 9), 100, 4);
    let mut streams = engine.handle().submit_many(request, 2).unwrap();
    controls.allow(5);
    eventually(&engine, "so many steps", |status| status.steps >= 5);
    streams.pop();
    controls.allow(5);
    eventually(&engine, "so many steps", |status| status.steps >= 10);
    assert_eq!(engine.handle().status().finished.cancelled, 0);
    drop(streams);
    controls.open_gate();
    assert_idle_and_whole(&engine);
    assert_eq!(engine.handle().status().finished.cancelled, 2);
}

#[test]
fn a_failed_pass_fails_the_search() {
    let (engine, controls) = start(Shape::default());
    controls.close_gate();
    let streams = engine.handle().submit_many(beam(prompt(1, 9), 50, 4), 2).unwrap();
    controls.allow(5);
    eventually(&engine, "so many steps", |status| status.steps >= 5);
    controls.fail_next.store(true, Ordering::Relaxed);
    controls.open_gate();
    for mut stream in streams {
        assert!(matches!(stream.blocking_next(), Some(Event::Failed(RequestError::Forward(_)))));
    }
    assert_idle_and_whole(&engine);
    assert_eq!(engine.handle().status().finished.failed, 2);
}

/// One request of a random load: family and length of its prompt, tokens, continuations, width of a beam search or 0,
/// length penalty, and how many of its clients leave at once.
type Load = (u32, usize, usize, usize, usize, f32, usize);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn mixed_with_all_else_under_any_load(
        blocks in 20usize..80, block in 0u32..4, prefix_caching in any::<bool>(), max_num_seqs in 4usize..14,
        extra_budget in 0usize..40, fail_every in 0u64..4, swap_blocks in prop_oneof![Just(0usize), 1usize..40],
        short in any::<bool>(),
        load in prop::collection::vec::<BoxedStrategy<Load>>(
            (0u32..4, 1usize..40, 1usize..16, 1usize..4, 0usize..5, -1.0f32..2.0, 0usize..5).boxed(), 1..12,
        ),
    ) {
        let block_size = 1 << block;
        let shape = Shape {
            blocks, block_size, prefix_caching, max_num_seqs,
            max_num_batched_tokens: max_num_seqs + extra_budget, max_model_len: 100, longer_than_memory: false,
            swap_blocks,
            preemption: PreemptionMode::Swap,
            max_token_gap: Some(std::time::Duration::from_micros(200)),
            tails: &[],
        };
        let limit = 100.min(blocks * block_size);
        let (engine, controls) = start(shape);
        controls.fail_every_swap.store(fail_every, Ordering::Relaxed);
        if short {
            teach_short_answers(&engine);
        }
        let (mut answers, mut leavers) = (Vec::new(), Vec::new());
        for (family, length, max_tokens, count, width, length_penalty, leaving) in load {
            let length = length.min(limit - 1);
            let max_tokens = max_tokens.min(limit - length);
            let mut request = beam(prompt(family, length), max_tokens, width.max(count));
            let mut group = if width == 0 {
                request.beam = None;
                request.params.stop_token_ids.clear();
                engine.handle().submit_many(request.clone(), count).unwrap()
            } else {
                let params = request.beam.as_mut().unwrap();
                params.length_penalty = length_penalty;
                let shared = length / block_size;
                let own = (length + max_tokens - 1).div_ceil(block_size) - shared;
                let submitted = engine.handle().submit_many(request.clone(), count);
                let fits = shared + own * request.beam.unwrap().width <= blocks;
                prop_assert_eq!(submitted.is_ok(), fits, "{:?}", submitted);
                let Ok(group) = submitted else { continue };
                group
            };
            // Some leave at once, some when the others are in flight.
            if leaving % 2 == 0 {
                group.truncate(count.saturating_sub(leaving));
            } else {
                leavers.extend(group.drain(count.saturating_sub(leaving)..));
            }
            answers.push((request, count, group));
        }
        for (request, count, group) in answers {
            drop(leavers.pop());
            if request.beam.is_none() {
                for stream in group {
                    prop_assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
                }
                continue;
            }
            let expected = expected(&request, count);
            for (index, mut stream) in group.into_iter().enumerate() {
                let mut tokens = Vec::new();
                while let Some(event) = stream.blocking_next() {
                    match event {
                        Event::Token { id, .. } => tokens.push(id),
                        Event::Finished { reason, .. } => {
                            prop_assert_eq!((&tokens, reason), (&expected[index].0, expected[index].1));
                        }
                        Event::Failed(error) => panic!("{error}"),
                        Event::PromptDone(_) | Event::Preempted { .. } | Event::Embedding(_) => {}
                    }
                }
            }
        }
        assert_idle_and_whole(&engine);
    }
}
