//! Tests random answers: complete ones must be valid, and clones must advance independently.

use interbed_grammar::testing::{Dice, is_valid, random_combination, random_number, random_schema};
use interbed_grammar::{Constraint, GrammarError, GrammarSource, Standing, TokenMask, Vocabulary, json_value};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{CALL, EOS, PIECES, bytes_and};

/// Chooses an allowed token, usually one that leads to an early end; letters and white space are rare.
fn choose(vocabulary: &Vocabulary, mask: &TokenMask, dice: &mut Dice) -> u32 {
    let all: Vec<u32> = (0..vocabulary.num_tokens() as u32).filter(|&token| mask.allows(token)).collect();
    let is_plain = |&token: &u32| token == EOS || vocabulary.text(token).iter().all(|byte| b"\"}],:1a".contains(byte));
    let plain: Vec<u32> = all.iter().copied().filter(is_plain).collect();
    let list = if plain.is_empty() || dice.below(4) == 0 { &all } else { &plain };
    list[dice.below(list.len())]
}

/// Generates a random answer, or returns `None` if it does not end within `most` tokens.
fn answer(vocabulary: &Vocabulary, state: Constraint, dice: &mut Dice, most: usize) -> Option<String> {
    try_answer(vocabulary, state, dice, most).unwrap()
}

/// Generates a random answer, or returns why it cannot continue.
pub(crate) fn try_answer(
    vocabulary: &Vocabulary,
    mut state: Constraint,
    dice: &mut Dice,
    most: usize,
) -> Result<Option<String>, GrammarError> {
    let mut text = Vec::new();
    for _ in 0..most {
        let mask = state.mask()?.expect("all of it is bound");
        let token = choose(vocabulary, &mask, dice);
        assert_ne!(token, CALL);
        if token != EOS {
            text.extend_from_slice(vocabulary.text(token));
        }
        if state.advance(token)? == Standing::Complete {
            return Ok(Some(String::from_utf8(text).expect("a text")));
        }
    }
    Ok(None)
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
            // The draft tokens are some that are allowed, followed by arbitrary ones.
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
            // A refused token changes nothing.
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

/// Tests two hundred schemas that may have no values. Each is refused, or everything that it allows is valid.
#[test]
fn combinations_are_kept_to_or_refused() {
    let vocabulary = bytes_and(&PIECES);
    let (mut ended, mut kept) = (0, 0);
    for seed in 0..200 {
        let schema = random_combination(&mut Dice::new(seed), 2);
        let source = GrammarSource::JsonSchema(schema.clone());
        let Ok(fresh) = vocabulary.compile(&source) else { continue };
        kept += 1;
        for walk in 0..4 {
            if let Some(text) = answer(&vocabulary, fresh.clone(), &mut Dice::new(seed * 10 + walk), 400) {
                let value = json_value(&text).unwrap();
                assert!(is_valid(&schema, &value), "{seed}: {schema} has {text}");
                ended += 1;
            }
        }
    }
    assert!(kept > 120 && ended > kept * 3, "{ended} answers of {kept} schemas ended");
}

/// Tests that listed numbers keep the spelling of the schema, at any depth.
#[test]
fn listed_numbers_are_written_as_in_the_schema() {
    let vocabulary = bytes_and(&PIECES);
    let mut texts: Vec<String> = (0..200).map(|seed| random_number(&mut Dice::new(seed)).to_string()).collect();
    texts.extend(
        ["1.0", "-0.0", "1e400", "1E5", "12345678901234567890123", "0.1000000000000000055", "1e-7", "100.00"]
            .map(str::to_owned),
    );
    for (seed, text) in texts.iter().enumerate() {
        for schema in [
            format!(r#"{{"const": {text}}}"#),
            format!(r#"{{"enum": [{text}], "type": "number"}}"#),
            format!(r#"{{"enum": [[{text}]]}}"#),
            format!(
                r#"{{"properties": {{"a": {{"const": {{"k": [{text}]}}}}}}, "required": ["a"], "type": "object",
                "additionalProperties": false}}"#
            ),
            format!(r#"{{"allOf": [{{"minimum": -1e500}}, {{"enum": [{text}]}}]}}"#),
        ] {
            let source = GrammarSource::JsonSchema(json_value(&schema).unwrap());
            let fresh = vocabulary.compile(&source).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let told = answer(&vocabulary, fresh, &mut Dice::new(seed as u64), 2000).expect("an end");
            let bare: String = told.chars().filter(|one| !one.is_whitespace()).collect();
            let is_whole = |found: &str| !found.contains(|one: char| one.is_ascii_digit() || ".eE+-".contains(one));
            let (before, behind) = bare.split_once(text.as_str()).unwrap_or_else(|| panic!("{schema} has {told}"));
            assert!(is_whole(before) && is_whole(behind), "{schema} has {told}");
        }
    }
}

/// Tests that other properties are not begun where patterns leave no name for them.
#[test]
fn names_that_there_are_not_lead_nowhere() {
    let vocabulary = bytes_and(&PIECES);
    let one = json!({"type": "integer", "minimum": 1, "maximum": 3});
    let object = |required: Value, patterns: Value, more: Value| {
        let mut schema = json!({"type": "object", "required": required, "patternProperties": patterns,
            "additionalProperties": false});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let none = || json!({});
    for schema in [
        object(json!(["a"]), json!({"^a$": {"minimum": 0}}), json!({"properties": {"a": one}})),
        object(json!(["x"]), json!({"^x$": one}), none()),
        // Each name matches two patterns, or needs an escape.
        object(json!([]), json!({"^x": one, "^[x]": one}), none()),
        object(json!([]), json!({"^\"$": one}), none()),
        object(json!(["a", "b"]), json!({"^(a|b)$": one}), none()),
        object(json!(["a"]), json!({"^a$": one, "^[^a]": false, "^$": false, "^a.": false}), none()),
        // Every name matches a pattern, so there are no other properties.
        object(json!([]), json!({"^[^b]": false, "^$": false, "^b": false}), json!({"additionalProperties": one})),
        object(
            json!(["a"]),
            json!({"": false}),
            json!({"additionalProperties": {}, "properties": {"a": one},
            "required": []}),
        ),
    ] {
        let fresh = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())).unwrap();
        for walk in 0..20 {
            let text = answer(&vocabulary, fresh.clone(), &mut Dice::new(walk), 400).expect("an end");
            let value: Value = json_value(&text).unwrap();
            let names: Vec<&String> = value.as_object().expect("an object").keys().collect();
            assert_eq!(schema["required"], json!(names), "{schema} has {text}");
        }
    }
    for schema in [
        object(json!(["a"]), json!({"^a$": {}}), json!({"minProperties": 2})),
        object(json!(["x"]), json!({"^x$": {}}), json!({"properties": {"x": one}, "minProperties": 2})),
        object(json!([]), json!({"^x": one, "^[x]": one}), json!({"minProperties": 1})),
    ] {
        let error = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())).map(drop).unwrap_err();
        assert!(error.to_string().contains("Unsatisfiable"), "{schema}: {error}");
    }
}

/// Tests that an excluded bound is avoided as floating point sees it, for numbers of any size.
#[test]
fn bounds_that_are_excluded_are_what_floating_point_makes_of_them() {
    let vocabulary = bytes_and(&PIECES);
    for (low, next) in [
        ("9007199254740992", Some("9007199254740994")),
        ("9007199254740991", Some("9007199254740992")),
        ("-9007199254740994", Some("-9007199254740993")),
        ("18014398509481984", Some("18014398509481987")),
        ("41", Some("42")),
        ("-1", Some("0")),
        ("123456789012345678901234567", None),
    ] {
        for is_negated in [false, true] {
            let turned = |text: &str| match text.strip_prefix('-') {
                Some(text) if is_negated => text.to_owned(),
                None if is_negated && text != "0" => format!("-{text}"),
                _ => text.to_owned(),
            };
            let (low, keyword) = (turned(low), if is_negated { "exclusiveMaximum" } else { "exclusiveMinimum" });
            let schema = json_value(&format!(r#"{{"type": "integer", "{keyword}": {low}}}"#)).unwrap();
            let fresh = vocabulary.compile(&GrammarSource::JsonSchema(schema)).unwrap();
            let allows = |text: &str| {
                let mut state = fresh.clone();
                text.bytes().all(|byte| state.advance(u32::from(byte)).is_ok()) && state.may_end()
            };
            if let Some(next) = next {
                assert!(allows(&turned(next)), "{low} and {next}");
            }
            let bound: f64 = low.parse().unwrap();
            let from: i128 = low.parse().unwrap();
            for number in from - 20..from + 20 {
                let is_beyond = if is_negated { (number as f64) < bound } else { number as f64 > bound };
                assert!(is_beyond || !allows(&number.to_string()), "{number} is no more than {low}");
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
