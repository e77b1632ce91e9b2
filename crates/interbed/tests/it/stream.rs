//! A model that is larger than its budget, through the real binary.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{ended, refused, succeeded};

/// A random model of some 100 MiB, so that memory can be less than that and more than the program.
pub fn model() -> &'static str {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::json!({"model_type": "llama", "vocab_size": 4096, "hidden_size": 512,
            "intermediate_size": 2048, "num_hidden_layers": 13, "num_attention_heads": 8, "num_key_value_heads": 2,
            "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "rope_theta": 500.0,
            "torch_dtype": "bfloat16"});
        let file = dir.path().join("shape.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let model = dir.path().join("model");
        succeeded(&["synth", "--config", file.to_str().unwrap(), model.to_str().unwrap()]);
        (dir, model)
    });
    path.to_str().unwrap()
}

/// A budget that keeps about a third of the weights.
fn budget() -> String {
    budget_of(model())
}

fn budget_of(model: &str) -> String {
    let info: Value = serde_json::from_str(&succeeded(&["info", model, "--json"])).unwrap();
    let least = info["memory"]["least_bytes"].as_u64().unwrap();
    (least + (info["weights"]["bytes"].as_u64().unwrap() / 3)).to_string()
}

#[test]
fn tokens_are_those_of_ample_memory() {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("coded.interbed").to_str().unwrap().to_owned();
    succeeded(&["pack", model(), &packed]);
    let args = |model| ["run", model, "--prompt", "Once upon", "-n", "12", "--max-num-seqs", "4", "--memory"];
    let ample = succeeded(&[&args(model())[..], &["4G"]].concat());
    assert_eq!(succeeded(&[&args(&packed)[..], &["4G"]].concat()), ample);
    for (model, policy) in [model(), &packed].into_iter().flat_map(|model| [(model, "resident"), (model, "ring")]) {
        let budget = budget_of(model);
        let streamed = ended(&[&args(model)[..], &[&budget, "--stream-policy", policy, "--stats"]].concat());
        assert_eq!(streamed.code, Some(0), "{}", streamed.stderr);
        assert_eq!(streamed.stdout, ample, "{model}, {policy}");
        for part in ["stay in memory", "come from disk", "passes of", "waited"] {
            assert!(streamed.stderr.contains(part), "{part} in {}", streamed.stderr);
        }
    }
}

#[test]
fn the_timeline_shows_reads_and_computation() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.json");
    let budget = budget();
    let args = ["run", model(), "--prompt", "x", "-n", "2", "--memory", &budget, "--timeline", file.to_str().unwrap()];
    succeeded(&args);
    let timeline: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let kinds: HashSet<&str> = events.iter().filter_map(|event| event["cat"].as_str()).collect();
    assert!(kinds.contains("read") && kinds.contains("compute"), "{kinds:?}");
    let named = |name: &str| events.iter().any(|event| event["name"] == name && event["ph"] == "X");
    assert!(named("layer 0, attention") && named("layer 12, ffn") && named("head"));
}

#[test]
fn bench_stream_measures_against_the_bound() {
    let budget = budget();
    let args = ["bench", "stream", model(), "--memory", &budget, "--batch", "1,4", "--prompt-tokens", "40"];
    let text = succeeded(&[&args[..], &["--repeat", "2", "--max-num-seqs", "4", "--json"]].concat());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for policy in ["resident", "ring"] {
        let find = |name: &str, key: &str, value: u64| {
            let wanted = |line: &&Value| {
                line["name"] == name && line["params"]["policy"] == policy && line["params"][key] == value
            };
            lines.iter().find(wanted).unwrap_or_else(|| panic!("no {name} of {policy} in {text}"))
        };
        let decode = find("stream.decode.seconds_per_token", "batch", 1);
        assert!(decode["value"].as_f64().unwrap() > 0.0 && decode["share_of_bound"].as_f64().unwrap() > 0.0);
        let bytes = find("stream.bytes_per_token", "batch", 1);
        // Resident weights are not read again; the ring reads everything.
        let (read, bound) = (bytes["value"].as_f64().unwrap(), bytes["bound"].as_f64().unwrap());
        match policy {
            "resident" => assert!(read <= 1.03 * bound, "{read} bytes read, {bound} at least"),
            _ => assert!(read >= bytes["params"]["swept_bytes"].as_f64().unwrap() * 0.9, "{read}"),
        }
        assert!(find("stream.prefill.tokens_per_s", "prompt_tokens", 40)["value"].as_f64().unwrap() > 0.0);
        assert!(find("stream.batch_speedup", "batch", 4)["value"].as_f64().unwrap() > 0.0);
    }
    refused(&["bench", "stream", model(), "--memory", "8G"], &["fits into 8.00 GiB", "--memory"]);
}
