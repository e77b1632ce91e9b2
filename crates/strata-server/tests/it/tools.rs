//! Calls of tools: what answers become, whole and streamed, and what binds them.

use serde_json::{Value, json};
use strata_engine::testing::answer;
use strata_server::{ServerConfig, tool_parsers};

use crate::fixture::Server;

async fn server(parser: Option<&str>, text: &str) -> Server {
    let config = ServerConfig { tool_parser: parser.map(str::to_owned), ..ServerConfig::default() };
    Server::start(config, answer(text)).await
}

fn chat(more: &Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": false});
    let tools = ["weather", "time"]
        .map(|name| json!({"type": "function", "function": {"name": name, "parameters": parameters}}));
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 400});
    for (field, value) in more.as_object().expect("an object") {
        body[field] = value.clone();
    }
    body
}

const PATH: &str = "/v1/chat/completions";
const TWO: &str = "Let me see. \
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n\
    <tool_call>{\"name\": \"time\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";

#[tokio::test]
async fn calls_are_parts_of_a_whole_answer() {
    let server = server(Some("hermes"), TWO).await;
    for (parallel, count) in [(true, 2), (false, 1)] {
        let reply = server.post(PATH, &chat(&json!({"parallel_tool_calls": parallel}))).await.ok();
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], "Let me see. ");
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), count);
        assert_eq!(calls[0]["type"], "function");
        assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": "{\"city\":\"Rome\"}"}));
        assert!(calls[0]["index"].is_null() && calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")));
        assert!(count == 1 || calls[0]["id"] != calls[1]["id"]);
    }
    // Without a choice of tools, it is text.
    let reply = server.post(PATH, &chat(&json!({"tool_choice": "none"}))).await.ok();
    assert_eq!(reply["choices"][0]["message"]["content"], TWO);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    // Cut off before a call is whole.
    let reply = server.post(PATH, &chat(&json!({"max_tokens": 30}))).await.ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["choices"][0]["message"]["content"], TWO[..30]);
}

#[tokio::test]
async fn calls_stream_name_first() {
    let server = server(Some("hermes"), TWO).await;
    let chunks = server.post(PATH, &chat(&json!({"stream": true}))).await.chunks();
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<(String, String, String)>::new(), Value::Null);
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                let text = |value: &Value| value.as_str().expect("a text").to_owned();
                calls.push((text(&call["id"]), text(&call["function"]["name"]), String::new()));
            } else {
                assert!(call["id"].is_null() && call["function"]["name"].is_null());
            }
            calls[index].2 += call["function"]["arguments"].as_str().expect("arguments");
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    assert_eq!((content.as_str(), reason), ("Let me see. ", json!("tool_calls")));
    let told: Vec<_> = calls.iter().map(|(_, name, arguments)| (name.as_str(), arguments.as_str())).collect();
    assert_eq!(told, [("weather", "{\"city\":\"Rome\"}"), ("time", "{\"city\":\"Oslo\"}")]);
    assert_ne!(calls[0].0, calls[1].0);
}

#[tokio::test]
async fn what_must_be_called_binds_the_answer_from_its_first_token() {
    for parser in tool_parsers() {
        let server = server(Some(parser), "x").await;
        let call = |name: &str, city: &str| match parser {
            "hermes" => {
                format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
            }
            "llama3" => format!("{{\"name\": \"{name}\", \"parameters\": {{\"city\": \"{city}\"}}}}"),
            "mistral" => {
                format!("[TOOL_CALLS][{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"{city}\"}}}}]")
            }
            "deepseek" => {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{\"city\": \"{city}\"}}<｜tool▁call▁end｜>")
            }
            "qwen3-coder" => format!(
                "<tool_call>\n<function={name}>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
            ),
            "glm" => format!("<tool_call>{name}\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n</tool_call>"),
            other => panic!("{other}"),
        };
        let named = json!({"type": "function", "function": {"name": "time"}});
        for (choice, name, city, is_allowed) in [
            (json!("required"), "weather", "Rome", true),
            (json!("required"), "time", "Oslo", true),
            (json!("required"), "time", "Bonn", false),
            (json!("required"), "day", "Rome", false),
            (named.clone(), "time", "Rome", true),
            (named, "weather", "Rome", false),
        ] {
            server.post(PATH, &chat(&json!({"tool_choice": choice}))).await.ok();
            let mut constraint = server.last_request().constraint.expect("a constraint");
            let text = call(name, city);
            let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
            let all = taken == text.len() && constraint.may_end();
            assert_eq!(all, is_allowed, "{parser}: {choice} with {text}: {taken} bytes");
        }
        // A free answer is bound behind the marker of a call.
        server.post(PATH, &chat(&json!({}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        let text = format!("Well, {}", call("time", "Bonn"));
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert!(taken < text.len() || parser == "llama3", "{parser}: {taken} bytes");
        assert!(constraint.advance(u32::from(b'!')).is_err() || parser == "llama3");
    }
}

#[tokio::test]
async fn choices_that_cannot_be_kept_to_are_refused() {
    let unknown = server(None, "x").await;
    let known = server(Some("hermes"), "x").await;
    let other = json!({"type": "function", "function": {"name": "other"}});
    for (server, param, more) in [
        (&unknown, "tool_choice", json!({"tool_choice": "required"})),
        (&known, "tool_choice", json!({"tool_choice": other})),
        (&known, "tool_choice", json!({"tool_choice": "sometimes"})),
        (&known, "tool_choice", json!({"tool_choice": "required", "tools": []})),
        (&known, "tools", json!({"response_format": {"type": "json_object"}})),
        (&known, "parallel_tool_calls", json!({"parallel_tool_calls": 3})),
    ] {
        let (status, error) = server.post(PATH, &chat(&more)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{more}");
    }
    // Where it is not known how calls are written, an answer is text.
    unknown.post(PATH, &chat(&json!({}))).await.ok();
    assert!(unknown.last_request().constraint.is_none());
}

#[tokio::test]
async fn a_schema_that_cannot_be_enforced_binds_strict_and_required_calls_only() {
    let server = server(Some("hermes"), "x").await;
    let tools = |strict: bool| {
        let function = json!({"name": "f", "strict": strict, "parameters": {"not": {}}});
        json!([{"type": "function", "function": function}])
    };
    server.post(PATH, &chat(&json!({"tools": tools(false)}))).await.ok();
    for more in [json!({"tools": tools(true)}), json!({"tools": tools(false), "tool_choice": "required"})] {
        let (status, error) = server.post(PATH, &chat(&more)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("tools")), "{more}");
    }
}
