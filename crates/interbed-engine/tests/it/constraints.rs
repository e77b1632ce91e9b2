//! Constrained answers: the same tokens alone and in company, chunked, preempted, swapped and with drafts; and what is
//! complete is what the constraint allows.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use interbed_engine::{
    BeamParams, Constraint, Event, FinishReason, GrammarSource, Marker, PreemptionMode, Request, RequestError, Trigger,
    Vocabulary,
};
use interbed_grammar::{TokenMask, TokenText};
use proptest::prelude::*;

use crate::forks::{sampled, told};
use crate::sim::{
    EOS, KINDS as TAILS, Shape, VOCAB, assert_idle_and_whole, collect, fingerprint, greedy, logits_of, prompt, start,
    teach_short_answers,
};

/// What the simulated model's tokens are: the end, letters, digits, and pieces of both.
const TEXTS: [&str; 24] = [
    "a", "b", "c", "ab", "bc", "abc", "1", "2", "12", "(", ")", "()", "((", "))", ",", "x", "xy", "y", "#", "a,", "!",
    "é", "\u{e9}a", "z",
];

fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let text = |id: usize| match id {
            0 => TokenText::Special("<end>".into()),
            _ => TEXTS.get(id - 1).map_or(TokenText::Unknown, |text| TokenText::Text(text.as_bytes().to_vec())),
        };
        Vocabulary::new(&(0..VOCAB).map(text).collect::<Vec<_>>(), &[EOS]).unwrap()
    })
}

fn text_of(tokens: &[u32]) -> String {
    let bytes = tokens.iter().filter(|&&token| token != EOS).flat_map(|&token| vocabulary().text(token)).copied();
    String::from_utf8(bytes.collect()).unwrap()
}

/// Constraints of all kinds: some end by themselves, some at a token of the model's choice, some bind parts only.
fn constraint(kind: usize) -> Constraint {
    let source = match kind {
        0 => GrammarSource::Regex("[abc]{3,12}".into()),
        1 => GrammarSource::Choice(["ab12", "abc", "xy!", "()"].map(str::to_owned).to_vec()),
        2 => GrammarSource::Lark(
            "start: list\nlist: \"(\" [item (\",\" item)*] \")\"\nitem: /[abc12]{1,3}/ | list".into(),
        ),
        3 => GrammarSource::Regex("(a|b|é|,)*z".into()),
        _ => {
            let marker = Marker { text: "#".into(), at_start: false, included: false };
            let part = GrammarSource::Regex("[12]{1,4}!".into());
            return vocabulary().compile_after(Trigger::new(vec![marker]), &part, kind == 4).unwrap();
        }
    };
    vocabulary().compile(&source).unwrap()
}

const KINDS: usize = 6;

fn constrained(mut request: Request, kind: usize) -> Request {
    request.params.ignore_eos = false;
    request.constraint = Some(constraint(kind));
    request
}

/// What greedy generation must give, computed without any engine.
fn expected(prompt: &[u32], kind: usize, max_tokens: usize) -> (Vec<u32>, FinishReason) {
    let (mut state, mut tokens) = (constraint(kind), prompt.to_vec());
    loop {
        let mut logits = logits_of(fingerprint(&tokens));
        let mask: Option<TokenMask> = state.mask().unwrap();
        mask.iter().for_each(|mask| mask.apply(&mut logits));
        let best = (0..VOCAB).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        tokens.push(best);
        let is_complete = state.advance(best).unwrap() == interbed_grammar::Standing::Complete;
        let generated = tokens[prompt.len()..].to_vec();
        if best == EOS {
            return (generated, FinishReason::EndOfSequence);
        } else if is_complete {
            return (generated, FinishReason::Complete);
        } else if generated.len() == max_tokens {
            return (generated, FinishReason::Length);
        }
    }
}

#[test]
fn greedy_answers_are_the_best_of_what_is_allowed() {
    let mut reasons = Vec::new();
    for (drafts, tails) in [(0, &[][..]), (5, &[]), (5, TAILS[3])] {
        let (engine, controls) = start(Shape { tails, ..Shape::default() });
        controls.drafts.store(drafts, Ordering::Relaxed);
        for kind in 0..KINDS {
            for seed in 0..12 {
                let prompt = prompt(seed, 5 + seed as usize);
                let ended = collect(engine.handle().submit(constrained(greedy(prompt.clone(), 40), kind)).unwrap());
                let (tokens, reason) = expected(&prompt, kind, 40);
                assert_eq!((&ended.tokens, ended.reason), (&tokens, reason), "{kind}: {}", text_of(&tokens));
                reasons.push(reason);
            }
        }
        assert_idle_and_whole(&engine);
    }
    for reason in [FinishReason::EndOfSequence, FinishReason::Complete, FinishReason::Length] {
        assert!(reasons.contains(&reason), "{reason:?} never came");
    }
}

#[test]
fn drafts_that_are_allowed_save_passes() {
    let request = constrained(greedy(prompt(3, 10), 41), 5);
    for drafts in [0, 7] {
        let (engine, controls) = start(Shape::default());
        controls.drafts.store(drafts, Ordering::Relaxed);
        controls.drafts_well.store(true, Ordering::Relaxed);
        let ended = collect(engine.handle().submit(request.clone()).unwrap());
        let passes = controls.passes.load(Ordering::Relaxed) as usize;
        assert_eq!(ended.tokens, expected(&request.prompt, 5, 41).0);
        assert!(drafts == 0 || passes < ended.tokens.len() / 2 + 1, "{passes} passes, {} tokens", ended.tokens.len());
        assert!(drafts > 0 || passes == ended.tokens.len());
    }
}

#[test]
fn what_says_otherwise_about_the_end_is_refused() {
    let (engine, _) = start(Shape::default());
    let mut request = constrained(greedy(prompt(1, 4), 8), 0);
    request.params.ignore_eos = true;
    let error = engine.handle().submit(request.clone()).unwrap_err().to_string();
    assert!(error.contains("ignore_eos"), "{error}");
    request.params.ignore_eos = false;
    request.params.min_tokens = 2;
    let error = engine.handle().submit(request).unwrap_err().to_string();
    assert!(error.contains("min_tokens"), "{error}");
}

#[test]
fn log_probabilities_are_of_what_is_allowed() {
    let (engine, _) = start(Shape::default());
    let mut request = constrained(greedy(prompt(2, 6), 1), 1);
    request.params.logprobs = Some(20);
    let (events, _) = told(engine.handle().submit(request).unwrap());
    let top = events.iter().find_map(|event| match event {
        Event::Token { logprobs, .. } => logprobs.clone(),
        _ => None,
    });
    let top = top.expect("log-probabilities").top;
    // "a", "ab", "abc", "x", "xy", "(" and "()" may come.
    let possible: Vec<_> = top.iter().filter(|entry| entry.logprob.is_finite()).collect();
    assert_eq!(possible.len(), 7);
    let sum: f32 = possible.iter().map(|entry| entry.logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-4, "{sum}");
}

#[test]
fn a_constraint_that_cannot_go_on_fails_its_request_alone() {
    // What no text of the vocabulary completes: there is no token for the digit behind the letter.
    let source = GrammarSource::Regex("[abc]{2}7".into());
    let (engine, _) = start(Shape::default());
    for width in [1, 3] {
        let mut request = constrained(greedy(prompt(2, 6), 10), 0);
        request.constraint = Some(vocabulary().compile(&source).unwrap());
        request.beam = (width > 1).then(|| BeamParams { width, ..BeamParams::default() });
        let other = engine.handle().submit(constrained(greedy(prompt(4, 6), 30), 2)).unwrap();
        let count = width.min(2);
        for mut stream in engine.handle().submit_many(request, count).unwrap() {
            let last = std::iter::from_fn(|| stream.blocking_next()).last();
            assert!(matches!(last, Some(Event::Failed(RequestError::Constraint(_)))), "{last:?}");
        }
        assert_eq!(collect(other).tokens, expected(&prompt(4, 6), 2, 30).0);
    }
    assert_idle_and_whole(&engine);
}

/// All continuations of all requests at a time in one engine.
fn serve(shape: Shape, drafts: usize, requests: &[(Request, usize)]) -> Vec<Vec<Event>> {
    let (engine, controls) = start(shape);
    teach_short_answers(&engine);
    assert_idle_and_whole(&engine);
    controls.drafts.store(drafts, Ordering::Relaxed);
    let streams: Vec<_> = requests
        .iter()
        .flat_map(|(request, count)| engine.handle().submit_many(request.clone(), *count).unwrap())
        .collect();
    let events = streams.into_iter().map(|stream| told(stream).0).collect();
    assert_idle_and_whole(&engine);
    events
}

/// Each request in an engine of its own.
fn alone(requests: &[(Request, usize)]) -> Vec<Vec<Event>> {
    let shape = Shape { blocks: 512, max_num_batched_tokens: 128, ..Shape::default() };
    requests.iter().flat_map(|request| serve(shape, 0, std::slice::from_ref(request))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn under_any_load(
        blocks in 16usize..60, block in 0u32..4, prefix_caching in any::<bool>(), max_num_seqs in 4usize..12,
        extra_budget in 0usize..40, swap_blocks in prop_oneof![Just(0usize), 1usize..40], drafts in 0usize..9,
        load in prop::collection::vec(
            (0u32..4, 1usize..50, 1usize..30, 1usize..4, 0..KINDS + 1, 0usize..3), 1..8),
    ) {
        let shape = Shape {
            blocks, block_size: 1 << block, prefix_caching, max_num_seqs,
            max_num_batched_tokens: max_num_seqs + extra_budget, max_model_len: 100, longer_than_memory: false,
            swap_blocks,
            preemption: PreemptionMode::Auto,
            max_token_gap: Some(std::time::Duration::from_micros(200)),
            tails: &[],
        };
        let limit = 100.min(blocks << block);
        let request = |(family, length, max_tokens, count, kind, how): (u32, usize, usize, usize, usize, usize)| {
            let length = length.min(limit - 1);
            let prompt = prompt(family, length);
            let mut request = sampled(prompt, max_tokens.min(limit - length), u64::from(family));
            if kind < KINDS {
                request = constrained(request, kind);
            }
            request.params.temperature = [0.0, 0.1, 3.0][how];
            (request, count)
        };
        let requests: Vec<_> = load.into_iter().map(request).collect();
        prop_assert_eq!(serve(shape, drafts, &requests), alone(&requests));
    }

    #[test]
    fn beams_under_pressure(
        load in prop::collection::vec((0u32..5, 1usize..20, 4usize..16, 2usize..5, 0..KINDS), 1..4),
        blocks in 24usize..48, swap_blocks in prop_oneof![Just(0usize), 10usize..40],
    ) {
        let shape = Shape { blocks, swap_blocks, max_num_seqs: 8, ..Shape::default() };
        let request = |(family, length, max_tokens, width, kind): (u32, usize, usize, usize, usize)| {
            let mut request = constrained(greedy(prompt(family, length), max_tokens), kind);
            request.beam = Some(BeamParams { width, ..BeamParams::default() });
            request.params.logprobs = Some(1);
            (request, 2)
        };
        let fits = |(request, _): &(Request, usize)| {
            let (engine, _) = start(shape);
            request.check(engine.handle().limits()).is_ok()
        };
        let requests: Vec<_> = load.into_iter().map(request).filter(fits).collect();
        let together = serve(shape, 0, &requests);
        prop_assert_eq!(&together, &alone(&requests));
        for (events, (request, _)) in together.iter().zip(requests.iter().flat_map(|one| [one, one])) {
            let tokens = events.iter().filter_map(|event| match event {
                Event::Token { id, .. } => Some(*id),
                _ => None,
            });
            // Every answer is a beginning of what is allowed, and what ends by itself is all of it.
            let mut state = request.constraint.clone().unwrap();
            for token in tokens {
                prop_assert!(state.advance(token).is_ok());
            }
            if events.contains(&Event::Finished { reason: FinishReason::EndOfSequence }) {
                prop_assert!(state.may_end());
            }
        }
    }
}
