//! Tests OpenAI's `/v1/responses`.

use interbed_engine::testing::Step;
use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;
use crate::streaming::slow_server;

fn prompt(server: &Server) -> String {
    server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect()
}

#[tokio::test]
async fn responses_are_answered() {
    let server = Server::answering("hello there").await;
    let body =
        json!({"input": "hi", "instructions": "be kind", "metadata": {"a": "b"}, "user": "me", "temperature": 0.5});
    let told = server.post("/v1/responses", &body).await.ok();
    assert_eq!(prompt(&server), "<system>be kind<user>hi<assistant>");
    assert_eq!(
        (&told["object"], &told["status"], &told["store"]),
        (&json!("response"), &json!("completed"), &json!(false))
    );
    assert!(told["id"].as_str().unwrap().starts_with("resp_"));
    let item = &told["output"][0];
    let content = json!([{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]);
    let expected =
        json!({"id": item["id"], "type": "message", "status": "completed", "role": "assistant", "content": content});
    assert_eq!(item, &expected);
    let tokens = prompt(&server).len();
    let usage = json!({
        "input_tokens": tokens, "input_tokens_details": {"cached_tokens": tokens / 2}, "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 12,
    });
    assert_eq!(told["usage"], usage);
    assert_eq!(
        (&told["metadata"], &told["user"], &told["temperature"]),
        (&json!({"a": "b"}), &json!("me"), &json!(0.5))
    );

    let told = server.post("/v1/responses", &json!({"input": "hi", "max_output_tokens": 3})).await.ok();
    assert_eq!(
        (&told["status"], &told["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(told["output"][0]["content"][0]["text"], "hel");
}

#[tokio::test]
async fn items_become_messages() {
    let server = Server::answering("x").await;
    let input = json!([
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]);
    let body = json!({"input": input, "store": false, "previous_response_id": null, "tools": [], "include": [],
        "text": {"format": {"type": "text"}}, "truncation": "disabled", "reasoning": {"effort": "low"}});
    server.post("/v1/responses", &body).await.ok();
    assert_eq!(prompt(&server), "<system>be brief<user>a<assistant>b<user>c<assistant>");
}

#[tokio::test]
async fn sampling_is_repeated_as_it_was_sent() {
    let server = Server::answering("x").await;
    for (temperature, top_p) in [("0.7", "0.9"), ("1.0", "0.95"), ("0", "1"), ("0.123456789", "9e-1"), ("1.50", "0.90")]
    {
        let body = format!(r#"{{"input": "hi", "temperature": {temperature}, "top_p": {top_p}}}"#);
        let told = server.post("/v1/responses", &serde_json::from_str(&body).unwrap()).await.ok();
        assert_eq!((told["temperature"].to_string(), told["top_p"].to_string()), (temperature.into(), top_p.into()));
    }
}

#[tokio::test]
async fn responses_stream_what_they_would_answer() {
    let server = Server::answering("héllo").await;
    let reply = server.post("/v1/responses", &json!({"input": "hi", "stream": true})).await;
    let events: Vec<Value> = reply
        .body
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        })
        .collect();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let begin =
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
    let end =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"];
    assert_eq!((&names[..4], &names[names.len() - 4..]), (&begin[..], &end[..]));
    let deltas = &events[4..events.len() - 4];
    assert!(deltas.iter().all(|event| event["type"] == "response.output_text.delta"));
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "héllo");
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let (created, last) = (&events[0]["response"], &events.last().unwrap()["response"]);
    assert_eq!((&created["status"], &created["output"]), (&json!("in_progress"), &json!([])));
    assert_eq!((&created["id"], &last["output"][0]["content"][0]["text"]), (&last["id"], &json!("héllo")));
    assert_eq!(last["usage"]["output_tokens"], 7);
    let id = &events[2]["item"]["id"];
    assert!(events[3..events.len() - 2].iter().all(|event| event["item_id"] == *id));
}

/// A template that shows a whole conversation.
const TEMPLATE: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\
    {% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}{# </think> #}";

async fn calling(text: &str) -> Server {
    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    Server::speaking(config, text, TEMPLATE).await
}

fn with_tools(more: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": false});
    let tool = |name: &str| json!({"type": "function", "name": name, "description": "d", "parameters": parameters});
    let mut body = json!({"input": "hi", "tools": [tool("weather"), tool("time")]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const CALLS: &str = "I see.</think>\n\nLet me look.\
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n\
    <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";

#[tokio::test]
async fn functions_are_called() {
    let server = calling(CALLS).await;
    let told = server.post("/v1/responses", &with_tools(json!({}))).await.ok();
    assert_eq!(prompt(&server), "[weather][time]<user>hi<assistant><think>");
    let output = told["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "I see."}]));
    assert_eq!(output[1]["content"][0]["text"], "Let me look.");
    let call = &output[2];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("weather"), &json!("{\"city\": \"Rome\"}")));
    assert!(call["call_id"].as_str().unwrap().starts_with("call_") && call["call_id"] != output[3]["call_id"]);
    assert!(output.iter().all(|item| item["status"] == "completed"));
    assert_eq!(told["tools"][1]["name"], "time");
    // A token is a byte here; the closing tag of the thinking is recognized with its last byte.
    assert_eq!(told["usage"]["output_tokens_details"]["reasoning_tokens"], "I see.</think".len());

    // The streamed answer is the same.
    let reply = server.post("/v1/responses", &with_tools(json!({"stream": true}))).await;
    let mut items: Vec<(Value, String)> = Vec::new();
    let mut last = Value::Null;
    for event in reply.body.split_terminator("\n\n") {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        let index = data["output_index"].as_u64().map(|index| index as usize);
        match name.strip_prefix("response.").unwrap() {
            "output_item.added" => {
                assert_eq!(index, Some(items.len()));
                items.push((data["item"].clone(), String::new()));
            }
            "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta" => {
                assert_eq!((index, &data["item_id"]), (Some(items.len() - 1), &items.last().unwrap().0["id"]));
                items.last_mut().unwrap().1 += data["delta"].as_str().unwrap();
            }
            "output_text.done" | "reasoning_text.done" => assert_eq!(data["text"], items.last().unwrap().1),
            "function_call_arguments.done" => assert_eq!(data["arguments"], items.last().unwrap().1),
            "output_item.done" => items.last_mut().unwrap().0 = data["item"].clone(),
            "completed" => last = data["response"].clone(),
            _ => {}
        }
    }
    let done: Vec<Value> = items.iter().map(|(item, _)| item.clone()).collect();
    assert_eq!(last["output"], Value::from(done));
    assert_eq!(last["usage"], told["usage"]);
    for ((item, text), whole) in items.iter().zip(output) {
        for field in ["type", "status", "content", "name", "arguments"] {
            assert_eq!(item[field], whole[field]);
        }
        assert_eq!(item["content"][0]["text"].as_str().or(item["arguments"].as_str()), Some(text.as_str()));
    }
    let cut = server.post("/v1/responses", &with_tools(json!({"max_output_tokens": 90}))).await.ok();
    let statuses: Vec<&str> =
        cut["output"].as_array().unwrap().iter().map(|item| item["status"].as_str().unwrap()).collect();
    assert_eq!((&cut["status"], statuses), (&json!("incomplete"), vec!["completed", "completed", "incomplete"]));
}

#[tokio::test]
async fn calls_and_outputs_become_turns() {
    let server = calling("x").await;
    let input = json!([
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "weather", "arguments": "{\"city\":\"Rome\"}"},
        {"type": "function_call", "call_id": "2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "sun"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": null},
        {"type": "function_call", "call_id": "3", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "3", "output": "one"},
    ]);
    let more = json!({"input": input, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}});
    server.post("/v1/responses", &with_tools(more)).await.ok();
    let time = "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";
    let expected = format!(
        "[weather][time]<user>a<assistant>(hm)I look.\
         <tool_call>{{\"name\": \"weather\", \"arguments\": {{\"city\": \"Rome\"}}}}</tool_call>{time}\
         <tool>sun<tool>noon<assistant>(so){time}<tool>one<assistant><think>"
    );
    assert_eq!(prompt(&server), expected);
}

#[tokio::test]
async fn formats_and_choices_bind_the_answer() {
    let server = calling("x").await;
    let schema = json!({"enum": ["red"]});
    let format = json!({"format": {"type": "json_schema", "name": "colour", "schema": schema, "strict": true}});
    let call = "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    for (body, text, is_allowed) in [
        (json!({"input": "a", "text": format}), "\"red\"", true),
        (json!({"input": "a", "text": format}), "\"blue\"", false),
        (json!({"input": "a", "text": {"format": {"type": "json_object"}}}), "{\"a\": 1}", true),
        (json!({"input": "a", "text": {"format": {"type": "json_object"}}}), "1", false),
        (with_tools(json!({"tool_choice": "required"})), call, true),
        (with_tools(json!({"tool_choice": "required"})), "No", false),
        (with_tools(json!({"tool_choice": {"type": "function", "name": "weather"}})), call, false),
        (with_tools(json!({"tool_choice": {"type": "function", "name": "time"}, "seed": 3})), call, true),
    ] {
        let told = server.post("/v1/responses", &body).await.ok();
        if !body["text"].is_null() {
            assert_eq!(told["text"]["format"]["type"], body["text"]["format"]["type"]);
        }
        assert_eq!(
            told["tool_choice"],
            if body["tool_choice"].is_null() { json!("auto") } else { body["tool_choice"].clone() }
        );
        let mut constraint = server.last_request().constraint.expect("a constraint");
        let text = format!("hm</think>{text}");
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert_eq!(taken == text.len() && constraint.may_end(), is_allowed, "{body} with {text}");
    }
}

/// Clients give up if no event arrives, and take the first one for the beginning.
#[tokio::test]
async fn responses_that_wait_tell_that_they_go_on() {
    let server = slow_server().await;
    let reply = server.post("/v1/responses", &json!({"input": "hi", "stream": true})).await;
    let events = reply.named_events();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert!(events.iter().zip(0..).all(|(event, number)| event["sequence_number"] == number), "{names:?}");
    let first = names.iter().position(|name| !name.ends_with("created") && !name.ends_with("in_progress")).unwrap();
    assert!(first > 4 && names[0] == "response.created" && names[1] == "response.in_progress", "{names:?}");
    assert_eq!(names.iter().filter(|&&name| name == "response.created").count(), 1);
    assert!(names[first..].iter().filter(|&&name| name == "response.in_progress").count() > 3, "{names:?}");
    let (last, others) = events.split_last().unwrap();
    let text: String = others.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((last["type"].as_str(), text.as_str()), (Some("response.completed"), "ab"));
    for event in others.iter().filter(|event| event["type"] == "response.in_progress") {
        assert_eq!(event["response"], events[0]["response"]);
    }
}

#[tokio::test]
async fn a_stream_of_a_response_that_fails_says_so() {
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Fail("gone".into()) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let reply = server.post("/v1/responses", &json!({"input": "hi", "stream": true})).await;
    let last = reply.body.split_terminator("\n\n").last().unwrap();
    assert!(last.starts_with("event: response.failed") && last.contains("gone"), "{last}");
}

#[tokio::test]
async fn what_needs_state_or_is_not_supported_is_named() {
    let server = Server::answering("x").await;
    for (param, value) in [
        ("input", json!(null)),
        ("input", json!([])),
        ("input", json!(3)),
        ("input[0].call_id", json!([{"type": "function_call_output", "output": "y"}])),
        ("input[0].output", json!([{"type": "function_call_output", "call_id": "x"}])),
        ("input[0].arguments", json!([{"type": "function_call", "call_id": "x", "name": "f", "arguments": {}}])),
        ("input[0].type", json!([{"type": "telepathy_call"}])),
        ("input[0].type", json!([{"type": "item_reference", "id": "msg_1"}])),
        ("input[0].role", json!([{"role": "tool", "content": "x"}])),
        ("input[0].content[0].type", json!([{"role": "user", "content": [{"type": "input_image"}]}])),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("prompt", json!({"id": "pmpt_1"})),
        ("include", json!(["message.output_text.logprobs"])),
        ("tools[0].type", json!([{"type": "telepathy"}])),
        ("tools[0].name", json!([{"type": "function", "parameters": {}}])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "name": "f"})),
        ("tool_choice", json!({"type": "web_search"})),
        ("parallel_tool_calls", json!(3)),
        ("truncation", json!("auto")),
        ("text.format.type", json!({"format": {"type": "xml"}})),
        ("text.format.schema", json!({"format": {"type": "json_schema"}})),
        ("text.format.schema", json!({"format": {"type": "json_schema", "schema": {"$dynamicRef": "#"}}})),
        ("text.format.schema", json!({"format": {"type": "json_schema", "strict": true, "schema": {"format": "x"}}})),
        ("top_logprobs", json!(3)),
        ("metadata", json!({"a": 1})),
        ("max_output_tokens", json!("many")),
        ("response_format", json!({"type": "json_object"})),
        ("stop", json!(["."])),
        ("stop_sequences", json!(["."])),
        ("max_tokens", json!(5)),
        ("grammar", json!("root ::= \"a\"")),
    ] {
        let mut body = json!({"input": "hi"});
        body[param.split(['.', '[']).next().unwrap()] = value;
        let (status, error) = server.post("/v1/responses", &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body} {error:?}");
    }
    assert!(server.engine.requests().is_empty());
}
