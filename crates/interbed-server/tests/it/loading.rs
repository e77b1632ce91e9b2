//! Tests a server that listens before it has a model, and one that ends.

use std::time::Duration;

use interbed_engine::testing::{ScriptedEngine, Step, answer};
use interbed_server::{ApiKey, ApiKeys, Drained, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{Server, TEMPLATE, post_request};

fn engine(text: &str) -> ScriptedEngine {
    ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), answer(text))
}

#[tokio::test]
async fn it_tells_how_far_the_model_is_loaded_and_then_serves() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    let (server, door) = Server::loading(&config, engine("hi")).await;
    let health = server.get("/health").await;
    assert_eq!(health.status, 503);
    assert_eq!(health.json(), json!({"status": "loading", "loaded_bytes": 0, "total_bytes": null}));
    assert!(health.head.contains("retry-after: "), "{}", health.head);
    door.progress().set(256, 1024);
    let loading = json!({"status": "loading", "loaded_bytes": 256, "total_bytes": 1024});
    assert_eq!(server.get("/health").await.json(), loading);
    assert!(server.get("/version").await.ok()["version"].is_string());
    assert!(server.get("/openapi.json").await.ok()["paths"].is_object());
    let page = server.get("/metrics").await.body;
    for line in [
        r#"interbed:loading{model_name="interbed",engine="0"} 1"#,
        r#"interbed:healthy{model_name="interbed",engine="0"} 0"#,
        r#"interbed:load_done_bytes{model_name="interbed",engine="0"} 256"#,
        r#"interbed:load_all_bytes{model_name="interbed",engine="0"} 1024"#,
        r#"interbed:http_responses_total{model_name="interbed",engine="0",status="5xx"} 2"#,
    ] {
        assert!(page.lines().any(|candidate| candidate == line), "{line}\n{page}");
    }

    // Requests that need the model are refused, in each API's format, and unknown paths are still unknown.
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/tokenize"] {
        let reply = server.post(path, &json!({"prompt": "a"})).await;
        let (status, error) = reply.error();
        assert_eq!((status, &error["code"]), (503, &json!("loading")), "{path}");
        assert!(error["message"].as_str().unwrap().contains("256 of 1024 bytes"), "{path}");
        assert!(reply.head.contains("retry-after: ") && reply.head.contains("x-request-id: "), "{}", reply.head);
    }
    assert_eq!(server.get("/v1/models").await.error().1["code"], "loading");
    let anthropic = server.post("/v1/messages", &json!({})).await;
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (503, &json!("overloaded_error")));
    for path in ["/api/chat", "/api/embed", "/api/show"] {
        let ollama = server.post(path, &json!({})).await;
        let told = ollama.json();
        assert!(ollama.status == 503 && ollama.head.contains("retry-after: "), "{path} {told}");
        assert!(told["error"].as_str().is_some_and(|told| told.contains("256 of 1024 bytes")), "{path} {told}");
    }
    assert!(server.get("/api/version").await.ok()["version"].is_string());
    assert_eq!(server.get("/nothing").await.status, 404);
    assert!(server.engine.requests().is_empty());

    // An open connection can use the model once it is loaded.
    let mut kept = server.connect().await;
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    kept.write_all(health).await.unwrap();
    let mut buffer = vec![0; 4096];
    let read = kept.read(&mut buffer).await.unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 503"));
    server.open(door, config, TEMPLATE);
    kept.write_all(health).await.unwrap();
    let read = kept.read(&mut buffer).await.unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 200"));
    assert_eq!(server.get("/health").await.ok(), json!({"status": "ok"}));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).await.status, 401);
    let body = br#"{"prompt": "a"}"#;
    server.post_bytes("/v1/completions", "Authorization: Bearer key\r\n", body).await.ok();
    let page = server.get("/metrics").await.body;
    assert!(page.contains(r#"interbed:loading{model_name="interbed",engine="0"} 0"#), "{page}");
}

#[tokio::test]
async fn more_connections_than_before_the_model_are_served_with_it() {
    let (server, door) = Server::loading(&ServerConfig::default(), engine("hi")).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(server.connect().await);
    }
    let mut one_more = server.connect().await;
    one_more.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    server.open(door, ServerConfig::default(), TEMPLATE);
    let mut reply = String::new();
    one_more.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test]
async fn a_server_that_drains_says_so_and_takes_nothing_new() {
    // The script generates two tokens, and then nothing until it is cut.
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Wait };
    let config = ServerConfig { drain_timeout: Duration::from_secs(600), ..ServerConfig::default() };
    let server = Server::start(config, Box::new(script)).await;
    let mut connection = server.connect().await;
    let body = json!({"prompt": "a", "max_tokens": 400, "stream": true}).to_string();
    connection.write_all(&post_request("/v1/completions", "", body.as_bytes())).await.unwrap();
    // The first token has arrived, so the request is in flight.
    let mut reply = vec![0; 1];
    while !String::from_utf8_lossy(&reply).contains("data: ") {
        connection.read_buf(&mut reply).await.unwrap();
    }
    let (mut server, served) = server.begin_stop();
    let health = loop {
        // The server may not have received the signal to stop yet.
        let health = server.get("/health").await;
        if health.status == 503 {
            break health;
        }
    };
    assert_eq!(health.json(), json!({"status": "draining", "sequences_in_flight": 1}));
    assert!(health.head.contains("connection: close"));
    let refused = server.post("/v1/completions", &json!({"prompt": "a"})).await;
    assert_eq!((refused.status, &refused.error().1["code"]), (503, &json!("draining")));
    assert!(refused.head.contains("retry-after: 1"));
    assert!(server.get("/metrics").await.body.contains(r#"interbed:draining{model_name="interbed",engine="0"} 1"#));
    assert_eq!(server.engine.requests().len(), 1);
    server.lose_patience();
    assert_eq!(served.await.unwrap(), Drained::Cut(1));
    connection.read_to_end(&mut reply).await.unwrap();
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.contains("\"error\"") && reply.contains("[DONE]"), "{reply}");
}
