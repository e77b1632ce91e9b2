//! Tests Anthropic's API.

use interbed_engine::testing::{Step, answer};
use interbed_server::{ApiKey, ApiKeys, ServerConfig};
use serde_json::{Value, json};

use crate::fixture::{Reply, Server};
use crate::streaming::slow_server;

fn body(more: Value) -> Value {
    let mut body = json!({"model": "interbed", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The prompt that reached the engine, as text.
fn prompt(server: &Server) -> String {
    server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect()
}

/// The type and the message of an error response, whose fields are checked, with its status.
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
        "id": told["id"], "type": "message", "role": "assistant", "model": "interbed",
        "content": [{"type": "text", "text": "hello there"}], "stop_reason": "end_turn", "stop_sequence": null,
        // The prompt is "<user>hi<assistant>"; the scripted engine reports half of it as cached.
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
    // Values that ask for nothing are accepted.
    let more = json!({"seed": 7, "n": 1, "stop": null, "presence_penalty": 0, "user": "me"});
    server.post("/v1/messages", &body(more)).await.ok();
    assert_eq!(server.last_request().params.seed, 7);

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
        // The assistant's last message is continued.
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
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
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
async fn messages_that_wait_send_pings() {
    let server = slow_server().await;
    let asked = body(json!({"stream": true}));
    let told = events(&server.post("/v1/messages", &asked).await);
    let deltas = told.iter().filter(|(name, _)| name == "message_delta").count();
    assert_eq!(deltas, 1, "a delta that says nothing ends the message for some clients: {told:?}");
    let agent = "user-agent: claude-cli/2.1.197 (external, cli)\r\n";
    let events = events(&server.post_bytes("/v1/messages", agent, asked.to_string().as_bytes()).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let start = names.iter().position(|&name| name == "message_start").unwrap();
    assert!(start > 2 && names[..start].iter().all(|&name| name == "ping"), "{names:?}");
    assert_eq!(names.iter().filter(|&&name| name == "message_start").count(), 1, "{names:?}");
    assert!(names[start + 1..].iter().filter(|&&name| name == "ping").count() > 3, "{names:?}");
    // Claude Code does not count a ping as a sign of life.
    let is_life = |(name, _): &&(String, Value)| name != "ping";
    let longest = events.split(|event| is_life(&event)).map(<[_]>::len).max().unwrap();
    assert!((3..=5).contains(&longest), "{names:?}");
    let deltas: Vec<&Value> = events.iter().filter(|(name, _)| name == "message_delta").map(|(_, data)| data).collect();
    assert!(deltas.len() > 1, "{names:?}");
    let (end, others) = deltas.split_last().unwrap();
    assert!(others.iter().all(|delta| delta["delta"]["stop_reason"].is_null()), "{others:?}");
    assert!(end["delta"]["stop_reason"] != Value::Null && end["usage"]["input_tokens"].is_number(), "{end}");
    assert_eq!(names.last(), Some(&"message_stop"));
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

/// A conversation with nothing but a tool result.
fn result(id: &str, more: Value) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": id});
    block.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"messages": [{"role": "user", "content": [block]}]})
}

/// A template that shows a whole conversation.
const TEMPLATE: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\
    {% if m.role == 'tool' %}={{ m.name }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>\
    {% if enable_thinking %}<think>{% endif %}{% endif %}{# </think> #}";

async fn calling(text: &str) -> Server {
    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    Server::speaking(config, text, TEMPLATE).await
}

fn with_tools(more: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": false});
    let tool = |name: &str| json!({"name": name, "description": "d", "input_schema": schema, "cache_control": {}});
    let mut body = body(json!({"tools": [tool("weather"), tool("time")], "max_tokens": 400}));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const CALLS: &str = "I see.</think>\n\nLet me look.\n\n\
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n\
    <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";

#[tokio::test]
async fn tools_are_used() {
    let server = calling(CALLS).await;
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let told = server.post("/v1/messages", &with_tools(thinking.clone())).await.ok();
    assert_eq!(prompt(&server), "[weather][time]<user>hi<assistant><think>");
    assert_eq!(told["stop_reason"], "tool_use");
    let content = told["content"].as_array().unwrap();
    assert_eq!(content[0], json!({"type": "thinking", "thinking": "I see.", "signature": ""}));
    assert_eq!(content[1], json!({"type": "text", "text": "Let me look.\n\n"}));
    let id = |index: usize| content[index]["id"].as_str().filter(|id| id.starts_with("toolu_")).unwrap().to_owned();
    assert_eq!(content[2], json!({"type": "tool_use", "id": id(2), "name": "weather", "input": {"city": "Rome"}}));
    assert_eq!(content[3], json!({"type": "tool_use", "id": id(3), "name": "time", "input": {}}));
    assert!(content.len() == 4 && id(2) != id(3));

    // The streamed answer is the same.
    let mut streamed = with_tools(thinking);
    streamed["stream"] = true.into();
    let mut blocks: Vec<(Value, String)> = Vec::new();
    let (mut closed, mut reason) = (0, Value::Null);
    for (name, data) in events(&server.post("/v1/messages", &streamed).await) {
        match name.as_str() {
            "content_block_start" => {
                assert_eq!((data["index"].as_u64(), closed), (Some(blocks.len() as u64), blocks.len()));
                blocks.push((data["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(data["index"].as_u64(), Some(blocks.len() as u64 - 1));
                let (block, text) = blocks.last_mut().unwrap();
                let (kind, field) = match block["type"].as_str().unwrap() {
                    "thinking" => ("thinking_delta", "thinking"),
                    "text" => ("text_delta", "text"),
                    _ => ("input_json_delta", "partial_json"),
                };
                assert_eq!(data["delta"]["type"], kind);
                *text += data["delta"][field].as_str().unwrap();
            }
            "content_block_stop" => {
                assert_eq!(data["index"].as_u64(), Some(closed as u64));
                closed += 1;
            }
            "message_delta" => reason = data["delta"]["stop_reason"].clone(),
            _ => {}
        }
    }
    assert_eq!((closed, reason), (4, json!("tool_use")));
    for ((mut block, text), mut whole) in blocks.into_iter().zip(content.clone()) {
        match block["type"].as_str().unwrap() {
            "tool_use" => {
                assert_eq!(block["input"], json!({}));
                block["input"] = serde_json::from_str(&text).unwrap();
                whole["id"] = block["id"].clone();
            }
            kind => {
                let kind = kind.to_owned();
                block[kind] = text.into();
            }
        }
        assert_eq!(block, whole);
    }

    // Without parallel use, only the first call counts; one that is cut off is no block.
    let one = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "max_tokens": 400});
    let told = server.post("/v1/messages", &with_tools(one)).await.ok();
    let uses = told["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use").count();
    assert_eq!((uses, &told["stop_reason"]), (1, &json!("tool_use")));
    let told = server.post("/v1/messages", &with_tools(json!({"max_tokens": 90}))).await.ok();
    assert_eq!((told["content"].as_array().unwrap().len(), &told["stop_reason"]), (1, &json!("max_tokens")));
}

#[tokio::test]
async fn choices_of_tools_bind_the_answer() {
    let server = calling("x").await;
    let call = |name: &str, city: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
    };
    for (choice, text, is_allowed) in [
        (json!({"type": "any"}), call("time", "Rome"), true),
        (json!({"type": "any"}), call("time", "Bonn"), false),
        (json!({"type": "any"}), "Well".into(), false),
        (json!({"type": "tool", "name": "time"}), call("time", "Oslo"), true),
        (json!({"type": "tool", "name": "time"}), call("weather", "Oslo"), false),
    ] {
        server.post("/v1/messages", &with_tools(json!({"tool_choice": choice}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert_eq!(taken == text.len() && constraint.may_end(), is_allowed, "{choice} with {text}");
    }
    server.post("/v1/messages", &with_tools(json!({"tool_choice": {"type": "none"}}))).await.ok();
    assert!(server.last_request().constraint.is_none());
    let odd = with_tools(json!({"tool_choice": {"type": "tool", "name": "other"}}));
    let told = refused(&server.post("/v1/messages", &odd).await).2;
    assert!(told.contains("tool_choice names the function \"other\"") && told.contains("they are \""), "{told}");
}

#[tokio::test]
async fn uses_and_results_are_rendered() {
    let server = calling("x").await;
    let cached = json!({"type": "ephemeral"});
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": cached}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "2", "name": "time", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": "sun"},
            {"type": "tool_result", "tool_use_id": "2", "is_error": true,
                "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "clock"}]},
            {"type": "text", "text": "And?", "cache_control": cached},
        ]},
    ]);
    let more = json!({"messages": messages, "thinking": {"type": "disabled"}});
    server.post("/v1/messages", &with_tools(more.clone())).await.ok();
    let expected = "[weather][time]<user>a<assistant>(hm)I look.\
        <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>\
        <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>\
        <tool>sun=weather<tool>Error: no\nclock=time<user>And?<assistant>";
    assert_eq!(prompt(&server), expected);
    let counted = server.post("/v1/messages/count_tokens", &with_tools(more)).await.ok();
    assert_eq!(counted, json!({"input_tokens": expected.len()}));
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
        ("system", json!({"system": 3})),
        ("messages[0].content[0].tool_use_id", result("x", json!({"tool_use_id": null}))),
        (
            "messages[0].content[0].input",
            json!({"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "f", "input": 3}]}]}),
        ),
        (
            "messages[0].content[0].type",
            json!({"messages": [{"role": "user", "content": [
            {"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]}),
        ),
        ("tools[0].type", json!({"tools": [{"type": "telepathy_20250305", "name": "telepathy"}]})),
        (
            "tool_choice",
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"}}),
        ),
        ("output_config.format.type", json!({"output_config": {"format": {"type": "xml"}}})),
        ("output_config.format.schema", json!({"output_config": {"format": {"type": "json_schema"}}})),
        ("output_format.schema", json!({"output_format": {"type": "json_schema", "schema": {"not": {}}}})),
        ("tools[0].name", json!({"tools": [{"input_schema": {}}]})),
        ("tools[0].input_schema", json!({"tools": [{"name": "f", "input_schema": 3}]})),
        ("tools", json!({"tools": {}})),
        ("tool_choice.type", json!({"tool_choice": {"type": "maybe"}})),
        ("tool_choice.name", json!({"tool_choice": {"type": "tool"}})),
        ("tool_choice", json!({"tool_choice": {"type": "any"}})),
        ("tool_choice", json!({"tool_choice": {"type": "tool", "name": "f"}})),
        ("thinking.type", json!({"thinking": {"type": "deep"}})),
        ("metadata.user_id", json!({"metadata": {"user_id": 3}})),
        ("stop_sequences", json!({"stop_sequences": [""]})),
        ("stop_sequences", json!({"stop_sequences": "abc"})),
        ("stop_sequences", json!({"stop_sequences": {"a": "b"}})),
        ("compaction", json!({"compaction": {"type": "summarize"}})),
        ("temperature", json!({"temperature": "hot"})),
        ("top_k", json!({"top_k": -7})),
        ("tools[0].name", json!({"tools": [{"name": "say \"hi\"", "input_schema": {}}]})),
        // Fields of chats that would change an answer.
        ("n", json!({"n": 2})),
        ("skip_special_tokens", json!({"skip_special_tokens": false})),
        ("max_output_tokens", json!({"max_output_tokens": 3})),
        ("stop", json!({"stop": ["."]})),
        ("logit_bias", json!({"logit_bias": {"1": 5}})),
        ("response_format", json!({"response_format": {"type": "json_object"}})),
        ("chat_template", json!({"chat_template": "x"})),
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
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
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

#[tokio::test]
async fn threads_are_refused_with_the_code_that_clients_go_on_by() {
    let server = Server::answering("x").await;
    for (path, more) in [
        ("/v1/messages", json!({"thread": {"type": "create"}})),
        ("/v1/messages", json!({"thread": {"type": "create"}, "stream": true, "model": "unknown"})),
        // It names neither the tool nor the call of the result.
        ("/v1/messages", {
            let mut more = result("toolu_1", json!({"content": "sun"}));
            more["thread"] = json!({"type": "continue", "previous_message_id": "msg_1"});
            more
        }),
        ("/v1/messages/count_tokens", json!({"thread": {"type": "continue", "previous_message_id": "msg_1"}})),
    ] {
        let reply = server.post(path, &body(more)).await;
        let (status, kind, message) = refused(&reply);
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{message}");
        assert!(message.starts_with("thread is "), "{message}");
        assert_eq!(reply.json()["error"]["details"], json!({"error_code": "thread_unsupported_request"}));
    }
    assert!(server.engine.requests().is_empty());
    server.post("/v1/messages", &body(json!({"thread": null, "compaction": null}))).await.ok();
    // Counting tokens uses the conversation unchanged.
    let counted = server.post("/v1/messages/count_tokens", &body(json!({"compaction": {"type": "summarize"}}))).await;
    assert_eq!(counted.ok()["input_tokens"], "<user>hi<assistant>".len());
}

#[tokio::test]
async fn answers_carry_the_requests_id() {
    let server = Server::answering("x").await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (path, body, status) in [
        ("/v1/messages", body(json!({})), 200),
        ("/v1/messages", body(json!({"stream": true})), 200),
        ("/v1/messages", body(json!({"max_tokens": null})), 400),
        ("/v1/messages/count_tokens", body(json!({})), 200),
        ("/v1/chat/completions", chat.clone(), 200),
        ("/v1/chat/completions", json!({}), 400),
        ("/v1/responses", json!({"input": "hi", "stream": true}), 200),
        ("/v1/completions", json!({"prompt": "hi"}), 200),
    ] {
        for (headers, expected) in [("X-Request-Id: mine\r\n", Some("mine")), ("", None)] {
            let reply = server.post_bytes(path, headers, body.to_string().as_bytes()).await;
            assert_eq!(reply.status, status, "{path}");
            let header = |name: &str| reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let id = header("request-id").unwrap_or_else(|| panic!("{path}: {}", reply.head));
            assert_eq!(Some(id), header("x-request-id"), "{path}");
            assert!(expected.map_or(id.starts_with("req"), |expected| id == expected), "{path}: {id}");
        }
    }
}
