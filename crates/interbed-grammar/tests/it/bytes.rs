//! Tests the definition of masks: a token is allowed exactly where its bytes are, one after the other.

use interbed_grammar::testing::{Dice, random_schema};
use interbed_grammar::{Constraint, GrammarSource, Standing, Vocabulary};
use proptest::prelude::*;

use crate::{CALL, EOS, PIECES, bytes_and};

/// Returns whether `token` is a token with text. The byte 0xFF is in no text, so its token has none.
fn is_text(vocabulary: &Vocabulary, token: u32) -> bool {
    token != EOS && token != CALL && !vocabulary.text(token).is_empty()
}

/// Returns whether `state`, whose vocabulary has only bytes, can advance by all of `bytes`.
fn goes_on(state: &Constraint, bytes: &[u8]) -> bool {
    let mut state = state.clone();
    bytes.iter().all(|&byte| state.advance(u32::from(byte)).is_ok())
}

/// Walks randomly through `source`, and compares the masks of all tokens with the effect of their bytes.
fn compare(source: &GrammarSource, seed: u64) -> Result<(), TestCaseError> {
    let (tokens, bytes) = (bytes_and(&PIECES), bytes_and(&[]));
    let (mut by_tokens, mut by_bytes) = (tokens.compile(source).unwrap(), bytes.compile(source).unwrap());
    let mut dice = Dice::new(seed);
    for _ in 0..60 {
        let mask = by_tokens.mask().unwrap().expect("all of it is bound");
        prop_assert!(!mask.allows(CALL) && !mask.allows(1000));
        prop_assert_eq!(mask.allows(EOS), by_tokens.may_end());
        prop_assert_eq!(by_tokens.may_end(), by_bytes.may_end());
        let mut allowed = Vec::new();
        for token in (0..tokens.num_tokens() as u32).filter(|&token| is_text(&tokens, token)) {
            let text = tokens.text(token);
            prop_assert_eq!(mask.allows(token), goes_on(&by_bytes, text), "{:?}", String::from_utf8_lossy(text));
            allowed.extend(mask.allows(token).then_some(token));
        }
        // Long tokens are rare, so they are chosen more often.
        let longest = allowed.iter().copied().max_by_key(|&token| tokens.text(token).len());
        let Some(longest) = longest else { return Ok(()) };
        let token = if dice.below(3) == 0 { longest } else { allowed[dice.below(allowed.len())] };
        let progress = by_tokens.advance(token).unwrap();
        for &byte in tokens.text(token) {
            by_bytes.advance(u32::from(byte)).unwrap();
        }
        if progress == Standing::Complete {
            prop_assert!(by_bytes.may_end());
            return Ok(());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn masks_of_schemas_agree_with_bytes(seed in 0u64..1_000_000) {
        let schema = random_schema(&mut Dice::new(seed), 3);
        compare(&GrammarSource::JsonSchema(schema), seed)?;
    }

    #[test]
    fn masks_of_expressions_agree_with_bytes(
        regex in "([ab]{1,3}|\\[a-c0-9\\]\\{2,5\\}|\\(true\\|null,?\\)\\*|\u{fc}\\+){1,4}",
        seed in any::<u64>(),
    ) {
        compare(&GrammarSource::Regex(regex), seed)?;
    }

    #[test]
    fn masks_of_choices_are_what_is_left_of_them(
        choices in proptest::collection::vec("(true|null|red|\"|ab|-1|\u{fc}| ){1,4}", 1..6),
        seed in any::<u64>(),
    ) {
        let vocabulary = bytes_and(&PIECES);
        let mut state = vocabulary.compile(&GrammarSource::Choice(choices.clone())).unwrap();
        let (mut text, mut dice) = (Vec::new(), Dice::new(seed));
        loop {
            let mask = state.mask().unwrap().expect("all of it is bound");
            let begins = |text: &[u8]| choices.iter().any(|choice| choice.as_bytes().starts_with(text));
            let ends = choices.iter().any(|choice| choice.as_bytes() == text);
            prop_assert_eq!(mask.allows(EOS), ends);
            let mut allowed = Vec::new();
            for token in (0..vocabulary.num_tokens() as u32).filter(|&token| is_text(&vocabulary, token)) {
                let longer = [&text, vocabulary.text(token)].concat();
                prop_assert_eq!(mask.allows(token), begins(&longer), "{:?}", String::from_utf8_lossy(&longer));
                allowed.extend(mask.allows(token).then_some(token));
            }
            if allowed.is_empty() || (ends && dice.below(2) == 0) {
                prop_assert!(ends);
                prop_assert_eq!(state.advance(EOS), Ok(Standing::Complete));
                break;
            }
            let token = allowed[dice.below(allowed.len())];
            text.extend_from_slice(vocabulary.text(token));
            let more = choices.iter().any(|choice| choice.as_bytes().starts_with(&text) && choice.len() > text.len());
            let expected = if more { Standing::Open } else { Standing::Complete };
            prop_assert_eq!(state.advance(token), Ok(expected));
        }
    }
}
