//! Every request ends: finished, cancelled, or failed with its reason; its blocks come back in every case.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use interbed_engine::{
    BeamParams, Engine, Event, EventStream, FinishReason, Health, PreemptionMode, PromptDone, Request, RequestError,
    StartError, SubmitError,
};
use interbed_kv::{Miss, MissReason};

use crate::sim::{
    Controls, EOS, Shape, SimRunner, VOCAB, assert_idle_and_whole, collect, engine_config, eventually, expected_greedy,
    greedy, prompt, start, teach_short_answers, with_swap,
};

fn last_event(mut stream: EventStream) -> Event {
    let mut last = None;
    while let Some(event) = stream.blocking_next() {
        last = Some(event);
    }
    last.expect("every stream has a last event")
}

fn next_token(stream: &mut EventStream) {
    while !matches!(stream.blocking_next(), Some(Event::Token { .. })) {}
}

/// A prompt whose greedy continuation ends with EOS after a few tokens.
fn stopping_prompt(engine: &Engine) -> (Vec<u32>, usize) {
    let _ = engine;
    (1..VOCAB as u32)
        .flat_map(|a| (1..VOCAB as u32).map(move |b| vec![a, b]))
        .find_map(|prompt| {
            let mut request = greedy(prompt.clone(), 60);
            request.params.ignore_eos = false;
            let tokens = expected_greedy(&prompt, &request.params);
            (tokens.last() == Some(&EOS) && tokens.len() > 3).then_some((prompt, tokens.len()))
        })
        .expect("some prompt ends")
}

#[test]
fn finished_by_length_by_eos_and_by_stop_token() {
    let (engine, _) = start(Shape::default());
    let ended = collect(engine.handle().submit(greedy(vec![1, 2, 3], 5)).unwrap());
    assert_eq!((ended.tokens.len(), ended.reason), (5, FinishReason::Length));

    let (prompt, length) = stopping_prompt(&engine);
    let mut request = greedy(prompt.clone(), 60);
    request.params.ignore_eos = false;
    let ended = collect(engine.handle().submit(request.clone()).unwrap());
    assert_eq!((ended.tokens.len(), ended.reason), (length, FinishReason::EndOfSequence));

    request.params.min_tokens = length;
    let longer = collect(engine.handle().submit(request.clone()).unwrap());
    assert!(longer.tokens.len() > length && longer.tokens[..length - 1] == ended.tokens[..length - 1]);

    let mut request = greedy(prompt, 60);
    let second = ended.tokens[1];
    request.params.stop_token_ids = vec![second];
    let stopped = collect(engine.handle().submit(request).unwrap());
    let first_at = ended.tokens.iter().position(|&token| token == second).unwrap();
    assert_eq!((stopped.tokens.len(), stopped.reason), (first_at + 1, FinishReason::StopToken(second)));
    assert_idle_and_whole(&engine);
    let finished = engine.handle().status().finished;
    assert_eq!((finished.stop + finished.length, finished.failed), (4, 0));
}

#[test]
fn the_context_ends_generation_at_the_door() {
    let (engine, _) = start(Shape { max_model_len: 16, ..Shape::default() });
    let ended = collect(engine.handle().submit(greedy(vec![1; 10], 6)).unwrap());
    assert_eq!(ended.tokens.len(), 6);
    for (prompt, max_tokens) in [(16, 1), (10, 7), (1000, 1)] {
        assert!(matches!(engine.handle().submit(greedy(vec![1; prompt], max_tokens)), Err(SubmitError::Invalid(_))));
    }
}

#[test]
fn a_client_that_goes_away_frees_its_request_within_one_step() {
    let (engine, controls) = start(Shape::default());
    controls.close_gate();
    let mut leaver = engine.handle().submit(greedy(vec![1, 2, 3], 100)).unwrap();
    let mut stayer = engine.handle().submit(greedy(vec![4, 5, 6], 100)).unwrap();
    // Two passes may be needed if the first began before the second request came.
    controls.allow(2);
    next_token(&mut leaver);
    next_token(&mut stayer);
    eventually(&engine, "at the gate", |status| status.steps == 2);
    drop(leaver);
    // The pass at the gate was planned before the client left; the next one must be without it.
    controls.allow(1);
    eventually(&engine, "planned before", |status| status.steps == 3);
    let computed = controls.tokens_computed.load(Ordering::Relaxed);
    controls.allow(1);
    // The request ends before that pass is computed, and may be reported by then.
    eventually(&engine, "cancelled", |status| status.finished.cancelled == 1 && status.steps == 4);
    assert_eq!(controls.tokens_computed.load(Ordering::Relaxed) - computed, 1);
    controls.open_gate();
    let ended = collect(stayer);
    assert_eq!(ended.reason, FinishReason::Length);
    assert_idle_and_whole(&engine);
}

#[test]
fn cancelled_while_waiting() {
    let (engine, controls) = start(Shape { max_num_seqs: 1, ..Shape::default() });
    controls.close_gate();
    let first = engine.handle().submit(greedy(vec![1, 2, 3], 10)).unwrap();
    let second = engine.handle().submit(greedy(vec![4, 5, 6], 10)).unwrap();
    drop(second);
    controls.open_gate();
    collect(first);
    eventually(&engine, "cancelled", |status| status.finished.cancelled == 1);
    assert_idle_and_whole(&engine);
}

#[test]
fn a_failed_pass_fails_its_requests_and_nobody_else() {
    let (engine, controls) = start(Shape { max_num_seqs: 2, ..Shape::default() });
    controls.close_gate();
    controls.fail_next.store(true, Ordering::Relaxed);
    let streams: Vec<_> = (1..5).map(|seed| engine.handle().submit(greedy(vec![seed; 9], 6)).unwrap()).collect();
    controls.open_gate();
    let failed = streams
        .into_iter()
        .enumerate()
        .map(|(i, stream)| (i, last_event(stream)))
        .filter(
            |(_, event)| matches!(event, Event::Failed(RequestError::Forward(reason)) if reason.contains("on fire")),
        )
        .map(|(i, _)| i)
        .collect::<Vec<_>>();
    assert!(!failed.is_empty() && failed.len() <= 2, "{failed:?}");
    assert_idle_and_whole(&engine);
    // What the failed pass wrote must not be found in the cache.
    for seed in 1..5 {
        let request = greedy(vec![seed; 9], 6);
        let ended = collect(engine.handle().submit(request.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
    }
    eventually(&engine, "well again", |status| status.health == Health::Ok);
}

#[test]
fn what_was_computed_beside_logits_that_are_no_numbers_is_found_by_nobody() {
    let beam = Request { beam: Some(BeamParams { width: 3, ..BeamParams::default() }), ..greedy(prompt(4, 17), 6) };
    for (number, request) in [greedy(prompt(3, 17), 6), beam].into_iter().enumerate() {
        let (engine, controls) = start(Shape::default());
        controls.nan_next.store(true, Ordering::Relaxed);
        let failed = last_event(engine.handle().submit(request.clone()).unwrap());
        assert_eq!(failed, Event::Failed(RequestError::NotFinite));
        assert_idle_and_whole(&engine);
        assert_eq!(engine.handle().status().kv.blocks_cached, 0, "request {number}");
        let again = greedy(request.prompt, 6);
        let ended = collect(engine.handle().submit(again.clone()).unwrap());
        assert_eq!((ended.cached_tokens, ended.tokens), (0, expected_greedy(&again.prompt, &again.params)));
    }
}

#[test]
fn swap_space_that_is_too_small_is_refused_at_the_start() {
    let shape = Shape { swap_blocks: 8, ..Shape::default() };
    for (missing, refused) in [(usize::MAX - 8, false), (usize::MAX - 7, true)] {
        let (runner, controls) = SimRunner::new(shape.block_size);
        controls.swap_slots_missing.store(missing, Ordering::Relaxed);
        let attachments = with_swap(shape, &controls, Vec::new());
        let error = Engine::start_with(engine_config(shape), Box::new(runner), attachments).err();
        assert_eq!(matches!(error, Some(StartError::SwapSlots { wanted: 8, got: 7 })), refused, "{error:?}");
    }
}

#[test]
fn a_panic_ends_every_stream_and_shows_in_health() {
    let (engine, controls) = start(Shape::default());
    controls.close_gate();
    controls.panic_next.store(true, Ordering::Relaxed);
    let streams: Vec<_> = (1..4).map(|seed| engine.handle().submit(greedy(vec![seed; 9], 6)).unwrap()).collect();
    controls.open_gate();
    for stream in streams {
        assert_eq!(last_event(stream), Event::Failed(RequestError::Stopped));
    }
    assert!(matches!(engine.handle().status().health, Health::Dead(reason) if reason.contains("on purpose")));
    assert_eq!(engine.handle().submit(greedy(vec![1], 1)).unwrap_err(), SubmitError::Stopped);
}

#[test]
fn health_is_progress() {
    let (engine, controls) = start(Shape::default());
    assert_eq!(engine.handle().status().health, Health::Ok);
    controls.close_gate();
    let stream = engine.handle().submit(greedy(vec![1, 2], 3)).unwrap();
    eventually(&engine, "stalled", |status| matches!(status.health, Health::Stalled(_)));
    controls.open_gate();
    collect(stream);
    assert_idle_and_whole(&engine);
    eventually(&engine, "well again", |status| status.health == Health::Ok);
}

#[test]
fn a_full_queue_is_overload_and_a_stopped_engine_says_so() {
    let (engine, controls) = start(Shape { max_num_seqs: 1, ..Shape::default() });
    controls.close_gate();
    let streams: Vec<_> = (0..1000).map(|_| engine.handle().submit(greedy(vec![1, 2], 3))).collect();
    // The first may have been admitted already, and so have left the queue.
    let _ = engine.handle().submit(greedy(vec![1, 2], 3));
    assert!(matches!(engine.handle().submit(greedy(vec![1, 2], 3)), Err(SubmitError::Overloaded { .. })));
    controls.open_gate();
    let handle = engine.handle();
    drop(streams);
    assert_idle_and_whole(&engine);
    drop(engine);
    assert_eq!(handle.submit(greedy(vec![1], 1)).unwrap_err(), SubmitError::Stopped);
}

#[test]
fn prompt_logprobs_cover_the_prompt_and_bypass_the_cache() {
    let (engine, _) = start(Shape { max_num_batched_tokens: 8, max_num_seqs: 4, ..Shape::default() });
    let prompt: Vec<u32> = (1..30).collect();
    collect(engine.handle().submit(greedy(prompt.clone(), 2)).unwrap());
    for max_tokens in [0, 2] {
        let mut request = greedy(prompt.clone(), max_tokens);
        request.params.prompt_logprobs = Some(2);
        let mut stream = engine.handle().submit(request).unwrap();
        let Some(Event::PromptDone(PromptDone { cached_tokens, logprobs, .. })) = stream.blocking_next() else {
            panic!("no prompt")
        };
        assert_eq!((cached_tokens, logprobs.len()), (0, prompt.len()));
        assert!(logprobs[0].is_none());
        for (position, logprobs) in logprobs.iter().enumerate().skip(1) {
            let logprobs = logprobs.as_ref().expect("every later token has some");
            assert_eq!((logprobs.chosen.token, logprobs.top.len()), (prompt[position], 2));
            assert!(logprobs.chosen.logprob <= 0.0 && logprobs.top[0].rank == 1);
        }
        assert_eq!(collect_rest(stream), max_tokens);
    }
    assert_idle_and_whole(&engine);
}

#[test]
fn prompt_logprobs_survive_preemption() {
    let shape = Shape { blocks: 14, max_num_batched_tokens: 8, max_num_seqs: 4, ..Shape::default() };
    let requests: Vec<_> = (1..5u32)
        .map(|seed| {
            let mut request = greedy((0..20).map(|i| 1 + (i * seed + seed) % 49).collect(), 20);
            request.params.prompt_logprobs = Some(1);
            request
        })
        .collect();
    let answers = |shape: Shape, together: bool| {
        let (engine, _) = start(shape);
        teach_short_answers(&engine);
        let mut streams: Vec<_> = Vec::new();
        let mut answers = Vec::new();
        for request in &requests {
            streams.push(engine.handle().submit(request.clone()).unwrap());
            if !together {
                answers.extend(streams.pop().map(prompt_logprobs));
            }
        }
        answers.extend(streams.into_iter().map(prompt_logprobs));
        assert_idle_and_whole(&engine);
        (answers, engine.handle().status().preemptions)
    };
    let (roomy, _) = answers(Shape::default(), false);
    let (tight, preemptions) = answers(shape, true);
    assert!(preemptions > 0, "the test needs preemptions to mean anything");
    assert_eq!(tight, roomy);
}

fn prompt_logprobs(mut stream: EventStream) -> Vec<Option<interbed_engine::PositionLogprobs>> {
    let mut found = Vec::new();
    while let Some(event) = stream.blocking_next() {
        if let Event::PromptDone(PromptDone { logprobs, .. }) = event {
            found = logprobs;
        }
    }
    found
}

fn collect_rest(mut stream: EventStream) -> usize {
    let mut tokens = 0;
    while let Some(event) = stream.blocking_next() {
        tokens += usize::from(matches!(event, Event::Token { .. }));
    }
    tokens
}

#[test]
fn random_arrivals_and_departures_leave_nothing_behind() {
    let (engine, _) = start(Shape { blocks: 40, max_num_seqs: 6, max_num_batched_tokens: 24, ..Shape::default() });
    std::thread::scope(|scope| {
        for client in 0..4u32 {
            let handle = engine.handle();
            scope.spawn(move || {
                let mut state = client + 1;
                let mut random = |below: u32| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) % below
                };
                for _ in 0..150 {
                    let prompt = (0..1 + random(40)).map(|i| 1 + (i * i + random(3)) % 49).collect();
                    let request = greedy(prompt, 1 + random(20) as usize);
                    let mut stream = handle.submit(request.clone()).unwrap();
                    if random(3) == 0 {
                        for _ in 0..random(6) {
                            stream.blocking_next();
                        }
                    } else {
                        assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
                    }
                }
            });
        }
    });
    assert_idle_and_whole(&engine);
}

/// An engine whose first request has made others leave for swap space, where they hang.
fn with_swaps_in_flight() -> (Engine, Arc<Controls>, Vec<EventStream>) {
    let shape = Shape { blocks: 24, swap_blocks: 64, preemption: PreemptionMode::Swap, ..Shape::default() };
    let (engine, controls) = start(shape);
    teach_short_answers(&engine);
    controls.hold_swaps.store(true, Ordering::Relaxed);
    let requests = (0..6u32).map(|seed| greedy((0..10).map(|i| 1 + (i * 3 + seed) % 49).collect(), 40));
    let streams = requests.map(|request| engine.handle().submit(request).unwrap()).collect();
    eventually(&engine, "a swap begins", |status| status.swapped > 0);
    (engine, controls, streams)
}

#[test]
fn clients_that_go_while_swaps_are_in_flight_leave_nothing_behind() {
    let (engine, controls, streams) = with_swaps_in_flight();
    drop(streams);
    eventually(&engine, "all have gone", |status| status.running == 0);
    // The engine is well until a sequence waits for the swaps that hang.
    eventually(&engine, "well", |status| status.health == Health::Ok);
    let all_blocks = engine.handle().submit(greedy(vec![1; 90], 6)).unwrap();
    eventually(&engine, "stalled", |status| matches!(status.health, Health::Stalled(_)));
    drop(all_blocks);
    eventually(&engine, "well again", |status| status.health == Health::Ok);
    controls.hold_swaps.store(false, Ordering::Relaxed);
    assert_idle_and_whole(&engine);
    assert_eq!(collect(engine.handle().submit(greedy(vec![1, 2], 5)).unwrap()).tokens.len(), 5);
}

#[test]
fn an_engine_that_is_stopped_waits_for_no_swap() {
    let (engine, _controls, streams) = with_swaps_in_flight();
    drop(engine);
    let ends: Vec<_> = streams.into_iter().map(last_event).collect();
    let stopped = Event::Failed(RequestError::Stopped);
    // Those that still ran may have been done by then; those whose swaps hang may not.
    assert!(ends.contains(&stopped), "{ends:?}");
    assert!(ends.iter().all(|end| *end == stopped || matches!(end, Event::Finished { .. })), "{ends:?}");
}

#[test]
fn who_asks_is_told_why_its_prefix_was_not_cached_and_nothing_of_others() {
    let (engine, _) = start(Shape::default());
    let miss = |request: Request| {
        let mut stream = engine.handle().submit(request).unwrap();
        let Some(Event::PromptDone(PromptDone { miss, .. })) = stream.blocking_next() else { panic!("no prompt") };
        assert_eq!(collect_rest(stream), 2);
        miss
    };
    let asks = |prompt: Vec<u32>, salt: Option<&str>| {
        let cache_salt = salt.map(str::to_owned);
        Request { explain_miss: true, cache_salt, ..greedy(prompt, 2) }
    };
    let prompt: Vec<u32> = (1..22).collect();
    let never = |matched_tokens| Some(Miss { matched_tokens, reason: MissReason::NeverSeen });
    assert_eq!(miss(asks(prompt.clone(), None)), never(0));
    assert_eq!(miss(asks(prompt.clone(), None)), Some(Miss { matched_tokens: 20, reason: MissReason::PartialBlock }));
    assert_eq!(miss(asks((1..13).chain(30..40).collect(), None)), never(12));
    // The same under another salt.
    assert_eq!(miss(asks(prompt.clone(), Some("another tenant"))), never(0));
    assert_eq!(miss(greedy(prompt, 2)), None, "nobody asked");
}
