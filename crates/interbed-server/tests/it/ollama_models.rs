//! Tests Ollama's API: models, embeddings, and paths of other kinds.

use std::time::{Duration, UNIX_EPOCH};

use interbed_engine::Pooling;
use interbed_engine::testing::{BOS, EMBEDDING_WIDTH, answer, embedding};
use interbed_server::{ApiKey, ApiKeys, Embeddings, ModelFacts, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::Server;

fn facts() -> ModelFacts {
    ModelFacts {
        format: "gguf",
        family: "llama".into(),
        quantization: "Q4_K".into(),
        parameters: 8_030_261_248,
        bytes: 4_920_000_000,
        bytes_on_gpu: 7,
        digest: "5a".repeat(32),
        modified: Some(UNIX_EPOCH + Duration::from_secs(951_868_800)),
        layers: 32,
        hidden_size: 4096,
        feed_forward: 14336,
        heads: 32,
        kv_heads: 8,
    }
}

async fn server() -> Server {
    let config = ServerConfig {
        model_names: vec!["tiny".into(), "org/tiny:1b".into()],
        model: facts(),
        embeddings: Ok(Embeddings { pooling: Pooling::Mean, width: EMBEDDING_WIDTH }),
        ..ServerConfig::default()
    };
    Server::start(config, answer("x")).await
}

fn details() -> Value {
    json!({"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "8.0B",
        "quantization_level": "Q4_K"})
}

#[tokio::test]
async fn the_model_is_told_under_all_its_names() {
    let server = server().await;
    let model = |name: &str| {
        json!({"name": name, "model": name, "modified_at": "2000-03-01T00:00:00.000000Z", "size": 4_920_000_000_u64,
            "digest": "5a".repeat(32), "details": details()})
    };
    let expected = json!({"models": [model("tiny:latest"), model("org/tiny:1b")]});
    assert_eq!(server.get("/api/tags").await.ok(), expected);
    let loaded = server.get("/api/ps").await.ok();
    let mut only = model("tiny:latest");
    only.as_object_mut().unwrap().shift_remove("modified_at");
    only["expires_at"] = loaded["models"][0]["expires_at"].clone();
    (only["size_vram"], only["context_length"]) = (json!(7), json!(4096));
    assert_eq!(loaded, json!({"models": [only]}));
    // The model expires in the distant future.
    assert!(loaded["models"][0]["expires_at"].as_str().is_some_and(|time| time > "2300" && time.len() == 27));
    let told = server.get("/api/version").await.ok();
    assert!(told["version"].as_str().is_some_and(|version| version.split('.').count() == 3), "{told}");
    assert_eq!(told["interbed"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn the_model_is_shown() {
    let server = server().await;
    for asked in [json!({"model": "tiny"}), json!({"name": "tiny:latest", "verbose": true}), json!({})] {
        let told = server.post("/api/show", &asked).await.ok();
        assert_eq!(told["details"], details());
        assert_eq!(told["template"], crate::fixture::TEMPLATE);
        assert_eq!(told["capabilities"], json!(["completion"]));
        assert_eq!(told["modified_at"], "2000-03-01T00:00:00.000000Z");
        let parameters = told["parameters"].as_str().unwrap();
        assert!(parameters.lines().any(|line| line.split_whitespace().eq(["num_ctx", "4096"])), "{parameters}");
        assert!(told["modelfile"].as_str().unwrap().contains("\nPARAMETER num_ctx 4096\n"));
        let info = json!({
            "general.architecture": "llama", "general.basename": "tiny", "general.parameter_count": 8_030_261_248_u64,
            "llama.context_length": 4096, "llama.embedding_length": 4096, "llama.feed_forward_length": 14336,
            "llama.block_count": 32, "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
            "llama.vocab_size": told["model_info"]["llama.vocab_size"],
        });
        assert_eq!(told["model_info"], info);
        assert!(info["llama.vocab_size"].as_u64().is_some_and(|size| size > 256));
    }
    let other = server.post("/api/show", &json!({"model": "other"})).await;
    assert_eq!(other.status, 404);
    assert!(other.json()["error"].as_str().is_some_and(|told| told.contains("tiny, org/tiny:1b")), "{}", other.body);
}

#[tokio::test]
async fn what_the_model_can_be_asked_for_is_told() {
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let thinks =
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{% if tools %}[tools]{% endif %}";
    for (template, expected) in [(plain, json!(["completion", "tools"])), (thinks, json!(["completion", "thinking"]))] {
        let told = Server::with_template(template).await.post("/api/show", &json!({})).await.ok();
        assert_eq!(told["capabilities"], expected, "{template}");
    }
}

#[tokio::test]
async fn names_have_a_tag_or_not_and_answers_carry_them_as_sent() {
    let server = server().await;
    for (name, status) in [
        ("tiny", 200),
        ("tiny:latest", 200),
        ("org/tiny:1b", 200),
        ("org/tiny", 404),
        ("tiny:1b", 404),
        ("", 404),
        ("Tiny", 404),
    ] {
        let told = server.post("/api/generate", &json!({"model": name, "prompt": "a", "stream": false})).await;
        assert_eq!(told.status, status, "{name}");
        assert!(status != 200 || told.json()["model"] == name, "{}", told.body);
    }
}

/// The vector of a prompt, and the same with length 1.
fn expected(prompt: &[u32]) -> [Vec<f64>; 2] {
    let vector: Vec<f64> = embedding(prompt).into_iter().map(f64::from).collect();
    let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    let unit = vector.iter().map(|number| number / length).collect();
    [vector, unit]
}

fn same(got: &Value, expected: &[f64]) {
    let got: Vec<f64> = got.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-5), "{got:?} {expected:?}");
}

#[tokio::test]
async fn texts_become_vectors() {
    let server = server().await;
    let embed = async |more: Value| {
        let mut body = json!({"model": "tiny", "keep_alive": "5m", "options": {"num_thread": 2}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/api/embed", &body).await.ok()
    };
    let told = embed(json!({"input": "ab"})).await;
    let [raw, unit] = expected(&[BOS, 97, 98]);
    same(&told["embeddings"][0], &unit);
    assert_eq!(
        (&told["model"], &told["prompt_eval_count"], &told["load_duration"]),
        (&json!("tiny"), &json!(3), &json!(0))
    );
    assert!(told["total_duration"].as_u64().is_some_and(|nanoseconds| nanoseconds > 0));
    let many: Vec<String> = (0..70).map(|number| format!("t{number}")).collect();
    let told = embed(json!({"input": many})).await;
    assert_eq!(told["embeddings"].as_array().unwrap().len(), 70);
    same(&told["embeddings"][69], &expected(&[BOS, 116, 54, 57])[1]);
    assert_eq!(embed(json!({"input": []})).await["embeddings"], json!([]));
    assert_eq!(embed(json!({"input": "ab", "dimensions": 2})).await["embeddings"][0].as_array().unwrap().len(), 2);
    // A text that is too long is cut at its end, or refused.
    let told = embed(json!({"input": "abcdef", "options": {"num_ctx": 3}})).await;
    same(&told["embeddings"][0], &unit);
    let told = embed(json!({"input": "a".repeat(5000)})).await;
    assert_eq!(told["prompt_eval_count"], 4096);
    let refused = server.post("/api/embed", &json!({"input": "a".repeat(5000), "truncate": false})).await;
    assert!(refused.status == 400 && refused.json()["error"].is_string(), "{}", refused.body);
    // The older path returns the vector as the model computes it.
    let told = server.post("/api/embeddings", &json!({"model": "tiny", "prompt": "ab"})).await.ok();
    same(&told["embedding"], &raw);
    assert_eq!(server.post("/api/embeddings", &json!({"model": "tiny"})).await.ok(), json!({"embedding": []}));
    for (path, body) in [
        ("/api/embed", json!({})),
        ("/api/embed", json!({"input": {}})),
        ("/api/embed", json!({"input": "a", "dimensions": 99})),
        ("/api/embed", json!({"input": "a", "keep_alive": "x"})),
        ("/api/embeddings", json!({"prompt": 1})),
    ] {
        let refused = server.post(path, &body).await;
        assert!(refused.status == 400 && refused.json()["error"].is_string(), "{body} {}", refused.body);
    }
    let none = Server::answering("x").await.post("/api/embed", &json!({"input": "a"})).await;
    assert!(none.status == 400 && none.body.contains("makes no embeddings"), "{}", none.body);
}

#[tokio::test]
async fn other_paths_of_ollamas_say_what_there_is_instead() {
    let server = server().await;
    for (line, told) in [
        ("POST /api/create", "GGUF"),
        ("POST /api/copy", "--served-model-name"),
        ("DELETE /api/delete", "interbed rm NAME"),
        ("POST /api/push", "Hub"),
        ("POST /api/pull", "interbed serve ORG/NAME"),
        ("POST /api/pull", "without a MODEL"),
        ("POST /api/blobs/sha256:00", "GGUF"),
        ("GET /api/status", "/health"),
        ("POST /api/experimental/web_search", "searches"),
    ] {
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let reply = server.send(head.as_bytes()).await;
        let error = reply.json()["error"].as_str().map(str::to_owned).unwrap_or_default();
        let path = line.split(' ').nth(1).unwrap();
        assert!(reply.status == 404 && error.contains(told) && error.contains(path), "{line} {}", reply.body);
    }
    // A client that checks for a server sends HEAD; the page is unchanged.
    let head = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(server.send(head).await.status, 200);
    assert!(server.get("/").await.body.contains("<html"));
    assert_eq!(
        server.send(b"HEAD /api/tags HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.status,
        200
    );
}

#[tokio::test]
async fn a_connection_goes_on_behind_a_path_that_is_not_served() {
    let server = server().await;
    let mut connection = server.connect().await;
    let mut answered = async |request: &[u8], rest: &[u8]| {
        connection.write_all(request).await.unwrap();
        // The body follows the head, as many clients send it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        connection.write_all(rest).await.unwrap();
        let mut reply = vec![0; 4096];
        let count = connection.read(&mut reply).await.unwrap();
        String::from_utf8(reply[..count].to_vec()).unwrap()
    };
    for _ in 0..3 {
        let head = b"DELETE /api/delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n";
        let told = answered(head, br#"{"model": "x"} "#).await;
        assert!(told.starts_with("HTTP/1.1 404") && !told.to_lowercase().contains("connection: close"), "{told}");
        let told = answered(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"").await;
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    }
}

#[tokio::test]
async fn keys_hold_here_too() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    let server = Server::start(config, answer("x")).await;
    for path in ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"] {
        let refused = server.post(path, &json!({})).await;
        assert!(refused.status == 401 && refused.json()["error"].is_string(), "{path} {}", refused.body);
    }
    for path in ["/api/tags", "/api/ps"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
    let body = json!({"prompt": "a", "stream": false}).to_string();
    let told = server.post_bytes("/api/generate", "Authorization: Bearer key\r\n", body.as_bytes()).await.ok();
    assert_eq!(told["response"], "x");
    // The tenant does not depend on the API.
    let whose = |server: &Server| (server.last_request().tenant, server.last_request().cache_salt);
    let by_ollama = whose(&server);
    server.post_bytes("/v1/completions", "Authorization: Bearer key\r\n", br#"{"prompt": "a"}"#).await.ok();
    assert!(by_ollama.0.is_some() && by_ollama == whose(&server));
    let metrics = server.get("/metrics").await.body;
    let is_counted = |line: &str| line.contains("request_success_total") && line.ends_with(" 2");
    assert!(metrics.lines().any(is_counted), "{metrics}");
}
