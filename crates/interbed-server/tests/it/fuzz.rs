//! Tests damaged and hostile bodies, generated from a seed: no response is an error of the server, and the server
//! survives. `INTERBED_FUZZ_SECONDS` sets the duration (10 s), `INTERBED_FUZZ_SEED` the first seed.

use std::time::{Duration, Instant};

use interbed_engine::Pooling;
use interbed_engine::testing::{EMBEDDING_WIDTH, answer};
use interbed_server::{Embeddings, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

/// A sequence of numbers generated from a seed.
struct Dice(fastrand::Rng);

impl Dice {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit.max(1))
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Valid bodies that use every kind of field.
fn wholes() -> [(&'static str, Value); 7] {
    let shared = json!({"model": "interbed", "max_tokens": 2, "n": 2, "best_of": 2, "temperature": 0.5, "top_k": 3,
        "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
        "logit_bias": {"97": 1.5}, "seed": 7, "stop": ["x", "y"], "stop_token_ids": [98], "ignore_eos": false,
        "stream": false, "cache_salt": "s", "priority": 1, "mirostat": 0, "response_format": {"type": "text"}});
    let with = |own: Value| {
        let mut body = shared.clone();
        body.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
        body
    };
    let call = json!([{"type": "function", "id": "1", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]);
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "tool_calls": call}, {"role": "tool", "content": "b"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let ollama = json!([{"role": "user", "content": "a", "images": []}, {"role": "assistant", "thinking": "t",
        "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {"a": [1]}}}]},
        {"role": "tool", "tool_name": "f", "content": "b"}]);
    let options = json!({"temperature": 0.5, "top_k": 3, "num_predict": 2, "num_ctx": 4096, "seed": -1,
        "stop": ["x"], "repeat_penalty": 1.1, "repeat_last_n": -1, "num_thread": 4, "mirostat": 0});
    [
        ("/v1/completions", with(json!({"prompt": ["ab", "c"], "echo": true, "logprobs": 2}))),
        (
            "/v1/chat/completions",
            with(json!({"messages": messages, "tools": tools, "logprobs": true, "top_logprobs": 2,
                "chat_template_kwargs": {"mood": "calm"}})),
        ),
        ("/tokenize", json!({"prompt": "ab", "return_token_strs": true})),
        ("/detokenize", json!({"tokens": [97, 98]})),
        (
            "/api/chat",
            json!({"messages": ollama, "tools": tools, "options": options, "think": false, "keep_alive": "5m",
                "format": {"type": "object"}, "logprobs": true, "top_logprobs": 2, "stream": false}),
        ),
        ("/api/generate", json!({"prompt": "ab", "system": "c", "options": options, "raw": false, "format": "json"})),
        ("/api/embed", json!({"input": ["ab", "c"], "truncate": true, "dimensions": 2, "options": options})),
    ]
}

/// Changes a random value inside.
fn damage(dice: &mut Dice, value: &mut Value) {
    let replacements = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1u64 << 40),
        json!(-1e300),
        json!(1.5),
        json!(""),
        json!("a"),
        json!("é😀".repeat(2000)),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"a": {"a": {}}}),
        json!(true),
        json!([97]),
        json!(vec![1; 3000]),
        json!(u64::MAX),
        json!({"$serde_json::private::Number": "1"}),
    ];
    let deeper = dice.below(6) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(dice.below(map.len())).cloned().unwrap_or_default();
            match dice.below(12) {
                0 => drop(map.remove(&key)),
                1 => drop(map.insert(key.to_uppercase() + "_", json!(1))),
                2 => drop(map.insert("stream".into(), json!(true))),
                _ => damage(dice, &mut map[&key]),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = dice.below(list.len());
            match dice.below(6) {
                0 => drop(list.remove(at)),
                1 => {
                    let copies = vec![list[at].clone(); *dice.one(&[1, 3, 300])];
                    list.extend(copies);
                }
                _ => damage(dice, &mut list[at]),
            }
        }
        _ => *value = dice.one(&replacements).clone(),
    }
}

#[tokio::test]
async fn bodies_get_an_answer() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seconds, first) = (number("INTERBED_FUZZ_SECONDS", 10), number("INTERBED_FUZZ_SEED", 1));
    let embeddings = Ok(Embeddings { pooling: Pooling::Mean, width: EMBEDDING_WIDTH });
    let config = ServerConfig { embeddings, ..ServerConfig::default() };
    let mut server = Server::start(config.clone(), answer("xy")).await;
    for (path, whole) in wholes() {
        let reply = server.post(path, &whole).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    }
    let (began, mut answered) = (Instant::now(), 0);
    for seed in first.. {
        if began.elapsed() > Duration::from_secs(seconds) {
            assert!(seed > first + 100 && answered > 10, "{answered} of {} cases were answered", seed - first);
            return;
        }
        // The engine of this test keeps each request with its schema, for which there is only so much memory.
        if (seed - first) % 1000 == 999 {
            server = Server::start(config.clone(), answer("xy")).await;
        }
        let mut dice = Dice(fastrand::Rng::with_seed(seed));
        let (path, mut body) = dice.one(&wholes()).clone();
        for _ in 0..=dice.below(3) {
            damage(&mut dice, &mut body);
        }
        let mut bytes = body.to_string().into_bytes();
        for _ in 0..[0, 0, 0, 2][dice.below(4)] {
            let at = dice.below(bytes.len());
            match dice.below(3) {
                0 => bytes.truncate(at),
                1 => bytes[at] = dice.below(256) as u8,
                _ => bytes.insert(at, *dice.one(b"[]{},:\"\\0-\x00")),
            }
            bytes.push(b' ');
        }
        let case = Instant::now();
        let reply = server.post_bytes(path, "", &bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
        assert!(reply.status < 500, "seed {seed}: {path} {shown}: {} {}", reply.status, reply.body);
        assert!(case.elapsed() < Duration::from_secs(20), "seed {seed}: {path} {shown}: {:?}", case.elapsed());
        if reply.status >= 400 {
            let of_ollama = path.starts_with("/api/") && reply.json()["error"].is_string();
            assert!(of_ollama || reply.error().0 >= 400);
        } else {
            answered += 1;
        }
    }
}
