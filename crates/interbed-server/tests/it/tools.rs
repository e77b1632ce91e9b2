//! Tests tool calls: how answers are parsed, whole and streamed, and what constrains them.

use std::os::unix::fs::PermissionsExt;

use interbed_engine::json_value;
use interbed_engine::testing::answer;
use interbed_server::{ServerConfig, tool_parsers};
use serde_json::{Value, json};

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
        assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": "{\"city\": \"Rome\"}"}));
        assert!(calls[0]["index"].is_null() && calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")));
        assert!(count == 1 || calls[0]["id"] != calls[1]["id"]);
    }
    // With `tool_choice` "none", a call is text.
    let reply = server.post(PATH, &chat(&json!({"tool_choice": "none"}))).await.ok();
    assert_eq!(reply["choices"][0]["message"]["content"], TWO);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    // Answers that are cut off before the tool's name is known, and after it.
    let reply = server.post(PATH, &chat(&json!({"max_tokens": 30}))).await.ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["choices"][0]["message"]["content"], TWO[..30]);
    let reply = server.post(PATH, &chat(&json!({"max_tokens": 64}))).await.ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("weather"), &json!("{\"city\"")));
}

#[tokio::test]
async fn calls_stream_name_first() {
    let server = server(Some("hermes"), TWO).await;
    let chunks = server.post(PATH, &chat(&json!({"stream": true}))).await.chunks();
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<(String, String, String)>::new(), Value::Null);
    let mut pieces = 0;
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
                pieces += 1;
            }
            calls[index].2 += call["function"]["arguments"].as_str().expect("arguments");
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    assert_eq!((content.as_str(), reason), ("Let me see. ", json!("tool_calls")));
    let told: Vec<_> = calls.iter().map(|(_, name, arguments)| (name.as_str(), arguments.as_str())).collect();
    assert_eq!(told, [("weather", "{\"city\": \"Rome\"}"), ("time", "{\"city\": \"Oslo\"}")]);
    assert_ne!(calls[0].0, calls[1].0);
    // A token is a byte here, and each byte of the arguments is sent at once.
    assert_eq!(pieces, calls[0].2.len() + calls[1].2.len());
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
            "lfm2" => format!("<|tool_call_start|>[{name}(city=\"{city}\")]"),
            "deepseek" => {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{\"city\": \"{city}\"}}<｜tool▁call▁end｜>")
            }
            "qwen3-coder" => format!(
                "<tool_call>\n<function={name}>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
            ),
            "glm" => format!("<tool_call>{name}\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n</tool_call>"),
            "gemma4" => format!("<|tool_call>call:{name}{{city:<|\"|>{city}<|\"|>}}<tool_call|>"),
            "harmony" => format!(
                "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.{name} <|constrain|>json<|message|>{{\"city\": \"{city}\"}}"
            ),
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
        // A free answer is constrained after the marker of a call.
        server.post(PATH, &chat(&json!({}))).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        // Without its marker, a call of Llama 3 has to be at the start.
        let marker = if parser == "llama3" { "<|python_tag|>" } else { "" };
        let text = format!("Well, {marker}{}", call("time", "Bonn"));
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert!(taken < text.len(), "{parser}: {taken} bytes");
        assert!(constraint.advance(u32::from(b'!')).is_err(), "{parser}");
    }
}

#[tokio::test]
async fn calls_without_a_marker_are_bound_wherever_they_are_read() {
    let server = server(Some("llama3"), "x").await;
    server.post(PATH, &chat(&json!({}))).await.ok();
    let fresh = server.last_request().constraint.expect("a constraint");
    let call = "{\"name\": \"time\", \"parameters\": {\"city\": \"Oslo\"}}";
    let typed = "{\"type\": \"function\", \"name\": \"time\", \"parameters\": {\"city\": \"Oslo\"}}";
    let spaced = "\n{\n  \"name\" : \"time\",\n  \"parameters\":\n{\"city\": \"Oslo\"}\n}";
    for (text, is_allowed) in [
        (call.to_owned(), true),
        (typed.to_owned(), true),
        (spaced.to_owned(), true),
        (format!("{call}; {typed}\n{spaced} and so on {{"), true),
        ("Well, {\"name\": \"rm\"".into(), true),
        ("{ \"name\": \"rm\"".into(), false),
        ("{\"type\": \"function\", \"name\": \"rm\"".into(), false),
        ("{\"a\"".into(), false),
        (format!("{call}; {{\"name\": \"rm\""), false),
        (format!("{call}{{\"name\": \"time\", \"parameters\": {{\"city\": \"Bonn\""), false),
    ] {
        let mut constraint = fresh.clone();
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert_eq!(taken == text.len(), is_allowed, "{taken} bytes of {text}");
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
        (&known, "tools", json!({"structured_outputs": {"regex": "a+"}})),
        (&known, "parallel_tool_calls", json!({"parallel_tool_calls": 3})),
    ] {
        let (status, error) = server.post(PATH, &chat(&more)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{more}");
    }
    // If the syntax of calls is unknown, an answer is text.
    unknown.post(PATH, &chat(&json!({}))).await.ok();
    assert!(unknown.last_request().constraint.is_none());
}

#[tokio::test]
async fn a_schema_that_cannot_be_enforced_binds_strict_and_required_calls_only() {
    let server = server(Some("hermes"), "x").await;
    let tools = |strict: bool| {
        let function = json!({"name": "f", "strict": strict, "parameters": {"$dynamicRef": "#"}});
        json!([{"type": "function", "function": function}])
    };
    server.post(PATH, &chat(&json!({"tools": tools(false)}))).await.ok();
    for more in [json!({"tools": tools(true)}), json!({"tools": tools(false), "tool_choice": "required"})] {
        let (status, error) = server.post(PATH, &chat(&more)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("tools")), "{more}");
    }
}

#[tokio::test]
async fn parameters_between_tags_keep_to_the_whole_schema() {
    let args = json!({"type": "object", "required": ["list"], "additionalProperties": false,
        "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Item"}}, "note": {"type": "string"}}});
    let parameters = json!({"$ref": "#/$defs/Args", "$defs": {"Args": args, "Item": {"type": "integer"}}});
    let asked = |parameters: &Value, more: &Value| {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let mut asked = chat(more);
        asked["tools"] = tools;
        asked
    };
    let required = json!({"tool_choice": "required"});
    for (parser, begin, [open, between, close], end) in [
        ("qwen3-coder", "<tool_call>\n<function=f>\n", ["<parameter=", ">\n", "\n</parameter>\n"], "</function>\n"),
        ("glm", "<tool_call>f\n", ["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"], ""),
    ] {
        let server = server(Some(parser), "x").await;
        server.post(PATH, &asked(&parameters, &required)).await.ok();
        let fresh = server.last_request().constraint.expect("a constraint");
        let parameter = |key: &str, value: &str| format!("{open}{key}{between}{value}{close}");
        for (parameters, is_allowed) in [
            (parameter("list", "[1,\n 2]"), true),
            (parameter("list", "[1, 2]") + &parameter("note", "so"), true),
            (parameter("list", "[1,   2]"), false),
            (parameter("list", "[1,\n\n2]"), false),
            (parameter("list", "[\"1\"]"), false),
            (parameter("note", "so"), false),
            (parameter("other", "so"), false),
            (String::new(), false),
        ] {
            let text = format!("{begin}{parameters}{end}</tool_call>");
            let mut constraint = fresh.clone();
            let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
            assert_eq!(taken == text.len() && constraint.may_end(), is_allowed, "{parser}: {taken} bytes of {text:?}");
        }
        // A schema that does not describe each parameter by itself.
        let other = json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]});
        let (status, error) = server.post(PATH, &asked(&other, &required)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("tools")));
        assert!(error["message"].as_str().is_some_and(|message| message.contains("#/required/1")), "{error:?}");
        server.post(PATH, &asked(&other, &json!({}))).await.ok();
        assert!(server.last_request().constraint.is_some());
    }
}

#[tokio::test]
async fn a_model_whose_template_knows_no_tools_is_told_of_them() {
    const SILENT: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let unnamed = Server::speaking(ServerConfig::default(), TWO, SILENT).await;
    let told = unnamed.post(PATH, &chat(&json!({}))).await.ok();
    assert_eq!(told["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(2), "{told}");
    let prompt =
        |server: &Server| -> String { server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect() };
    assert!(prompt(&unnamed).contains("<tool_call>\n{\"name\": \"NAME\""), "{}", prompt(&unnamed));
    unnamed.post(PATH, &json!({"messages": [{"role": "user", "content": "a"}]})).await.ok();
    assert_eq!(prompt(&unnamed), "<user>a");

    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    let server = Server::speaking(config, TWO, SILENT).await;
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "time", "arguments": "{\"city\": \"Rome\"}"}});
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"}]);
    let reply = server.post(PATH, &chat(&json!({"messages": messages}))).await.ok();
    assert_eq!(reply["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(2));
    let prompt: Vec<u8> =
        server.last_request().prompt.iter().map(|&token| u8::try_from(token).expect("a byte")).collect();
    let prompt = String::from_utf8(prompt).expect("text");
    assert!(prompt.starts_with("<system>") && prompt.contains("\"name\":\"weather\""), "{prompt}");
    let told = "<user>a<assistant><tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\":\"Rome\"}}\n</tool_call>\
        <user><tool_response>\nnoon\n</tool_response>";
    assert!(prompt.ends_with(told), "{prompt}");
}

/// A busy server does not loosen the constraints of any answer.
#[tokio::test]
async fn what_is_not_compiled_in_time_is_not_loosened() {
    // This worker reads the vocabulary, and never answers about a schema.
    let folder = tempfile::tempdir().expect("a folder");
    let silent = folder.path().join("silent");
    std::fs::write(&silent, "#!/bin/sh\nprintf '\\002\\000\\000\\000+ '\nexec sleep 60\n").expect("a file");
    std::fs::set_permissions(&silent, std::fs::Permissions::from_mode(0o700)).expect("its mode");
    let config =
        ServerConfig { tool_parser: Some("hermes".into()), schema_worker: Some(silent), ..ServerConfig::default() };
    let server = Server::start(config, answer(TWO)).await;
    let refused = server.post(PATH, &chat(&json!({}))).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("could not be compiled within"), "{}", refused.body);
}

/// A schema that cannot be enforced loosens only its own function, and a strict one is refused.
#[tokio::test]
async fn under_auto_one_schema_loosens_no_other() {
    let server = server(Some("hermes"), "x").await;
    let all = json!({"type": "array", "unevaluatedItems": {"type": "array"}});
    let loose = json!({"type": "object", "properties": {"all": all}});
    let mut body = chat(&json!({}));
    body["tools"]
        .as_array_mut()
        .expect("tools")
        .push(json!({"type": "function", "function": {"name": "all", "parameters": loose}}));
    body["tools"][0]["function"]["strict"] = true.into();
    let call = |name: &str, arguments: &str| {
        format!("So.<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    for (text, is_allowed) in [
        (call("weather", r#"{"city": "Rome"}"#), true),
        (call("weather", r#"{"city": "Bern"}"#), false),
        (call("all", r#"{"all": [[], []]}"#), true),
    ] {
        server.post(PATH, &body).await.ok();
        let mut constraint = server.last_request().constraint.expect("a constraint");
        let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
        assert_eq!(taken == text.len(), is_allowed, "{text}");
    }
    body["tools"][2]["function"]["strict"] = true.into();
    let (status, error) = server.post(PATH, &body).await.error();
    assert!(
        status == 400 && error["message"].as_str().is_some_and(|told| told.contains("unevaluatedItems")),
        "{error:?}"
    );
}

/// Files that an agent wrote are arguments of its calls, and reach the template like all others.
#[tokio::test]
async fn long_arguments_are_objects_too() {
    let template = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {% for k, v in c.function.arguments | items %}{{ k }} {{ v | length }};{% endfor %}{% endfor %}{% endfor %}\
        {% if tools %}{% endif %}";
    let server = Server::speaking(ServerConfig::default(), "x", template).await;
    let written = |size: usize| {
        let arguments = json!({"city": "a".repeat(size)}).to_string();
        json!([{"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}])
    };
    let said = |size: usize| json!({"role": "assistant", "content": null, "tool_calls": written(size)});
    let messages = json!([{"role": "user", "content": "a"}, said(70_000), said(70_000), said(5)]);
    let reply = server.post("/tokenize", &json!({"messages": messages})).await.ok();
    let bytes = reply["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id") as u8);
    let prompt = String::from_utf8(bytes.collect()).expect("a text");
    assert_eq!(prompt, "city 70000;city 70000;city 5;");
}

/// Arguments are a JSON object, even if their schema has no type, or allows other types too.
#[tokio::test]
async fn arguments_are_objects_whatever_their_schema_says() {
    let number = json!({"properties": {"a": {"type": "integer"}}});
    let untyped = json!({"$ref": "#/$defs/x", "$defs": {"x": number}});
    let either = json!({"anyOf": [{"required": ["a"]}, {"type": "array"}], "properties": {"a": {"type": "integer"}}});
    let schemas = [
        json!({}),
        json!(true),
        json!({"description": "x", "$schema": "http://json-schema.org/draft-07/schema#"}),
        json!({"type": ["object", "null", "array"]}),
        number,
        untyped,
        either,
        json!({"oneOf": [{"type": "array"}, {"type": "object"}]}),
        json!({"enum": [1, {"a": 1}, [2]]}),
    ];
    for parser in ["hermes", "llama3", "mistral", "deepseek", "harmony"] {
        let server = server(Some(parser), "x").await;
        for (path, choice) in
            [(PATH, json!("required")), (PATH, json!("auto")), ("/v1/messages", json!({"type": "any"}))]
        {
            for schema in &schemas {
                let mut body = chat(&json!({"tool_choice": choice}));
                body["tools"] = if path == PATH {
                    json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
                } else {
                    let object = if schema == true { json!({}) } else { schema.clone() };
                    json!([{"name": "f", "input_schema": object}])
                };
                server.post(path, &body).await.ok();
                let fresh = server.last_request().constraint.expect("a constraint");
                let (before, behind) = match parser {
                    "hermes" => ("<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"),
                    "llama3" => ("{\"name\": \"f\", \"parameters\": ", "}"),
                    "mistral" => ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": ", "}]"),
                    "deepseek" => ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
                    _ => ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", ""),
                };
                for (arguments, is_allowed) in [
                    ("{\"a\": 1}", true),
                    ("[1,2,3]", false),
                    ("[2]", false),
                    ("true", false),
                    ("null", false),
                    ("1", false),
                    ("\"a\"", false),
                ] {
                    let text = format!("{before}{arguments}{behind}");
                    let mut constraint = fresh.clone();
                    let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
                    assert_eq!(taken == text.len(), is_allowed, "{parser} {schema}: {taken} bytes of {text}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_schema_that_no_object_keeps_to_is_refused_by_name() {
    let none = json!({"type": "object", "required": ["a"], "properties": {"a": false}});
    for parser in ["hermes", "glm"] {
        let server = server(Some(parser), "x").await;
        for (schema, place) in [
            (json!({"type": "array"}), "#/type"),
            (json!({"type": ["string", "null"]}), "#/type"),
            (json!({"enum": [1, 2]}), "#"),
            (json!({"allOf": [{"type": "object"}, {"type": "string"}]}), "#"),
            (none.clone(), "#"),
        ] {
            for choice in ["required", "auto"] {
                let mut body = chat(&json!({"tool_choice": choice}));
                body["tools"] = json!([{"type": "function", "function": {"name": "act", "parameters": schema}}]);
                let (status, error) = server.post(PATH, &body).await.error();
                let told = error["message"].as_str().unwrap_or_default();
                assert!(status == 400 && told.contains("act") && told.contains(place), "{schema}: {error:?}");
            }
        }
    }
}

/// Tools and histories keep the numbers as the client wrote them.
#[tokio::test]
async fn numbers_reach_the_prompt_as_they_were_sent() {
    let template = "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {{ c.function.arguments | tojson }}{{ c.function.arguments.a }}{% endfor %}{% endfor %}";
    let server = Server::speaking(ServerConfig::default(), "x", template).await;
    for number in ["1.0", "1e400", "-0.0", "1E5", "12345678901234567890123", "0.1000000000000000055", "100.00", "7"] {
        let parameters: Value = json_value(&format!(
            r#"{{"type": "object", "properties": {{"a": {{"enum": [{number}], "default": {number}}}}}}}"#
        ))
        .expect("a schema");
        let arguments: Value = json_value(&format!(r#"{{"a": {number}}}"#)).expect("an object");
        let call =
            json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments.to_string()}});
        let messages =
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]);
        // Assigned separately, as `json!` changes the spelling of some numbers.
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let mut body = json!({"messages": messages, "tools": tools, "tool_choice": "none"});
        body["tools"][0]["function"]["parameters"] = parameters.clone();
        server.post(PATH, &body).await.ok();
        let prompt = || {
            let bytes = server.last_request().prompt;
            String::from_utf8(bytes.iter().map(|&token| u8::try_from(token).expect("a byte")).collect()).expect("text")
        };
        for part in [format!(r#""enum": [{number}], "default": {number}"#), format!(r#"{{"a": {number}}}{number}"#)] {
            assert!(prompt().contains(&part), "{number}: {}", prompt());
        }
        let used = json!({"type": "tool_use", "id": "c", "name": "f"});
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [used]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}]);
        let mut body = json!({"max_tokens": 5, "messages": messages, "tools": [{"name": "f"}]});
        body["tools"][0]["input_schema"] = parameters;
        body["messages"][1]["content"][0]["input"] = arguments;
        server.post("/v1/messages", &body).await.ok();
        for part in [format!(r#""enum": [{number}], "default": {number}"#), format!(r#"{{"a": {number}}}{number}"#)] {
            assert!(prompt().contains(&part), "{number}: {}", prompt());
        }
    }
}
