//! Layers that keep no more than the tail of a sequence, windows and states, beside those that keep all of it: the same
//! tokens as with ample memory, whatever happens.

use std::sync::atomic::Ordering;

use interbed_engine::PreemptionMode;
use proptest::prelude::*;

use crate::sim::{
    KINDS, Shape, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, prompt, start,
    teach_short_answers,
};

/// Requests, each with the seed of its prompt, the lengths of its prompt and of its answer, and how many answers are
/// wanted.
fn requests() -> impl Strategy<Value = Vec<(u32, usize, usize, usize)>> {
    prop::collection::vec((0u32..3, 1usize..70, 1usize..20, 1usize..4), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn tokens_are_those_of_a_sequence_alone(
        requests in requests(),
        kind in 0..KINDS.len(),
        blocks in 40usize..200,
        block_size in prop::sample::select(vec![1usize, 2, 4, 16]),
        max_num_seqs in 1usize..8,
        room in 0usize..40,
        drafts in prop::sample::select(vec![0usize, 1, 3, 12]),
        drafts_well in any::<bool>(),
        swap_blocks in prop::sample::select(vec![0usize, 300]),
        faults in any::<bool>(),
    ) {
        let blocks = blocks.max(300 / block_size);
        let max_num_batched_tokens = max_num_seqs + room;
        let tails = KINDS[kind];
        let shape = Shape {
            blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            swap_blocks,
            preemption: if swap_blocks > 0 { PreemptionMode::Swap } else { PreemptionMode::Recompute },
            tails,
            ..Shape::default()
        };
        let (engine, controls) = start(shape);
        controls.fail_every_swap.store(if faults { 5 } else { 0 }, Ordering::Relaxed);
        controls.drafts.store(drafts, Ordering::Relaxed);
        controls.drafts_well.store(drafts_well, Ordering::Relaxed);
        teach_short_answers(&engine);
        // All prompts of a seed begin alike, and end at different places.
        for round in requests.chunks(8) {
            let mut streams = Vec::new();
            for &(seed, length, answer, count) in round {
                let request = greedy(prompt(seed, length), answer);
                let expected = expected_greedy(&request.prompt, &request.params);
                let all = engine.handle().submit_many(request, count.min(max_num_seqs)).unwrap();
                for (index, stream) in all.into_iter().enumerate() {
                    // Some clients go away.
                    if faults && (seed as usize + length + index).is_multiple_of(7) {
                        continue;
                    }
                    streams.push((expected.clone(), stream));
                }
            }
            for (expected, stream) in streams {
                prop_assert_eq!(collect(stream).tokens, expected);
            }
        }
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn a_conversation_goes_on_where_it_ended() {
    for (tails, drafts) in KINDS.into_iter().flat_map(|tails| [(tails, 0), (tails, 6)]) {
        let (engine, controls) = start(Shape { tails, blocks: 400, max_model_len: 300, ..Shape::default() });
        controls.drafts.store(drafts, Ordering::Relaxed);
        let mut tokens = prompt(1, 30);
        for turn in 0..6 {
            controls.tokens_computed.store(0, Ordering::Relaxed);
            let request = greedy(tokens.clone(), 11);
            let expected = expected_greedy(&request.prompt, &request.params);
            let ended = collect(engine.handle().submit(request).unwrap());
            assert_eq!(ended.tokens, expected);
            let known = if turn == 0 { 0 } else { tokens.len() - 14 };
            // All but what was added, what lies in the last block that was computed, and the drafts of the last pass.
            let least = known.saturating_sub(8 + drafts);
            assert!(ended.cached_tokens >= least, "{} of {known} tokens are found", ended.cached_tokens);
            tokens.extend(ended.tokens);
            tokens.extend(prompt(turn + 7, 3));
        }
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn a_prompt_that_branches_is_found_from_the_third_time_on() {
    for tails in KINDS {
        let (engine, _) = start(Shape { tails, blocks: 400, max_model_len: 300, ..Shape::default() });
        let common = prompt(1, 60);
        let mut cached = Vec::new();
        for branch in 0..4 {
            let mut tokens = common.clone();
            tokens.extend(prompt(branch + 20, 41));
            let request = greedy(tokens, 3);
            let expected = expected_greedy(&request.prompt, &request.params);
            let ended = collect(engine.handle().submit(request).unwrap());
            assert_eq!(ended.tokens, expected);
            cached.push(ended.cached_tokens);
        }
        assert_eq!(cached[2..], [60, 60], "{tails:?}");
    }
}

#[test]
fn sequences_that_make_room_come_back_to_the_same_tokens() {
    let modes = [(PreemptionMode::Recompute, 0), (PreemptionMode::Swap, 200)];
    for (preemption, swap_blocks, drafts) in
        modes.into_iter().flat_map(|(mode, swap)| [(mode, swap, 0), (mode, swap, 3)])
    {
        for tails in KINDS {
            let shape = Shape { tails, blocks: 60, max_num_seqs: 8, preemption, swap_blocks, ..Shape::default() };
            let (engine, controls) = start(shape);
            controls.drafts.store(drafts, Ordering::Relaxed);
            teach_short_answers(&engine);
            let requests: Vec<_> = (0..24).map(|seed| greedy(prompt(seed, 13), 60)).collect();
            let streams: Vec<_> =
                requests.iter().map(|request| engine.handle().submit(request.clone()).unwrap()).collect();
            for (request, stream) in requests.iter().zip(streams) {
                assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params), "{tails:?}");
            }
            let status = eventually(&engine, "at rest", |status| status.running == 0);
            assert!(status.preemptions > 0, "the test needs preemptions to mean anything: {tails:?}");
            assert_eq!(status.preemptions_swap > 0, swap_blocks > 0, "{tails:?}");
            assert_idle_and_whole(&engine);
        }
    }
}

#[test]
fn a_failed_pass_leaves_no_state_that_others_find() {
    for tails in KINDS {
        let (engine, controls) = start(Shape { tails, ..Shape::default() });
        let request = greedy(prompt(3, 40), 8);
        let expected = expected_greedy(&request.prompt, &request.params);
        for round in 0..4 {
            if round % 2 == 0 {
                controls.fail_next.store(true, Ordering::Relaxed);
                let mut stream = engine.handle().submit(request.clone()).unwrap();
                while stream.blocking_next().is_some() {}
            }
            assert_eq!(collect(engine.handle().submit(request.clone()).unwrap()).tokens, expected);
        }
        assert_idle_and_whole(&engine);
    }
}
