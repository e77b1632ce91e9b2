//! Several tokens of a sequence in a step: a drafter changes when tokens come, never which.

use std::sync::atomic::Ordering;

use interbed_engine::{Event, FinishReason, PreemptionMode, Request};
use interbed_kv::Keeps;
use proptest::prelude::*;

use crate::forks::{sampled, told};
use crate::sim::{
    EOS, KINDS, Shape, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, prompt, start,
    teach_short_answers,
};

/// The events of as many continuations as are asked for, all in one engine, without what depends on who else there was.
fn serve(shape: Shape, drafts: usize, requests: &[(Request, usize)]) -> Vec<Vec<Event>> {
    let (engine, controls) = start(shape);
    teach_short_answers(&engine);
    assert_idle_and_whole(&engine);
    controls.drafts.store(drafts, Ordering::Relaxed);
    let streams =
        requests.iter().flat_map(|(request, count)| engine.handle().submit_many(request.clone(), *count).unwrap());
    let streams: Vec<_> = streams.collect();
    let events: Vec<_> = streams.into_iter().map(|stream| told(stream).0).collect();
    let tokens = events.iter().flatten().filter(|event| matches!(event, Event::Token { .. })).count();
    // The status is published after the events.
    eventually(&engine, "all are counted", |status| status.generation_tokens == 80 + tokens as u64);
    assert_idle_and_whole(&engine);
    events
}

#[test]
fn drafts_that_are_right_save_passes() {
    let request = greedy(prompt(3, 10), 41);
    for tails in [&[], KINDS[0], KINDS[1], KINDS[3]] {
        let has_states = tails.iter().any(|tail| tail.keeps == Keeps::State);
        for (drafts, passes) in [(0, 41), (1, 21), (3, 11), (7, 6), (40, 2)] {
            let (engine, controls) = start(Shape { tails, ..Shape::default() });
            controls.drafts.store(drafts, Ordering::Relaxed);
            controls.drafts_well.store(true, Ordering::Relaxed);
            let ended = collect(engine.handle().submit(request.clone()).unwrap());
            assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
            // Where there are states, a pass ends behind the prompt's last full block.
            let all = passes + u64::from(has_states);
            assert_eq!(controls.passes.load(Ordering::Relaxed), all, "{drafts} drafts");
            // The last token of all is never computed. Nothing else is computed twice, unless a state has to take it
            // in: the drafts of the pass before, and what lies behind the last block that a pass has filled.
            let again = controls.tokens_computed.load(Ordering::Relaxed) - (10 + 40);
            let most = if has_states && drafts > 0 { (passes - 2) * (drafts as u64 + 3) } else { 0 };
            assert!(again <= most && (again > 0) == (most > 0), "{again} tokens were computed again");
            assert_idle_and_whole(&engine);
        }
    }
}

#[test]
fn an_end_in_the_middle_of_a_run_drops_what_lies_behind_it() {
    let whole = greedy(prompt(5, 9), 30);
    let tokens = expected_greedy(&whole.prompt, &whole.params);
    // Each token that was not there before ends a request of its own.
    for (end, &token) in tokens.iter().enumerate().filter(|(end, token)| !tokens[..*end].contains(token)) {
        let (engine, controls) = start(Shape::default());
        controls.drafts.store(12, Ordering::Relaxed);
        controls.drafts_well.store(true, Ordering::Relaxed);
        let mut request = whole.clone();
        let reason = if token == EOS {
            request.params.ignore_eos = false;
            FinishReason::EndOfSequence
        } else {
            request.params.stop_token_ids = vec![token];
            FinishReason::StopToken(token)
        };
        let ended = collect(engine.handle().submit(request.clone()).unwrap());
        assert_eq!((&ended.tokens[..], ended.reason), (&tokens[..=end], reason));
        // Before as many tokens it may not end.
        request.params.min_tokens = end + 1;
        request.params.max_tokens = end + 3;
        let ended = collect(engine.handle().submit(request).unwrap());
        assert!(ended.tokens.len() > end + 1 && !ended.tokens[..=end].contains(&token), "{ended:?}");
        assert_idle_and_whole(&engine);
        assert_eq!(engine.handle().status().prompt_tokens, 2 * 9);
    }
}

#[test]
fn what_was_guessed_wrongly_is_found_by_nobody() {
    let (engine, controls) = start(Shape::default());
    controls.drafts.store(9, Ordering::Relaxed);
    for length in [7, 30] {
        // Each begins with all that the one before it has become.
        let mut next = prompt(7, length);
        for _ in 0..4 {
            let request = greedy(next, 16);
            let ended = collect(engine.handle().submit(request.clone()).unwrap());
            assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
            next = [request.prompt, ended.tokens].concat();
        }
    }
    assert!(engine.handle().status().cached_tokens > 0);
    assert_idle_and_whole(&engine);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn under_any_load(
        blocks in 16usize..60, block in 0u32..4, prefix_caching in any::<bool>(), max_num_seqs in 1usize..12,
        extra_budget in 0usize..40, swap_blocks in prop_oneof![Just(0usize), 1usize..40], drafts in 1usize..12,
        load in prop::collection::vec((0u32..4, 1usize..50, 1usize..30, 1usize..4, any::<[bool; 2]>()), 1..8),
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
        let request = |(family, length, max_tokens, count, [warm, penalized]): (u32, usize, usize, usize, [bool; 2])| {
            let length = length.min(limit - 1);
            let mut request = sampled(prompt(family, length), max_tokens.min(limit - length), u64::from(family));
            // Some drafts are right for those that are not greedy too.
            request.params.temperature = if warm { 0.1 } else { 0.0 };
            request.params.repetition_penalty = if penalized { 1.2 } else { 1.0 };
            request.params.prompt_logprobs = (family == 0).then_some(1);
            (request, count)
        };
        let requests: Vec<_> = load.into_iter().map(request).collect();
        let without = serve(shape, 0, &requests);
        let with = serve(shape, drafts, &requests);
        prop_assert_eq!(with, without);
    }
}
