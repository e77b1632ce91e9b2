use proptest::prelude::*;

use super::*;
use crate::testing::byte_tokenizer;

const EOS: TokenId = crate::testing::EOS;

fn options(stop: &[&str]) -> TextOptions {
    TextOptions {
        stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
        skip_special_tokens: true,
        ..TextOptions::default()
    }
}

fn token(id: TokenId) -> Event {
    Event::Token { id, logprobs: None }
}

fn finished(reason: FinishReason) -> Event {
    Event::Finished { reason }
}

/// Returns all text that `ids` make, why the text ended, and the number of tokens that were needed.
fn run(ids: &[TokenId], reason: FinishReason, options: TextOptions) -> (String, StopCause, usize) {
    let mut decoder = TextDecoder::new(Arc::new(byte_tokenizer()), options);
    let mut text = String::new();
    for event in ids.iter().map(|&id| token(id)).chain([finished(reason)]) {
        let delta = decoder.push(event);
        text += &delta.text;
        if let Some(cause) = delta.finished {
            return (text, cause.unwrap(), decoder.tokens());
        }
    }
    panic!("no end");
}

fn bytes(text: &str) -> Vec<TokenId> {
    byte_tokenizer().encode(text, false).unwrap()
}

#[test]
fn stop_strings_end_the_text() {
    let check = |text: &str, stop: &[&str], expected: &str, cause: Option<&str>| {
        let (got, why, _) = run(&bytes(text), FinishReason::Length, options(stop));
        let expected_cause = cause.map_or(StopCause::Length, |stop| StopCause::StopString(stop.into()));
        assert_eq!((got.as_str(), why), (expected, expected_cause), "{text:?} {stop:?}");
    };
    check("one two", &[], "one two", None);
    check("one two", &[""], "one two", None);
    check("one two", &["two"], "one ", Some("two"));
    check("aaab", &["aab"], "a", Some("aab"));
    check("abc", &["abc", "b"], "a", Some("b"));
    check("abc", &["c", "bc"], "a", Some("bc"));
    check("ends with a star", &["start"], "ends with a star", None);
    check("wörter", &["ö"], "w", Some("ö"));
}

#[test]
fn the_stop_string_is_included_on_request() {
    let options = TextOptions { include_stop: true, ..options(&["two"]) };
    let (text, _, tokens) = run(&bytes("one two three"), FinishReason::Length, options);
    assert_eq!((text.as_str(), tokens), ("one two", 7));
}

#[test]
fn min_tokens_delays_stop_strings() {
    let options = TextOptions { min_tokens: 3, ..options(&["b"]) };
    let (text, cause, tokens) = run(&bytes("abcabc"), FinishReason::Length, options);
    assert_eq!((text.as_str(), cause, tokens), ("abca", StopCause::StopString("b".into()), 5));
}

#[test]
fn the_ending_token_is_no_text() {
    let mut ids = bytes("ab");
    ids.push(EOS);
    for skip_special_tokens in [true, false] {
        let options = TextOptions { skip_special_tokens, ..options(&["never"]) };
        let (text, cause, tokens) = run(&ids, FinishReason::EndOfSequence, options);
        assert_eq!((text.as_str(), cause, tokens), ("ab", StopCause::EndOfSequence, 3));
    }
    let included = TextOptions { include_stop: true, ..TextOptions::default() };
    assert_eq!(run(&ids, FinishReason::EndOfSequence, included).0, "ab</s>");
    // Past end-of-sequence tokens (`ignore_eos`) they are special tokens like others.
    ids.extend(bytes("c"));
    assert_eq!(run(&ids, FinishReason::Length, TextOptions::default()).0, "ab</s>c");
    // A stop token is no text either, though it is an ordinary token elsewhere.
    let stop_token = bytes("b")[0];
    let options = TextOptions { end_tokens: vec![stop_token], ..options(&[]) };
    let ids = bytes("abab");
    assert_eq!(run(&ids, FinishReason::StopToken(stop_token), options).0, "aba");
}

#[test]
fn failures_end_the_text() {
    let mut decoder = TextDecoder::new(Arc::new(byte_tokenizer()), options(&[]));
    assert_eq!(decoder.push(token(65)).finished, None);
    assert_eq!(decoder.push(Event::Failed(RequestError::Stopped)).finished, Some(Err(RequestError::Stopped)));
    assert!(decoder.push(token(65)).token.is_none());
}

#[test]
fn incomplete_characters_come_out_at_the_end() {
    let ids = bytes("é");
    assert_eq!(run(&ids[..1], FinishReason::Length, options(&["x"])).0, "\u{FFFD}");
}

/// Returns the text up to the stop string that is complete first, found in the whole text.
fn reference(text: &str, stops: &[String]) -> (String, Option<String>) {
    for end in 0..=text.len() {
        let Some(read) = text.get(..end) else { continue };
        let complete = stops.iter().filter(|stop| !stop.is_empty() && read.ends_with(stop.as_str()));
        if let Some(stop) = complete.max_by_key(|stop| stop.len()) {
            return (read[..end - stop.len()].to_owned(), Some(stop.clone()));
        }
    }
    (text.to_owned(), None)
}

proptest! {
    /// Checks that stop strings are found however a text is cut into pieces.
    #[test]
    fn any_split_gives_the_same_text(
        pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        stops in prop::collection::vec("[abé]{0,4}", 0..4),
    ) {
        let (expected, expected_stop) = reference(&pieces.concat(), &stops);
        let mut finder = StopStrings::new(stops);
        let mut text = String::new();
        let mut found = None;
        for piece in &pieces {
            found = finder.push(piece, true, false, &mut text);
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            text += &finder.finish();
        }
        prop_assert_eq!((text, found), (expected, expected_stop));
    }

    /// Checks that a text comes out whole through tokens of one byte each, between which special tokens are strewn.
    #[test]
    fn tokens_give_the_same_text(
        text in "[abé😀]{0,12}",
        stops in prop::collection::vec("[abé😀]{1,3}", 0..3),
        special in prop::collection::vec(any::<bool>(), 64),
    ) {
        let (expected, expected_stop) = reference(&text, &stops);
        let mut ids = Vec::new();
        for (index, id) in bytes(&text).into_iter().enumerate() {
            ids.push(id);
            if special[index] {
                ids.push(EOS);
            }
        }
        let options = TextOptions { stop: stops, skip_special_tokens: true, ..TextOptions::default() };
        let (got, cause, _) = run(&ids, FinishReason::Length, options);
        prop_assert_eq!(got, expected);
        prop_assert_eq!(cause, expected_stop.map_or(StopCause::Length, StopCause::StopString));
    }
}
