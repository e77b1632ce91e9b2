//! Tests models that write thinking in a channel, and calls and their results within their turn, as dictionaries with
//! marks around texts.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

const PATH: &str = "/v1/chat/completions";
const ANSWER: &str = "<|channel>thought\nI see \u{e9}.\n<channel|>Let me look.\
    <|tool_call>call:weather{at:{list:[1,<|\"|>a \"b\"\n<|\"|>]},city:<|\"|>K\u{f6}ln<|\"|>}<tool_call|>\
    <|tool_call>call:time{}<tool_call|>";

/// The template of the fixtures that were rendered by Python.
fn template() -> String {
    let fixture = include_str!("../../../interbed-model/tests/fixtures/templates/dictionaries.json");
    let fixture: Value = serde_json::from_str(fixture).expect("JSON");
    fixture["template"].as_str().expect("a template").to_owned()
}

/// Chats as published first: their results of calls are a field of the message with the calls.
const FIRST: &str = "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
    {% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{% if c.function.arguments is mapping %}\
    {{ '{' }}{% for k, v in c.function.arguments | dictsort %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}{{ '}' }}\
    {% else %}{{ '{' ~ c.function.arguments ~ '}' }}{% endif %}<tool_call|>{% endfor %}\
    {% for r in m.tool_responses or [] %}<|tool_response>response:{{ r.name }}{{ '{' }}value:<|\"|>{{ r.response }}\
    <|\"|>{{ '}' }}<tool_response|>{% endfor %}{{ m.content or '' }}\
    {% if not m.tool_responses or m.content %}<turn|>\n{% endif %}{% endfor %}{{ '' if not tools }}\
    {% if add_generation_prompt and not messages[-1].tool_responses %}<|turn>model\n{% endif %}";

fn chat(messages: &Value, more: &Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let mut body = json!({"messages": messages, "tools": [tool("weather"), tool("time")], "max_tokens": 400});
    for (field, value) in more.as_object().expect("an object") {
        body[field] = value.clone();
    }
    body
}

fn prompt(server: &Server) -> String {
    let bytes: Vec<u8> = server.last_request().prompt.iter().map(|&id| u8::try_from(id).expect("a byte")).collect();
    String::from_utf8(bytes).expect("text")
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// A conversation in which the model has called two tools.
fn called(text: &Value) -> Vec<Value> {
    vec![
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": text,
            "tool_calls": [call("c1", "weather", "{\"city\": \"Rome\"}"), call("c2", "time", "{}")]}),
        json!({"role": "tool", "tool_call_id": "c2", "content": "noon"}),
        json!({"role": "tool", "tool_call_id": "c1", "content": "dry"}),
    ]
}

#[tokio::test]
async fn thinking_and_calls_are_told_apart() {
    let server = Server::speaking(ServerConfig::default(), ANSWER, &template()).await;
    let asked = json!([{"role": "user", "content": "a"}]);
    let thinking = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let reply = server.post(PATH, &chat(&asked, &thinking)).await.ok();
    assert!(prompt(&server).ends_with("<|turn>user\na<turn|>\n<|turn>model\n"), "{}", prompt(&server));
    assert!(prompt(&server).contains("<|think|>") && prompt(&server).contains("<|tool>declaration:weather"));
    let arguments = "{\"at\":{\"list\":[1,\"a \\\"b\\\"\\n\"]},\"city\":\"K\u{f6}ln\"}";
    let (choice, message) = (&reply["choices"][0], &reply["choices"][0]["message"]);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I see \u{e9}."), &json!("Let me look.")));
    let told: Vec<_> = message["tool_calls"].as_array().expect("calls").iter().map(|call| &call["function"]).collect();
    let expected = [json!({"name": "weather", "arguments": arguments}), json!({"name": "time", "arguments": "{}"})];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());

    let mut body = chat(&asked, &thinking);
    body["stream"] = true.into();
    let (mut thought, mut text, mut calls) = (String::new(), String::new(), vec![String::new(); 2]);
    let mut pieces = 0;
    for chunk in server.post(PATH, &body).await.chunks() {
        let delta = &chunk["choices"][0]["delta"];
        thought += delta["reasoning_content"].as_str().unwrap_or_default();
        text += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            calls[index] += call["function"]["arguments"].as_str().unwrap_or_default();
            pieces += 1;
        }
    }
    assert_eq!((thought.as_str(), text.as_str()), ("I see \u{e9}.", "Let me look."));
    assert_eq!(calls, [arguments, "{}"]);
    assert!(pieces >= 25, "{pieces} pieces");

    // Without thinking, the prompt closes it. Tools that must not be called leave a call as it is written.
    let reply = server.post(PATH, &chat(&asked, &json!({"tool_choice": "none"}))).await.ok();
    assert!(prompt(&server).ends_with("<|turn>model\n<|channel>thought\n<channel|>"), "{}", prompt(&server));
    let content = reply["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(content.starts_with("Let me look.<|tool_call>call:weather{"), "{content}");
}

#[tokio::test]
async fn results_stay_in_the_turn_of_the_model() {
    let results = "<|tool_response>response:weather{value:<|\"|>dry<|\"|>}<tool_response|>\
        <|tool_response>response:time{value:<|\"|>noon<|\"|>}<tool_response|>";
    let calls = "<|tool_call>call:weather{city:<|\"|>Rome<|\"|>}<tool_call|><|tool_call>call:time{}<tool_call|>";
    let user = "<|turn>user\na<turn|>\n";
    let modern = Server::speaking(ServerConfig::default(), "x", &template()).await;
    let first = Server::speaking(ServerConfig::default(), "x", FIRST).await;
    for server in [&modern, &first] {
        server.post(PATH, &chat(&json!(called(&Value::Null)), &json!({}))).await.ok();
        let told = prompt(server);
        assert!(told.ends_with(&format!("{user}<|turn>model\n{calls}{results}")), "{told}");
        let mut messages = called(&Value::Null);
        messages.push(json!({"role": "assistant", "content": "Dry."}));
        messages.push(json!({"role": "user", "content": "b"}));
        server.post(PATH, &chat(&json!(messages), &json!({}))).await.ok();
        let told = prompt(server);
        let expected =
            format!("{user}<|turn>model\n{calls}{results}Dry.<turn|>\n<|turn>user\nb<turn|>\n<|turn>model\n");
        assert!(told.trim_end_matches("<|channel>thought\n<channel|>").ends_with(&expected), "{told}");
    }
    // A text before the calls: the template of today writes it behind the results and begins no turn.
    modern.post(PATH, &chat(&json!(called(&json!("I look."))), &json!({}))).await.ok();
    let told = prompt(&modern);
    assert!(told.ends_with(&format!("<|turn>model\n{calls}{results}I look.<turn|>\n<|turn>model\n")), "{told}");
    first.post(PATH, &chat(&json!(called(&json!("I look."))), &json!({}))).await.ok();
    let told = prompt(&first);
    let expected = format!("{user}<|turn>model\nI look.<turn|>\n<|turn>model\n{calls}{results}");
    assert!(told.ends_with(&expected), "{told}");
}

/// A schema of the answer goes beside calls of every form that has a marker.
#[tokio::test]
async fn answers_are_calls_or_keep_to_a_schema() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for parser in interbed_server::tool_parsers().into_iter().filter(|parser| *parser != "llama3") {
        let config = ServerConfig { tool_parser: Some(parser.into()), ..ServerConfig::default() };
        let server = Server::start(config, interbed_engine::testing::answer("x")).await;
        let asked = json!([{"role": "user", "content": "a"}]);
        server.post(PATH, &chat(&asked, &json!({"response_format": format}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        let text = if parser == "harmony" { "<|channel|>final<|message|>{\"a\": 1}" } else { "{\"a\": 1}" };
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert!(taken == text.len() && constraint.may_end(), "{parser}: {taken} bytes");
    }
}
