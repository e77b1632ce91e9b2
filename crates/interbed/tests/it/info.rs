//! `interbed info`.

use serde_json::Value;

use crate::support::{ended, fixture, refused, succeeded, tiny};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeeded(args)).expect("one JSON object")
}

#[test]
fn a_model_without_tokenizer_can_be_told_of() {
    let text = succeeded(&["info", &fixture("llama3_bf16")]);
    for part in ["Llama", "llama3", "factor 4", "in BF16", "tokenizer.json is missing", "--memory", "token 1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let info = json(&["info", &fixture("llama3_bf16"), "--json"]);
    assert_eq!((&info["layers"], &info["heads"], &info["kv_heads"]), (&2.into(), &6.into(), &2.into()));
    assert_eq!((&info["tokenizer"], &info["chat_template"]), (&Value::Null, &false.into()));
    // Keys and values, 2 layers, 2 heads of 8, 2 bytes each.
    assert_eq!(info["memory"]["kv_bytes_per_token"], 2 * 2 * 2 * 8 * 2);
    assert_eq!(info["memory"]["kv_bytes_per_context"], 2 * 2 * 2 * 8 * 2 * 256);
}

#[test]
fn the_least_memory_works() {
    let info = json(&["info", tiny(), "--json"]);
    let least = info["memory"]["least_bytes"].as_u64().unwrap();
    let run = ended(&["run", tiny(), "--prompt", "x", "-n", "2", "--memory", &least.to_string()]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(info["memory"]["budgets"][0]["memory_bytes"], least);
    assert!(info["weights"]["bytes"].as_u64().unwrap() > 0 && info["tokenizer"]["vocab_size"].as_u64().unwrap() > 256);
}

#[test]
fn a_budget_is_judged() {
    let info = json(&["info", tiny(), "--json", "--memory", "1G"]);
    let budgets = info["memory"]["budgets"].as_array().unwrap();
    assert_eq!((budgets.len(), &budgets[0]["memory_bytes"]), (1, &(1u64 << 30).into()));
    assert_eq!(budgets[0]["context"], 512);
    refused(&["info", tiny(), "--memory", "10M"], &["--memory"]);
}

#[test]
fn well_known_shapes_are_told_of_without_weights() {
    let text = succeeded(&["info", "gpt-oss-20b"]);
    for part in
        ["20.91 B", "a token", "32 in each layer, 4 for each token", "BF16", "Q4_K", "interbed plan gpt-oss-20b"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let info = json(&["info", "llama-3-8b", "--json"]);
    assert_eq!((&info["layers"], &info["kv_heads"], &info["context"]), (&32.into(), &8.into(), &8192.into()));
    let types = info["types"].as_array().unwrap();
    // 8.03 billion numbers of 2 bytes, and a server that streams them.
    let bytes = types[0]["weight_bytes"].as_u64().unwrap();
    assert!((16_060_000_000..16_200_000_000).contains(&bytes), "{bytes}");
    assert!(types[0]["serve_least_bytes"].as_u64().unwrap() < bytes / 4);
    assert_eq!(types[0]["kv_bytes_per_token"], 131_072);
    refused(&["info", "llama-9-8b"], &["is no short name"]);
}
