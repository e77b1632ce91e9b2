//! Answers as server-sent events.

use interbed_engine::testing::{Step, answer};
use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

fn texts(chunks: &[Value], of: impl Fn(&Value) -> Option<&str>) -> String {
    chunks.iter().filter_map(|chunk| of(&chunk["choices"][0])).collect()
}

#[tokio::test]
async fn completions_stream_what_they_would_answer() {
    let server = Server::answering("héllo wörld").await;
    let body = json!({"prompt": "a", "stream": true, "stop": "ld", "stream_options": {"include_usage": true}});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert_eq!(texts(&chunks, |choice| choice["text"].as_str()), "héllo wör");
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], "héllo wörld".len());
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == usage["id"]));
    let reasons: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.iter().filter(|reason| !reason.is_null()).count(), 1);
    assert_eq!(reasons.last(), Some(&&json!("stop")));
}

#[tokio::test]
async fn chat_streams_role_content_and_reason() {
    let server = Server::answering("hi!").await;
    let body = json!({"messages": [{"role": "user", "content": "a"}], "stream": true, "n": 2, "logprobs": true});
    let chunks = server.post("/v1/chat/completions", &body).await.chunks();
    for index in 0..2 {
        let own: Vec<Value> = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).cloned().collect();
        assert_eq!(own[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(texts(&own, |choice| choice["delta"]["content"].as_str()), "hi!");
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "stop");
        let entries = own.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
        assert_eq!(entries.flatten().count(), 4, "three characters and the end");
    }
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk.get("usage").is_none()));
}

#[tokio::test]
async fn echo_streams_the_prompt_first() {
    let server = Server::answering("bc").await;
    let body = json!({"prompt": "a", "stream": true, "echo": true, "logprobs": 0});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert_eq!(texts(&chunks, |choice| choice["text"].as_str()), "abc");
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["tokens"], json!(["<s>", "a"]));
    let offsets = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array());
    assert_eq!(offsets.flatten().cloned().collect::<Vec<_>>(), [0, 0, 1, 2, 3]);
}

#[tokio::test]
async fn a_stream_that_fails_says_so() {
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Fail("gone".into()) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let events = server.post("/v1/completions", &json!({"prompt": "a", "stream": true})).await.events();
    let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("gone"));
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn usage_options_need_a_stream() {
    let server = Server::start(ServerConfig::default(), answer("x")).await;
    let body = json!({"prompt": "a", "stream_options": {"include_usage": true}});
    assert_eq!(server.post("/v1/completions", &body).await.error().1["param"], "stream_options");
}
