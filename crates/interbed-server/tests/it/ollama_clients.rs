//! Tests requests in Ollama's format as clients send them: Continue, Open WebUI and others, with all their fields.

use interbed_engine::testing::answer;
use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

async fn server() -> Server {
    let config = ServerConfig {
        model_names: vec!["llama3.2".into()],
        tool_parser: Some("hermes".into()),
        ..ServerConfig::default()
    };
    Server::start(config, answer("I see.")).await
}

/// The text of all lines of a stream.
fn text(lines: &[Value], at: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(at)?.as_str()).collect()
}

#[tokio::test]
async fn continue_finds_the_model_and_chats_with_it() {
    let server = server().await;
    // The client names the model in an older field, and reads `num_ctx` line by line.
    let shown = server.post("/api/show", &json!({"name": "llama3.2"})).await.ok();
    let parameters = shown["parameters"].as_str().unwrap();
    let values = parameters.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let values: Vec<Vec<&str>> = values.collect();
    assert!(values.iter().all(|line| line.len() == 2) && values.contains(&vec!["num_ctx", "4096"]), "{parameters}");
    assert!(!shown["template"].as_str().unwrap().contains(".Suffix"));
    let options = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 40, "num_predict": 2048, "stop": "</s>",
        "num_ctx": 4096, "mirostat": 0, "num_thread": 8, "use_mmap": true, "min_p": 0.05});
    let chat = json!({"model": "llama3.2", "options": options, "keep_alive": 1800, "stream": true, "messages": [
        {"role": "system", "content": "You are in an IDE."}, {"role": "user", "content": "hi"}]});
    let lines = server.post("/api/chat", &chat).await.lines();
    assert_eq!(text(&lines, "/message/content"), "I see.");
    assert_eq!(server.last_request().params.max_tokens, 2048);
    // Code is completed with a prompt that the client has built itself.
    let prompt = json!({"model": "llama3.2", "prompt": "<PRE> a <SUF> b <MID>", "raw": true, "options": options,
        "keep_alive": 1800, "stream": true});
    let lines = server.post("/api/generate", &prompt).await.lines();
    assert_eq!(text(&lines, "/response"), "I see.");
    // An agent's tools come without streaming.
    let tools = json!([{"type": "function", "function": {"name": "ls", "description": "List", "parameters": {
        "type": "object", "properties": {"dir": {"type": "string"}}, "required": ["dir"]}}}]);
    let mut agent = chat;
    (agent["tools"], agent["stream"]) = (tools, json!(false));
    assert_eq!(server.post("/api/chat", &agent).await.ok()["message"]["content"], "I see.");
}

#[tokio::test]
async fn open_webui_lists_chats_and_embeds() {
    let config = ServerConfig {
        model_names: vec!["llama3.2".into()],
        embeddings: Ok(interbed_server::Embeddings { pooling: interbed_engine::Pooling::Mean, width: 4 }),
        ..ServerConfig::default()
    };
    let server = Server::start(config, answer("I see.")).await;
    let listed = server.get("/api/tags").await.ok();
    let name = listed["models"][0]["model"].as_str().unwrap().to_owned();
    // The client compares the parts of a version as numbers.
    let version = server.get("/api/version").await.ok();
    assert!(version["version"].as_str().unwrap().split('.').all(|part| part.parse::<u32>().is_ok()));
    assert_eq!(server.get("/api/ps").await.ok()["models"][0]["model"], name.as_str());
    let chat = json!({
        "model": name,
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I see."},
            {"role": "user", "content": "And?", "images": []}],
        "options": {"temperature": 0.8, "top_p": 0.9, "seed": 1, "num_predict": 128, "mirostat": 0,
            "mirostat_eta": 0.1, "mirostat_tau": 5.0, "num_ctx": 2048, "num_batch": 512, "num_keep": 24,
            "repeat_last_n": -1, "tfs_z": 1, "top_k": 40, "min_p": 0.0, "repeat_penalty": 1.1, "use_mmap": true,
            "use_mlock": false, "num_thread": 2, "num_gpu": 1, "stop": []},
        "keep_alive": "5m", "think": null, "format": null, "tools": [], "stream": true,
    });
    let lines = server.post("/api/chat", &chat).await.lines();
    assert_eq!(text(&lines, "/message/content"), "I see.");
    let last = lines.last().unwrap();
    for figure in ["total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"] {
        assert!(last[figure].as_u64().is_some_and(|figure| figure > 0), "{figure} in {last}");
    }
    let vectors = server.post("/api/embed", &json!({"input": ["a", "b"], "model": name, "truncate": true})).await.ok();
    assert_eq!(vectors["embeddings"].as_array().map(Vec::len), Some(2));
}
