//! Tests answers with thinking, in the tags or channels of their model.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

/// A template that opens the thinking, unless it is told not to.
const OPENS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}[tools]{% endif %}\
    {% if add_generation_prompt %}<assistant><think>\n{% if enable_thinking is false %}\n</think>\n{% endif %}\
    {% endif %}";
/// A template that lets the model open the thinking.
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

/// Thinking and text of an answer, after checking that the streamed answer is the same.
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
    // Other text beside the answer would make it invalid JSON.
    let server = server("x", HARMONY, None).await;
    for (text, taken) in [("<|channel|>commentary", 11), ("so", 0), ("<|channel|>final<|end|>", 18)] {
        server.post(PATH, &chat(&json!({"response_format": schema}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        assert_eq!(text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count(), taken);
    }
    // If the prompt closes the thinking, the whole answer is constrained.
    let server = self::server("x", OPENS, None).await;
    let more = json!({"response_format": schema, "chat_template_kwargs": {"enable_thinking": false}});
    server.post(PATH, &chat(&more)).await.ok();
    assert!(server.last_request().constraint.expect("a constraint").advance(u32::from(b's')).is_err());
}

/// Sends a request with these stop strings, whole and streamed, to both APIs that support them; returns thinking, text,
/// the stop string that ended the answer, and the number of tokens.
async fn stopped(server: &Server, stops: &[&str], more: Value) -> (String, String, Value, u64) {
    let mut more = more;
    more["stop"] = json!(stops);
    let whole = server.post(PATH, &chat(&more)).await.ok();
    let choice = &whole["choices"][0];
    let text = |name: &str| choice["message"][name].as_str().unwrap_or_default().to_owned();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let expected = (text("reasoning_content"), text("content"), choice["stop_reason"].clone(), tokens);

    more["stream"] = true.into();
    more["stream_options"] = json!({"include_usage": true});
    let mut streamed = (String::new(), String::new(), Value::Null, 0);
    for chunk in server.post(PATH, &chat(&more)).await.chunks() {
        let choice = &chunk["choices"][0];
        streamed.0 += choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
        streamed.1 += choice["delta"]["content"].as_str().unwrap_or_default();
        if !choice["finish_reason"].is_null() {
            streamed.2 = choice["stop_reason"].clone();
        }
        streamed.3 = chunk["usage"]["completion_tokens"].as_u64().unwrap_or_default();
    }
    // White space alone is no content of a whole answer with thinking.
    if expected.1.is_empty() {
        streamed.1 = streamed.1.trim().to_owned();
    }
    assert_eq!(streamed, expected, "{stops:?} streamed");

    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "stop_sequences": stops});
    for stream in [false, true] {
        body["stream"] = stream.into();
        let reply = server.post("/v1/messages", &body).await;
        let mut told = (String::new(), String::new(), Value::Null, 0);
        let mut add = |block: &Value| {
            told.0 += block["thinking"].as_str().unwrap_or_default();
            told.1 += block["text"].as_str().unwrap_or_default();
        };
        let end = if stream {
            let mut end = Value::Null;
            for event in reply.body.split_terminator("\n\n") {
                let data: Value = serde_json::from_str(event.split_once("\ndata: ").unwrap().1).unwrap();
                add(&data["delta"]);
                if data["type"] == "message_delta" {
                    end = json!({"stop_sequence": data["delta"]["stop_sequence"], "usage": data["usage"]});
                }
            }
            end
        } else {
            let message = reply.ok();
            message["content"].as_array().unwrap().iter().for_each(add);
            message
        };
        told.2 = end["stop_sequence"].clone();
        told.3 = end["usage"]["output_tokens"].as_u64().unwrap();
        let trimmed = |told: &(String, String, Value, u64)| (told.0.clone(), told.1.trim().to_owned(), told.3);
        assert_eq!((trimmed(&told), &told.2), (trimmed(&expected), &expected.2), "{stops:?} of messages");
    }
    expected
}

#[tokio::test]
async fn stop_strings_end_the_text_and_never_the_thinking() {
    let channels = "<|channel|>analysis<|message|>I stop here.\n\nNo.<|end|><|start|>assistant\
        <|channel|>final<|message|>Well.\n\nI stop there.";
    let of_tags = "I stop here.\n\nNo.\n</think>\n\nWell.\n\nI stop there.";
    let opened = format!("<think>{of_tags}");
    let (thought, text) = ("I stop here.\n\nNo.", "Well.\n\nI stop there.");
    for (template, answer) in [(OPENS, of_tags), (KNOWS, opened.as_str()), (HARMONY, channels)] {
        let server = server(answer, template, None).await;
        for (stops, expected) in [
            (&["stop"][..], Some(("Well.\n\nI ", "stop"))),
            (&["stop here", "\n\n"], Some(("Well.", "\n\n"))),
            (&["I stop here", "zz"], None),
            // Stop strings that cross the boundaries of messages, or are in their marks.
            (&["No.\n</think>", "Well.I", "</think>", "<|message|>", "think", "analysis"], None),
            (&["W"], Some(("", "W"))),
            (&["there", "I stop t", "re."], Some(("Well.\n\n", "I stop t"))),
            (&["."], Some(("Well", "."))),
        ] {
            let (said, stop) = expected.map_or((text, Value::Null), |(said, stop)| (said, json!(stop)));
            // A token is a byte here: the answer ends with the last byte of the stop string.
            let tokens = match stop.as_str() {
                Some(stop) => answer.len() - text.len() + said.len() + stop.len(),
                None => answer.len() + 1,
            };
            let told = stopped(&server, stops, json!({})).await;
            assert_eq!(told, (thought.into(), said.into(), stop, tokens as u64), "{stops:?} {template}");
        }
        let included = json!({"include_stop_str_in_output": true, "stop": "stop"});
        let told = server.post(PATH, &chat(&included)).await.ok();
        assert_eq!(told["choices"][0]["message"]["content"], "Well.\n\nI stop");
        let later = json!({"min_tokens": answer.len(), "stop": ["stop", "there"]});
        let told = server.post(PATH, &chat(&later)).await.ok();
        assert_eq!(told["choices"][0]["message"]["content"], text);
    }
    // Answers without thinking, or with thinking turned off, end at stop strings as usual.
    let server = server("I stop.", OPENS, None).await;
    let without = json!({"chat_template_kwargs": {"enable_thinking": false}, "stop": "stop"});
    let told = server.post(PATH, &chat(&without)).await.ok();
    assert_eq!(
        (&told["choices"][0]["message"]["content"], told["usage"]["completion_tokens"].as_u64()),
        (&json!("I "), Some(6))
    );
}

#[tokio::test]
async fn stop_strings_end_no_call() {
    let tools = json!([{"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}]);
    let call = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"code\": \"a\\n\\nstop\"}}\n</tool_call>";
    let channel = "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>\
        {\"code\": \"a\\n\\nstop\"}<|call|>";
    for (template, parser, answer) in [
        (KNOWS, Some("hermes"), format!("Well.{call}\n{call}Now stop it.")),
        (HARMONY, None, format!("<|channel|>final<|message|>Well.<|end|><|start|>assistant{channel}")),
    ] {
        let server = server(&answer, template, parser).await;
        let asked = |stop: Value| chat(&json!({"tools": tools, "stop": stop}));
        let told = server.post(PATH, &asked(json!(["stop", "{", "<tool_call>"]))).await.ok();
        let choice = &told["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        for call in calls {
            assert_eq!(call["function"]["arguments"], "{\"code\": \"a\\n\\nstop\"}");
        }
        assert_eq!(choice["finish_reason"], "tool_calls");
        let said = if parser.is_some() { (2, "Well.Now ", json!("stop")) } else { (1, "Well.", Value::Null) };
        let content = choice["message"]["content"].as_str().unwrap();
        assert_eq!((calls.len(), content, choice["stop_reason"].clone()), said);
        // Text before calls ends at a stop string, and the calls never come.
        let told = server.post(PATH, &asked(json!("ll."))).await.ok();
        let choice = &told["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("stop"), &json!("We")));
        assert!(choice["message"]["tool_calls"].is_null());
    }
}
