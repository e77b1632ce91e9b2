//! A coding agent's conversation: a long system prompt, many tools, and turns that each add a little.

use std::fs;

use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{repository, succeeded, text, tiny};

const TURNS: usize = 30;

fn tools() -> Vec<Value> {
    let tool = |number: usize| {
        json!({
            "name": format!("tool_{number}"),
            "description": format!("The tool with the number {number}, which reads, writes or lists a file."),
            "input_schema": {
                "type": "object", "required": ["file", "all"], "additionalProperties": false,
                "properties": {
                    "file": {"enum": ["main.rs", "lib.rs", "README.md"], "description": "Which file."},
                    "all": {"type": "boolean", "description": "Whether all of it."},
                },
            },
        })
    };
    (1..=20).map(tool).collect()
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.ask(&format!("POST {path} HTTP/1.1"), &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
}

#[test]
fn each_turn_of_a_coding_agent_computes_only_what_is_new() {
    // The tiny model with a longer context, and a template that shows tools.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config: Value =
        serde_json::from_slice(&fs::read(format!("{}/config.json", tiny())).expect("a config")).expect("JSON");
    config["max_position_embeddings"] = 32768.into();
    let path = text(&folder.path().join("config.json"));
    fs::write(&path, config.to_string()).expect("a file");
    let model = text(&folder.path().join("model"));
    succeeded(&["synth", "--config", &path, &model]);
    let template = repository().join("tools/clients/template.jinja");
    fs::copy(template, folder.path().join("model/chat_template.jinja")).expect("a template");
    let server = Server::of(&model, &["--memory", "1G"]);

    let rules: Vec<String> = (1..=150).map(|rule| format!("Rule {rule}: change nothing that is not asked.")).collect();
    let (system, tools) = (rules.join("\n"), tools());
    let mut messages = vec![json!({"role": "user", "content": "Read all files, one after the other."})];
    let mut before = 0;
    for turn in 1..=TURNS {
        let body = json!({"model": "model", "system": system, "tools": tools, "messages": messages});
        let counted = post(&server, "/v1/messages/count_tokens", &body)["input_tokens"].as_u64().expect("a number");
        let mut body = body;
        body["max_tokens"] = 200.into();
        body["tool_choice"] = json!({"type": "any", "disable_parallel_tool_use": true});
        let answer = post(&server, "/v1/messages", &body);
        let used = |field: &str| answer["usage"][field].as_u64().expect("a number");
        let cached = used("cache_read_input_tokens");
        assert_eq!(used("input_tokens") + cached, counted, "turn {turn}");
        // The prompt of the turn before is a beginning of this one.
        assert!(cached * 100 >= before * 98, "turn {turn}: {cached} of {before} shared tokens were cached");
        assert!(turn == 1 || before > 2000 && counted > before, "{counted} after {before}");
        before = counted;

        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let content = answer["content"].as_array().expect("blocks");
        let results: Vec<Value> = content
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .map(|call| {
                assert!(call["input"]["file"].is_string() && call["input"]["all"].is_boolean(), "{call}");
                let content = format!("Line {turn} of the file.");
                json!({"type": "tool_result", "tool_use_id": call["id"], "content": content})
            })
            .collect();
        assert!(!results.is_empty());
        messages.push(json!({"role": "assistant", "content": content}));
        messages.push(json!({"role": "user", "content": results}));
    }
}
