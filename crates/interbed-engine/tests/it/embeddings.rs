//! Embeddings over a real model: the same to the bit in any company.

use interbed_engine::{Engine, Event, FinishReason, Pooling, Request, SamplingParams, SubmitError};

use crate::real::{requests, start};
use crate::sim::{assert_idle_and_whole, teach_short_answers};

fn asked(pooling: Pooling) -> Vec<Request> {
    let params = SamplingParams { max_tokens: 0, ..SamplingParams::default() };
    let all = requests().into_iter();
    all.map(|one| Request { params: params.clone(), embed: Some(pooling), ..one }).collect()
}

fn read(mut stream: interbed_engine::EventStream) -> (usize, Vec<u32>) {
    let (mut cached, mut bits) = (0, Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::PromptDone(done) => cached = done.cached_tokens,
            Event::Embedding(vector) => bits = vector.iter().map(|number| number.to_bits()).collect(),
            Event::Preempted { .. } => {}
            Event::Finished { reason } => assert_eq!(reason, FinishReason::Length),
            other => panic!("{other:?}"),
        }
    }
    assert!(!bits.is_empty());
    (cached, bits)
}

/// All at once, with requests for text between them.
fn together(engine: &Engine, asked: &[Request]) -> Vec<(usize, Vec<u32>)> {
    let texts: Vec<_> = requests().into_iter().step_by(3).map(|one| engine.handle().submit(one).unwrap()).collect();
    let streams: Vec<_> = asked.iter().map(|one| engine.handle().submit(one.clone()).unwrap()).collect();
    let got = streams.into_iter().map(read).collect();
    texts.into_iter().for_each(|stream| drop(crate::sim::collect(stream)));
    got
}

fn vectors(got: Vec<(usize, Vec<u32>)>) -> Vec<Vec<u32>> {
    got.into_iter().map(|(_, vector)| vector).collect()
}

#[test]
fn alone_together_chunked_cached_and_preempted() {
    for (model, pooling) in
        [("qwen2_bf16", Pooling::Last), ("qwen2_bf16", Pooling::Mean), ("mistral_sliding", Pooling::Last)]
    {
        let asked = asked(pooling);
        let engine = start(model, 100, 1, 100, 1);
        let alone: Vec<_> = asked.iter().map(|one| read(engine.handle().submit(one.clone()).unwrap()).1).collect();
        assert!(alone.array_windows().all(|[one, next]| one != next), "they say something of the prompt");
        let roomy = start(model, 600, 24, 200, 2);
        assert_eq!(vectors(together(&roomy, &asked)), alone, "{model} {pooling:?}: together");
        let again = together(&roomy, &asked);
        assert_eq!(again.iter().any(|(cached, _)| *cached > 0), pooling == Pooling::Last, "{model} {pooling:?}");
        assert_eq!(vectors(again), alone, "{model} {pooling:?}: with prefix hits");
        for chunk in [24, 31] {
            let engine = start(model, 600, 24, chunk, 2);
            assert_eq!(vectors(together(&engine, &asked)), alone, "{model} {pooling:?}: in chunks of up to {chunk}");
        }
        let tight = start(model, 40, 24, 24, 3);
        teach_short_answers(&tight);
        assert_eq!(vectors(together(&tight, &asked)), alone, "{model} {pooling:?}: under pressure");
        assert!(tight.handle().status().preemptions > 0, "the test needs preemptions to mean anything");
        [&engine, &roomy, &tight].into_iter().for_each(assert_idle_and_whole);
    }
}

#[test]
fn the_mean_is_that_of_all_last_tokens() {
    let engine = start("mistral_sliding", 100, 4, 100, 1);
    let prompt = requests()[9].prompt.clone();
    let embed = |prompt: &[u32], pooling| {
        let params = SamplingParams { max_tokens: 0, ..SamplingParams::default() };
        let request = Request { prompt: prompt.to_vec(), params, embed: Some(pooling), ..Request::default() };
        let (_, bits) = read(engine.handle().submit(request).unwrap());
        bits.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect::<Vec<_>>()
    };
    let mean = embed(&prompt, Pooling::Mean);
    let lasts: Vec<_> = (1..=prompt.len()).map(|end| embed(&prompt[..end], Pooling::Last)).collect();
    for (index, mean) in mean.into_iter().enumerate() {
        let expected: f64 = lasts.iter().map(|last| last[index]).sum::<f64>() / prompt.len() as f64;
        assert!((mean - expected).abs() < 1e-6 * expected.abs().max(1.0), "{mean} {expected}");
    }
}

#[test]
fn an_embedding_is_no_text_and_can_be_cancelled() {
    let engine = start("qwen2_bf16", 100, 1, 100, 1);
    let one = asked(Pooling::Last).remove(3);
    for (param, change) in [
        ("max_tokens", (|one: &mut Request| one.params.max_tokens = 1) as fn(&mut Request)),
        ("prompt_logprobs", |one| one.params.prompt_logprobs = Some(0)),
        ("use_beam_search", |one| one.beam = Some(interbed_engine::BeamParams::default())),
        ("prompt", |one| one.prompt.clear()),
    ] {
        let mut wrong = one.clone();
        change(&mut wrong);
        match engine.handle().submit(wrong) {
            Err(SubmitError::Invalid(invalid)) => assert_eq!(invalid.param, param),
            other => panic!("{param}: {other:?}"),
        }
    }
    assert!(engine.handle().submit_many(one.clone(), 2).is_err());
    let streams: Vec<_> = (0..50).map(|_| engine.handle().submit(one.clone()).unwrap()).collect();
    drop(streams);
    read(engine.handle().submit(one).unwrap());
    assert_idle_and_whole(&engine);
    let stopped = engine.handle().clone();
    drop(engine);
    assert!(matches!(stopped.submit(asked(Pooling::Last).remove(0)), Err(SubmitError::Stopped)));
}
