//! Random answers: what is complete validates, and copies go their own ways.

use interbed_grammar::testing::{Dice, is_valid, random_schema};
use interbed_grammar::{Constraint, GrammarSource, Standing, TokenMask, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{CALL, EOS, PIECES, bytes_and};

/// An allowed token, mostly a short way to an end: letters and white space are rare.
fn choose(vocabulary: &Vocabulary, mask: &TokenMask, dice: &mut Dice) -> u32 {
    let all: Vec<u32> = (0..vocabulary.num_tokens() as u32).filter(|&token| mask.allows(token)).collect();
    let is_plain = |&token: &u32| token == EOS || vocabulary.text(token).iter().all(|byte| b"\"}],:1a".contains(byte));
    let plain: Vec<u32> = all.iter().copied().filter(is_plain).collect();
    let list = if plain.is_empty() || dice.below(4) == 0 { &all } else { &plain };
    list[dice.below(list.len())]
}

/// An answer, if it ends within `most` tokens.
fn answer(vocabulary: &Vocabulary, mut state: Constraint, dice: &mut Dice, most: usize) -> Option<String> {
    let mut text = Vec::new();
    for _ in 0..most {
        let mask = state.mask().unwrap().expect("all of it is bound");
        let token = choose(vocabulary, &mask, dice);
        assert_ne!(token, CALL);
        if token != EOS {
            text.extend_from_slice(vocabulary.text(token));
        }
        if state.advance(token).unwrap() == Standing::Complete {
            return Some(String::from_utf8(text).expect("a text"));
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_is_complete_validates(seed in any::<u64>()) {
        let vocabulary = bytes_and(&PIECES);
        let schema = random_schema(&mut Dice::new(seed), 3);
        let fresh = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())).unwrap();
        let mut ended = 0;
        for walk in 0..6 {
            if let Some(text) = answer(&vocabulary, fresh.clone(), &mut Dice::new(seed ^ walk), 400) {
                let value: Value = serde_json::from_str(&text).unwrap();
                prop_assert!(is_valid(&schema, &value), "{schema} has {text}");
                ended += 1;
            }
        }
        prop_assert!(ended > 0, "no answer to {schema} ended");
    }

    #[test]
    fn copies_and_drafts_change_nothing(seed in any::<u64>()) {
        let vocabulary = bytes_and(&PIECES);
        let schema = random_schema(&mut Dice::new(seed), 2);
        let mut state = vocabulary.compile(&GrammarSource::JsonSchema(schema)).unwrap();
        let mut dice = Dice::new(seed);
        for _ in 0..40 {
            let before = state.mask().unwrap().expect("bound");
            // Drafts: some that may come, then anything.
            let mut ahead = state.clone();
            let mut drafts = Vec::new();
            for _ in 0..dice.below(4) {
                let mask = ahead.mask().unwrap().expect("bound");
                let token = choose(&vocabulary, &mask, &mut dice);
                drafts.push(token);
                if ahead.advance(token).unwrap() == Standing::Complete {
                    break;
                }
            }
            drafts.push(dice.below(300) as u32);
            let masks = state.masks_along(&drafts).unwrap();
            let mut alone = state.clone();
            for (index, mask) in masks.iter().enumerate() {
                let expected = alone.mask().unwrap().expect("bound");
                let mask = mask.as_ref().expect("bound");
                for token in 0..vocabulary.num_tokens() as u32 {
                    prop_assert_eq!(mask.allows(token), expected.allows(token));
                }
                if index + 1 < masks.len() {
                    prop_assert_eq!(alone.advance(drafts[index]), Ok(Standing::Open));
                }
            }
            // What was refused changes nothing either.
            if let Some(refused) = (0..256).find(|&token| !before.allows(token)) {
                prop_assert!(state.clone().advance(refused).is_err());
                prop_assert!(state.advance(refused).is_err());
            }
            let token = choose(&vocabulary, &before, &mut dice);
            if state.advance(token).unwrap() == Standing::Complete {
                return Ok(());
            }
        }
    }
}

#[test]
fn an_answer_ends_where_nothing_can_follow() {
    let vocabulary = bytes_and(&PIECES);
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let mut state = vocabulary.compile(&GrammarSource::JsonSchema(schema)).unwrap();
    let text = b"{\"a\": true}";
    for (index, &byte) in text.iter().enumerate() {
        let expected = if index + 1 < text.len() { Standing::Open } else { Standing::Complete };
        assert_eq!(state.advance(u32::from(byte)), Ok(expected), "after {index}");
    }
    let mask = state.mask().unwrap().expect("bound");
    assert!(mask.allows(EOS) && (0..256).all(|token| !mask.allows(token)));
    assert_eq!(state.advance(EOS), Ok(Standing::Complete));
    assert!(state.advance(u32::from(b' ')).is_err());
}
