//! Tests requests that exceed the context: agents recognise that, and shorten their conversation.

use std::time::Duration;

use interbed_engine::Limits;
use interbed_engine::testing::{ScriptedEngine, answer};
use interbed_server::{Embeddings, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

const CONTEXT: usize = 200;

async fn server() -> Server {
    let limits = Limits { max_model_len: CONTEXT, model_context: CONTEXT, ..ScriptedEngine::limits() };
    let engine = ScriptedEngine::start(limits, Duration::from_millis(1), answer("x"));
    let embeddings = Ok(Embeddings { pooling: interbed_engine::Pooling::Last, width: 4 });
    Server::over(ServerConfig { embeddings, ..ServerConfig::default() }, engine).await
}

#[tokio::test]
async fn too_long_a_prompt_is_told_in_words_and_a_code_that_agents_know() {
    let server = server().await;
    // A text that is tokenized, and one so long that it need not be.
    for length in [CONTEXT + 50, 100_000] {
        let text = "w".repeat(length);
        let chat = json!([{"role": "user", "content": text}]);
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": chat})),
            ("/v1/completions", json!({"prompt": text})),
            ("/v1/responses", json!({"input": text})),
            ("/v1/embeddings", json!({"input": text})),
            ("/v1/chat/completions", json!({"messages": chat, "stream": true})),
        ] {
            let (status, error) = server.post(path, &body).await.error();
            assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{path}: {error:?}");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with("this model's maximum context length is 200 tokens, "), "{path}: {message}");
        }
        let reply = server.post("/v1/messages", &json!({"messages": chat, "max_tokens": 5})).await;
        let told: Value = serde_json::from_str(&reply.body).unwrap();
        let message = told["error"]["message"].as_str().unwrap();
        let numbers = message.strip_prefix("prompt is too long: ").and_then(|rest| rest.split_once(" maximum "));
        let (tokens, limit) = numbers.and_then(|(numbers, _)| numbers.split_once(" tokens > ")).expect(message);
        let (tokens, limit): (usize, usize) = (tokens.parse().unwrap(), limit.parse().unwrap());
        assert!((CONTEXT - 1..=CONTEXT).contains(&limit) && tokens > limit, "{message}");
        assert_eq!((reply.status, &told["error"]["type"]), (400, &json!("invalid_request_error")));
        assert_eq!(told["error"]["details"]["error_code"], "context_length_exceeded");
    }
}

#[tokio::test]
async fn a_stream_of_a_response_tells_it_in_its_events() {
    let server = server().await;
    let reply = server.post("/v1/responses", &json!({"input": "w".repeat(CONTEXT + 50), "stream": true})).await;
    let events = reply.named_events();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names, ["response.created", "response.in_progress", "response.failed"]);
    assert!(events.iter().zip(0..).all(|(event, number)| event["sequence_number"] == number));
    let response = &events[2]["response"];
    assert_eq!(
        (reply.status, &response["status"], &response["error"]["code"]),
        (200, &json!("failed"), &json!("context_length_exceeded"))
    );
    // Other errors keep their status.
    let body = json!({"input": "a", "top_p": 7, "stream": true});
    assert_eq!(server.post("/v1/responses", &body).await.status, 400);
}

#[tokio::test]
async fn an_answer_beyond_the_context_is_refused_alike() {
    let server = server().await;
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1_000_000})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": CONTEXT})),
    ] {
        let (status, error) = server.post(path, &body).await.error();
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{path}: {error:?}");
        assert_eq!(error["param"], "max_tokens");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("maximum context length is 200 tokens") && message.contains("lower max_tokens"));
    }
    // A request that just fits is answered, and other wrong fields are not mistaken for this error.
    server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": CONTEXT - 2})).await.ok();
    let (_, error) = server.post("/v1/completions", &json!({"prompt": "a", "top_p": 7})).await.error();
    assert_eq!(error["code"], Value::Null);
}
