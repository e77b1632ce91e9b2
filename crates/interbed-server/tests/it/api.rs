//! Tests each endpoint without streaming.

use interbed_engine::Health;
use interbed_engine::testing::{BOS, Step, answer};
use interbed_server::{ApiKey, ApiKeys, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::Server;

#[tokio::test]
async fn completions_answer_with_text_and_usage() {
    let server = Server::answering("hello world").await;
    let answer = server.post("/v1/completions", &json!({"prompt": "abc", "max_tokens": 5})).await.ok();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "interbed");
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    let expected =
        json!([{"index": 0, "text": "hello", "logprobs": null, "finish_reason": "length", "stop_reason": null}]);
    assert_eq!(answer["choices"], expected);
    // The prompt is BOS and three bytes; the scripted engine reports half of it as cached.
    let cached = json!({"cached_tokens": 2});
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9, "prompt_tokens_details": cached});
    assert_eq!(answer["usage"], usage);
    assert_eq!(server.last_request().prompt, [BOS, 97, 98, 99]);

    let answer = server.post("/v1/completions", &json!({"prompt": "abc"})).await.ok();
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
        (&json!("hello world"), &json!("stop"))
    );
    assert_eq!(server.last_request().params.max_tokens, 16);
}

#[tokio::test]
async fn prompts_come_in_four_forms() {
    let server = Server::answering("x").await;
    for (prompt, expected) in [
        (json!("ab"), vec![vec![BOS, 97, 98]]),
        (json!(["a", "b"]), vec![vec![BOS, 97], vec![BOS, 98]]),
        (json!([1, 2, 3]), vec![vec![1, 2, 3]]),
        (json!([[1, 2], [3]]), vec![vec![1, 2], vec![3]]),
    ] {
        let before = server.engine.requests().len();
        let answer = server.post("/v1/completions", &json!({"prompt": prompt})).await.ok();
        let requests: Vec<Vec<u32>> = server.engine.requests().into_iter().skip(before).map(|r| r.prompt).collect();
        assert_eq!(requests, expected);
        let indices: Vec<&Value> =
            answer["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
        assert_eq!(indices, (0..expected.len()).collect::<Vec<_>>());
        let tokens: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    }
    for prompt in
        [json!([]), json!({}), json!(3), json!([["a"]]), json!(["a", 1]), json!([1, -1]), json!([1, 2.5]), json!(null)]
    {
        let (status, error) = server.post("/v1/completions", &json!({"prompt": prompt})).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("prompt")), "{prompt}");
    }
}

#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let mut config = ServerConfig::default();
    config.default_sampling.temperature = 0.6;
    config.default_sampling.top_k = Some(20);
    config.default_sampling.top_p = 0.9;
    let server = Server::start(config, answer("x")).await;
    server.post("/v1/completions", &json!({"prompt": "a", "user": "me", "no_such_field": 1})).await.ok();
    let params = server.last_request().params;
    assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, Some(20), 0.9));

    let body = json!({
        "prompt": "a", "max_tokens": 7.0, "min_tokens": 2, "temperature": 0, "top_k": -1, "top_p": 0.5, "min_p": 0.1,
        "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0.5, "logit_bias": {"5": 2, "6": -1.5},
        "seed": -3, "ignore_eos": true, "stop_token_ids": [9], "cache_salt": "s", "priority": -2, "logprobs": 2,
        "response_format": {"type": "text"}, "suffix": "", "stop": null,
    });
    server.post("/v1/completions", &body).await.ok();
    let request = server.last_request();
    let params = &request.params;
    assert_eq!((params.max_tokens, params.min_tokens, params.temperature, params.top_k), (7, 2, 0.0, None));
    assert_eq!((params.top_p, params.min_p, params.repetition_penalty), (0.5, 0.1, 1.1));
    assert_eq!((params.presence_penalty, params.frequency_penalty), (-1.0, 0.5));
    assert_eq!(params.logit_bias, [(5, 2.0), (6, -1.5)]);
    assert_eq!((params.seed, params.ignore_eos, params.logprobs), (-3i64 as u64, true, Some(2)));
    assert_eq!((params.stop_token_ids.as_slice(), request.priority), ([9u32].as_slice(), -2));
    assert_eq!(request.cache_salt.as_deref(), Some("s"));
}

#[tokio::test]
async fn stop_strings_end_the_answer() {
    let server = Server::answering("one two three").await;
    let ask = async |more: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 100});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/completions", &body).await.ok();
        let choice = &answer["choices"][0];
        (choice["text"].clone(), choice["finish_reason"].clone(), choice["stop_reason"].clone())
    };
    let expect = |text: &str, stop: Value| (json!(text), json!("stop"), stop);
    assert_eq!(ask(json!({"stop": " t"})).await, expect("one", json!(" t")));
    assert_eq!(ask(json!({"stop": ["zzz", "two"]})).await, expect("one ", json!("two")));
    assert_eq!(ask(json!({"stop": "two", "include_stop_str_in_output": true})).await, expect("one two", json!("two")));
    assert_eq!(ask(json!({"stop": "two", "min_tokens": 8})).await, expect("one two three", json!(null)));
    assert_eq!(ask(json!({"stop_token_ids": [b'w']})).await, expect("one t", json!(b'w')));
}

#[tokio::test]
async fn logprobs_have_the_shape_of_completions() {
    let server = Server::answering("h\u{e9}y").await;
    let answer = server
        .post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 3, "logprobs": 1, "echo": true}))
        .await
        .ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abh\u{e9}");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["<s>", "a", "b", "h", "bytes:\\xc3", "bytes:\\xa9"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][3], json!({"h": -0.5}));
    assert_eq!(logprobs["text_offset"], json!([0, 0, 1, 2, 3, 3]), "<s> is not in the text");
    let offsets = async |body: Value| {
        let answer = server.post("/v1/completions", &body).await.ok();
        answer["choices"][0]["logprobs"]["text_offset"].clone()
    };
    assert_eq!(offsets(json!({"prompt": "ab", "max_tokens": 4, "logprobs": 0})).await, json!([0, 1, 1, 2]));
    let ids = |more: Value| {
        let mut body = json!({"prompt": [256, 97, 257, 98], "max_tokens": 1, "logprobs": 0, "echo": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(offsets(ids(json!({}))).await, json!([0, 0, 1, 1, 2]));
    assert_eq!(offsets(ids(json!({"skip_special_tokens": false}))).await, json!([0, 3, 4, 8, 9]));

    // Returns the prompt alone, with and without its log-probabilities.
    let answer = server
        .post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 0, "logprobs": 0, "echo": true}))
        .await
        .ok();
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["<s>", "a", "b"]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let answer = server.post("/v1/completions", &json!({"prompt": [97, 98], "max_tokens": 0, "echo": true})).await.ok();
    assert_eq!((&answer["choices"][0]["text"], &answer["choices"][0]["logprobs"]), (&json!("ab"), &json!(null)));
    let (status, error) = server.post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 0})).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("max_tokens")));
}

#[tokio::test]
async fn chat_renders_the_template() {
    let server = Server::answering("hi there").await;
    let text_of = |ids: &[u32]| ids.iter().map(|&id| char::from(u8::try_from(id).unwrap())).collect::<String>();
    let ask = async |body: Value| {
        let answer = server.post("/v1/chat/completions", &body).await.ok();
        (answer, text_of(&server.last_request().prompt))
    };
    let (answer, prompt) = ask(json!({"messages": [{"role": "user", "content": "hello"}]})).await;
    assert_eq!(prompt, "<user>hello<assistant>");
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "hi there", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &json!(null)));
    // If the request sets no limit, the answer may fill the context.
    assert_eq!(server.last_request().params.max_tokens, 4096 - prompt.len());

    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let (_, prompt) = ask(json!({"messages": [{"role": "user", "content": parts}], "max_completion_tokens": 3,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
        "chat_template_kwargs": {"mood": "calm"}}))
    .await;
    assert_eq!(prompt, "<user>a\nb[1 tools](calm)<assistant>");
    assert_eq!(server.last_request().params.max_tokens, 3);

    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "begun "}]);
    let (_, prompt) = ask(json!({"messages": messages, "continue_final_message": true})).await;
    assert_eq!(prompt, "<user>q<assistant>begun ");

    let (answer, _) = ask(
        json!({"messages": [{"role": "user", "content": "q"}], "logprobs": true, "top_logprobs": 2, "max_tokens": 1}),
    )
    .await;
    let expected = json!([{"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": [
        {"token": "h", "logprob": -0.5, "bytes": [104]}, {"token": "\u{0}", "logprob": -2.0, "bytes": [0]}]}]);
    assert_eq!(answer["choices"][0]["logprobs"]["content"], expected);
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let server = Server::answering("x").await;
    let answer = server.post("/tokenize", &json!({"model": "interbed", "prompt": "hé"})).await.ok();
    assert_eq!(answer["tokens"], json!([BOS, 104, 195, 169]));
    assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(4), &json!(4096)));
    let answer = server
        .post("/tokenize", &json!({"prompt": "h", "add_special_tokens": false, "return_token_strs": true}))
        .await
        .ok();
    assert_eq!((&answer["tokens"], &answer["token_strs"]), (&json!([104]), &json!(["h"])));
    let answer = server.post("/tokenize", &json!({"messages": [{"role": "u", "content": ""}]})).await.ok();
    assert_eq!(answer["count"], "<u><assistant>".len());
    let answer = server.post("/detokenize", &json!({"tokens": [BOS, 104, 195, 169]})).await.ok();
    assert_eq!(answer["prompt"], "<s>hé");
    let (status, error) = server.post("/detokenize", &json!({"tokens": [258]})).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("tokens")));
    assert_eq!(server.post("/tokenize", &json!({})).await.error().0, 400);
}

#[tokio::test]
async fn models_health_version_and_metrics() {
    let server = Server::answering("four").await;
    let models = server.get("/v1/models").await.ok();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("interbed"), &json!(4096)));
    assert_eq!(server.get("/v1/models/interbed").await.ok()["object"], "model");
    for path in ["/model_info", "/server_info"] {
        let info = server.get(path).await.ok();
        assert_eq!((&info["served_model_name"], &info["tp_size"]), (&models["data"][0]["id"], &1.into()), "{info}");
        assert!(info["max_total_num_tokens"].as_u64() > Some(0) && info["context_length"].as_u64() > Some(0));
    }
    assert_eq!(server.get("/v1/models/org/other").await.error().1["code"], "model_not_found");
    assert!(server.get("/version").await.ok()["version"].is_string());

    server.post("/v1/completions", &json!({"prompt": "a"})).await.ok();
    server.engine.set_status(|status| {
        status.kv.blocks_total = 8;
        status.kv.blocks_used = 2;
        [1, 4, 8, 9].iter().for_each(|&tokens| status.pass_tokens.record(tokens));
    });
    let page = server.get("/metrics").await;
    for line in [
        r#"vllm:kv_cache_usage_perc{model_name="interbed",engine="0"} 0.25"#,
        r#"vllm:request_success_total{model_name="interbed",engine="0",finished_reason="stop"} 1"#,
        r#"vllm:time_to_first_token_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:inter_token_latency_seconds_count{model_name="interbed",engine="0"} 4"#,
        r#"vllm:request_generation_tokens_sum{model_name="interbed",engine="0"} 5"#,
        r#"vllm:prompt_tokens_total{model_name="interbed",engine="0"} 2"#,
        r#"vllm:request_queue_time_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_prefill_time_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_inference_time_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_decode_time_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_time_per_output_token_seconds_count{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_params_n_sum{model_name="interbed",engine="0"} 1"#,
        r#"vllm:request_params_max_tokens_sum{model_name="interbed",engine="0"} 16"#,
        r#"vllm:cache_config_info{model_name="interbed",engine="0",block_size="16",num_gpu_blocks="8"} 1"#,
        r#"vllm:iteration_tokens_total_bucket{model_name="interbed",engine="0",le="8"} 3"#,
        r#"vllm:iteration_tokens_total_sum{model_name="interbed",engine="0"} 22"#,
        r#"interbed:http_responses_total{model_name="interbed",engine="0",status="2xx"} 6"#,
    ] {
        assert!(page.body.lines().any(|candidate| candidate == line), "{line}\n{}", page.body);
    }

    assert_eq!(server.get("/health").await.ok(), json!({"status": "ok"}));
    server.engine.set_status(|status| status.health = Health::Stalled("no step for 60 s".into()));
    let (status, error) = server.get("/health").await.error();
    assert_eq!(status, 503);
    assert!(error["message"].as_str().unwrap().contains("no step for 60 s"));
}

#[tokio::test]
async fn failures_and_overload_have_their_status() {
    let server = Server::start(ServerConfig::default(), Box::new(|_, _| Step::Fail("disk on fire".into()))).await;
    let (status, error) = server.post("/v1/completions", &json!({"prompt": "a"})).await.error();
    assert_eq!((status, &error["type"]), (500, &json!("server_error")));
    assert!(error["message"].as_str().unwrap().contains("disk on fire"));

    let mut limits = interbed_engine::testing::ScriptedEngine::limits();
    limits.max_waiting = 0;
    let engine =
        interbed_engine::testing::ScriptedEngine::start(limits, std::time::Duration::from_millis(1), answer("x"));
    let server = Server::over(ServerConfig::default(), engine).await;
    let reply = server.post("/v1/completions", &json!({"prompt": "a"})).await;
    assert_eq!((reply.status, reply.error().1["code"].clone()), (429, json!("queue_full")));
    assert_eq!(reply.error().1["type"], "rate_limit_error");
    assert!(reply.head.contains("retry-after: 1"));
    let message = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
    let anthropic = server.post("/v1/messages", &message).await;
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (429, &json!("rate_limit_error")));
}

#[tokio::test]
async fn api_keys_are_asked_for_and_separate_caches() {
    let config =
        ServerConfig { api_keys: ApiKeys::new(&["key-a", "key-b"].map(ApiKey::new)), ..ServerConfig::default() };
    let server = Server::start(config, answer("x")).await;
    let body = json!({"prompt": "a", "cache_salt": "s"}).to_string();
    let ask = async |header: &str| server.post_bytes("/v1/completions", header, body.as_bytes()).await;
    for header in ["", "Authorization: Bearer key-c\r\n", "Authorization: key-a\r\n"] {
        let (status, error) = ask(header).await.error();
        assert_eq!((status, &error["code"]), (401, &json!("invalid_api_key")));
    }
    assert!(server.engine.requests().is_empty());
    let (mut salts, mut tenants) = (Vec::new(), Vec::new());
    for key in ["key-a", "key-b", "key-a"] {
        ask(&format!("Authorization: Bearer {key}\r\n")).await.ok();
        salts.push(server.last_request().cache_salt.expect("a salt"));
        tenants.push(server.last_request().tenant.expect("a tenant"));
    }
    assert!(salts[0] != salts[1] && salts[0] == salts[2]);
    assert!(tenants[0] != tenants[1] && tenants[0] == tenants[2], "each has a share of its own");
    assert!(salts.iter().all(|salt| !salt.contains("key-")));
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/v1/models").await.status, 401);
}

#[tokio::test]
async fn paths_without_v1_are_known_and_guarded_alike() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    let (open, guarded) = (Server::answering("x").await, Server::start(config, answer("x")).await);
    for (path, body) in [
        ("/completions", json!({"prompt": "a"})),
        ("/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
    ] {
        let answered = open.post(path, &body).await.ok();
        assert_eq!(answered["choices"], open.post(&format!("/v1{path}"), &body).await.ok()["choices"]);
        assert_eq!(guarded.post(path, &body).await.status, 401);
    }
    assert_eq!(open.get("/models").await.ok(), open.get("/v1/models").await.ok());
    assert_eq!(guarded.get("/models").await.status, 401);
    for path in ["/ping", "/v1/health"] {
        assert_eq!((open.get(path).await.status, guarded.get(path).await.status), (200, 200));
    }
}

#[tokio::test]
async fn other_names_of_fields_do_what_they_say() {
    let server = Server::answering("x").await;
    server.post("/v1/completions", &json!({"prompt": "a", "repeat_penalty": 1.5, "mirostat": 0})).await.ok();
    assert_eq!(server.last_request().params.repetition_penalty, 1.5);
    let both = json!({"prompt": "a", "repeat_penalty": 1.5, "repetition_penalty": 1.4});
    assert_eq!(server.post("/v1/completions", &both).await.error().1["param"], "repeat_penalty");
    let some = json!({"prompt": "a", "repeat_penalty": 1.5, "repeat_last_n": 64});
    assert_eq!(server.post("/v1/completions", &some).await.error().1["param"], "repeat_last_n");
    server.post("/v1/completions", &json!({"prompt": "a", "repeat_penalty": 1, "repeat_last_n": 64})).await.ok();
    let chat = |more: Value| with(json!({"messages": [{"role": "user", "content": "a"}]}), more);
    let text = |more: Value| with(json!({"prompt": "a"}), more);
    for (path, body) in [("/v1/completions", text(json!({}))), ("/v1/chat/completions", chat(json!({})))] {
        let asked = async |more: Value| {
            server.post(path, &with(body.clone(), more)).await.ok();
            let request = server.last_request();
            (request.params.max_tokens, request.prompt.len())
        };
        assert_eq!(asked(json!({"n_predict": 3})).await.0, 3);
        assert_eq!(asked(json!({"n_predict": 3, "max_tokens": 3})).await.0, 3);
        for most in [json!({"max_tokens": -1}), json!({"max_completion_tokens": -1}), json!({"n_predict": -2})] {
            let (most, prompt) = asked(most).await;
            assert_eq!(most, 4096 - prompt);
        }
        let both = with(body.clone(), json!({"n_predict": 3, "max_tokens": 4}));
        assert_eq!(server.post(path, &both).await.error().1["param"], "n_predict");
        let less = with(body.clone(), json!({"max_tokens": -3}));
        let (_, error) = server.post(path, &less).await.error();
        assert!(error["message"].as_str().unwrap().contains("-1 for no limit"), "{error:?}");
    }
    let seed = async || {
        server.post("/v1/completions", &json!({"prompt": "a", "seed": -1})).await.ok();
        server.last_request().params.seed
    };
    assert_ne!(seed().await, seed().await, "-1 is a random seed");
    // Several prompts share the memory for log-probabilities.
    server.post("/v1/completions", &json!({"prompt": ["a", "b"], "max_tokens": -1, "logprobs": 20})).await.ok();
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn tool_calls_without_content_suit_templates_that_add_texts() {
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let prompt_of = async |template: &str, message: Value| {
        let server = Server::with_template(template).await;
        let messages = json!([{"role": "user", "content": "q"}, message]);
        server.post("/v1/chat/completions", &json!({"messages": messages})).await.ok();
        String::from_utf8(server.last_request().prompt.iter().map(|&id| id as u8).collect()).unwrap()
    };
    let adds = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
    for content in [json!({"content": null}), json!({})] {
        let mut message = json!({"role": "assistant", "tool_calls": call});
        message.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        assert_eq!(prompt_of(adds, message).await, "<q><>");
    }
    // Some templates show calls only if the content is `none`, so empty content of either kind becomes `none`.
    let tests = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function | tojson }}{% else %}\
        {{ m.content }}{% endif %}{% endfor %}";
    for content in [json!(null), json!("")] {
        let message = json!({"role": "assistant", "content": content, "tool_calls": call});
        assert_eq!(prompt_of(tests, message).await, "q{\"name\": \"f\", \"arguments\": {}}");
    }
}

#[tokio::test]
async fn templates_that_mean_harm_end_with_an_error() {
    for template in [
        "{{ 'a\nb' | indent(1000000000000) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    ] {
        let server = Server::with_template(template).await;
        let body = json!({"messages": [{"role": "user", "content": "q"}]});
        let (status, error) = server.post("/v1/chat/completions", &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("messages")), "{error:?}");
        assert!(error["message"].as_str().unwrap().contains("bytes"), "{error:?}");
        assert_eq!(server.get("/health").await.status, 200);
    }
}
