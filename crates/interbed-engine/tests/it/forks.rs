//! Several continuations of one prompt: the prompt is computed once, and each is what a request of its own would give.

use std::sync::atomic::Ordering;

use interbed_engine::{Event, EventStream, FinishedCounts, PreemptionMode, Request, SubmitError};
use proptest::prelude::*;

use crate::sim::{
    Ended, Shape, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, prompt, start,
    teach_short_answers,
};

pub fn sampled(prompt: Vec<u32>, max_tokens: usize, seed: u64) -> Request {
    let mut request = greedy(prompt, max_tokens);
    request.params.temperature = 3.0;
    request.params.seed = seed;
    request.params.ignore_eos = false;
    request.params.logprobs = Some(2);
    request
}

/// The answers of as many requests as there are continuations, each alone in an engine with room.
fn separately(request: &Request, count: usize) -> Vec<(Vec<Event>, Vec<u32>)> {
    let answer = |index: usize| {
        let (engine, _) = start(Shape { max_num_batched_tokens: 128, ..Shape::default() });
        let mut request = request.clone();
        request.params.seed = request.params.seed.wrapping_add(index as u64);
        told(engine.handle().submit(request).unwrap())
    };
    (0..count).map(answer).collect()
}

/// The events of a continuation, without what depends on other requests; and its tokens.
pub fn told(mut stream: EventStream) -> (Vec<Event>, Vec<u32>) {
    let (mut events, mut tokens) = (Vec::new(), Vec::new());
    while let Some(mut event) = stream.blocking_next() {
        match &mut event {
            Event::Preempted { .. } => continue,
            Event::PromptDone(done) => done.cached_tokens = 0,
            Event::Finished { .. } | Event::Embedding(_) => {}
            Event::Token { id, .. } => tokens.push(*id),
            Event::Failed(error) => panic!("{error}"),
        }
        events.push(event);
    }
    (events, tokens)
}

#[test]
fn each_is_what_a_request_of_its_own_would_be() {
    for prefix_caching in [true, false] {
        for (blocks, max_num_seqs, max_num_batched_tokens, swap_blocks) in
            [(256, 32, 128, 0), (256, 3, 16, 0), (12, 8, 16, 0), (12, 8, 16, 20), (13, 2, 9, 0)]
        {
            let shape = Shape {
                blocks,
                prefix_caching,
                max_num_seqs,
                max_num_batched_tokens,
                swap_blocks,
                preemption: PreemptionMode::Swap,
                ..Shape::default()
            };
            let (engine, _) = start(shape);
            teach_short_answers(&engine);
            assert_idle_and_whole(&engine);
            let before = engine.handle().status().finished;
            for (index, length) in [1, 3, 4, 18, 21].into_iter().enumerate() {
                let request = sampled(prompt(index as u32, length), 16, u64::MAX - 2);
                let streams = engine.handle().submit_many(request.clone(), 6).unwrap();
                let together: Vec<_> = streams.into_iter().map(told).collect();
                assert_eq!(together, separately(&request, 6), "{shape:?}, {length} tokens");
            }
            assert_idle_and_whole(&engine);
            let status = engine.handle().status();
            let finished = |counts: FinishedCounts| counts.stop + counts.length;
            assert_eq!(finished(status.finished) - finished(before), 5 * 6);
            let tight = (blocks, max_num_seqs) == (12, 8);
            assert!(!tight || status.preemptions > 0, "the test needs preemptions to mean anything");
            assert!(swap_blocks == 0 || status.preemptions_swap > 0, "the test needs swaps to mean anything");
        }
    }
}

#[test]
fn the_prompt_is_computed_once_and_only_its_last_block_is_copied() {
    for (prefix_caching, length, copied) in [(true, 42, 4), (false, 42, 4), (true, 40, 0), (false, 40, 0)] {
        let (engine, controls) = start(Shape { prefix_caching, ..Shape::default() });
        let request = sampled(prompt(7, length), 9, 1);
        let mut streams = engine.handle().submit_many(request, 5).unwrap();
        let generated: usize = streams.drain(..).map(|stream| told(stream).1.len()).sum();
        // The last token of each is never computed.
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), (length + generated - 5) as u64);
        assert_eq!(controls.blocks_copied.load(Ordering::Relaxed), copied, "{length} tokens");
        assert_idle_and_whole(&engine);
        let status = engine.handle().status();
        assert_eq!((status.prompt_tokens, status.generation_tokens), (length as u64, generated as u64));
        assert_eq!((status.kv.forks, status.kv.copy_on_writes), (4, copied as u64));
    }
}

#[test]
fn each_is_cancelled_by_itself_at_any_time() {
    for first_goes in [true, false] {
        let (engine, controls) = start(Shape { max_num_batched_tokens: 32, ..Shape::default() });
        controls.close_gate();
        let request = greedy(prompt(3, 100), 6);
        let mut streams = engine.handle().submit_many(request.clone(), 4).unwrap();
        // In the middle of the prompt.
        controls.allow(2);
        eventually(&engine, "so many steps", |status| status.steps >= 2);
        streams.remove(if first_goes { 0 } else { 2 });
        controls.open_gate();
        // And after it.
        while !matches!(streams[0].blocking_next(), Some(Event::Token { .. })) {}
        streams.remove(0);
        for stream in streams {
            assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
        }
        assert_idle_and_whole(&engine);
        let finished = engine.handle().status().finished;
        assert_eq!(finished.cancelled + finished.length, 4);
        assert!(finished.length >= 2 && finished.cancelled >= 1);
    }
}

#[test]
fn they_fail_together_while_the_prompt_is_computed() {
    let (engine, controls) = start(Shape::default());
    controls.fail_next.store(true, Ordering::Relaxed);
    for stream in engine.handle().submit_many(greedy(prompt(1, 9), 6), 3).unwrap() {
        assert!(matches!(last(stream), Event::Failed(_)));
    }
    // The status is published after the events.
    eventually(&engine, "so many failed", |status| status.finished.failed >= 3);
    assert_idle_and_whole(&engine);
}

#[test]
fn the_queue_counts_each_of_them() {
    let (engine, controls) = start(Shape { max_num_seqs: 1, ..Shape::default() });
    controls.close_gate();
    let handle = engine.handle();
    assert!(matches!(handle.submit_many(greedy(vec![1], 1), 0), Err(SubmitError::Invalid(_))));
    assert!(matches!(handle.submit_many(greedy(vec![1], 1), 1001), Err(SubmitError::Invalid(_))));
    let first = handle.submit_many(greedy(vec![1, 2], 3), 400).unwrap();
    let second = handle.submit_many(greedy(vec![3, 4], 3), 600).unwrap();
    assert!(matches!(handle.submit_many(greedy(vec![5], 3), 401), Err(SubmitError::Overloaded { .. })));
    // One of them runs, and the others still wait, their prompt computed or not.
    controls.allow(2);
    eventually(&engine, "so many steps", |status| status.steps >= 2);
    assert!(matches!(handle.submit_many(greedy(vec![5], 3), 3), Err(SubmitError::Overloaded { .. })));
    drop(second);
    controls.open_gate();
    let expected = expected_greedy(&[1, 2], &greedy(vec![], 3).params);
    assert!(first.into_iter().all(|stream| collect(stream).tokens == expected));
    assert_idle_and_whole(&engine);
}

#[test]
fn log_probabilities_of_the_prompt_are_told_to_all() {
    let (engine, controls) = start(Shape { max_num_batched_tokens: 8, max_num_seqs: 4, ..Shape::default() });
    for max_tokens in [0, 4] {
        let mut request = sampled(prompt(2, 30), max_tokens, 5);
        request.params.prompt_logprobs = Some(2);
        let before = controls.tokens_computed.load(Ordering::Relaxed);
        let streams = engine.handle().submit_many(request.clone(), 3).unwrap();
        let together: Vec<_> = streams.into_iter().map(told).collect();
        assert_eq!(together, separately(&request, 3));
        assert!(controls.tokens_computed.load(Ordering::Relaxed) - before < 30 + 3 * 4);
    }
    assert_idle_and_whole(&engine);
}

fn last(mut stream: EventStream) -> Event {
    std::iter::from_fn(|| stream.blocking_next()).last().expect("every stream has a last event")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn under_any_load(
        blocks in 16usize..60, block in 0u32..4, prefix_caching in any::<bool>(), max_num_seqs in 1usize..12,
        extra_budget in 0usize..40, swap_blocks in prop_oneof![Just(0usize), 1usize..40], short in any::<bool>(),
        load in prop::collection::vec((0u32..4, 1usize..50, 1usize..30, 1usize..7, any::<bool>()), 1..10),
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
        let (engine, _) = start(shape);
        if short {
            teach_short_answers(&engine);
        }
        let mut expected = Vec::new();
        let mut streams = Vec::new();
        for (family, length, max_tokens, count, cancelled) in load {
            let length = length.min(limit - 1);
            let request = greedy(prompt(family, length), max_tokens.min(limit - length));
            let mut group = engine.handle().submit_many(request.clone(), count).unwrap();
            if cancelled {
                group.truncate(count / 2);
            }
            expected.extend(group.iter().map(|_| expected_greedy(&request.prompt, &request.params)));
            streams.extend(group);
        }
        let ended: Vec<Ended> = streams.into_iter().map(collect).collect();
        prop_assert!(ended.into_iter().map(|ended| ended.tokens).eq(expected));
        assert_idle_and_whole(&engine);
    }
}
