//! Tests answers of which only parts are constrained, and grammars that name special tokens.

use interbed_grammar::{Constraint, GrammarError, GrammarSource, Marker, Preface, Standing, Trigger};

use crate::{CALL, EOS, PIECES, bytes_and};

fn push(state: &mut Constraint, text: &str) -> Vec<Standing> {
    text.bytes().map(|byte| state.advance(u32::from(byte)).expect("it may come")).collect()
}

fn lazy(text: &str, at_start: bool, included: bool, grammar: &str, repeats: bool) -> Constraint {
    let marker = Marker { text: text.into(), at_start, included };
    let source = GrammarSource::Lark(grammar.into());
    bytes_and(&PIECES).compile_after(Trigger::new(vec![marker]), &source, repeats).unwrap()
}

#[test]
fn a_part_is_bound_from_its_marker_to_its_end() {
    let mut state = lazy("<call>", false, false, "start: \"ab\" <[257]>", true);
    push(&mut state, "any text, ");
    assert!(state.is_free());
    push(&mut state, "<cal");
    assert!(state.mask().unwrap().is_none());
    for _ in 0..2 {
        state.advance(CALL).unwrap();
        let mask = state.mask().unwrap().expect("bound");
        assert!(mask.allows(u32::from(b'a')) && !mask.allows(u32::from(b'b')) && !mask.allows(EOS));
        push(&mut state, "ab");
        assert!(state.mask().unwrap().expect("bound").allows(CALL));
        assert_eq!(state.advance(CALL), Ok(Standing::Open));
        assert!(state.is_free());
        push(&mut state, " and more");
    }
    assert_eq!(state.advance(EOS), Ok(Standing::Complete));
}

#[test]
fn a_part_that_does_not_repeat_ends_the_answer() {
    let mut state = lazy("#", false, false, "start: /[0-9]{2}/", false);
    push(&mut state, "text #4");
    assert!(state.advance(u32::from(b'x')).is_err());
    assert_eq!(state.advance(u32::from(b'2')), Ok(Standing::Complete));
}

#[test]
fn a_token_may_reach_into_the_bound_part() {
    let pieces = ["x{\"name\"", "x{\"nope"];
    let vocabulary = bytes_and(&pieces);
    let marker = Marker { text: "x{".into(), at_start: false, included: false };
    let source = GrammarSource::Lark("start: \"\\\"name\\\"!\"".into());
    let fresh = vocabulary.compile_after(Trigger::new(vec![marker]), &source, true).unwrap();
    let mut state = fresh.clone();
    state.advance(258).unwrap();
    assert!(state.mask().unwrap().expect("bound").allows(u32::from(b'!')));
    // A beginning that no part can have would be a part that the grammar does not constrain.
    for text in ["", "any ", "x", "xx"] {
        let mut state = fresh.clone();
        push(&mut state, text);
        assert!(!state.is_free());
        let mask = state.mask().unwrap().expect("not free");
        assert!(!mask.allows(259) && mask.allows(258) && mask.allows(EOS) && mask.allows(u32::from(b'{')), "{text}");
        assert_eq!(state.advance(259), Err(GrammarError::NotAllowed(259)));
        state.advance(258).unwrap();
        assert!(state.mask().unwrap().expect("bound").allows(u32::from(b'!')));
    }
}

#[test]
fn a_marker_may_begin_in_one_token_and_end_within_another() {
    let vocabulary = bytes_and(&["ll>a", "ll>b", "l>b", "call>b"]);
    let marker = Marker { text: "<call>".into(), at_start: false, included: false };
    let source = GrammarSource::Lark("start: \"ab\"".into());
    let mut state = vocabulary.compile_after(Trigger::new(vec![marker]), &source, true).unwrap();
    push(&mut state, "so ");
    assert!(state.is_free() && state.mask().unwrap().is_none());
    push(&mut state, "<ca");
    let mask = state.mask().unwrap().expect("not free");
    let may: Vec<bool> = (258..262).map(|token| mask.allows(token)).collect();
    assert_eq!(may, [true, false, true, true]);
    assert_eq!(state.clone().advance(259), Err(GrammarError::NotAllowed(259)));
    let mut text = state.clone();
    text.advance(260).unwrap();
    assert!(text.is_free());
    state.advance(258).unwrap();
    push(&mut state, "b");
    assert!(state.is_free());
}

#[test]
fn a_marker_at_the_start_counts_again_behind_a_part() {
    let vocabulary = bytes_and(&["{\"", "{\"a", " {", "; {", "; {b", "x{b"]);
    let marker = Marker { text: "{".into(), at_start: true, included: true };
    let source = GrammarSource::Lark("start: \"{\\\"a\\\"}\"".into());
    let trigger = Trigger::new(vec![marker]).separated_by(";");
    let mut state = vocabulary.compile_after(trigger, &source, true).unwrap();
    let may = |state: &mut Constraint| -> Vec<bool> {
        let mask = state.mask().unwrap();
        (258..264).map(|token| mask.as_ref().is_none_or(|mask| mask.allows(token))).collect()
    };
    assert_eq!(may(&mut state), [true, true, true, true, true, true]);
    push(&mut state, " ");
    state.advance(259).unwrap();
    push(&mut state, "\"}");
    for _ in 0..2 {
        assert_eq!(may(&mut state), [true, true, true, true, false, true]);
        push(&mut state, "; ");
        state.advance(260).unwrap();
        push(&mut state, "\"a\"}");
    }
    // In the middle of a text, the marker is text.
    push(&mut state, "and {b");
    assert!(state.is_free() && state.mask().unwrap().is_none());
}

#[test]
fn a_heading_comes_first() {
    let vocabulary = bytes_and(&["d>4", "42"]);
    let heading = vocabulary.compile(&GrammarSource::Lark("start: \"a\"? \"<head>\"".into())).unwrap();
    let mut state = vocabulary.compile(&GrammarSource::Regex("[0-9]{2}".into())).unwrap().headed(heading);
    assert!(!state.is_free() && !state.may_end());
    assert_eq!(state.masks_along(&[u32::from(b'a'), u32::from(b'<')]).unwrap().len(), 3);
    push(&mut state, "<hea");
    assert_eq!(may(&mut state, "d4", &[258, EOS]), [true, false, false, false]);
    assert_eq!(state.advance(EOS), Err(GrammarError::NotAllowed(EOS)));
    push(&mut state, "d>");
    assert_eq!(may(&mut state, "d4", &[259, EOS]), [false, true, true, false]);
    assert_eq!(push(&mut state, "42"), [Standing::Open, Standing::Complete]);
    assert!(state.may_end());
}

#[test]
fn a_marker_at_the_start_may_be_part_of_the_grammar() {
    let mut state = lazy("{\"name\":", true, true, "start: /\\s*/ \"{\\\"name\\\":1}\"", false);
    push(&mut state, " {\"name\":");
    assert!(!state.is_free());
    push(&mut state, "1");
    assert_eq!(push(&mut state, "}"), [Standing::Complete]);
    let mut state = lazy("{\"name\":", true, true, "start: \"{\\\"name\\\":1}\"", false);
    push(&mut state, "no {\"name\":");
    assert!(state.is_free());
}

fn digits(pieces: &[&str], preface: Preface) -> Constraint {
    bytes_and(pieces).compile(&GrammarSource::Regex("[0-9]{2}".into())).unwrap().behind(preface)
}

/// Returns for each of these bytes, and then of the tokens, whether the constraint allows it.
fn may(state: &mut Constraint, bytes: &str, tokens: &[u32]) -> Vec<bool> {
    let mask = state.mask().unwrap().expect("not free");
    bytes.bytes().map(u32::from).chain(tokens.iter().copied()).map(|token| mask.allows(token)).collect()
}

#[test]
fn what_is_bound_may_come_behind_a_preface() {
    let mut state = digits(&[], Preface::optional(Some(CALL), "</t>", 2));
    assert_eq!(may(&mut state, "4x ", &[CALL, EOS]), [true, false, false, true, false]);
    // The answer comes without the preface.
    let mut without = state.clone();
    assert_eq!(push(&mut without, "42"), [Standing::Open, Standing::Complete]);
    // The answer comes with the preface. The answer cannot end in the preface, and a limited amount of white space may
    // follow it.
    state.advance(CALL).unwrap();
    for text in ["4", "2 is it, </t", "no </ </t"] {
        push(&mut state, text);
        assert_eq!(may(&mut state, "4x ", &[CALL, EOS]), [true, true, true, true, false]);
        assert_eq!(state.advance(EOS), Err(GrammarError::NotAllowed(EOS)));
    }
    push(&mut state, ">");
    assert_eq!(may(&mut state, "4x\n", &[CALL, EOS]), [true, false, true, false, false]);
    assert!(state.advance(u32::from(b'x')).is_err() && state.advance(CALL).is_err());
    push(&mut state, "\n\n");
    assert_eq!(may(&mut state, "4x\n", &[CALL, EOS]), [true, false, false, false, false]);
    assert_eq!(push(&mut state, "42"), [Standing::Open, Standing::Complete]);
    assert_eq!(state.advance(EOS), Ok(Standing::Complete));
}

#[test]
fn a_preface_that_has_begun_may_end_within_a_token() {
    let fresh = digits(&["</t>\n4", "</t>x", "t>"], Preface::begun("</t>", 4));
    let mut state = fresh.clone();
    state.advance(258).unwrap();
    assert_eq!(may(&mut state, "4x ", &[EOS]), [true, false, false, false]);
    assert_eq!(push(&mut state, "2"), [Standing::Complete]);
    // A marker whose rest cannot follow does not end the preface.
    let mut state = fresh.clone();
    state.advance(259).unwrap();
    assert_eq!(may(&mut state, "4x ", &[EOS]), [true, true, true, false]);
    let mut state = fresh;
    push(&mut state, "hm </");
    assert_eq!(state.masks_along(&[260, u32::from(b' '), u32::from(b'4')]).unwrap().len(), 4);
    state.advance(260).unwrap();
    assert_eq!(may(&mut state, "4x ", &[EOS]), [true, false, true, false]);
}

#[test]
fn a_free_answer_may_end_in_its_preface_and_no_marker_counts_there() {
    let mut state = lazy("#", false, false, "start: /[0-9]{2}/", false).behind(Preface::begun("</t>", 4));
    push(&mut state, "see #x");
    assert!(state.mask().unwrap().is_none() && state.may_end());
    assert_eq!(state.clone().advance(EOS), Ok(Standing::Complete));
    push(&mut state, "</t> #4");
    assert_eq!(may(&mut state, "4x", &[EOS]), [true, false, false]);
}
