//! Estimates the memory that the sequences of a request hold until the last sequence has ended. The module
//! [`crate::memory`] describes this memory.

use crate::app::App;
use crate::memory::{ECHO_LOGPROB_BYTES, LOGPROB_BYTES};
use crate::sampling::Common;
use crate::schemas::Bond;

/// The number of bytes of a token of a sequence, in a list that grows by doubling.
const TOKEN_BYTES: usize = 12;
/// The number of bytes of a sequence besides its tokens: channels, decoder, the engine's records, and the candidates of
/// a beam.
pub(crate) const SEQUENCE_BYTES: usize = 4096;
/// The number of bytes of a token in the table of tokens that a repetition penalty has seen.
const SEEN_BYTES: usize = 36;
/// The number of bytes of a sequence's grammar state, and of its part of the compiled grammar and of masks.
const CONSTRAINT_BYTES: usize = 128 << 10;
/// The number of bytes of a token of a beam. A search holds its beams twice while they change, and as many finished
/// hypotheses as beams.
const BEAM_TOKEN_BYTES: usize = 3 * 32;
/// The number of bytes of one log-probability of a token of a beam.
const BEAM_LOGPROB_BYTES: usize = 3 * 12;
/// The number of bytes for each byte of generated text: the text, and the JSON in a string that grows by doubling.
pub(crate) const TEXT_FACTOR: usize = 4;
/// The divisor for a beam search without `max_tokens`: the search gets 1 / `UNASKED_PART` of the memory for all
/// requests that its prompt leaves.
const UNASKED_PART: usize = 4;
/// A non-streamed answer with log-probabilities and without `max_tokens` gets 1 / `UNASKED_ANSWER_PART` of the memory
/// for answers.
const UNASKED_ANSWER_PART: usize = 2;

/// Returns the number of bytes that all sequences of a request use. A prompt is held once for the answer, and once by
/// each sequence. A beam search has one sequence for each beam, even if few beams become answers.
pub(crate) fn bytes_held(prompts: usize, prompt_tokens: usize, echo_bytes: usize, common: &Common) -> usize {
    let params = &common.params;
    let prompt_bytes = prompt_tokens.saturating_mul(TOKEN_BYTES);
    let constraint = common.constraint.as_ref().map_or(0, |_| CONSTRAINT_BYTES);
    let each_sequence = prompts.saturating_mul(SEQUENCE_BYTES + constraint).saturating_add(prompt_bytes);
    let sequences = common.beam.map_or(common.candidates, |beam| beam.width);

    let options = option_bytes(common);
    let seen = if params.repetition_penalty == 1.0 { 0 } else { SEEN_BYTES };
    let logprobs = params.prompt_logprobs.map_or(0, |top| top.saturating_add(1).saturating_mul(ECHO_LOGPROB_BYTES));
    let each_answer = [
        prompts.saturating_mul(options),
        prompt_tokens.saturating_mul(logprobs.saturating_add(seen)),
        echo_bytes.saturating_mul(TEXT_FACTOR),
    ];
    let each_answer = each_answer.into_iter().fold(0, usize::saturating_add);

    let beams = prompts.saturating_mul(params.max_tokens).saturating_mul(beam_step_bytes(common));
    let all = [sequences.saturating_mul(each_sequence), common.candidates.saturating_mul(each_answer), beams];
    all.into_iter().fold(prompt_bytes.saturating_add(echo_bytes), usize::saturating_add)
}

/// Returns the number of bytes of the options of which each answer has a copy.
fn option_bytes(common: &Common) -> usize {
    let params = &common.params;
    let texts = 2 * common.text.stop.iter().map(|stop| stop.len() + 48).sum::<usize>();
    let bad_words: usize = params.bad_words.iter().map(|word| 12 + word.len()).sum();
    let ids = common.text.end_tokens.len() + params.stop_token_ids.len() + params.allowed_token_ids.len() + bad_words;
    let lists = 8 * (ids + params.logit_bias.len());
    texts + lists + 2 * common.cache_salt.as_ref().map_or(0, String::len)
}

/// Returns the number of bytes of a prepared request, without its prompts and the data of its handler.
pub(crate) fn bytes_prepared(common: &Common) -> usize {
    let bond = common.constraint.as_ref().map_or(0, Bond::bytes);
    bond.saturating_add(option_bytes(common)).saturating_add(SEQUENCE_BYTES)
}

/// Returns the maximum number of tokens for the beams of a search after a prompt of `prompt_tokens` tokens, if the
/// client sets no limit and all requests together have `limit` bytes. Without such a bound, one search could keep all
/// later requests waiting. When this function is called, `common.max_tokens` is still 0.
fn beam_tokens_unasked(prompt_tokens: usize, common: &Common, limit: usize) -> usize {
    let left = limit.saturating_sub(bytes_held(1, prompt_tokens, 0, common));
    left / UNASKED_PART / beam_step_bytes(common).max(1)
}

/// Returns the largest size, in bytes, of the log-probabilities in a non-streamed answer to `prompts` prompts. The size
/// is known before the first token is computed, so that no answer is refused after its last token.
pub(crate) fn logprob_bytes(prompts: usize, common: &Common) -> usize {
    let all = prompts.saturating_mul(common.n).saturating_mul(common.params.max_tokens);
    all.saturating_mul(logprob_step_bytes(common))
}

/// Returns the maximum number of tokens of an answer with log-probabilities, if the client sets no limit and all
/// answers together have `limit` bytes. Answers without log-probabilities and streams are not limited.
pub(crate) fn logprob_tokens_unasked(common: &Common, limit: usize) -> usize {
    match logprob_step_bytes(common) {
        0 => usize::MAX,
        step => limit / UNASKED_ANSWER_PART / common.n.max(1) / step,
    }
}

/// Returns the maximum number of tokens of each answer to `prompts` prompts of at most `prompt_tokens` tokens, if the
/// client sets no limit. The number follows from the space in the context and in the memory for requests. When this
/// function is called, `common.max_tokens` is still 0.
pub(crate) fn tokens_unasked(app: &App, common: &Common, prompts: usize, prompt_tokens: usize) -> usize {
    let (limits, prompts) = (app.engine.limits(), prompts.max(1));
    let room = match common.beam {
        None => limits.max_model_len.saturating_sub(prompt_tokens),
        Some(beam) => {
            let memory = beam_tokens_unasked(prompt_tokens, common, app.memory.held.bytes());
            beam.max_tokens(prompt_tokens, limits).min(memory / prompts)
        }
    };
    room.min(logprob_tokens_unasked(common, app.memory.answers.bytes() / prompts)).max(1)
}

fn logprob_step_bytes(common: &Common) -> usize {
    let top = common.params.logprobs.filter(|_| !common.stream);
    top.map_or(0, |top| top.saturating_add(1).saturating_mul(LOGPROB_BYTES))
}

/// Returns the number of bytes that one step of a beam search adds to its sequences and hypotheses.
fn beam_step_bytes(common: &Common) -> usize {
    let Some(beam) = common.beam else { return 0 };
    let top = common.params.logprobs.map_or(0, |top| top.saturating_add(2));
    let token = top.saturating_mul(BEAM_LOGPROB_BYTES).saturating_add(TOKEN_BYTES + BEAM_TOKEN_BYTES);
    beam.width.saturating_mul(token)
}

#[cfg(test)]
mod tests {
    use interbed_engine::text::TextOptions;
    use interbed_engine::{BeamParams, Binding, GrammarSource, SamplingParams, json_value};
    use serde_json::json;

    use super::*;
    use crate::json_cost::bytes_of;

    fn common(n: usize, candidates: usize, width: Option<usize>) -> Common {
        Common {
            model: String::new(),
            params: SamplingParams { max_tokens: 0, ..SamplingParams::default() },
            text: TextOptions::default(),
            max_tokens: None,
            unlimited: false,
            n,
            candidates,
            beam: width.map(|width| BeamParams { width, ..BeamParams::default() }),
            stream: false,
            include_usage: false,
            cache_report: false,
            cache_salt: None,
            priority: 0,
            truncation: None,
            prompt_logprobs: None,
            embed: None,
            constraint: None,
        }
    }

    #[test]
    fn every_sequence_is_charged_its_prompt() {
        let charge = |common: &Common| bytes_held(1, 1000, 0, common);
        for (count, request) in [
            (1, common(1, 1, None)),
            (8, common(8, 8, None)),
            // Candidates that `best_of` does not choose count too, and so do beams that do not become answers.
            (8, common(1, 8, None)),
            (8, common(8, 8, Some(8))),
            (8, common(1, 1, Some(8))),
            (64, common(2, 2, Some(64))),
        ] {
            assert_eq!(charge(&request), 1000 * TOKEN_BYTES + count * (SEQUENCE_BYTES + 1000 * TOKEN_BYTES));
        }
        let two_prompts = bytes_held(2, 1000, 0, &common(1, 1, Some(8)));
        assert_eq!(two_prompts, charge(&common(1, 1, Some(8))) + 8 * SEQUENCE_BYTES);
    }

    #[test]
    fn beams_are_charged_as_far_as_they_may_grow() {
        let mut search = common(2, 2, Some(8));
        let none = bytes_held(1, 10, 0, &search);
        search.params.max_tokens = 100;
        assert_eq!(bytes_held(1, 10, 0, &search) - none, 100 * 8 * (12 + 96));
        search.params.logprobs = Some(1);
        assert_eq!(bytes_held(1, 10, 0, &search) - none, 100 * 8 * (12 + 96 + 3 * 36));
        // Sampled tokens are held in the engine's own memory.
        let mut sampled = common(2, 2, None);
        let none = bytes_held(1, 10, 0, &sampled);
        sampled.params.max_tokens = 100;
        assert_eq!(bytes_held(1, 10, 0, &sampled), none);
    }

    #[test]
    fn log_probabilities_are_charged_as_far_as_an_answer_may_grow() {
        let mut asked = common(2, 3, None);
        asked.params.max_tokens = 100;
        assert_eq!(logprob_bytes(4, &asked), 0);
        asked.params.logprobs = Some(5);
        assert_eq!(logprob_bytes(4, &asked), 4 * 2 * 100 * 6 * LOGPROB_BYTES);
        asked.params.max_tokens = logprob_tokens_unasked(&asked, 12 << 20);
        assert!(logprob_bytes(1, &asked) <= 6 << 20 && asked.params.max_tokens > 1000);
        asked.stream = true;
        assert_eq!((logprob_bytes(4, &asked), logprob_tokens_unasked(&asked, 1)), (0, usize::MAX));
        let most = Common { stream: false, ..asked };
        assert_eq!(logprob_bytes(usize::MAX, &most), usize::MAX);
    }

    #[test]
    fn an_unasked_length_leaves_room_for_others() {
        for width in [1, 4, 64] {
            let mut search = common(1, 1, Some(width));
            let before = bytes_held(1, 500, 0, &search);
            search.params.max_tokens = beam_tokens_unasked(500, &search, 16 << 20);
            let taken = bytes_held(1, 500, 0, &search) - before;
            let share = ((16 << 20) - before) / 4;
            assert!(taken <= share && taken + width * 108 > share, "{width} beams: {taken} of {share}");
        }
        assert_eq!(beam_tokens_unasked(1 << 20, &common(1, 1, Some(4)), 16 << 20), 0);
        assert_eq!(beam_tokens_unasked(usize::MAX, &common(1, 1, Some(usize::MAX)), usize::MAX), 0);
    }

    #[test]
    fn a_schema_that_waits_holds_less_than_one_that_is_read() {
        let text = json!({"enum": vec![1; 30_000]}).to_string();
        let (read, values) = (3 * bytes_of(&text), json_value(&text).expect("JSON"));
        let mut asked = common(1, 1, None);
        asked.constraint = Some(Bond::new("x", vec![Binding::whole(GrammarSource::JsonSchema(values))]));
        let kept = bytes_prepared(&asked);
        assert!((bytes_of(&text)..read / 2).contains(&kept), "{kept} of {read}");
    }
}
