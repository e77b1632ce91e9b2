//! Anthropic's API.

use serde_json::{Value, json};
use strata_engine::testing::{Step, answer};
use strata_server::ServerConfig;

use crate::fixture::{Reply, Server};

fn body(more: Value) -> Value {
    let mut body = json!({"model": "strata", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The prompt that reached the engine, as text.
fn prompt(server: &Server) -> String {
    server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect()
}

/// Status and `error` of a refusal, whose shape is checked.
fn refused(reply: &Reply) -> (u16, String, String) {
    let told = reply.json();
    assert_eq!(told["type"], "error", "{told}");
    let text = |field: &str| told["error"][field].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    (reply.status, text("type"), text("message"))
}

#[tokio::test]
async fn messages_are_answered() {
    let server = Server::answering("hello there").await;
    let reply = server.post("/v1/messages", &body(json!({}))).await;
    let told = reply.ok();
    assert!(told["id"].as_str().unwrap().starts_with("msg_"));
    let expected = json!({
        "id": told["id"], "type": "message", "role": "assistant", "model": "strata",
        "content": [{"type": "text", "text": "hello there"}], "stop_reason": "end_turn", "stop_sequence": null,
        // The prompt is "<user>hi<assistant>", of which the scripted engine finds half in its cache.
        "usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 12,
        },
    });
    assert_eq!(told, expected);
    assert_eq!(prompt(&server), "<user>hi<assistant>");

    let more = json!({
        "stop_sequences": ["th", "zz"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "metadata": {"user_id": "me"},
    });
    let told = server.post("/v1/messages", &body(more)).await.ok();
    assert_eq!((&told["content"][0]["text"], &told["stop_reason"]), (&json!("hello "), &json!("stop_sequence")));
    assert_eq!(told["stop_sequence"], "th");
    let params = server.last_request().params;
    assert_eq!((params.temperature, params.top_p, params.top_k, params.max_tokens), (0.5, 0.9, Some(3), 100));

    let told = server.post("/v1/messages", &body(json!({"max_tokens": 2}))).await.ok();
    assert_eq!((&told["stop_reason"], &told["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(2)));
}

#[tokio::test]
async fn conversations_are_rendered() {
    let server = Server::answering("x").await;
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    for (more, expected) in [
        (json!({"system": "be kind"}), "<system>be kind<user>hi<assistant>"),
        (json!({"system": [text("be"), text("kind")]}), "<system>be\nkind<user>hi<assistant>"),
        (json!({"messages": [{"role": "user", "content": [text("a"), text("b")]}]}), "<user>a\nb<assistant>"),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}),
            "<user>a\nb<assistant>",
        ),
        // The assistant's last words are continued.
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "So"}]}),
            "<user>a<assistant>So",
        ),
        (json!({"tools": [], "thinking": {"type": "disabled"}, "container": null}), "<user>hi<assistant>"),
    ] {
        server.post("/v1/messages", &body(more)).await.ok();
        assert_eq!(prompt(&server), expected);
    }
    let counted =
        server.post("/v1/messages/count_tokens", &json!({"messages": [{"role": "user", "content": "hi"}]})).await;
    assert_eq!(counted.ok(), json!({"input_tokens": "<user>hi<assistant>".len()}));
}

#[tokio::test]
async fn an_answer_that_the_context_ends_says_so() {
    let server = Server::start(ServerConfig::default(), Box::new(|_, _| Step::Token(97))).await;
    let told = server.post("/v1/messages", &body(json!({"max_tokens": 1_000_000}))).await.ok();
    assert_eq!(told["stop_reason"], "model_context_window_exceeded");
    assert_eq!(told["usage"]["output_tokens"], 4096 - "<user>hi<assistant>".len());
}

/// Names and data of all events of a stream.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert!(reply.head.contains("content-type: text/event-stream"), "{}", reply.head);
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        (name.to_owned(), data)
    };
    reply.body.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn messages_stream_what_they_would_answer() {
    let server = Server::answering("héllo").await;
    let events = events(&server.post("/v1/messages", &body(json!({"stream": true}))).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "content_block_start", "ping"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = &events[3..events.len() - 3];
    assert!(deltas.iter().all(|(name, data)| name == "content_block_delta" && data["index"] == 0));
    let text: String = deltas.iter().map(|(_, data)| data["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "héllo");
    let start = &events[0].1["message"];
    assert_eq!(
        (&start["content"], &start["stop_reason"], &start["usage"]["output_tokens"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    assert_eq!(start["usage"]["cache_read_input_tokens"], 9);
    let end = &events[events.len() - 2].1;
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("end_turn"), &json!(7)));
}

#[tokio::test]
async fn a_stream_of_messages_that_fails_says_so() {
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Fail("gone".into()) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let events = events(&server.post("/v1/messages", &body(json!({"stream": true}))).await);
    let (name, data) = events.last().unwrap();
    assert_eq!((name.as_str(), &data["error"]["type"]), ("error", &json!("api_error")));
    let whole = server.post("/v1/messages", &body(json!({}))).await;
    assert_eq!(refused(&whole).1, "api_error");
}

#[tokio::test]
async fn refusals_have_the_form_of_the_api() {
    let server = Server::answering("x").await;
    for (named, more) in [
        ("max_tokens", json!({"max_tokens": null})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("messages", json!({"messages": []})),
        ("messages[0].role", json!({"messages": [{"role": "tool", "content": "a"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        ("messages[0].content[0].type", json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
        (
            "messages[0].content[0].type",
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}),
        ),
        ("system", json!({"system": 3})),
        ("tools", json!({"tools": [{"name": "f"}]})),
        ("thinking.type", json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        ("metadata.user_id", json!({"metadata": {"user_id": 3}})),
        ("stop_sequences", json!({"stop_sequences": [""]})),
        ("temperature", json!({"temperature": "hot"})),
        ("top_k", json!({"top_k": -7})),
    ] {
        let (status, kind, message) = refused(&server.post("/v1/messages", &body(more)).await);
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{named}");
        assert!(message.contains(named), "{named}: {message}");
    }
    assert!(server.engine.requests().is_empty());
    assert_eq!(refused(&server.post("/v1/messages", &body(json!({"model": "x"}))).await).1, "not_found_error");
    assert_eq!(refused(&server.post_bytes("/v1/messages", "", b"{").await).1, "invalid_request_error");
    let id = server.post_bytes("/v1/messages", "X-Request-Id: mine\r\n", b"{").await.json()["request_id"].clone();
    assert_eq!(id, "mine");
    let fresh = server.post("/v1/messages", &body(json!({"max_tokens": null}))).await;
    assert!(fresh.head.contains(fresh.json()["request_id"].as_str().unwrap()), "{}", fresh.head);
    let big = json!({"messages": [{"role": "user", "content": "x".repeat(5 << 20)}]});
    assert_eq!(refused(&server.post("/v1/messages", &big).await).1, "request_too_large");
}

#[tokio::test]
async fn keys_and_versions_come_in_headers() {
    let config = ServerConfig { api_keys: vec!["key".into()], ..ServerConfig::default() };
    let server = Server::start(config, answer("x")).await;
    let bytes = body(json!({})).to_string().into_bytes();
    for (headers, status) in [
        ("", 401),
        ("x-api-key: other\r\n", 401),
        ("x-api-key: key\r\n", 200),
        ("Authorization: Bearer key\r\n", 200),
        ("x-api-key: key\r\nanthropic-version: 2023-06-01\r\n", 200),
        ("x-api-key: key\r\nanthropic-version: 2026-10-21\r\n", 200),
        ("x-api-key: key\r\nanthropic-version: 1999-01-01\r\n", 400),
        ("x-api-key: key\r\nanthropic-version: newest\r\n", 400),
    ] {
        assert_eq!(server.post_bytes("/v1/messages", headers, &bytes).await.status, status, "{headers}");
    }
    assert_eq!(refused(&server.post_bytes("/v1/messages", "", &bytes).await).1, "authentication_error");
}
