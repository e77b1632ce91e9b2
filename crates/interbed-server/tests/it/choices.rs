//! Tests several answers to a prompt: samples, the best of them, beams; and how `usage` counts them.

use std::time::Duration;

use interbed_engine::testing::{EOS, ScriptedEngine, Step, answer};
use interbed_engine::{BeamParams, Limits, MissReason, Request};
use interbed_server::{ApiKey, ApiKeys, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

#[tokio::test]
async fn n_samples_have_their_own_seeds() {
    let script = |request: &Request, index: usize| {
        Step::Token(if index == 0 { u32::from(b'a') + request.params.seed as u32 } else { u32::from(b'.') })
    };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let body = json!({"prompt": ["p", "qq"], "n": 3, "best_of": 3, "seed": 1, "max_tokens": 2});
    let answer = server.post("/v1/completions", &body).await.ok();
    let texts: Vec<&str> = answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["b.", "c.", "d.", "b.", "c.", "d."]);
    // Each prompt counts once.
    assert_eq!(answer["usage"]["prompt_tokens"], 2 + 3);
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 1 + 1);
}

#[tokio::test]
async fn best_of_gives_the_likeliest_by_the_mean() {
    // The answers of seeds 0 to 4 grow by one token each; the sum falls throughout, the mean is best at 3.
    let script = |request: &Request, index: usize| {
        let seed = request.params.seed as usize;
        let letter = b"abcde"[seed];
        if index < seed + 1 {
            Step::Likely(u32::from(letter), [-1.0, -0.9, -0.7, -0.6, -2.0][seed])
        } else {
            Step::Likely(EOS, -1.0)
        }
    };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let body = json!({"prompt": ["p", "qq"], "n": 2, "best_of": 5, "seed": 0, "max_tokens": 9});
    let answer = server.post("/v1/completions", &body).await.ok();
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["dddd", "ccc", "dddd", "ccc"]);
    assert!(choices.iter().zip(0..).all(|(choice, index)| choice["index"] == index && choice["logprobs"].is_null()));
    // All generated tokens count, chosen or not; a prompt counts once.
    assert_eq!(answer["usage"]["completion_tokens"], 2 * (2 + 3 + 4 + 5 + 6));
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["prompt_tokens_details"]["cached_tokens"]),
        (&json!(5), &json!(2))
    );
    assert_eq!(server.engine.requests().len(), 10);

    // Chats support it too, with log-probabilities if they are requested.
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"messages": messages, "best_of": 5, "seed": 0, "logprobs": true, "max_tokens": 9});
    let choices = &server.post("/v1/chat/completions", &body).await.ok()["choices"];
    assert_eq!(choices.as_array().unwrap().len(), 1);
    assert_eq!(choices[0]["message"]["content"], "dddd");
    assert_eq!(choices[0]["logprobs"]["content"].as_array().unwrap().len(), 5);

    let streamed = json!({"prompt": "p", "n": 2, "best_of": 3, "stream": true});
    let (status, error) = server.post("/v1/completions", &streamed).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("stream")));
    let (status, error) = server.post("/v1/completions", &json!({"prompt": "p", "n": 3, "best_of": 2})).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("best_of")));
    server
        .post("/v1/completions", &json!({"prompt": "p", "n": 2, "best_of": 2, "seed": 0, "stream": true}))
        .await
        .chunks();
}

#[tokio::test]
async fn beam_search_goes_by_the_model_alone() {
    let mut config = ServerConfig::default();
    config.default_sampling.temperature = 0.6;
    config.default_sampling.top_k = Some(20);
    let server = Server::start(config, answer("x")).await;
    let beam = |more: Value| {
        let mut body = json!({"prompt": "a", "use_beam_search": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let body = beam(json!({"n": 2, "best_of": 4, "length_penalty": 0.5, "early_stopping": true, "temperature": 0}));
    let answer = server.post("/v1/completions", &body).await.ok();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    let request = server.last_request();
    assert_eq!(request.beam, Some(BeamParams { width: 4, length_penalty: 0.5, early_stopping: true }));
    // The model's recommended sampling is not used.
    assert_eq!((request.params.temperature, request.params.top_k), (0.0, None));
    server.post("/v1/completions", &beam(json!({"n": 3, "early_stopping": "never"}))).await.ok();
    assert_eq!(server.last_request().beam, Some(BeamParams { width: 3, ..BeamParams::default() }));
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "use_beam_search": true, "best_of": 3, "max_tokens": 5});
    server.post("/v1/chat/completions", &chat).await.ok();
    assert_eq!(server.last_request().beam, Some(BeamParams { width: 3, ..BeamParams::default() }));

    let (_, error) = server.post("/v1/completions", &beam(json!({}))).await.error();
    assert_eq!(error["param"], "use_beam_search");
    assert!(error["message"].as_str().unwrap().contains("best_of"), "{error:?}");

    for (param, more) in [
        ("temperature", json!({"temperature": 0.5})),
        ("top_p", json!({"top_p": 0.5})),
        ("top_k", json!({"top_k": 5})),
        ("min_p", json!({"min_p": 0.5})),
        ("repetition_penalty", json!({"repetition_penalty": 1.5})),
        ("presence_penalty", json!({"presence_penalty": 1})),
        ("frequency_penalty", json!({"frequency_penalty": 1})),
        ("logit_bias", json!({"logit_bias": {"5": 2}})),
        ("stop", json!({"stop": "x"})),
        ("stream", json!({"stream": true})),
        ("echo", json!({"echo": true, "logprobs": 1})),
        ("best_of", json!({"best_of": 9})),
        ("best_of", json!({"n": 9})),
        ("length_penalty", json!({"length_penalty": 11})),
    ] {
        let mut body = beam(json!({"best_of": 2}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, error) = server.post("/v1/completions", &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{more}");
    }
}

#[tokio::test]
async fn why_the_cache_did_not_hold_more_is_told_on_request() {
    let server = Server::answering("hi").await;
    let plain = server.post("/v1/completions", &json!({"prompt": "abc"})).await.ok();
    assert_eq!(plain["usage"].get("interbed"), None);
    // The scripted engine says that others have cached it, which clients must not learn.
    let miss = |matched: u32| json!({"matched_tokens": matched, "reason": "never_seen"});
    let body = json!({"prompt": ["abc", "abcdef"], "n": 2, "cache_report": true});
    let answer = server.post("/v1/completions", &body).await.ok();
    assert_eq!(answer["usage"]["interbed"], json!({"cache_misses": [miss(2), miss(3)]}));
    let body =
        json!({"prompt": "abc", "cache_report": true, "stream": true, "stream_options": {"include_usage": true}});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert_eq!(chunks.last().unwrap()["usage"]["interbed"], json!({"cache_misses": [miss(2)]}));
}

#[tokio::test]
async fn how_long_ago_is_told_where_there_are_no_others() {
    for (keys, told) in [(vec![], true), (vec!["a"], true), (vec!["a", "b"], false)] {
        let api_keys = ApiKeys::new(&keys.iter().map(|&key| ApiKey::new(key)).collect::<Vec<_>>());
        let server = Server::start(ServerConfig { api_keys, ..ServerConfig::default() }, answer("hi")).await;
        for (reason, name) in [
            (MissReason::Evicted { by: None, lookups_ago: 3 }, "evicted"),
            (MissReason::CacheReset { lookups_ago: 3 }, "cache_reset"),
        ] {
            server.engine.set_miss(reason);
            let body = json!({"prompt": "abc", "cache_report": true}).to_string();
            let header = "Authorization: Bearer a\r\n";
            let answer = server.post_bytes("/v1/completions", header, body.as_bytes()).await.ok();
            let mut expected = json!({"matched_tokens": 2, "reason": name});
            if told {
                expected["lookups_ago"] = 3.into();
            }
            assert_eq!(answer["usage"]["interbed"], json!({"cache_misses": [expected]}), "{keys:?}");
        }
    }
}

#[tokio::test]
async fn making_room_for_others_is_told_and_a_search_counts_once() {
    let script = |request: &Request, index: usize| match index {
        0 | 1 if request.prompt.contains(&97) => Step::Preempted(98),
        0 => Step::Token(98),
        _ => Step::Token(EOS),
    };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let told = async |body: Value| server.post("/v1/completions", &body).await.ok()["usage"]["interbed"].clone();
    assert_eq!(told(json!({"prompt": "b"})).await, json!(null));
    assert_eq!(told(json!({"prompt": "a"})).await, json!({"preemptions": 2}));
    assert_eq!(told(json!({"prompt": ["a", "b", "a"], "n": 3})).await, json!({"preemptions": 12}));
    assert_eq!(told(json!({"prompt": "a", "stop": "bb"})).await, json!({"preemptions": 2}));
    let search = json!({"prompt": ["a", "b", "a"], "n": 3, "use_beam_search": true});
    assert_eq!(told(search).await, json!({"preemptions": 4}));
    let report = told(json!({"prompt": "a", "cache_report": true})).await;
    assert_eq!((&report["preemptions"], report["cache_misses"].as_array().map(Vec::len)), (&json!(2), Some(1)));
}

#[tokio::test]
async fn a_chat_by_beam_search_gets_what_memory_allows() {
    // The engine has 256 blocks of 16 tokens, of which the beams share 63 after a prompt of 1017; requests in flight
    // have 2 MiB.
    let limits = Limits { kv_capacity_tokens: 4096, ..ScriptedEngine::limits() };
    let engine = ScriptedEngine::start(limits, Duration::from_millis(1), answer("x"));
    let server = Server::over(ServerConfig { request_bytes_max: 16 << 20, ..ServerConfig::default() }, engine).await;
    let messages = json!([{"role": "user", "content": "a".repeat(1000)}]);
    for (more, expected) in [
        (json!({"best_of": 1}), 4096 - 1017),
        (json!({"best_of": 4}), (63 + 193 / 4) * 16 + 1 - 1017),
        (json!({"best_of": 8}), (63 + 193 / 8) * 16 + 1 - 1017),
        // A quarter of the 2 MiB that the prompt leaves, at 8 x (108 + 22 x 36) bytes a step.
        (json!({"best_of": 8, "logprobs": true, "top_logprobs": 20}), 67),
    ] {
        let mut chat = json!({"messages": messages, "use_beam_search": true});
        chat.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &chat).await.ok();
        assert_eq!(server.last_request().params.max_tokens, expected, "{more}");
    }
    let chat = json!({"messages": messages, "use_beam_search": true, "best_of": 8, "max_tokens": 400});
    let (status, error) = server.post("/v1/chat/completions", &chat).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("max_tokens")));
}
