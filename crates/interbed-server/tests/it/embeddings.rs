//! Tests embeddings.

use interbed_engine::Pooling;
use interbed_engine::testing::{BOS, EMBEDDING_WIDTH, answer, embedding};
use interbed_server::{Embeddings, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

async fn server() -> Server {
    let embeddings = Ok(Embeddings { pooling: Pooling::Mean, width: EMBEDDING_WIDTH });
    Server::start(ServerConfig { embeddings, ..ServerConfig::default() }, answer("x")).await
}

/// The vector of a prompt.
fn expected(prompt: &[u32], dimensions: usize) -> Vec<f64> {
    let vector: Vec<f64> = embedding(prompt).into_iter().take(dimensions).map(f64::from).collect();
    let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    vector.into_iter().map(|number| number / length).collect()
}

fn same(got: &Value, expected: &[f64]) {
    let got: Vec<f64> = got.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6), "{got:?} {expected:?}");
}

#[tokio::test]
async fn inputs_come_in_four_forms() {
    let server = server().await;
    for (input, prompts) in [
        (json!("ab"), vec![vec![BOS, 97, 98]]),
        (json!(["a", "b"]), vec![vec![BOS, 97], vec![BOS, 98]]),
        (json!([1, 2, 3]), vec![vec![1, 2, 3]]),
        (json!([[1, 2], [3]]), vec![vec![1, 2], vec![3]]),
    ] {
        let told = server.post("/v1/embeddings", &json!({"model": "interbed", "input": input})).await.ok();
        assert_eq!((&told["object"], &told["model"]), (&json!("list"), &json!("interbed")));
        let data = told["data"].as_array().unwrap();
        assert_eq!(data.len(), prompts.len());
        for (index, (entry, prompt)) in data.iter().zip(&prompts).enumerate() {
            assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
            same(&entry["embedding"], &expected(prompt, EMBEDDING_WIDTH));
        }
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        assert_eq!(told["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    }
    let request = server.last_request();
    assert_eq!((request.embed, request.params.max_tokens), (Some(Pooling::Mean), 0));
    // More inputs than are computed at a time, in order.
    let many: Vec<Vec<u32>> = (0..200).map(|id| vec![id, 7]).collect();
    let told = server.post("/v1/embeddings", &json!({"input": many})).await.ok();
    for (index, prompt) in many.iter().enumerate() {
        assert_eq!(told["data"][index]["index"], index);
        same(&told["data"][index]["embedding"], &expected(prompt, EMBEDDING_WIDTH));
    }
}

#[tokio::test]
async fn vectors_are_cut_and_written_in_two_ways() {
    let server = server().await;
    let ask = async |more: Value| {
        let mut body = json!({"input": [3, 5], "user": "me"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/embeddings", &body).await.ok()["data"][0]["embedding"].clone()
    };
    same(&ask(json!({"dimensions": 2})).await, &expected(&[3, 5], 2));
    same(&ask(json!({"dimensions": 4, "encoding_format": "float"})).await, &expected(&[3, 5], 4));
    same(&ask(json!({"truncate_prompt_tokens": 1})).await, &expected(&[5], 4));
    let text = ask(json!({"encoding_format": "base64", "dimensions": 3})).await;
    let floats = ask(json!({"dimensions": 3})).await;
    let bytes: Vec<u8> =
        floats.as_array().unwrap().iter().flat_map(|number| (number.as_f64().unwrap() as f32).to_le_bytes()).collect();
    assert_eq!(decoded(text.as_str().unwrap()), bytes);
}

/// The bytes of a text in base64, bit by bit.
fn decoded(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut number, mut bytes) = (0, 0u32, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        number = number << 6 | ALPHABET.iter().position(|&known| known == byte).unwrap() as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((number >> bits) as u8);
        }
    }
    bytes
}

#[tokio::test]
async fn what_cannot_be_embedded_is_named() {
    let server = server().await;
    for (param, value) in [
        ("input", json!(null)),
        ("input", json!([])),
        ("input", json!("")),
        ("input", json!({})),
        ("input", json!([300])),
        ("input", json!(vec!["x"; 2049])),
        ("dimensions", json!(0)),
        ("dimensions", json!(5)),
        ("encoding_format", json!("hex")),
        ("model", json!("other")),
    ] {
        let mut body = json!({"input": "a"});
        body[param] = value;
        // Without a beginning-of-sequence token, an empty text has no tokens.
        body["add_special_tokens"] = json!(false);
        let (_, error) = server.post("/v1/embeddings", &body).await.error();
        let named = error["param"].as_str().unwrap().replace("prompt", "input");
        assert_eq!(named, param, "{body} {error:?}");
    }
    let none = Server::answering("x").await;
    let (status, error) = none.post("/v1/embeddings", &json!({"input": "a"})).await.error();
    assert!(status == 400 && error["message"].as_str().unwrap().contains("no embeddings"));
}

#[tokio::test]
async fn answers_that_memory_has_no_room_for() {
    let embeddings = Ok(Embeddings { pooling: Pooling::Last, width: 1 << 20 });
    let server = Server::start(ServerConfig { embeddings, ..ServerConfig::default() }, answer("x")).await;
    let (status, error) = server.post("/v1/embeddings", &json!({"input": "a"})).await.error();
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
    assert!(server.engine.requests().is_empty());
}
