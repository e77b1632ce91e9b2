//! `--memory`: one least that every command tells and that works, and a promise that is kept.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::mixtures::mixture;
use crate::serve::Server;
use crate::support::{Ended, ended, ended_with_input, refused, repository, succeeded, text, tiny};

const MIB: u64 = 1 << 20;

/// A random model of some 40 MiB with a vocabulary of usual size, whose tokenizer counts.
fn wordy() -> &'static str {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"model_type": "llama", "vocab_size": 32768, "hidden_size": 256, "intermediate_size": 1024,
            "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16"});
        let file = dir.path().join("shape.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let model = dir.path().join("model");
        succeeded(&["synth", "--config", &text(&file), &text(&model)]);
        (dir, model)
    });
    path.to_str().unwrap()
}

fn least(model: &str, key: &str) -> u64 {
    let info: Value = serde_json::from_str(&succeeded(&["info", model, "--json"])).unwrap();
    info["memory"][key].as_u64().unwrap()
}

/// The process's peak memory in bytes, as `--stats` reports it.
fn peak(ended: &Ended) -> u64 {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let line = ended.stderr.lines().find(|line| line.starts_with("memory") && line.contains("at the peak")).unwrap();
    let mut words = line.split_whitespace().skip(1);
    let (number, unit) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(unit, "MiB", "{line}");
    (number.parse::<f64>().unwrap() * MIB as f64) as u64
}

/// The least memory in bytes that a refusal names.
fn advised(args: &[&str]) -> u64 {
    let stderr = refused(args, &["cannot work", "give --memory "]);
    let advice = stderr.split("give --memory ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    advice.strip_suffix('M').unwrap().parse::<u64>().unwrap() * MIB
}

#[test]
fn every_command_tells_the_same_least_and_it_works() {
    let storyteller = text(&repository().join("models/storyteller"));
    for model in [tiny(), &storyteller, wordy()] {
        let least = least(model, "least_bytes");
        let (exact, below) = (least.to_string(), (least - MIB).to_string());
        for little in ["10M", &below] {
            assert_eq!(advised(&["run", model, "-p", "x", "--memory", little]), least, "{model}");
            assert_eq!(advised(&["info", model, "--memory", little]), least, "{model}");
        }
        let run = ended(&["run", model, "-p", "Once", "-n", "4", "--ignore-eos", "--stats", "--memory", &exact]);
        assert!(peak(&run) <= least, "{model}: {}", run.stderr);
    }
    let least = least(tiny(), "least_bytes");
    assert_eq!(advised(&["chat", tiny(), "--memory", "10M"]), least);
    let chat = ended_with_input(&["chat", tiny(), "-n", "4", "--memory", &least.to_string()], b"Hello\n");
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    // A command without a tokenizer needs no more than passes do.
    succeeded(&["logits", tiny(), "--tokens", "1,2,3", "--memory", &least.to_string()]);
}

#[test]
fn the_least_to_serve_is_what_serve_advises() {
    let least = least(tiny(), "serve_least_bytes");
    let serve = |memory: &str| advised(&["serve", tiny(), "--port", "0", "--memory", memory]);
    assert_eq!((serve("10M"), serve(&(least - MIB).to_string())), (least, least));
}

/// The figures of a machine, so that a plan measures nothing.
const MACHINE: [&str; 10] =
    ["--disk-bw", "2e9", "--host-bw", "2e10", "--flops", "1e12", "--batch", "1", "--prompt-tokens", "16"];

/// The least memory in bytes with which `interbed plan` works, as its refusal names it.
fn planned(model: &str, more: &[&str], memory: &str) -> u64 {
    advised(&[&["plan", model, "--memory", memory], &MACHINE[..], more].concat())
}

#[test]
fn plan_info_and_serve_name_one_least_with_which_serve_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mixture = mixture(folder.path(), 16);
    let storyteller = text(&repository().join("models/storyteller"));
    for model in [&storyteller, wordy(), &mixture] {
        let least = least(model, "serve_least_bytes");
        let (exact, below) = (least.to_string(), (least - MIB).to_string());
        for little in ["10M", &below] {
            assert_eq!(advised(&["serve", model, "--port", "0", "--memory", little]), least, "{model}");
            assert_eq!(planned(model, &[], little), least, "{model}");
        }
        succeeded(&[&["plan", model, "--memory", &exact], &MACHINE[..]].concat());
        let server = Server::of(model, &["--memory", &exact]);
        let answer = server.ask("POST /v1/completions HTTP/1.1", r#"{"prompt": "a", "max_tokens": 2}"#);
        assert!(answer.starts_with("HTTP/1.1 200"), "{model}: {answer}");
        // Without weights and tokenizer, what the process takes is an estimate, and the plan says so.
        let shape = text(&PathBuf::from(model).join("config.json"));
        let bare = folder.path().join("config.json");
        std::fs::copy(shape, &bare).unwrap();
        let dtype = if *model == mixture { "f32" } else { "bf16" };
        let estimated = planned(&text(&bare), &["--dtype", dtype], "10M");
        assert!(estimated.abs_diff(least) <= 32 * MIB, "{model}: {estimated} and {least}");
        let plan = succeeded(&[&["plan", &text(&bare), "--memory", "1G"], &MACHINE[..]].concat());
        assert!(plan.contains("what its process takes is an estimate"), "{plan}");
    }
    for shape in ["llama-3-8b", "qwen3-30b-a3b"] {
        let info: Value = serde_json::from_str(&succeeded(&["info", shape, "--json"])).unwrap();
        for of_type in info["types"].as_array().unwrap() {
            let dtype = of_type["dtype"].as_str().unwrap().to_lowercase();
            let planned = planned(shape, &["--dtype", &dtype], "10M");
            assert_eq!(planned, of_type["serve_least_bytes"].as_u64().unwrap(), "{shape} in {dtype}");
        }
    }
}

#[test]
fn memory_that_holds_less_kv_than_a_smaller_one_says_so() {
    let weights = {
        let info: Value = serde_json::from_str(&succeeded(&["info", wordy(), "--json"])).unwrap();
        info["weights"]["bytes"].as_u64().unwrap()
    };
    // Weights just fit, and leave KV next to nothing.
    let memory = (least(wordy(), "serve_least_bytes") + weights).to_string();
    let said = "which is slower, and leave room for";
    let plan = succeeded(&[&["plan", wordy(), "--memory", &memory], &MACHINE[..]].concat());
    assert!(plan.contains(said), "{plan}");
    let server = Server::of(wordy(), &["--memory", &memory]);
    assert!(server.said.contains(said), "{}", server.said);
    let memory = (least(wordy(), "least_bytes") + weights).to_string();
    let info = succeeded(&["info", wordy(), "--memory", &memory]);
    assert!(info.contains(said), "{info}");
}

#[test]
fn schemas_are_refused_by_name_where_there_is_no_memory_for_them() {
    let schema = r#"{"prompt": "a", "max_tokens": 4, "response_format": {"type": "json_object"}}"#;
    let plain = r#"{"prompt": "a", "max_tokens": 4}"#;
    let least = least(tiny(), "serve_least_bytes");
    let in_memory = |bytes: u64| Server::of(tiny(), &["--memory", &bytes.to_string()]);
    let status = |server: &Server, body| server.ask("POST /v1/completions HTTP/1.1", body);
    let server = in_memory(least);
    assert!(server.said.contains("no memory is left for schemas"), "{}", server.said);
    let answer = status(&server, schema);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("response_format: this server has no memory") && answer.contains("--memory"), "{answer}");
    assert!(status(&server, plain).starts_with("HTTP/1.1 200"));
    drop(server);
    // Two thirds of what is beyond the least have room for one.
    let server = in_memory(least + 160 * MIB);
    assert!(!server.said.contains("schemas"), "{}", server.said);
    assert!(status(&server, schema).starts_with("HTTP/1.1 200"));
}

#[test]
fn memory_stays_within_the_budget_and_is_used() {
    let least = least(wordy(), "least_bytes");
    let weights = {
        let info: Value = serde_json::from_str(&succeeded(&["info", wordy(), "--json"])).unwrap();
        info["weights"]["bytes"].as_u64().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = text(&folder.path().join("prompt.txt"));
    std::fs::write(&file, "the other ones are here ".repeat(30)).unwrap();
    for budget in [least + weights / 4, least + weights / 2, least + weights, 1 << 30] {
        let memory = budget.to_string();
        let args = ["run", wordy(), "-f", &file, "-n", "6", "--ignore-eos", "--temperature", "1", "--stats"];
        let run = ended(&[&args[..], &["--memory", &memory]].concat());
        assert!(peak(&run) <= budget, "{budget}: {}", run.stderr);
        let plan: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("  requests")).collect();
        assert!(plan[0].contains(" MiB") && !plan[0].contains("128.0"), "one prompt needs no server's share: {plan:?}");
    }
    // Memory beyond the least goes to the weights, except for a small part.
    let info = ["info", wordy(), "--json", "--memory", &(least + weights / 2).to_string()];
    let info: Value = serde_json::from_str(&succeeded(&info)).unwrap();
    let kept = info["memory"]["budgets"][0]["streamed_weights_bytes"].as_u64().unwrap();
    assert!(kept >= weights / 2 - weights / 16, "{kept} of {weights} bytes");
}

#[test]
fn one_answer_takes_no_room_for_many() {
    let plan = |args: &[&str]| {
        let run = ended(&[args, &["-n", "2", "--ignore-eos", "--memory", "1G"]].concat());
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let line = |name: &str| run.stderr.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let scratch = line("  scratch");
        let blocks = line("  KV blocks").split_whitespace().nth(4).unwrap().parse::<usize>().unwrap();
        (scratch.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap(), scratch.contains(" MiB"), blocks)
    };
    let short = plan(&["run", wordy(), "-p", "Once"]);
    let long = plan(&["run", wordy(), "-p", &"word after word ".repeat(200)]);
    // A short prompt needs no long passes; two whole contexts of 2,048 tokens are all that KV can be used for.
    assert!(long.1 && long.0 > 5.0 && (!short.1 || short.0 < 3.0), "scratch: {short:?}, {long:?}");
    assert_eq!((short.2, long.2), (256, 256));
}

#[test]
fn a_large_vocabulary_stays_within_the_least() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "llama", "vocab_size": 100000, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": true, "torch_dtype": "bfloat16"});
    let (file, model) = (text(&dir.path().join("shape.json")), text(&dir.path().join("model")));
    std::fs::write(&file, config.to_string()).unwrap();
    succeeded(&["synth", "--config", &file, &model]);
    let least = least(&model, "least_bytes");
    let args = ["run", &model, "-p", "the other", "-n", "3", "--ignore-eos", "--temperature", "1", "--stats"];
    let run = ended(&[&args[..], &["--memory", &least.to_string()]].concat());
    let peak = peak(&run);
    // Within it, and not far from it: most of it is the vocabulary.
    assert!((least / 2..=least).contains(&peak), "{peak} of {least}: {}", run.stderr);
}

#[test]
fn a_conversation_has_room_where_there_is_some() {
    let requests = |memory: &str| {
        let chat = ended_with_input(&["chat", wordy(), "-n", "2", "--memory", memory], b"Hello\n");
        assert_eq!(chat.code, Some(0), "{}", chat.stderr);
        let line = chat.stderr.lines().find(|line| line.starts_with("  requests")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
    };
    let least = least(wordy(), "least_bytes");
    assert!(requests(&least.to_string()) < 8.0);
    assert!(requests("1G") > 8.0, "a conversation of 2,048 tokens is tokenized in one piece");
}

#[test]
fn more_than_the_machine_has_is_refused_unless_one_insists() {
    for command in
        [&["run", "-p", "x"][..], &["chat"], &["serve", "--port", "0"], &["bench"], &["logits", "--tokens", "1"]]
    {
        let args = [&command[..1], &[tiny(), "--memory", "4000T"], &command[1..]].concat();
        refused(&args, &["--memory is 4000", "hint: give --memory ", "--overcommit"]);
    }
    let run = ended(&["run", tiny(), "-p", "x", "-n", "2", "--memory", "4000T", "--overcommit"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // Other machines may have it.
    succeeded(&["info", tiny(), "--memory", "4000T"]);
    let here = ["--disk-bw", "2e9", "--host-bw", "20e9", "--flops", "1e12", "--batch", "1", "--prompt-tokens", "16"];
    succeeded(&[&["plan", "tiny", "--memory", "4000T"][..], &here].concat());
}
