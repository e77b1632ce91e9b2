//! Tests answers as server-sent events.

use std::time::Duration;

use interbed_engine::Request;
use interbed_engine::testing::{EOS, ScriptedEngine, Step, answer};
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

/// A server whose requests wait some 200 ms in the queue, and about as long for each of their tokens, and whose streams
/// are silent for at most 20 ms.
pub async fn slow_server() -> Server {
    let script = |_: &_, index: usize| match index {
        0 => Step::Token(b'a'.into()),
        1 => Step::Token(b'b'.into()),
        _ => Step::Token(EOS),
    };
    let config = ServerConfig { silence_max: Duration::from_millis(20), ..ServerConfig::default() };
    let step = Duration::from_millis(200);
    let engine = ScriptedEngine::start(ScriptedEngine::limits(), step, Box::new(script));
    Server::over(config, engine).await
}

#[tokio::test]
async fn chats_and_completions_tell_that_they_wait() {
    let server = slow_server().await;
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/v1/completions", json!({"prompt": "a"})),
    ] {
        let mut body = body;
        (body["stream"], body["stream_options"]) = (json!(true), json!({"include_usage": true}));
        let chunks = server.post(path, &body).await.chunks();
        let (usage, chunks) = chunks.split_last().unwrap();
        assert!(usage["usage"]["completion_tokens"] == 3 && chunks.iter().all(|chunk| chunk["id"] == usage["id"]));
        let is_empty = |chunk: &&Value| {
            let choice = &chunk["choices"][0];
            let nothing = choice["delta"] == json!({}) || choice["text"] == "";
            nothing && choice["index"] == 0 && choice["finish_reason"].is_null() && chunk["usage"].is_null()
        };
        // There are some empty events before the first token, and between tokens.
        let waits = chunks.iter().filter(is_empty).count();
        assert!(waits > 6 && is_empty(&&chunks[0]), "{path}: {chunks:?}");
        let text = |choice: &Value| -> Option<String> {
            let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
            text.map(str::to_owned)
        };
        let told: String = chunks.iter().filter_map(|chunk| text(&chunk["choices"][0])).collect();
        assert_eq!(told, "ab");
    }
}

#[tokio::test]
async fn no_choice_goes_on_behind_its_end() {
    // The first choice ends at once, the second is slow.
    let script = |request: &Request, index: usize| match (request.params.seed, index) {
        (1, 0) => Step::Token(EOS),
        (_, 0 | 1) => Step::Token(b'a'.into()),
        _ => Step::Token(EOS),
    };
    let config = ServerConfig { silence_max: Duration::from_millis(20), ..ServerConfig::default() };
    let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(200), Box::new(script));
    let server = Server::over(config, engine).await;
    let body = json!({"messages": [{"role": "user", "content": "a"}], "stream": true, "n": 2, "seed": 1});
    let chunks = server.post("/v1/chat/completions", &body).await.chunks();
    for index in 0..2 {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let reasons: Vec<_> = own.map(|choice| &choice["finish_reason"]).collect();
        let ended = reasons.iter().position(|reason| !reason.is_null()).unwrap();
        assert_eq!(ended, reasons.len() - 1, "choice {index}: {chunks:?}");
    }
    let waits = chunks.iter().filter(|chunk| chunk["choices"][0]["delta"] == json!({})).count();
    assert!(waits > 6, "{chunks:?}");
}

/// Tokens without reportable text are no sign of life either.
#[tokio::test]
async fn what_is_held_back_is_waited_for() {
    // A possible stop string arrives token by token.
    let script = |_: &_, index: usize| Step::Token(if index < 40 { b'x'.into() } else { EOS });
    let config = ServerConfig { silence_max: Duration::from_millis(20), ..ServerConfig::default() };
    let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(10), Box::new(script));
    let server = Server::over(config, engine).await;
    let body = json!({"prompt": "a", "stream": true, "max_tokens": 100, "stop": format!("{}y", "x".repeat(60))});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert!(chunks.len() > 6, "{chunks:?}");
    assert_eq!(texts(&chunks, |choice| choice["text"].as_str()), "x".repeat(40));
}
