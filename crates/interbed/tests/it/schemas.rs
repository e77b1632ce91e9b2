//! Schemas and grammars that would take long or much: each is refused or met, nobody waits for it, and nothing is left
//! of it. `tools/hostile` sends many more.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{repository, text};

/// Patterns for one text, of which the library would go through every choice.
fn patterns(count: usize) -> Value {
    let many = (0..count).map(|least| json!({"type": "string", "pattern": format!("a{{{least},}}")}));
    json!({"allOf": many.collect::<Vec<_>>()})
}

fn of_schema(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
}

/// What is refused, with a part of the message; or would take long if it were compiled as it is written.
fn refused() -> Vec<(Value, &'static str)> {
    let by_name = |index: usize| format!("^{}[a-z]{{{index},}}x", "ab".repeat(index / 20 + 1));
    let names: serde_json::Map<_, _> = (0..400).map(|index| (by_name(index), json!({"type": "string"}))).collect();
    let intersection = (0..26).map(|least| format!("/(.*)a{{{least},}}(.*)/")).collect::<Vec<_>>().join(" & ");
    let within = format!("start: \"x\" j\nj: %json {}\n", patterns(26));
    let in_members = json!({"type": "object", "properties": {"x": patterns(26)}});
    let function = json!({"name": "f", "strict": true, "parameters": in_members});
    let tools = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"});
    let doubled = (0..40).map(|index| {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
        let twice = json!({"type": "object", "properties": {"a": next, "b": next}});
        (format!("d{index}"), json!({"allOf": [twice, twice]}))
    });
    let mut defs: serde_json::Map<_, _> = doubled.collect();
    defs.insert("d40".into(), json!({"type": "string"}));
    vec![
        (of_schema(&patterns(26)), "26 patterns and formats have to match one text"),
        (of_schema(&in_members), "#/properties/x of the schema: 26 patterns"),
        (tools, "patterns and formats"),
        (json!({"guided_json": patterns(9)}), "9 patterns"),
        (json!({"guided_grammar": within}), "patterns and formats"),
        (json!({"guided_grammar": format!("start: T\nT: {intersection}\n")}), "simplify it"),
        (of_schema(&json!({"type": "object", "patternProperties": names, "additionalProperties": false})), ""),
        (of_schema(&json!({"$ref": "#/$defs/d0", "$defs": defs})), ""),
    ]
}

#[test]
fn what_would_take_long_is_refused_and_nobody_waits_for_it() {
    let storyteller = text(&repository().join("models/storyteller"));
    let keys = ["--api-key", "theirs", "--api-key", "mine", "--memory", "400M", "--tool-parser", "hermes"];
    let server = Server::of(&storyteller, &keys);
    let post = |key: &str, path: &str, body: &Value| {
        server.ask(&format!("POST {path} HTTP/1.1\r\nAuthorization: Bearer {key}"), &body.to_string())
    };
    let (post, hostile) = (&post, refused());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut answered = 0;
            while !is_over.load(Ordering::Relaxed) {
                let body = json!({"prompt": "Once", "max_tokens": 4, "ignore_eos": true});
                let answer = post("mine", "/v1/completions", &body);
                assert!(answer.contains(r#""completion_tokens":4"#), "{answer}");
                let bound = json!({"prompt": "Once", "max_tokens": 4, "guided_choice": ["yes", "no"]});
                let answer = post("mine", "/v1/completions", &bound);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                let health = server.ask("GET /health HTTP/1.1", "");
                assert!(health.contains(r#"{"status":"ok"}"#), "{health}");
                answered += 1;
            }
            answered
        });
        let senders: Vec<_> = hostile
            .iter()
            .map(|(fields, told)| {
                scope.spawn(move || {
                    let mut body = fields.clone();
                    body["max_tokens"] = 4.into();
                    let path = match fields.get("tools") {
                        Some(_) => "/v1/chat/completions",
                        None => "/v1/completions",
                    };
                    body["prompt"] = "Once".into();
                    if fields.get("tools").is_some() {
                        body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": fields["tools"],
                                      "tool_choice": "required", "max_tokens": 4});
                    }
                    // On busy processors a schema may not get its processor time in 5 s: the answer says to ask again.
                    let is_early = |answer: &String| {
                        answer.starts_with("HTTP/1.1 503") && answer.contains("compiled within 5 s; try again later")
                    };
                    let mut answers = std::iter::repeat_with(|| post("theirs", path, &body)).take(20);
                    let answer = answers.find(|answer| !is_early(answer)).expect("an answer");
                    // What is not refused by a limit may be answered, as long as nobody waits for it.
                    let is_answered = told.is_empty() && answer.starts_with("HTTP/1.1 200");
                    let is_refused = answer.starts_with("HTTP/1.1 400") && answer.contains(*told);
                    assert!(is_answered || is_refused, "{told}: {answer}");
                })
            })
            .collect();
        let ended: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(others.join().unwrap() > 0);
        assert!(ended.iter().all(Result::is_ok));
    });
    // What is left has nothing to do.
    let idle = |_: &u32| {
        let before = processor_ticks(server.id());
        thread::sleep(Duration::from_millis(300));
        processor_ticks(server.id()) - before < 10
    };
    let since = Instant::now();
    assert!((0..50).any(|round| idle(&round)), "it still computes after {:?}", since.elapsed());
    let (code, said) = server.stop("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

/// Processor time of the workers that a server has started, in the system's ticks.
fn processor_ticks(server: u32) -> u64 {
    let of = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse().ok())
            .collect();
        fields.iter().sum::<u64>()
    };
    let tasks = fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children.map(|children| children.split_whitespace().map(of).sum::<u64>()).sum()
}

#[test]
fn the_process_that_compiles_ends_with_the_server() {
    let server = Server::of(&text(&repository().join("models/storyteller")), &["--memory", "400M"]);
    let bound = json!({"prompt": "Once", "max_tokens": 2, "guided_regex": "[a-z]+"}).to_string();
    assert!(server.ask("POST /v1/completions HTTP/1.1", &bound).starts_with("HTTP/1.1 200"));
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().flatten();
    let children: String = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    let workers: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(workers.len(), 1, "{children}");
    server.kill();
    // One that nobody has asked how it ended is gone as well.
    let stat = || fs::read_to_string(format!("/proc/{}/stat", workers[0])).unwrap_or_default();
    let is_gone = || stat().rsplit(')').next().is_none_or(|rest| rest.trim().is_empty() || rest.starts_with(" Z"));
    let gone = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(20));
        is_gone()
    });
    assert!(gone, "{children} is left");
}
