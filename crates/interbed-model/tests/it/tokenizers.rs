//! Tokenizers whose tokens come from several files, beside what `transformers` makes of them (see `tools/reference`).

use std::collections::BTreeMap;
use std::path::Path;

use interbed_model::tokenizer::{Tokenizer, TokenizerConfig, TokenizerError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Fixtures {
    bases: BTreeMap<String, Map<String, Value>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    base: String,
    changes: Map<String, Value>,
    files: BTreeMap<String, Value>,
    ids: BTreeMap<String, Option<u32>>,
    tokens: usize,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
    decoded: String,
    without_special: String,
}

#[test]
fn tokens_of_all_files_count_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers.json");
    let fixtures: Fixtures = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(fixtures.cases.len() >= 20);
    for case in fixtures.cases {
        let dir = tempfile::tempdir().unwrap();
        let mut tokenizer = fixtures.bases[&case.base].clone();
        tokenizer.extend(case.changes);
        let tokenizer = Value::Object(tokenizer).to_string();
        std::fs::write(dir.path().join("tokenizer.json"), &tokenizer).unwrap();
        for (name, content) in &case.files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        // The same files out of a store.
        let config = TokenizerConfig::from_files(|name| {
            Ok::<_, TokenizerError>(case.files.get(name).map(|content| content.to_string().into_bytes()))
        });
        let of_files = Tokenizer::new(tokenizer.as_bytes(), &config.unwrap()).unwrap();
        for tokenizer in [Tokenizer::from_dir(dir.path()).unwrap(), of_files] {
            let name = &case.name;
            assert_eq!(tokenizer.vocab_size(), case.tokens, "{name}");
            assert_eq!(
                (tokenizer.bos_id(), tokenizer.eos_id()),
                (case.ids["bos_token"], case.ids["eos_token"]),
                "{name}"
            );
            for Text { text, ids, decoded, without_special } in &case.texts {
                assert_eq!(tokenizer.encode(text, false).unwrap(), *ids, "{name}: {text:?}");
                assert_eq!(tokenizer.decode(ids, false), *decoded, "{name}: {text:?}");
                assert_eq!(tokenizer.decode(ids, true), *without_special, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn configurations_that_name_no_tokens_are_refused() {
    let refusal = |config: Value| {
        let tokenizer = json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
        Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), Some(config.to_string().as_bytes())).unwrap_err()
    };
    for (decoder, told) in [
        (json!(["<x>"]), "no object"),
        (json!({"x": {"content": "<x>"}}), "\"x\""),
        (json!({"-1": {"content": "<x>"}}), "\"-1\""),
        (json!({"7": "<x>"}), "[7]"),
        (json!({"7": {"special": true}}), "[7]"),
    ] {
        let problem = refusal(json!({"added_tokens_decoder": decoder}));
        assert!(problem.contains("added_tokens_decoder") && problem.contains(told), "{problem}");
    }
    let many: Vec<_> = (0..70_000).map(|index| format!("<{index}>")).collect();
    let problem = refusal(json!({"extra_special_tokens": many}));
    assert!(problem.contains("70000") && problem.contains("65536"), "{problem}");
}
