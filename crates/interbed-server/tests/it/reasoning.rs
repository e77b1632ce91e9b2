//! Answers that think, by the tags or channels of their model.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

/// Opens the thinking, unless it is told not to.
const OPENS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}[tools]{% endif %}\
    {% if add_generation_prompt %}<assistant><think>\n{% if enable_thinking is false %}\n</think>\n{% endif %}\
    {% endif %}";
/// Lets the model open it.
const KNOWS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";
const HARMONY: &str = "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>\
    {% endfor %}{% if tools %}[tools]{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";

const PATH: &str = "/v1/chat/completions";

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 400});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn server(text: &str, template: &str, parser: Option<&str>) -> Server {
    let config = ServerConfig { tool_parser: parser.map(str::to_owned), ..ServerConfig::default() };
    Server::speaking(config, text, template).await
}

/// Thinking and text of an answer, which are the same whole and streamed.
async fn told(server: &Server, more: Value) -> (Value, Value) {
    let reply = server.post(PATH, &chat(&more)).await.ok();
    let message = reply["choices"][0]["message"].clone();
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let mut more = more;
    more["stream"] = true.into();
    let (mut thought, mut text) = (String::new(), String::new());
    for chunk in server.post(PATH, &chat(&more)).await.chunks() {
        let delta = &chunk["choices"][0]["delta"];
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        let more = delta["reasoning_content"].as_str().unwrap_or_default();
        assert!(more.is_empty() || text.is_empty());
        thought += more;
        text += delta["content"].as_str().unwrap_or_default();
    }
    assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), thought);
    assert_eq!(message["content"].as_str().unwrap_or_default(), text);
    (message["reasoning_content"].clone(), message["content"].clone())
}

#[tokio::test]
async fn thinking_is_told_apart() {
    for (template, text, thought, rest) in [
        (OPENS, "I see.\n</think>\n\nYes.", json!("I see."), json!("Yes.")),
        (OPENS, "I see no end", json!("I see no end"), Value::Null),
        (KNOWS, "<think>\nI see.\n</think>\n\nYes.", json!("I see."), json!("Yes.")),
        (KNOWS, "Yes.</think>", Value::Null, json!("Yes.</think>")),
        (
            HARMONY,
            "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            json!("I see."),
            json!("Yes."),
        ),
    ] {
        let server = server(text, template, None).await;
        assert_eq!(told(&server, json!({})).await, (thought, rest), "{text}");
    }
    let server = server("Yes.", OPENS, None).await;
    let without = json!({"chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(told(&server, without).await, (Value::Null, json!("Yes.")));
}

#[tokio::test]
async fn calls_come_behind_thinking() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let text = format!("{call}? </think> {call}");
    let server_of_tags = server(&text, OPENS, Some("hermes")).await;
    let text = "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>commentary to=functions.f \
        <|constrain|>json<|message|>{}";
    let server_of_harmony = server(text, HARMONY, None).await;
    for (server, thought) in [(server_of_tags, format!("{call}?")), (server_of_harmony, "I see.".into())] {
        let reply = server.post(PATH, &chat(&json!({"tools": tools}))).await.ok();
        let choice = &reply["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        assert_eq!(choice["message"]["reasoning_content"], thought);
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]), (1, &json!({"name": "f", "arguments": "{}"})));
    }
}

#[tokio::test]
async fn what_is_bound_comes_behind_thinking() {
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"enum": ["red"]}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let required = json!({"tools": tools, "tool_choice": "required"});
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    for (template, more, before, answer, is_bound) in [
        (OPENS, json!({"response_format": schema}), "so {\n</think>\n\n", "\"red\"", true),
        (OPENS, required.clone(), "so <tool_call></think>\n\n", call, true),
        (OPENS, required, "so </think>", "No.", false),
        (OPENS, json!({"response_format": schema}), "so </think>", "\"blue\"", false),
        (HARMONY, json!({"response_format": schema}), "<|channel|>final<|message|>", "\"red\"", true),
        (HARMONY, json!({"response_format": schema}), "<|channel|>final<|message|>", "red", false),
        (
            HARMONY,
            json!({"response_format": schema}),
            "<|channel|>analysis<|message|>so {<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>",
            "\"red\"",
            true,
        ),
        (HARMONY, json!({"response_format": schema}), "<|channel|>final <|constrain|>json<|message|>", "\"blue", false),
    ] {
        let server = server("x", template, (template == OPENS).then_some("hermes")).await;
        server.post(PATH, &chat(&more)).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        for byte in before.bytes() {
            assert!(!constraint.may_end());
            constraint.advance(u32::from(byte)).expect("thinking is free");
        }
        let taken = answer.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert_eq!(taken == answer.len() && constraint.may_end(), is_bound, "{more}: {taken} bytes of {answer}");
    }
    // What is told as text beside the answer would be no JSON with it.
    let server = server("x", HARMONY, None).await;
    for (text, taken) in [("<|channel|>commentary", 11), ("so", 0), ("<|channel|>final<|end|>", 18)] {
        server.post(PATH, &chat(&json!({"response_format": schema}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        assert_eq!(text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count(), taken);
    }
    // Where the prompt closes the thinking, all is bound.
    let server = self::server("x", OPENS, None).await;
    let more = json!({"response_format": schema, "chat_template_kwargs": {"enable_thinking": false}});
    server.post(PATH, &chat(&more)).await.ok();
    assert!(server.last_request().constraint.expect("a constraint").advance(u32::from(b's')).is_err());
}
