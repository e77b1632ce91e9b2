//! Tests the names that clients may request, and those in responses.

use interbed_engine::Pooling;
use interbed_engine::testing::answer;
use interbed_server::{Embeddings, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

async fn server(any_model_name: bool) -> Server {
    let config = ServerConfig {
        model_names: vec!["first".into(), "second".into()],
        any_model_name,
        embeddings: Ok(Embeddings { pooling: Pooling::Last, width: 4 }),
        ..ServerConfig::default()
    };
    Server::start(config, answer("x")).await
}

/// Requests to all APIs whose responses contain the model's name.
fn requests(model: &str) -> Vec<(&'static str, Value)> {
    let chat = json!([{"role": "user", "content": "a"}]);
    let bodies = [
        ("/v1/chat/completions", json!({"messages": chat})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/messages", json!({"messages": chat, "max_tokens": 5})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/embeddings", json!({"input": "a"})),
    ];
    bodies
        .into_iter()
        .map(|(path, mut body)| {
            body["model"] = model.into();
            (path, body)
        })
        .collect()
}

#[tokio::test]
async fn answers_carry_the_first_of_the_names() {
    let server = server(false).await;
    for name in ["first", "second"] {
        for (path, body) in requests(name) {
            assert_eq!(server.post(path, &body).await.ok()["model"], "first", "{path}");
        }
    }
    for (path, body) in requests("third") {
        assert_eq!(server.post(path, &body).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn any_name_is_taken_and_told_where_that_is_wished() {
    let server = server(true).await;
    for name in ["gpt-5", "second", "claude \"x\""] {
        for (path, body) in requests(name) {
            assert_eq!(server.post(path, &body).await.ok()["model"], name, "{path}");
        }
    }
    // Streams contain it too, and requests without a name get the first one.
    let body = json!({"prompt": "a", "model": "gpt-5", "stream": true});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk["model"] == "gpt-5"));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).await.ok()["model"], "first");
    // Only what is served is listed; each chunk repeats the name, so it has a limit.
    let listed = server.get("/v1/models").await.ok();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "second"]);
    let one = server.get("/v1/models/gpt-5").await.ok();
    assert_eq!((&one["id"], &one["root"]), (&json!("gpt-5"), &json!("first")));
    for (path, body) in requests(&"x".repeat(257)) {
        assert_eq!(server.post(path, &body).await.status, 400, "{path}");
    }
}
