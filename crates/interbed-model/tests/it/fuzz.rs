//! Damaged and hostile tokenizers and chat templates, made from a seed: whatever they are, they end with a result or an
//! error, soon and within memory. `INTERBED_FUZZ_SECONDS` says for how long to look (10 s), `INTERBED_FUZZ_SEED` where
//! to begin; a failure names the seed of its case.

use std::time::{Duration, Instant};

use interbed_model::chat_template::{ChatTemplate, SpecialTokens};
use interbed_model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Longest that one case may take; a template's own limit is 20 s.
const CASE_MAX: Duration = Duration::from_secs(60);
/// Most memory that a case may add to what the process had at its most, in bytes.
const GROWTH_MAX: usize = 3 << 30;

/// A sequence of numbers that follows from a seed.
struct Dice(u64);

impl Dice {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Tries cases until the time is over.
fn cases(mut case: impl FnMut(&mut Dice)) {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seconds, first) = (number("INTERBED_FUZZ_SECONDS", 10), number("INTERBED_FUZZ_SEED", 1));
    let began = Instant::now();
    for seed in first.. {
        if began.elapsed() > Duration::from_secs(seconds) {
            assert!(seed > first + 10, "only {} cases in {seconds} s", seed - first);
            return;
        }
        let (case_began, before) = (Instant::now(), peak_resident());
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&mut Dice(seed << 20)))).is_err();
        let (elapsed, grown) = (case_began.elapsed(), peak_resident().saturating_sub(before));
        assert!(
            !failed && elapsed < CASE_MAX && grown < GROWTH_MAX,
            "seed {seed}: panicked: {failed}, {elapsed:?}, {} MiB",
            grown >> 20
        );
    }
}

/// The most memory that this process has had resident, in bytes.
fn peak_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

const NUMBERS: [&str; 9] = ["0", "1", "2", "-1", "7", "1000", "100000", "1000000000000", "1.5"];
const TEXTS: [&str; 6] = ["'a'", "''", "'a b\\nc'", "'{0}{0}'", "'%s%s'", "'é😀'"];
const NAMES: [&str; 9] = ["messages", "ns.x", "ns.y", "ns", "a", "tools", "loop", "messages[0].content", "bos_token"];
const OPERATORS: [&str; 14] = ["+", "~", "*", "-", "/", "//", "%", "**", "==", "<", "in", "and", "or", "is not"];
const MARKS: [&str; 10] = ["{%", "%}", "{{", "}}", "|", "(", ")", "'", "{#", "-"];
const FILTERS: [&str; 40] = [
    "join",
    "list",
    "length",
    "upper",
    "trim",
    "tojson",
    "indent",
    "replace",
    "batch",
    "slice",
    "sort",
    "unique",
    "map",
    "select",
    "reject",
    "selectattr",
    "sum",
    "first",
    "last",
    "reverse",
    "string",
    "int",
    "float",
    "default",
    "items",
    "dictsort",
    "groupby",
    "format",
    "split",
    "lines",
    "escape",
    "min",
    "max",
    "abs",
    "round",
    "attr",
    "title",
    "safe",
    "bool",
    "zip",
];
const METHODS: [&str; 16] = [
    "join",
    "replace",
    "split",
    "strip",
    "format",
    "splitlines",
    "zfill",
    "items",
    "keys",
    "values",
    "get",
    "upper",
    "rsplit",
    "partition",
    "count",
    "startswith",
];

fn expression(dice: &mut Dice, depth: usize) -> String {
    if depth == 0 || dice.below(5) == 0 {
        return match dice.below(3) {
            0 => (*dice.one(&NUMBERS)).to_owned(),
            1 => (*dice.one(&TEXTS)).to_owned(),
            _ => (*dice.one(&NAMES)).to_owned(),
        };
    }
    let inner = |dice: &mut Dice| expression(dice, depth - 1);
    let (one, two) = (inner(dice), inner(dice));
    match dice.below(11) {
        0 | 1 => format!("({one} {} {two})", dice.one(&OPERATORS)),
        2 => format!("[{one}, {two}]"),
        3 => format!("({one}, {two})"),
        4 => format!("{{'k': {one}, {two}: 1}}"),
        5 => format!("({one} | {})", dice.one(&FILTERS)),
        6 => format!("({one} | {}({two}))", dice.one(&FILTERS)),
        7 => format!("({one}).{}({two})", dice.one(&METHODS)),
        8 => format!("({one} | map('{}', {two}) | list)", dice.one(&FILTERS)),
        9 => format!("({one})[{two}:]"),
        _ => format!("({one} if {two} else range({two}))"),
    }
}

fn statement(dice: &mut Dice, depth: usize) -> String {
    let value = expression(dice, 3);
    if depth == 0 {
        return format!("{{{{ {value} }}}}");
    }
    let body = statement(dice, depth - 1) + &statement(dice, depth - 1);
    match dice.below(9) {
        0 | 1 => format!("{{% set ns.{} = {value} %}}{body}", dice.one(&["x", "y"])),
        2 => format!("{{% for a in {value} %}}{body}{{% endfor %}}"),
        3 => format!("{{% for i in range({}) %}}{body}{{% endfor %}}", dice.one(&["3", "60", "99999"])),
        4 => format!("{{% if {value} %}}{body}{{% else %}}x{{% endif %}}"),
        5 => format!("{{% set ns.x %}}{body}{{% endset %}}"),
        6 => format!("{{% macro m(a) %}}{body}{{{{ a }}}}{{% endmacro %}}{{{{ m({value}) }}}}"),
        7 => format!("{{% filter {} %}}{body}{{% endfilter %}}", dice.one(&FILTERS)),
        _ => format!("{{{{ {value} }}}}{body}"),
    }
}

#[test]
fn templates_end() {
    let messages = [json!({"role": "user", "content": "a b\nc"}), json!({"role": "assistant", "content": null})];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5]}}})];
    cases(|dice| {
        let mut source = "{% set ns = namespace(x='ab', y=[1]) %}".to_owned() + &statement(dice, 4);
        // One in four is damaged besides.
        for _ in 0..[0, 0, 0, 3][dice.below(4)] {
            let at = source.floor_char_boundary(dice.below(source.len()));
            match dice.below(3) {
                0 => source.truncate(at),
                1 => source.insert_str(at, MARKS[dice.below(MARKS.len())]),
                _ => source.insert_str(at, &expression(dice, 2)),
            }
        }
        if let Ok(template) = ChatTemplate::new(&source, SpecialTokens::default()) {
            let _ = template.render_within(&messages, Some(&tools), true, &Map::new(), 1 << 20);
        }
    });
}

/// A tokenizer with something of everything.
fn whole_tokenizer() -> Value {
    let vocab: Map<String, Value> = ["a", "b", "ab", "▁", "Ġ", "<unk>", "é", "##b", "<0x41>"]
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token.to_owned(), id.into()))
        .collect();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{"id": 9, "content": "<s>", "single_word": false, "lstrip": true, "rstrip": false,
            "normalized": true, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": true, "strip_right": true}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+|\\S+"}, "behavior": "Isolated", "invert": false},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": vocab,
            "merges": [["a", "b"]]},
    })
}

/// Changes a value somewhere within.
fn damage(dice: &mut Dice, value: &mut Value) {
    let replacements = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1u64 << 40),
        json!(""),
        json!("a"),
        json!("▁".repeat(300)),
        json!([]),
        json!({}),
        json!(true),
        json!({"String": ""}),
        json!({"Regex": "(a*)*b"}),
        json!({"Regex": ""}),
        json!({"type": "NFKD"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}),
        json!("WordPiece"),
        json!("Unigram"),
        json!("Sequence"),
        json!({"type": "Precompiled",
        "precompiled_charsmap": "BAAAAAAAAABhYgBhYmMA"}),
    ];
    let deeper = dice.below(6) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(dice.below(map.len())).cloned().unwrap_or_default();
            match dice.below(12) {
                0 => drop(map.remove(&key)),
                _ => damage(dice, &mut map[&key]),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = dice.below(list.len());
            match dice.below(6) {
                0 => drop(list.remove(at)),
                1 => {
                    let copies = vec![list[at].clone(); *dice.one(&[1, 3, 40])];
                    list.extend(copies);
                }
                _ => damage(dice, &mut list[at]),
            }
        }
        _ => *value = dice.one(&replacements).clone(),
    }
}

#[test]
fn tokenizers_end() {
    let texts = ["", "a", "ab ab<s> é😀\n", &"ab ".repeat(2000), &"a".repeat(20_000)];
    let whole = Tokenizer::from_bytes(whole_tokenizer().to_string().as_bytes(), None).expect("a tokenizer");
    assert!(!whole.encode("a", true).expect("tokens").is_empty());
    cases(|dice| {
        let mut json = whole_tokenizer();
        for _ in 0..=dice.below(3) {
            damage(dice, &mut json);
        }
        let mut bytes = json.to_string().into_bytes();
        if dice.below(8) == 0 {
            let at = dice.below(bytes.len());
            bytes[at] = dice.below(256) as u8;
        }
        let Ok(tokenizer) = Tokenizer::from_bytes(&bytes, Some(br#"{"bos_token": "<s>", "add_bos_token": true}"#))
        else {
            return;
        };
        for text in texts {
            if let Ok(ids) = tokenizer.encode(text, true) {
                tokenizer.decode(&ids, false);
            }
        }
        tokenizer.decode(&[0, 1, 2, 8, 9, 10, u32::MAX], true);
    });
}
