//! Tests fields that vLLM added to the OpenAI API.

use interbed_engine::testing::{BOS, Step};
use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test]
async fn words_and_ids_reach_the_engine() {
    let server = Server::answering("x").await;
    let body = json!({"prompt": "a", "bad_words": ["no", " way"], "allowed_token_ids": [120, 121]});
    server.post("/v1/completions", &body).await.ok();
    let params = server.last_request().params;
    // With bytes as tokens, a word with a space ends with the tokens of the word itself, which suffice.
    assert_eq!(params.bad_words, [ids("no"), ids("way")]);
    assert_eq!(params.allowed_token_ids, [120, 121]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "bad_words": ["no"], "allowed_token_ids": []});
    server.post("/v1/chat/completions", &chat).await.ok();
    let params = server.last_request().params;
    assert_eq!((params.bad_words, params.allowed_token_ids), (vec![ids("no")], vec![]));
    let beams = json!({"prompt": "a", "use_beam_search": true, "n": 2, "bad_words": ["no"]});
    assert_eq!(server.post("/v1/completions", &beams).await.error().1["param"], "bad_words");
}

#[tokio::test]
async fn log_probabilities_of_the_prompt() {
    let server = Server::answering("xyz").await;
    let body = json!({"prompt": "ab", "max_tokens": 1, "n": 2, "prompt_logprobs": 1});
    let answer = server.post("/v1/completions", &body).await.ok();
    let entry = |token: &str| json!({"logprob": -0.5, "rank": 1, "decoded_token": token});
    let expected = json!([null, {"97": entry("a")}, {"98": entry("b")}]);
    for index in 0..2 {
        assert_eq!(answer["choices"][index]["prompt_logprobs"], expected);
        assert_eq!(
            (&answer["choices"][index]["logprobs"], &answer["choices"][index]["text"]),
            (&Value::Null, &json!("x"))
        );
    }
    assert!(answer.get("prompt_logprobs").is_none());
    let two = json!({"prompt": "ab", "max_tokens": 1, "prompt_logprobs": 2, "echo": true, "logprobs": 0});
    let answer = server.post("/v1/completions", &two).await.ok();
    let other = json!({"logprob": -2.0, "rank": 2, "decoded_token": "\u{0}"});
    assert_eq!(answer["choices"][0]["prompt_logprobs"][1], json!({"97": entry("a"), "0": other}));
    assert_eq!(answer["choices"][0]["logprobs"]["top_logprobs"][1], json!({"a": -0.5}), "as many as logprobs says");

    let chat = json!({"messages": [{"role": "user", "content": "a"}], "n": 2, "prompt_logprobs": 0});
    let answer = server.post("/v1/chat/completions", &chat).await.ok();
    let told = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(told.len(), answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize);
    assert_eq!((&told[0], &told[1]), (&Value::Null, &json!({"117": entry("u")})));
    assert!(answer["choices"][1].get("prompt_logprobs").is_none());

    for (path, mut body) in [("/v1/completions", json!({"prompt": "ab"})), ("/v1/chat/completions", chat)] {
        body["prompt_logprobs"] = json!(0);
        body["stream"] = json!(true);
        assert_eq!(server.post(path, &body).await.error().1["param"], "prompt_logprobs");
    }
}

#[tokio::test]
async fn prompts_that_are_too_long_are_cut() {
    let server = Server::start(ServerConfig::default(), Box::new(|_, _| Step::Token(97))).await;
    let ask = async |path: &str, more: Value| {
        let mut body = more;
        body["max_tokens"] = json!(10);
        let answer = server.post(path, &body).await.ok();
        assert_eq!(answer["usage"]["prompt_tokens"], server.last_request().prompt.len());
        server.last_request().prompt
    };
    let kept = [vec![BOS], ids("fg")].concat();
    assert_eq!(ask("/v1/completions", json!({"prompt": "abcdefg", "truncate_prompt_tokens": 3})).await, kept);
    assert_eq!(ask("/v1/completions", json!({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2})).await, [2, 3]);
    let whole = ask("/v1/completions", json!({"prompt": "abc", "truncate_prompt_tokens": 300})).await;
    assert_eq!(whole.len(), 4);
    let long = "x".repeat(6000);
    assert_eq!(ask("/v1/completions", json!({"prompt": long, "truncate_prompt_tokens": -1})).await.len(), 4096 - 10);
    let chat = json!({"messages": [{"role": "user", "content": "abc"}], "truncate_prompt_tokens": 12});
    assert_eq!(ask("/v1/chat/completions", chat).await, ids("c<assistant>"));
    let echo = json!({"prompt": "abc", "echo": true, "truncate_prompt_tokens": 2});
    assert_eq!(server.post("/v1/completions", &echo).await.error().1["param"], "truncate_prompt_tokens");
    let long = json!({"prompt": long, "truncate_prompt_tokens": 5000});
    assert_eq!(server.post("/v1/completions", &long).await.error().1["param"], "prompt");
}
