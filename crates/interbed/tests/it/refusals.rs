//! Bad input: a message that says what to do next, exit code 2, and nothing on stdout.

use std::fs;

use crate::support::{ended, ended_with_input, fixture, refused, text, tiny};

#[test]
fn a_directory_that_is_not_there() {
    refused(&["run", "/no/such/model", "--prompt", "x"], &["/no/such/model", "config.json", "interbed plan"]);
    refused(&["info", "/no/such/model"], &["/no/such/model"]);
}

#[test]
fn names_of_models_elsewhere() {
    let lost = ended(&["run", "HuggingFaceTB/SmolLM2-135M", "--prompt", "x"]);
    assert_eq!((lost.code, lost.stdout.as_str()), (Some(1), ""), "{}", lost.stderr);
    assert!(
        lost.stderr.contains("HuggingFaceTB/SmolLM2-135M: ") && lost.stderr.contains("HF_ENDPOINT"),
        "{}",
        lost.stderr
    );
    for name in ["somebody:135m", "nosuchmodel"] {
        refused(&["serve", name], &[name, "is no short name", "ORG/NAME:QUANT"]);
    }
    for path in ["./org/name", "/org/name", "a/b/c", "../name", "C:/model", "hf.co/org:Q4_0"] {
        refused(&["info", path], &["neither a directory nor a file", "hint: give a GGUF file"]);
    }
}

#[test]
fn a_directory_that_is_no_model_is_told_so() {
    let docs = text(&crate::support::repository().join("docs"));
    let stderr = refused(&["info", &docs], &["docs holds no model", "config.json", "hint: "]);
    assert!(!stderr.contains("not found"), "{stderr}");
    let folder = crate::support::copy_of_tiny(&["config.json"]);
    refused(&["info", &text(folder.path())], &["has weights, but no config.json", "hint: fetch"]);
}

#[test]
fn architectures_that_are_not_computed_are_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let out = text(&folder.path().join("small"));
    crate::support::succeeded(&["synth", "--like", "tiny", "--dtype", "q8_0", &out]);
    let file = format!("{out}/model.gguf");
    let mut bytes = fs::read(&file).unwrap();
    // The architecture's name, and the prefix of every key.
    for at in (0..4096).filter(|&at| bytes[at..].starts_with(b"llama")).collect::<Vec<_>>() {
        bytes[at..at + 5].copy_from_slice(b"lemma");
    }
    fs::write(&file, bytes).unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, r#"{"model_type": "bert", "architectures": ["BertModel"]}"#).unwrap();
    for (model, name) in [(file.as_str(), "lemma"), (&text(folder.path()), "bert")] {
        let stderr =
            refused(&["run", model, "--prompt", "x"], &[name, "supported are", "llama", "qwen3", "hint: choose"]);
        assert!(!stderr.contains("fetch"), "{stderr}");
    }
}

#[test]
fn libraries_that_give_up_do_so_quietly() {
    let folder = crate::support::copy_of_tiny(&[]);
    let file = folder.path().join("tokenizer.json");
    let whole: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let normalizers = [
        // The first two panic when they are loaded, the third at the first text.
        serde_json::json!({"type": "Precompiled", "precompiled_charsmap": ""}),
        serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        serde_json::json!({"type": "Replace", "pattern": {"String": ""}, "content": "y"}),
    ];
    for normalizer in normalizers {
        let mut tokenizer = whole.clone();
        tokenizer["normalizer"] = normalizer;
        fs::write(&file, tokenizer.to_string()).unwrap();
        let stderr = refused(&["run", &text(folder.path()), "--prompt", "hello"], &["the tokenizer library gave up"]);
        assert!(!stderr.contains("panicked") && !stderr.contains("src/"), "{stderr}");
    }
}

#[test]
fn a_directory_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = text(folder.path());
    refused(&["info", &path], &["config.json", "hint: "]);
    fs::write(folder.path().join("config.json"), r#"{"model_type": "bert", "architectures": ["BertModel"]}"#).unwrap();
    refused(&["info", &path], &["bert", "llama", "qwen3"]);
    fs::write(folder.path().join("config.json"), "{").unwrap();
    refused(&["info", &path], &["config.json"]);
}

#[test]
fn a_model_without_tokenizer_cannot_run() {
    refused(&["run", &fixture("qwen3"), "--prompt", "x"], &["tokenizer.json"]);
}

#[test]
fn numbers_that_are_none() {
    let model = tiny();
    let run = |flag: &str, value: &str, part: &str| {
        refused(&["run", model, "--prompt", "x", flag, value], &[flag, part]);
    };
    for temperature in ["nan", "-1", "inf", "warm"] {
        run("--temperature", temperature, "a number from 0");
    }
    run("--top-p", "0", "above 0");
    run("--min-p", "1.5", "from 0 to 1");
    run("--max-tokens", "0", "from 1 to");
    run("--max-model-len", "0", "from 1 to");
    for flag in ["--threads", "--max-num-seqs", "--max-num-batched-tokens"] {
        for number in ["0", "1.5", "100000000", "18446744073709551615"] {
            run(flag, number, "");
        }
        run(flag, "0", "from 1 to");
    }
    run("--memory", "abc", "6G");
    run("--memory", "0", "1.5GiB");
    for size in ["0", "3", "512", "18446744073709551615"] {
        run("--block-size", size, "power of two");
        refused(&["info", model, "--block-size", size], &["--block-size", "power of two"]);
    }
    run("--stop", "", "some text");
    run("--max-model-len", "100000", "512");
}

#[test]
fn room_to_swap_to_that_cannot_be() {
    let serve = |flag: &str, value: &str, parts: &[&str]| {
        refused(&["serve", tiny(), "--port", "0", "--memory", "512M", flag, value], parts);
    };
    serve("--swap-space", "much", &["--swap-space", "6G"]);
    serve("--swap-space", "1K", &["1.00 KiB", "KV block", "--swap-space"]);
    serve("--swap-dir", "/no/such/directory", &["/no/such/directory", "hint: ", "--swap-dir"]);
    serve("--preemption", "never", &["auto", "recompute", "swap"]);
    let nowhere = ["serve", tiny(), "--port", "0", "--memory", "512M", "--preemption", "swap", "--swap-space", "0"];
    refused(&nowhere, &["--preemption swap", "--swap-space 0", "hint: "]);
}

#[test]
fn servers_that_could_serve_nobody() {
    for (flag, value) in [("--max-waiting", "0"), ("--max-connections", "0"), ("--max-body", "0"), ("--max-body", "1G")]
    {
        refused(&["serve", tiny(), flag, value], &[flag]);
    }
}

#[test]
fn too_many_stop_strings() {
    let mut args = vec!["run", tiny(), "--prompt", "x"];
    args.extend(std::iter::repeat_n("--stop=x", 10_000));
    refused(&args, &["10000", "64"]);
}

#[test]
fn prompts_that_cannot_be_served() {
    let model = tiny();
    let long = "word ".repeat(5000);
    refused(&["run", model, "--prompt", &long], &["the prompt has", "512"]);
    refused(&["run", model, "--prompt", "x", "--max-tokens", "1000000"], &["--max-tokens", "512"]);
    refused(&["run", model, "--prompt-file", "/no/such/file"], &["/no/such/file"]);
    let ended = ended_with_input(&["run", model, "--prompt", "-"], b"abc\xff");
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("no UTF-8") && ended.stderr.contains("hint: "), "{}", ended.stderr);
}

#[test]
fn usage() {
    refused(&["ruin"], &["ruin"]);
    let help = ended(&["run", "--help"]);
    assert_eq!((help.code, help.stdout.contains("Examples:")), (Some(0), true));
}

#[test]
fn a_filter_that_is_none() {
    let mut command = crate::support::interbed(&["info", tiny()]);
    let output = command.env("RUST_LOG", "interbed=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RUST_LOG"));
}
