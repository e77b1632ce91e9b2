//! `--config FILE.toml`, shell completions and manual pages.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Ended, ended, interbed, refused, succeeded, text, tiny};

#[test]
fn options_of_a_file_are_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let file = text(&folder.path().join("interbed.toml"));
    let written = |lines: &str| fs::write(&file, lines).unwrap();
    let budget = |args: &[&str]| {
        let all = [&["info", "--json", "--config", &file], args].concat();
        let info: Value = serde_json::from_str(&succeeded(&all)).unwrap();
        info["memory"]["budgets"][0]["memory_bytes"].as_u64().unwrap()
    };
    written(&format!("model = {:?}\nmemory = \"1G\"\n[serve]\nport = 9000\n[info]\nmax-model-len = 256\n", tiny()));
    assert_eq!(budget(&[]), 1 << 30);
    // The command line wins, also for the model.
    assert_eq!(budget(&["--memory", "2G"]), 2 << 30);
    assert_eq!(budget(&[tiny(), "--memory=2G"]), 2 << 30);
    let info: Value = serde_json::from_str(&succeeded(&["info", "--json", "--config", &file])).unwrap();
    assert_eq!(info["memory"]["budgets"][0]["context"], 256);
    // Flags, and a file that turns one off.
    written("raw = true\nno-echo = false\nmax-tokens = 4\ntemperature = 0.5\nstop = [\"a\", \"b\"]\n");
    let run = ended(&["run", tiny(), "--prompt", "hello", "--config", &file]);
    assert!(run.code == Some(0) && run.stdout.starts_with("hello"), "{run:?}");

    let wrong = |lines: &str, parts: &[&str]| {
        written(lines);
        refused(&["info", tiny(), "--config", &file], parts);
    };
    wrong("memroy = \"1G\"", &["interbed.toml", "memroy is no option of `interbed info`", "nearest name is memory"]);
    wrong("max_model_len = 4", &["nearest name is max-model-len"]);
    wrong("[serv]\nport = 1", &["[serv] is no command", "nearest name is serve"]);
    wrong("[info]\nport = 1", &["port is no option of `interbed info`"]);
    wrong("overcommit = 1", &["overcommit should be true or false"]);
    wrong("memory = true", &["memory should be a text or a number"]);
    wrong("memory = \"6\"", &["is 6G meant?"]);
    wrong("memory = ", &["interbed.toml", "line 1"]);
    refused(&["info", tiny(), "--config", "/no/such.toml"], &["/no/such.toml", "hint: "]);
}

#[test]
fn shells_and_man_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeded(&["completions", shell]);
        for part in ["serve", "--memory", "--config", "completions"] {
            assert!(script.contains(part) || script.contains(part.trim_start_matches('-')), "{shell}: {part}");
        }
    }
    refused(&["completions", "tcsh"], &["bash", "zsh", "fish"]);
    assert!(succeeded(&["man"]).starts_with(".ie") && succeeded(&["man"]).contains("interbed\\-serve"));
    let page = succeeded(&["man", "serve"]);
    assert!(page.contains(".TH") && page.contains("\\-\\-max\\-model\\-len"), "{page}");
    refused(&["man", "sell"], &["no command sell", "--help"]);
}

#[test]
fn help_of_serve_begins_with_what_people_use() {
    let help = succeeded(&["serve", "--help"]);
    let place = |part: &str| help.find(part).unwrap_or_else(|| panic!("no {part:?} in {help}"));
    let first = ["--memory <", "--max-model-len <", "--device <", "--threads <", "--host <", "--port <", "--api-key <"];
    let more = ["--api-key-file <", "--served-model-name <", "--kv-disk <"];
    let order: Vec<usize> = first.iter().chain(&more).map(|option| place(option)).collect();
    assert!(order.is_sorted(), "{order:?}");
    for rare in ["--kv-memory <", "--tls-cert <", "--block-size <", "--kv-remote <", "--swap-dir <"] {
        assert!(place(rare) > place("--kv-disk <"), "{rare}");
    }
}

#[test]
fn every_line_is_json_where_that_is_asked() {
    let lines = |args: &[&str], code: i32| {
        let Ended { code: found, stdout, stderr } = ended(args);
        assert_eq!((found, stdout.as_str()), (Some(code), ""), "{stderr}");
        let lines: Vec<Value> = stderr
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        assert!(!lines.is_empty());
        for line in &lines {
            assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
            assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
        }
        lines
    };
    let json = ["--log-format", "json"];
    let refused = lines(&[&["serve", tiny(), "--port", "0", "--memory", "10M"][..], &json].concat(), 2);
    assert!(refused.iter().any(|line| line["level"] == "ERROR"), "{refused:?}");
    lines(&["serve", tiny(), "--log-format=json", "--no-such-option"], 2);
    lines(&["serve", tiny(), "--log-format=json", "--gpu-memory-utilization", "0.9"], 2);
    let mut child = interbed(&[&["serve", tiny(), "--port", "0", "--memory", "512M", "-c", "256"][..], &json].concat())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    // It is kept open: the server goes on to write.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for line in lines.by_ref() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let message = line["message"].as_str().unwrap().to_owned();
        let ready = message.contains("the live page: http://127.0.0.1:");
        seen.push(message);
        if ready {
            break;
        }
    }
    // `interbed ps` asks it.
    let page = seen.last().unwrap().split("the live page: ").nth(1).unwrap();
    let told = succeeded(&["ps", "--url", page]);
    let json: Value = serde_json::from_str(&succeeded(&["ps", "--url", page, "--json"])).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(told.starts_with("tiny  ok  http://127.0.0.1:"), "{told}");
    assert_eq!((&json["models"][0], &json["status"]), (&"tiny".into(), &"ok".into()));
    assert!(seen.iter().any(|line| line.contains("-c 256 is --max-model-len 256")), "{seen:?}");
    assert!(seen.iter().any(|line| line.contains("Serving tiny on")), "{seen:?}");
}
