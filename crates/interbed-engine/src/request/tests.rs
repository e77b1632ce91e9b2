//! Tests the checks that refuse requests.

use super::*;

fn limits() -> Limits {
    Limits {
        vocab_size: 100,
        max_model_len: 64,
        model_context: 64,
        kv_capacity_tokens: 1024,
        kv_block_tokens: 16,
        kv_blocks_beside: 0,
        max_logprobs: 20,
        max_beam_width: 4,
        max_waiting: 8,
    }
}

fn check(change: impl FnOnce(&mut Request)) -> Option<&'static str> {
    let mut request = Request { prompt: vec![1, 2, 3], ..Request::default() };
    change(&mut request);
    request.check(&limits()).err().map(|refused| refused.param)
}

#[test]
fn each_bad_parameter_is_refused_by_name() {
    assert_eq!(check(|_| ()), None);
    assert_eq!(check(|r| r.prompt.clear()), Some("prompt"));
    assert_eq!(check(|r| r.prompt = vec![100]), Some("prompt"));
    assert_eq!(check(|r| r.prompt = vec![1; 64]), Some("prompt"));
    assert_eq!(check(|r| r.prompt = vec![1; 65]), Some("prompt"));
    assert_eq!(check(|r| r.params.max_tokens = 61), None);
    assert_eq!(check(|r| r.params.max_tokens = 62), Some("max_tokens"));
    assert_eq!(check(|r| r.params.max_tokens = usize::MAX), Some("max_tokens"));
    assert_eq!(check(|r| r.params.max_tokens = 0), Some("max_tokens"));
    assert_eq!(check(|r| r.params.temperature = f32::NAN), Some("temperature"));
    assert_eq!(check(|r| r.params.temperature = -0.1), Some("temperature"));
    assert_eq!(check(|r| r.params.temperature = f32::INFINITY), Some("temperature"));
    assert_eq!(check(|r| r.params.top_p = 0.0), None);
    assert_eq!(check(|r| r.params.top_p = -0.1), Some("top_p"));
    assert_eq!(check(|r| r.params.min_p = 1.5), Some("min_p"));
    assert_eq!(check(|r| r.params.repetition_penalty = 0.0), Some("repetition_penalty"));
    assert_eq!(check(|r| r.params.presence_penalty = 3.0), Some("presence_penalty"));
    assert_eq!(check(|r| r.params.frequency_penalty = -3.0), Some("frequency_penalty"));
    assert_eq!(check(|r| r.params.top_k = Some(0)), Some("top_k"));
    assert_eq!(check(|r| r.params.min_tokens = 17), Some("min_tokens"));
    assert_eq!(check(|r| r.params.logprobs = Some(21)), Some("logprobs"));
    assert_eq!(check(|r| r.params.stop_token_ids = vec![100]), Some("stop_token_ids"));
    assert_eq!(check(|r| r.params.stop_token_ids = vec![1; 1025]), Some("stop_token_ids"));
    assert_eq!(check(|r| r.params.allowed_token_ids = vec![100]), Some("allowed_token_ids"));
    assert_eq!(check(|r| r.params.bad_words = vec![vec![1], vec![100]]), Some("bad_words"));
    assert_eq!(check(|r| r.params.bad_words = vec![vec![]]), Some("bad_words"));
    assert_eq!(check(|r| r.params.bad_words = vec![vec![1; 512]; 3]), Some("bad_words"));
    assert_eq!(check(|r| r.params.logit_bias = vec![(4_000_000_000, 1.0)]), Some("logit_bias"));
    assert_eq!(check(|r| r.params.logit_bias = vec![(1, f32::NAN)]), Some("logit_bias"));
}

#[test]
fn beam_search_refuses_what_it_cannot_honour() {
    let beam = |change: fn(&mut Request, &mut BeamParams)| {
        check(|request| {
            let mut beam = BeamParams { width: 4, ..BeamParams::default() };
            request.params.temperature = 0.0;
            change(request, &mut beam);
            request.beam = Some(beam);
        })
    };
    assert_eq!(beam(|_, _| ()), None);
    assert_eq!(beam(|r, _| r.params.min_tokens = 3), None);
    assert_eq!(beam(|_, beam| beam.width = 0), Some("best_of"));
    assert_eq!(beam(|_, beam| beam.width = 5), Some("best_of"));
    assert_eq!(beam(|_, beam| beam.length_penalty = f32::NAN), Some("length_penalty"));
    assert_eq!(beam(|r, _| r.params.temperature = 0.5), Some("temperature"));
    assert_eq!(beam(|r, _| r.params.top_p = 0.5), Some("top_p"));
    assert_eq!(beam(|r, _| r.params.min_p = 0.5), Some("min_p"));
    assert_eq!(beam(|r, _| r.params.top_k = Some(5)), Some("top_k"));
    assert_eq!(beam(|r, _| r.params.repetition_penalty = 1.5), Some("repetition_penalty"));
    assert_eq!(beam(|r, _| r.params.presence_penalty = 0.5), Some("presence_penalty"));
    assert_eq!(beam(|r, _| r.params.frequency_penalty = 0.5), Some("frequency_penalty"));
    assert_eq!(beam(|r, _| r.params.logit_bias = vec![(1, 1.0)]), Some("logit_bias"));
    assert_eq!(beam(|r, _| r.params.allowed_token_ids = vec![1]), Some("allowed_token_ids"));
    assert_eq!(beam(|r, _| r.params.bad_words = vec![vec![1]]), Some("bad_words"));
    assert_eq!(beam(|r, _| r.params.prompt_logprobs = Some(1)), Some("prompt_logprobs"));
}

#[test]
fn beams_may_grow_as_far_as_all_of_them_have_blocks() {
    for (blocks, block, width, prompt_len) in
        [(16, 4, 7, 8), (16, 4, 1, 9), (16, 4, 4, 0), (16, 4, 8, 63), (5, 4, 8, 16), (100, 16, 4, 1000), (64, 1, 3, 7)]
    {
        let limits = Limits {
            max_model_len: blocks * block,
            kv_capacity_tokens: blocks * block,
            kv_block_tokens: block,
            kv_blocks_beside: 0,
            ..limits()
        };
        let fits = |max_tokens: usize| {
            let tokens: usize = prompt_len + max_tokens - 1;
            let shared = prompt_len / block;
            tokens < limits.max_model_len && shared + width * (tokens.div_ceil(block) - shared) <= blocks
        };
        let most = (1..=limits.max_model_len).take_while(|&max_tokens| fits(max_tokens)).last().unwrap_or(0);
        let beam = BeamParams { width, ..BeamParams::default() };
        assert_eq!(beam.max_tokens(prompt_len, &limits), most, "{width} beams after {prompt_len} in {blocks}");
    }
}

#[test]
fn more_continuations_than_can_be_are_refused() {
    let request = Request { prompt: vec![1], ..Request::default() };
    let beam = Request { beam: Some(BeamParams { width: 3, ..BeamParams::default() }), ..request.clone() };
    let allowed =
        |request: &Request| (0..20).filter(|&count| request.check_count(count, &limits()).is_ok()).collect::<Vec<_>>();
    assert_eq!(allowed(&request), (1..=8).collect::<Vec<_>>());
    assert_eq!(allowed(&beam), [1, 2, 3]);
}
