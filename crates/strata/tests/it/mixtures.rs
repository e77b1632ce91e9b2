//! Mixtures of experts, in memory and beyond it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{refused, succeeded, tiny};

/// A mixture of a few MiB: three layers of experts, of which a token goes through 3, and a dense one first.
fn mixture(dir: &Path, experts: usize) -> String {
    let config = json!({
        "model_type": "glm4_moe", "vocab_size": 600, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "moe_intermediate_size": 64, "n_routed_experts": experts, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false,
    });
    fs::create_dir_all(dir).unwrap();
    let file = dir.join("shape.json");
    fs::write(&file, config.to_string()).unwrap();
    let out = dir.join("model").display().to_string();
    let file = file.display().to_string();
    succeeded(&["synth", "--config", &file, "--dtype", "f32", "--router-skew", "0.4", &out]);
    out
}

#[test]
fn a_mixture_says_the_same_in_any_memory_and_its_routing_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let model = mixture(dir.path(), 16);
    let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
    assert_eq!(info["experts"]["each_layer"], 16);
    assert_eq!(info["experts"]["layers"], 3);
    assert!(info["active_parameters"].as_u64() < info["parameters"].as_u64());
    let least = info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20);
    let said = |memory: &str, trace: &str| {
        let trace = dir.path().join(trace).display().to_string();
        let args = ["run", &model, "--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
        let text = succeeded(&[&args[..], &["--memory", memory, "--record-routing", &trace]].concat());
        (text, fs::read_to_string(trace).unwrap())
    };
    let (want, in_memory) = said("1G", "in-memory.csv");
    let (got, streamed) = said(&format!("{least}M"), "streamed.csv");
    assert_eq!(got, want);
    let logits = |memory: &str| succeeded(&["logits", &model, "--tokens", "5,77,300", "--memory", memory]);
    assert_eq!(logits(&format!("{least}M")), logits("1G"));
    // The same experts with the same weights; only where they were found differs.
    let routes = |trace: &str| {
        let rows = trace.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        rows.map(|row| row.rsplitn(3, ',').last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(routes(&streamed), routes(&in_memory));
    assert!(!in_memory.contains(",0,98304") && streamed.contains(",0,98304"), "an expert is 3 x 64 x 128 x 4 bytes");
    let trace = dir.path().join("streamed.csv").display().to_string();
    let replayed = succeeded(&["replay", &trace, "--memory", "20,50"]);
    assert!(replayed.contains("Belady"), "{replayed}");
    // In chunks, nothing is recorded of the rows that the last layer leaves out, and no expert is read for them.
    let chunked = dir.path().join("chunked.csv").display().to_string();
    let args = ["run", &model, "--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
    let in_chunks = ["--memory", "1G", "--max-num-batched-tokens", "4", "--record-routing", &chunked];
    assert_eq!(succeeded(&[&args[..], &in_chunks].concat()), want);
    let mut rows = [routes(&in_memory), routes(&fs::read_to_string(&chunked).unwrap())];
    rows.iter_mut().for_each(|rows| rows.sort());
    assert_eq!(rows[0], rows[1], "the same, in another order");
    // A stored model computes the same.
    let store = dir.path().join("mixture.strata").display().to_string();
    succeeded(&["pack", &model, &store]);
    let args = ["--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
    let memory = format!("{least}M");
    assert_eq!(succeeded(&[&["run", &store, "--memory", &memory][..], &args].concat()), want);
}

#[test]
fn what_has_no_experts_records_no_routing() {
    let trace = tempfile::tempdir().unwrap().path().join("trace.csv").display().to_string();
    refused(&["run", tiny(), "--prompt", "x", "--record-routing", &trace], &["no experts"]);
}

#[test]
fn a_mixture_in_gguf_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "qwen2_moe", "vocab_size": 600, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": false,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "use_sliding_window": false,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false,
    });
    let file = dir.path().join("shape.json").display().to_string();
    fs::write(&file, config.to_string()).unwrap();
    let texts = [&[][..], &["--gguf"]].map(|more| {
        let out = dir.path().join(format!("model-{}", more.len())).display().to_string();
        succeeded(&[&["synth", "--config", &file, "--dtype", "f32", &out][..], more].concat());
        succeeded(&["run", &out, "--prompt", "one and two", "-n", "16", "--memory", "1G"])
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn what_streamed_experts_cost_is_measured_beside_the_simulator() {
    let dir = tempfile::tempdir().unwrap();
    let model = mixture(dir.path(), 96);
    let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
    // A few of the experts have room beside those that a pass needs at once.
    let memory = format!("{}M", info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20) + 6);
    let asked = ["bench", "experts", &model, "--tokens", "12", "--warm-up", "4", "--batch", "1,3"];
    let figures = succeeded(&[&asked[..], &["--memory", &memory, "--json"]].concat());
    let figures: Vec<Value> = figures.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["experts.seconds_per_token", "experts.bytes_per_token"].repeat(4));
    let lines = [(1, false), (3, false), (1, true), (3, true)].into_iter().flat_map(|line| [line, line]);
    for (figure, (batch, reads_ahead)) in figures.iter().zip(lines) {
        assert_eq!(
            (&figure["params"]["batch"], &figure["params"]["reads_ahead"]),
            (&json!(batch), &json!(reads_ahead))
        );
        let ahead = figure["params"]["read_ahead_per_token"].as_f64().unwrap();
        assert!(reads_ahead || ahead == 0.0, "{figure}");
        assert_eq!(figure["params"]["read_again"], 0, "{figure}");
        let number = |key: &str| figure[key].as_f64().unwrap();
        assert!(number("value") > 0.0 && number("bound") > 0.0, "{figure}");
        if figure["unit"] == "B" {
            let (read, simulated) = (number("value"), number("simulated"));
            // What was read ahead comes on top, unless a pass wanted it.
            let most = if reads_ahead { 1.05 + ahead * 100_000.0 / simulated } else { 1.05 };
            assert!((0.9..=most).contains(&(read / simulated)), "{figure}");
            assert!(number("simulated") >= number("bound"), "{figure}");
        }
    }
    let table = succeeded(&[&asked[..], &["--memory", &memory]].concat());
    assert!(table.contains("simulated") && table.contains("at least"), "{table}");
    refused(&[&asked[..], &["--memory", "1G"]].concat(), &["fits into", "smaller --memory"]);
    refused(&["bench", "experts", tiny(), "--memory", "1G"], &["no experts"]);
}
