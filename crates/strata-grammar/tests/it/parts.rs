//! Answers of which only parts are bound, and grammars that name special tokens.

use strata_grammar::{Constraint, GrammarSource, Marker, Standing, Trigger};

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
    push(&mut state, "any text, <cal");
    assert!(state.is_free() && state.mask().unwrap().is_none());
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
    // What is no beginning of a part is text.
    let mut state = fresh;
    state.advance(259).unwrap();
    assert!(state.is_free());
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
