//! Greedy tokens are the same alone, batched, chunked, prefix-hit and preempted.

use interbed_engine::{EngineStatus, Event, PreemptionMode, Request, TenantId};
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sim::{Shape, assert_idle_and_whole, collect, expected_greedy, greedy, prompt, start, teach_short_answers};

fn run_all(shape: Shape, requests: Vec<Request>) {
    run_all_with(shape, requests, false, 0);
}

/// Runs all at once, `crowded` where more are admitted than can grow, with one in this many swaps failing.
fn run_all_with(shape: Shape, requests: Vec<Request>, crowded: bool, fail_every_swap: u64) -> EngineStatus {
    let (engine, controls) = start(shape);
    controls.fail_every_swap.store(fail_every_swap, Ordering::Relaxed);
    if crowded {
        teach_short_answers(&engine);
    }
    let streams: Vec<_> = requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
    let mut told = (0, 0);
    for (request, stream) in requests.iter().zip(streams) {
        let ended = collect(stream);
        assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
        told = (told.0 + ended.preemptions, told.1 + ended.swaps);
    }
    assert_idle_and_whole(&engine);
    let status = engine.handle().status();
    assert_eq!(told, (status.preemptions, status.preemptions_swap), "whoever makes room is told so");
    status
}

#[test]
fn alone_and_in_a_batch_of_32() {
    run_all(Shape::default(), vec![greedy(prompt(1, 20), 30)]);
    run_all(Shape::default(), (0..32).map(|seed| greedy(prompt(seed, 5 + seed as usize), 30)).collect());
}

#[test]
fn in_chunks_of_any_size() {
    for budget in [1, 7, 64] {
        let shape = Shape { max_num_batched_tokens: budget, max_num_seqs: 1, ..Shape::default() };
        run_all(shape, vec![greedy(prompt(3, 61), 10)]);
    }
}

#[test]
fn beside_others_whatever_time_prefill_has() {
    // The first generates while the others' prompts are computed, a few tokens in each pass.
    for gap in [Duration::from_nanos(1), Duration::from_micros(200), Duration::from_secs(3600)] {
        let shape = Shape { max_num_batched_tokens: 100, max_token_gap: Some(gap), ..Shape::default() };
        let requests = (0..6).map(|seed| greedy(prompt(seed, if seed == 0 { 1 } else { 80 }), 40)).collect();
        run_all(shape, requests);
    }
}

#[test]
fn who_generates_is_not_kept_waiting_for_a_long_prompt() {
    let gap = Some(Duration::from_nanos(1));
    let shape = Shape {
        blocks: 1024,
        max_num_batched_tokens: 512,
        max_model_len: 2000,
        max_token_gap: gap,
        ..Shape::default()
    };
    let (engine, controls) = start(shape);
    let mut first = engine.handle().submit(greedy(prompt(1, 10), 200)).unwrap();
    while !matches!(first.blocking_next(), Some(Event::Token { .. })) {}
    controls.close_gate();
    let long = engine.handle().submit(greedy(prompt(2, 1000), 1)).unwrap();
    let before = controls.passes.load(Ordering::Relaxed);
    controls.open_gate();
    collect(long);
    // No pass keeps to such a gap: each has the least, now and then twice that, and the last ones prompts alone.
    let passes = controls.passes.load(Ordering::Relaxed) - before;
    assert!(passes >= 1000 / 32, "{passes}");
    drop(first);
    assert_idle_and_whole(&engine);
}

#[test]
fn with_a_prefix_hit() {
    let (engine, controls) = start(Shape::default());
    let first = greedy(prompt(5, 41), 8);
    let cold = collect(engine.handle().submit(first.clone()).unwrap());
    let computed = controls.tokens_computed.load(Ordering::Relaxed);
    let warm = collect(engine.handle().submit(first.clone()).unwrap());
    assert_eq!((cold.cached_tokens, warm.cached_tokens), (0, 40));
    assert_eq!(cold.tokens, warm.tokens);
    assert_eq!(cold.tokens, expected_greedy(&first.prompt, &first.params));
    assert_eq!(controls.tokens_computed.load(Ordering::Relaxed) - computed, 1 + 7);
    let mut salted = first;
    salted.cache_salt = Some("another tenant".into());
    assert_eq!(collect(engine.handle().submit(salted).unwrap()).cached_tokens, 0);
    assert_idle_and_whole(&engine);
}

#[test]
fn equal_prompts_that_come_together_are_computed_once() {
    let (engine, controls) = start(Shape { max_num_batched_tokens: 16, max_num_seqs: 8, ..Shape::default() });
    controls.close_gate();
    let streams: Vec<_> = (0..4).map(|_| engine.handle().submit(greedy(prompt(9, 65), 4)).unwrap()).collect();
    controls.open_gate();
    let ended: Vec<_> = streams.into_iter().map(collect).collect();
    assert_eq!(ended.iter().map(|ended| ended.cached_tokens).collect::<Vec<_>>(), [0, 64, 64, 64]);
    assert!(ended.windows(2).all(|pair| pair[0].tokens == pair[1].tokens));
    assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 65 + 3 + 3 * (1 + 3));
}

#[test]
fn under_pressure_everyone_is_preempted_and_nobody_notices() {
    for prefix_caching in [true, false] {
        // KV for about 6 of 64 requests.
        let shape = Shape { blocks: 6 * 10, prefix_caching, max_num_seqs: 64, ..Shape::default() };
        let requests = (0..64).map(|seed| greedy(prompt(seed, 10), 30)).collect();
        let status = run_all_with(shape, requests, true, 0);
        assert!(status.preemptions > 0, "the test needs preemptions to mean anything");
    }
}

#[test]
fn swapped_out_and_in_under_pressure_nobody_notices() {
    let requests: Vec<_> = (0..64).map(|seed| greedy(prompt(seed, 10), 30)).collect();
    for prefix_caching in [true, false] {
        for (preemption, swap_blocks) in
            [(PreemptionMode::Swap, 60), (PreemptionMode::Swap, 9), (PreemptionMode::Auto, 60)]
        {
            let shape =
                Shape { blocks: 6 * 10, prefix_caching, max_num_seqs: 64, swap_blocks, preemption, ..Shape::default() };
            for fail_every_swap in [0, 3] {
                let status = run_all_with(shape, requests.clone(), true, fail_every_swap);
                assert!(
                    status.preemptions_swap > 0 && status.kv.swapped_out_blocks > 0,
                    "the test needs swaps: {status:?}"
                );
                assert_eq!(status.kv.swaps_failed > 0, fail_every_swap > 0);
            }
        }
    }
}

#[test]
fn one_sequence_may_use_every_block() {
    let shape = Shape { blocks: 10, max_model_len: 40, ..Shape::default() };
    run_all(shape, vec![greedy(prompt(2, 30), 10), greedy(prompt(4, 39), 1), greedy(prompt(6, 1), 39)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_loads_give_the_expected_tokens(
        blocks in 16usize..80, block in 0u32..4, prefix_caching in any::<bool>(), max_num_seqs in 1usize..12,
        extra_budget in 0usize..40,
        gap in prop::option::of(1u64..2000),
        crowded in any::<bool>(), swap_blocks in 0usize..60, preemption in 0..3, fail_every_swap in 0u64..4,
        load in prop::collection::vec((0u32..4, 1usize..60, 1usize..40, -1i32..2, any::<bool>(), 0u128..3), 1..24),
    ) {
        let block_size = 1 << block;
        let shape = Shape {
            blocks, block_size, prefix_caching, max_num_seqs,
            max_num_batched_tokens: max_num_seqs + extra_budget, max_model_len: 100, longer_than_memory: false,
            swap_blocks,
            preemption: [PreemptionMode::Auto, PreemptionMode::Recompute, PreemptionMode::Swap][preemption as usize],
            max_token_gap: gap.map(Duration::from_micros),
            tails: &[],
        };
        let limit = 100.min(blocks * block_size);
        let requests = load
            .into_iter()
            .map(|(family, length, max_tokens, priority, stops, tenant)| {
                let length = length.min(limit - 1);
                let mut request = greedy(prompt(family, length), max_tokens.min(limit - length));
                request.priority = priority;
                request.tenant = (tenant > 0).then_some(TenantId(tenant));
                request.params.ignore_eos = !stops;
                request
            })
            .collect();
        run_all_with(shape, requests, crowded, fail_every_swap);
    }
}
