//! Tests wrong or hostile input: it is refused with the right status, and nothing else is affected.

use std::time::{Duration, Instant};

use interbed_engine::Request;
use interbed_engine::testing::{ScriptedEngine, Step, answer};
use interbed_server::{ApiKey, ApiKeys, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{Server, post_request};

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::answering("x").await;
    for (field, value) in [
        ("max_tokens", json!("many")),
        ("max_tokens", json!(-3)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1_000_000)),
        ("max_tokens", json!(1e300)),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(-0.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("best_of", json!(0)),
        ("best_of", json!(1000)),
        ("use_beam_search", json!("yes")),
        ("length_penalty", json!(2)),
        ("early_stopping", json!(true)),
        ("early_stopping", json!("always")),
        ("cache_report", json!(1)),
        ("seed", json!("x")),
        ("stop", json!(3)),
        ("stop", json!([1])),
        ("stop", json!([""])),
        ("stop", json!("x".repeat(2000))),
        ("stop", json!(vec!["x"; 10_000])),
        ("stop_token_ids", json!([258])),
        ("stop_token_ids", json!(["a"])),
        ("logit_bias", json!({"258": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1": 1, " 1": 1})),
        ("logit_bias", json!({"1": "x"})),
        ("logit_bias", json!([1])),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("stream", json!("yes")),
        ("suffix", json!("end")),
        ("typical_p", json!(0.5)),
        ("mirostat", json!(2)),
        ("dry_multiplier", json!(0.8)),
        ("xtc_probability", json!(0.1)),
        ("return_token_ids", json!(true)),
        ("continue_final_message", json!(true)),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("repeat_penalty", json!("x")),
        ("repeat_last_n", json!("x")),
        ("response_format", json!({"type": "xml"})),
        ("guided_json", json!(3)),
        ("priority", json!(1u64 << 40)),
        ("priority", json!(101)),
        ("priority", json!(-101)),
        ("bad_words", json!("x")),
        ("bad_words", json!([1])),
        ("bad_words", json!([" "])),
        ("bad_words", json!(["x".repeat(2000)])),
        ("bad_words", json!(vec!["x"; 257])),
        ("bad_words", json!(vec!["x".repeat(100); 20])),
        ("allowed_token_ids", json!([300])),
        ("allowed_token_ids", json!(["a"])),
        ("prompt_logprobs", json!(21)),
        ("prompt_logprobs", json!(-1)),
        ("truncate_prompt_tokens", json!(0)),
        ("truncate_prompt_tokens", json!(-2)),
        ("truncate_prompt_tokens", json!("all")),
        ("cache_salt", json!(1)),
        ("cache_salt", json!("x".repeat(2000))),
        ("prompt", json!("x".repeat(5000))),
        ("prompt", json!([300])),
        ("prompt", json!(vec!["x"; 257])),
    ] {
        let mut body = json!({"prompt": "a"});
        body[field] = value;
        let (status, error) = server.post("/v1/completions", &body).await.error();
        assert_eq!(
            (status, &error["param"], &error["type"]),
            (400, &json!(field), &json!("invalid_request_error")),
            "{body}"
        );
    }
    let stops = server.post("/v1/completions", &json!({"prompt": "a", "stop": vec!["x"; 10_000]})).await.error().1;
    assert!(stops["message"].as_str().unwrap().contains("10000") && stops["message"].as_str().unwrap().contains("64"));
    assert!(server.engine.requests().is_empty());
}

#[tokio::test]
async fn wrong_chats_are_named() {
    let server = Server::answering("x").await;
    let user = json!([{"role": "user", "content": "a"}]);
    for (param, body) in [
        ("messages", json!({})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "hello"})),
        ("messages[0]", json!({"messages": ["hello"]})),
        ("messages[0].role", json!({"messages": [{"content": "a"}]})),
        (
            "messages[1].content",
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 3}]}),
        ),
        (
            "messages[0].content[0].type",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ),
        ("tool_choice", json!({"messages": user, "tool_choice": "required"})),
        ("top_logprobs", json!({"messages": user, "top_logprobs": 3})),
        (
            "continue_final_message",
            json!({"messages": user, "continue_final_message": true, "add_generation_prompt": true}),
        ),
        ("chat_template_kwargs", json!({"messages": user, "chat_template_kwargs": 1})),
        ("chat_template", json!({"messages": user, "chat_template": "{{ messages }}"})),
        ("echo", json!({"messages": user, "echo": true})),
        ("prompt", json!({"messages": user, "prompt": "a"})),
        ("tools[0].type", json!({"messages": user, "tools": [{}]})),
        (
            "tools[0].function.parameters",
            json!({"messages": user, "tools": [{"type": "function", "function": {"name": "f", "parameters": 42}}]}),
        ),
    ] {
        let (status, error) = server.post("/v1/chat/completions", &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body}");
    }
    let hidden = "[".repeat(100) + &"]".repeat(100);
    let hidden = json!([{"role": "user", "content": "a", "x": {"$serde_json::private::RawValue": hidden}}]);
    let (status, error) = server.post("/v1/chat/completions", &json!({"messages": hidden})).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("messages")), "{error:?}");
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    let (_, error) = server.post("/v1/chat/completions", &image).await.error();
    assert!(error["message"].as_str().unwrap().contains("image_url"));
}

#[tokio::test]
async fn unknown_routes_methods_and_models() {
    let server = Server::answering("x").await;
    let (status, error) = server.get("/v1/nothing").await.error();
    assert_eq!((status, &error["code"]), (404, &json!("not_found")));
    for (path, instead) in [
        ("/completion", "/v1/completions"),
        ("/slots", "/metrics"),
        ("/props", "/model_info"),
        ("/infill", "fill-in-the-middle"),
        ("/apply-template", "/tokenize"),
        ("/embedding", "/v1/embeddings"),
    ] {
        for reply in [server.get(path).await, server.post(path, &json!({})).await] {
            let (status, error) = reply.error();
            assert_eq!((status, error["message"].as_str().unwrap().contains(instead)), (404, true), "{error:?}");
        }
    }
    let (status, error) = server.get("/v1/completions").await.error();
    assert_eq!((status, error["message"].as_str().unwrap().contains("send POST")), (405, true), "{error:?}");
    let (status, error) = server.post("/v1/models/interbed", &json!({})).await.error();
    assert_eq!((status, error["message"].as_str().unwrap().contains("send GET")), (405, true), "{error:?}");
    let (status, error) = server.post("/v1/completions", &json!({"model": "gpt", "prompt": "a"})).await.error();
    assert_eq!((status, &error["param"], &error["code"]), (404, &json!("model"), &json!("model_not_found")));
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let server = Server::answering("x").await;
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let deep_field = format!("{{\"prompt\": {deep}}}");
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"[]", b"\"a\"", b"{\"prompt\": \"\xff\xfe\"}", deep.as_bytes(), deep_field.as_bytes()];
    for body in bodies {
        let (status, _) = server.post_bytes("/v1/completions", "", body).await.error();
        assert_eq!(status, 400);
    }
    let form = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
                 text/plain\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(server.send(form).await.error().0, 415);
}

/// A body of `bytes` bytes, almost all of them the prompt or the message.
fn long_text(path: &str, unit: &str, bytes: usize) -> Vec<u8> {
    let text = unit.repeat(bytes / unit.len());
    match path {
        "/v1/chat/completions" => format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}]}}"),
        _ => format!("{{\"prompt\": \"{text}\"}}"),
    }
    .into_bytes()
}

/// Peak resident memory of this process in bytes.
fn peak_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

#[tokio::test]
async fn prompts_that_would_fill_memory() {
    let server = Server::answering("x").await;
    // Two bytes each in the body; twelve as tokens of a sequence.
    let many = format!("{{\"prompt\": [{}0]}}", "0,".repeat(2_000_000));
    let (status, error) = server.post_bytes("/v1/completions", "", many.as_bytes()).await.error();
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
    // Commas in a text are not values, and the text is too long for the context however it is tokenized.
    let (status, error) = server.post("/v1/completions", &json!({"prompt": "a,\\\"[".repeat(500_000)})).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("prompt")));
    assert!(error["message"].as_str().unwrap().contains("2500000 bytes"), "{error:?}");
    let long = json!({"messages": [{"role": "user", "content": "a".repeat(1_000_000)}]});
    assert_eq!(server.post("/v1/chat/completions", &long).await.error().1["param"], "messages");
    // Echoed log-probabilities of a prompt within the context.
    let body = json!({"prompt": vec![97; 4000], "echo": true, "logprobs": 20, "n": 8, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).await.error().1["code"], "request_too_large");
    assert!(server.engine.requests().is_empty());
}

#[tokio::test]
async fn long_texts_take_no_more_memory_than_is_set_aside() {
    // The context is large enough for all of these texts, so only memory refuses them.
    let mut limits = ScriptedEngine::limits();
    limits.max_model_len = 64 << 20;
    let engine = ScriptedEngine::start(limits, Duration::from_millis(1), answer("x"));
    let config = ServerConfig { body_bytes_max: 16 << 20, ..ServerConfig::default() };
    let server = std::sync::Arc::new(Server::over(config, engine).await);
    let before = peak_resident();
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for path in ["/tokenize", "/v1/completions", "/v1/chat/completions"] {
        for unit in ["a ", "a", "\\u0001"] {
            for bytes in [3 << 20, 7 << 20] {
                let server = server.clone();
                tasks.spawn(async move { server.post_bytes(path, "", &long_text(path, unit, bytes)).await.error() });
            }
        }
    }
    for (status, error) in tasks.join_all().await {
        assert!(matches!(status, 400 | 413 | 503), "{error:?}");
        assert!(status == 503 || error["message"].as_str().unwrap().contains("memory"), "{error:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // This process also holds the clients' own copies of 90 MiB, twice, and other tests.
    let grown = peak_resident() - before;
    assert!(grown < (128 + 2 * 90 + 64) << 20, "{} MiB", grown >> 20);
    // Requests that fit are served meanwhile.
    let answer = server.post_bytes("/tokenize", "", &long_text("/tokenize", "a ", 64 << 10)).await.ok();
    assert_eq!(answer["count"], (64 << 10) + 1);
}

#[tokio::test]
async fn large_requests_wait_for_each_other() {
    let mut limits = ScriptedEngine::limits();
    limits.max_model_len = 1 << 20;
    let engine = ScriptedEngine::start(limits, Duration::from_millis(1), answer("x"));
    let server = std::sync::Arc::new(Server::over(ServerConfig::default(), engine).await);
    // Each request uses some 11 of the 24 MiB for requests that are being prepared, and gives them back.
    let body = json!({"prompt": vec![1; 70_000], "max_tokens": 1, "user": "x".repeat(2 << 20)}).to_string();
    let body = std::sync::Arc::new(body.into_bytes());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (server, body) = (server.clone(), body.clone());
        tasks.spawn(async move { server.post_bytes("/v1/completions", "", &body).await.ok() });
    }
    for answer in tasks.join_all().await {
        assert_eq!(answer["usage"]["prompt_tokens"], 70_000);
    }
}

#[tokio::test]
async fn one_keys_requests_leave_memory_for_others() {
    let keys = ["a", "b"].map(ApiKey::new);
    let config = ServerConfig { api_keys: ApiKeys::new(&keys), ..ServerConfig::default() };
    let mut limits = ScriptedEngine::limits();
    limits.max_model_len = 8192;
    let script = |request: &Request, _| if request.prompt.len() > 100 { Step::Wait } else { Step::Token(97) };
    let engine = ScriptedEngine::start(limits, Duration::from_millis(1), Box::new(script));
    let server = Server::over(config, engine).await;
    let body = json!({"prompt": vec![1; 4000], "n": 20, "max_tokens": 9, "stream": true}).to_string();
    let mut of_b = Vec::new();
    for _ in 0..24 {
        let mut stream = server.connect().await;
        let headers = "Authorization: Bearer b\r\n";
        stream.write_all(&post_request("/v1/completions", headers, body.as_bytes())).await.unwrap();
        of_b.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let small = json!({"prompt": "a", "max_tokens": 3}).to_string();
    let began = Instant::now();
    let reply = server.post_bytes("/v1/completions", "Authorization: Bearer a\r\n", small.as_bytes()).await;
    assert_eq!((reply.status, began.elapsed() < Duration::from_secs(4)), (200, true), "{}", reply.body);
}

#[tokio::test]
async fn answers_that_outgrow_the_memory_end() {
    // Two hundred sequences of 4000 tokens with 21 entries each are some 17 GB of JSON values.
    let server = Server::start(ServerConfig::default(), Box::new(|_, _| Step::Token(97))).await;
    let body = json!({"prompt": "a", "max_tokens": 4000, "n": 200, "logprobs": 20});
    let (status, error) = server.post("/v1/completions", &body).await.error();
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
    assert!(server.engine.requests().is_empty(), "it was refused before anything was computed");
    // A single answer can also be too large; streamed, it is not held.
    let mut body = json!({"prompt": "a", "max_tokens": 4000, "logprobs": 20});
    assert_eq!(server.post("/v1/completions", &body).await.error().0, 413);
    body["stream"] = json!(true);
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    // A chat without a limit ends at what fits.
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 20});
    let answer = server.post("/v1/chat/completions", &chat).await.ok();
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((500..4000).contains(&tokens), "{tokens}");
    assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len() as u64, tokens);
    assert_eq!(
        server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 3})).await.ok()["choices"][0]["text"],
        "aaa"
    );
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let server = Server::answering("x").await;
    let body = json!({"prompt": "x".repeat(5 << 20)}).to_string();
    let (status, error) = server.post_bytes("/v1/completions", "", body.as_bytes()).await.error();
    assert_eq!(status, 413);
    assert!(error["message"].as_str().unwrap().contains(&(4 << 20).to_string()));
    // Chunked, so that the length is not known beforehand.
    let mut stream = server.connect().await;
    stream
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
              Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        )
        .await
        .unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..5 {
        stream.write_all(&chunk).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    // The server still works.
    server.post("/v1/completions", &json!({"prompt": "a"})).await.ok();
}

#[tokio::test]
async fn slow_clients_are_cut() {
    let config = ServerConfig {
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let server = Server::start(config, answer("x")).await;
    for start in ["", "GET /health HT", "GET /health HTTP/1.1\r\nHost: localhost\r\n"] {
        let began = Instant::now();
        let mut stream = server.connect().await;
        stream.write_all(start.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        // The connection ends, with or without a response.
        let _ = stream.read_to_end(&mut reply).await;
        let elapsed = began.elapsed();
        assert!(elapsed >= Duration::from_millis(150) && elapsed < Duration::from_secs(10), "{start:?}: {elapsed:?}");
    }
    let mut stream = server.connect().await;
    let whole = post_request("/v1/completions", "", b"{\"prompt\": \"a\"}");
    stream.write_all(&whole[..whole.len() - 3]).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
}

#[tokio::test]
async fn bodies_that_never_come_hold_no_memory() {
    let config = ServerConfig { body_timeout: Duration::from_secs(8), ..ServerConfig::default() };
    let server = Server::start(config, answer("x")).await;
    let body = json!({"prompt": "a", "user": "x".repeat(3 << 20)});
    // Each client declares half of the memory for bodies, and then sends next to nothing, or only a part.
    for sent in [1, 1 << 20] {
        let mut idle = Vec::new();
        for _ in 0..8 {
            let stream = server.connect().await;
            let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                        Content-Length: 4000000\r\n\r\n";
            let part = [head.as_bytes(), &b" ".repeat(sent)].concat();
            // Bodies that wait for memory are not read.
            let (reading, mut writing) = stream.into_split();
            idle.push((reading, tokio::spawn(async move { (writing.write_all(&part).await, writing) })));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        server.post("/v1/completions", &json!({"prompt": "a"})).await.ok();
        if sent == 1 {
            server.post("/v1/completions", &body).await.ok();
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        }
        for (mut stream, _) in idle.drain(..).filter(|_| sent > 1) {
            // Slow bodies gave up their memory to waiting ones.
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            assert!(reply.starts_with("HTTP/1.1 408") || reply.starts_with("HTTP/1.1 503"), "{reply}");
        }
    }
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let config = ServerConfig { connections_max: 4, tokenizing_max: 1, ..ServerConfig::default() };
    let server = std::sync::Arc::new(Server::start(config, answer("fine")).await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let server = server.clone();
        tasks.spawn(async move { server.post("/v1/completions", &json!({"prompt": "a", "n": 4})).await.ok() });
    }
    let answers: Vec<Value> = tasks.join_all().await;
    assert_eq!(answers.len(), 32);
    assert!(answers.iter().all(|answer| answer["choices"][3]["text"] == "fine"));
}
