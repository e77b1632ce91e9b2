//! Tests grammars with `::=`. Their texts must be those that a simple matcher finds.

use std::collections::BTreeSet;

use interbed_grammar::testing::Dice;
use interbed_grammar::{Constraint, GrammarSource};
use proptest::prelude::*;

use crate::bytes_and;

/// The greatest length in characters of a text that is compared.
const LONGEST: usize = 4;
const LETTERS: &str = "ab\u{e9}";

enum Item {
    Text(&'static str),
    /// A character class: its source text, and the letters that it allows.
    Class(&'static str, &'static str),
    Rule(usize),
    Group(Vec<Vec<Item>>),
    Repeated(Box<Item>, &'static str, usize, usize),
}

fn random_item(dice: &mut Dice, depth: usize, rules: usize) -> Item {
    match dice.below(if depth == 0 { 3 } else { 6 }) {
        0 => Item::Text(["a", "b", "ab", "\u{e9}a", ""][dice.below(5)]),
        1 => {
            let (written, letters) =
                [("[ab]", "ab"), ("[^b]", "a\u{e9}"), (r"[\xe9b]", "\u{e9}b"), ("[a-b]", "ab"), (".", LETTERS)]
                    [dice.below(5)];
            Item::Class(written, letters)
        }
        2 => Item::Rule(dice.below(rules)),
        3 => Item::Group(random_alternatives(dice, depth - 1, rules)),
        _ => {
            let (written, low, high) =
                [("*", 0, 9), ("+", 1, 9), ("?", 0, 1), ("{2}", 2, 2), ("{1,}", 1, 9), ("{,2}", 0, 2), ("{1,3}", 1, 3)]
                    [dice.below(7)];
            let item = match random_item(dice, depth - 1, rules) {
                repeated @ Item::Repeated(..) => Item::Group(vec![vec![repeated]]),
                item => item,
            };
            Item::Repeated(Box::new(item), written, low, high)
        }
    }
}

fn random_alternatives(dice: &mut Dice, depth: usize, rules: usize) -> Vec<Vec<Item>> {
    (0..1 + dice.below(3)).map(|_| (0..dice.below(4)).map(|_| random_item(dice, depth, rules)).collect()).collect()
}

fn written(alternatives: &[Vec<Item>]) -> String {
    let item = |item: &Item| written_item(item);
    let sequences = alternatives.iter().map(|sequence| sequence.iter().map(item).collect::<Vec<_>>().join(" "));
    sequences.collect::<Vec<_>>().join(" | ")
}

fn written_item(item: &Item) -> String {
    match item {
        Item::Text(text) => format!("\"{text}\""),
        Item::Class(text, _) => (*text).to_owned(),
        Item::Rule(0) => "root".into(),
        Item::Rule(number) => format!("rule-{number}"),
        Item::Group(alternatives) => format!("(\n  {})", written(alternatives)),
        Item::Repeated(item, times, ..) => written_item(item) + times,
    }
}

/// Returns the texts of each rule up to [`LONGEST`] characters, found by expanding definitions until nothing is added.
fn texts(rules: &[Vec<Vec<Item>>]) -> Vec<BTreeSet<String>> {
    let mut found = vec![BTreeSet::new(); rules.len()];
    loop {
        let more: Vec<_> = rules.iter().map(|rule| of_alternatives(rule, &found)).collect();
        if more == found {
            return found;
        }
        found = more;
    }
}

fn of_alternatives(alternatives: &[Vec<Item>], found: &[BTreeSet<String>]) -> BTreeSet<String> {
    let empty = || BTreeSet::from([String::new()]);
    let of_sequence =
        |sequence: &Vec<Item>| sequence.iter().fold(empty(), |before, item| joined(&before, &of_item(item, found)));
    alternatives.iter().flat_map(of_sequence).collect()
}

fn of_item(item: &Item, found: &[BTreeSet<String>]) -> BTreeSet<String> {
    match item {
        Item::Text(text) => BTreeSet::from([(*text).to_owned()]),
        Item::Class(_, letters) => letters.chars().map(String::from).collect(),
        Item::Rule(number) => found[*number].clone(),
        Item::Group(alternatives) => of_alternatives(alternatives, found),
        Item::Repeated(item, _, low, high) => {
            let one = of_item(item, found);
            let mut texts = BTreeSet::from([String::new()]);
            let mut all = BTreeSet::new();
            for times in 0..=*high {
                if times >= *low {
                    all.extend(texts.iter().cloned());
                }
                texts = joined(&texts, &one);
            }
            all
        }
    }
}

fn joined(before: &BTreeSet<String>, behind: &BTreeSet<String>) -> BTreeSet<String> {
    let pairs = before.iter().flat_map(|one| behind.iter().map(move |other| format!("{one}{other}")));
    pairs.filter(|text| text.chars().count() <= LONGEST).collect()
}

fn takes(fresh: &Constraint, text: &str) -> bool {
    let mut state = fresh.clone();
    text.bytes().all(|byte| state.advance(u32::from(byte)).is_ok()) && state.may_end()
}

fn compiled(grammar: &str) -> Result<Constraint, String> {
    let source = GrammarSource::of_grammar(grammar.to_owned());
    assert!(matches!(source, GrammarSource::Ebnf(_)), "{grammar}");
    bytes_and(&[]).compile(&source).map_err(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_grammar_has_the_texts_that_it_says(seed in 0u64..1_000_000) {
        let mut dice = Dice::new(seed);
        let count = 1 + dice.below(3);
        let rules: Vec<_> = (0..count).map(|_| random_alternatives(&mut dice, 2, count)).collect();
        let lines = rules.iter().enumerate();
        let lines = lines.map(|(number, rule)| format!("{} ::= {}", written_item(&Item::Rule(number)), written(rule)));
        let grammar = lines.collect::<Vec<_>>().join(" # a rule\n");
        let expected = &texts(&rules)[0];
        match compiled(&grammar) {
            Ok(fresh) => {
                let mut all = vec![String::new()];
                for _ in 0..LONGEST {
                    let longer: Vec<_> =
                        all.iter().flat_map(|text| LETTERS.chars().map(move |one| format!("{text}{one}"))).collect();
                    all.extend(longer);
                    all.sort();
                    all.dedup();
                }
                for text in all {
                    prop_assert_eq!(takes(&fresh, &text), expected.contains(&text), "{:?} of {}", text, grammar);
                }
            }
            // A grammar without texts, or with only the empty one, may be refused.
            Err(error) => prop_assert!(expected.iter().all(String::is_empty), "{}: {}", grammar, error),
        }
    }
}

#[test]
fn what_users_write_is_read() {
    let list = "# A list.\nroot ::= (\n  \"1. \" move \" \" move \"\\n\"\n  \
        ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n)\n\
        move ::= (pawn | castle) [+#]?\npawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n\
        castle ::= \"O-O\" \"-O\"?";
    let fresh = compiled(list).expect("a grammar");
    assert!(takes(&fresh, "1. e4 O-O\n2. exd5 d8=Q+\n") && !takes(&fresh, "1. e4 O-O\n2. e9 d4\n"));
    let query = "root ::= select_statement\n\nselect_statement ::= \"SELECT \" column \" from \" table\n\n\
        column ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 \"";
    assert!(takes(&compiled(query).expect("a grammar"), "SELECT col_2  from table_1 "));
    let escapes = r#"root ::= "\x41\u00e9\U0001F600\"\\" [\]\-\\^] [^\n"-]{2,}"#;
    let fresh = compiled(escapes).expect("a grammar");
    assert!(takes(&fresh, "A\u{e9}\u{1f600}\"\\-xy") && takes(&fresh, "A\u{e9}\u{1f600}\"\\^xy"));
    assert!(!takes(&fresh, "A\u{e9}\u{1f600}\"\\-x-") && !takes(&fresh, "A\u{e9}\u{1f600}\"\\-x"));
    // A grammar in Lark's syntax may contain the text "::=".
    assert!(matches!(GrammarSource::of_grammar("start: \"a ::= b\"".into()), GrammarSource::Lark(_)));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (grammar, told) in [
        ("root ::= \"a", "line 1: a text has no end"),
        ("root ::= [a", "line 1: characters to choose from have no end"),
        ("root ::= []", "line 1: there are no characters"),
        ("root ::= [z-a]", "line 1: no character is from 'z' to 'a'"),
        ("root ::= (\"a\"\nb ::= \"c\"", "line 2: \")\" is expected here"),
        ("root ::= \"a\")", "line 1: a rule, NAME ::= …, is expected here"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: the rule \"root\" is there twice"),
        ("root ::= other", "the rule \"other\" is named"),
        ("other ::= \"a\"", "there is no rule \"root\""),
        ("root ::= \"\\q\"", "line 1: \"\\\" is followed by what it does not escape"),
        ("root ::= \"\\ud800\"", "line 1: no character has the 4 digits \"d800\""),
        ("root ::= \"a\"{3,2}", "line 1: how often it is repeated"),
        ("root ::= \"a\"*+", "line 1: what is repeated is repeated again"),
        ("root ::= <[257]>", "line 1: '<' is not expected here"),
        ("root ::= *", "line 1: '*' is not expected here"),
    ] {
        let error = compiled(grammar).map(drop).expect_err(grammar);
        assert!(error.contains(told), "{grammar}: {error}");
    }
}

#[test]
fn a_grammar_has_limits() {
    for grammar in [
        format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100)),
        format!("root ::= \"{}\"", "a".repeat(300_000)),
        format!("root ::= {}", "\"abcdefgh\" ".repeat(20_000)),
    ] {
        let error = compiled(&grammar).map(drop).expect_err("refused");
        assert!(error.contains("at most") || error.contains("more than"), "{error}");
    }
    for grammar in [format!("root ::= \"{}\"", "ab".repeat(8_000)), format!("root ::= {}", "[a-c] ".repeat(16_000))] {
        compiled(&grammar).expect("a grammar");
    }
    // Nested repetitions use little memory.
    let fresh = compiled("root ::= ((\"a\"{1000}){1000}){1000}").expect("a grammar");
    assert!(!takes(&fresh, "aaaa"));
}
