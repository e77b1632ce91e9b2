//! Tests constraints on answers: every format in which clients ask for them, and refusals.

use serde_json::{Value, json};

use crate::fixture::Server;

/// The length of the longest prefix of `text` that the constraint of the newest request allows, and whether the answer
/// may end there.
fn allowed(server: &Server, text: &str) -> (usize, bool) {
    let mut constraint = server.last_request().constraint.expect("a constraint");
    let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
    (taken, constraint.may_end())
}

#[tokio::test]
async fn each_form_binds_the_answer() {
    let server = Server::answering("x").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let named = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    let lark = "start: \"a\" /[0-9]+/";
    for (field, value, good, bad) in [
        ("response_format", json!({"type": "json_object"}), "{\"x\": [1]}", "[1]"),
        ("response_format", json!({"type": "json_object", "schema": schema}), "{\"a\": 1}", "{\"a\": \"1\"}"),
        ("response_format", named, "{\"a\": 1}", "{\"a\": \"1\"}"),
        ("structured_outputs", json!({"json": schema}), "{\"a\": 1}", "{\"a\": null}"),
        ("structured_outputs", json!({"json": schema.to_string()}), "{\"a\": 1}", "{\"a\": null}"),
        ("structured_outputs", json!({"json_object": true}), "{}", "1"),
        ("structured_outputs", json!({"regex": "[ab]+c"}), "abac", "ca"),
        ("structured_outputs", json!({"choice": ["yes", "no"]}), "yes", "yeno"),
        ("structured_outputs", json!({"grammar": lark}), "a12", "12"),
        ("guided_json", schema.clone(), "{\"a\": 1}", "{\"a\": null}"),
        ("guided_regex", json!("[ab]+c"), "abac", "ca"),
        ("guided_choice", json!(["yes", "no"]), "no", "non"),
        ("guided_grammar", json!(lark), "a12", "12"),
        ("grammar", json!("root ::= \"a\" [0-9]+"), "a12", "12"),
        ("json_schema", schema.clone(), "{\"a\": 1}", "{\"a\": null}"),
    ] {
        for (path, prompt, content) in [
            ("/v1/completions", "prompt", json!("a")),
            ("/v1/chat/completions", "messages", json!([{"role": "user", "content": "a"}])),
        ] {
            server.post(path, &json!({prompt: content, field: value})).await.ok();
            assert_eq!(allowed(&server, good), (good.len(), true), "{field}: {value}");
            assert!(allowed(&server, bad) != (bad.len(), true), "{field}: {value}");
        }
    }
    for nothing in [json!({"type": "text"}), Value::Null] {
        server
            .post("/v1/completions", &json!({"prompt": "a", "response_format": nothing, "guided_json": ""}))
            .await
            .ok();
        assert!(server.last_request().constraint.is_none());
    }
}

#[tokio::test]
async fn what_cannot_be_kept_to_is_refused_by_name_and_place() {
    let server = Server::answering("x").await;
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let any = || json!({"response_format": {"type": "json_object"}});
    for (param, body, told) in [
        ("response_format", json!({"response_format": {"type": "structural_tag"}}), "json_schema"),
        ("response_format", json!({"response_format": {}}), "null"),
        ("response_format.json_schema.schema", json!({"response_format": {"type": "json_schema"}}), "missing"),
        ("response_format", schema(json!({"properties": {"a": {"$dynamicRef": "#"}}})), "#/properties/a/$dynamicRef"),
        (
            "response_format",
            schema(json!({"type": "array", "unevaluatedItems": {"type": "array"}})),
            "unevaluatedItems",
        ),
        ("response_format", schema(json!({"type": "nothing"})), "nothing"),
        (
            "response_format.json_schema.schema",
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"strict": true, "schema": {"items": {"format": "color"}}}}}),
            "#/items/format",
        ),
        ("response_format.json_schema.schema", schema(json!("{")), "cannot be read"),
        ("response_format.json_schema.schema", schema(json!({"x": "y".repeat(300 << 10)})), "bytes"),
        ("structured_outputs.regex", json!({"structured_outputs": {"regex": "("}}), "regular expression"),
        ("structured_outputs.grammar", json!({"structured_outputs": {"grammar": "root ::= a"}}), "\"a\" is named"),
        ("structured_outputs.choice", json!({"structured_outputs": {"choice": []}}), "0 texts"),
        ("structured_outputs.structural_tag", json!({"structured_outputs": {"structural_tag": {}}}), "not supported"),
        (
            "structured_outputs.whitespace_pattern",
            json!({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}),
            "not supported",
        ),
        ("structured_outputs.regex", with(any(), "structured_outputs", json!({"regex": "a"})), "one of them"),
        ("ignore_eos", with(any(), "ignore_eos", json!(true)), "leave it out"),
        ("min_tokens", with(any(), "min_tokens", json!(2)), "leave it out"),
    ] {
        let chat = with(with(body, "messages", json!([{"role": "user", "content": "a"}])), "max_tokens", json!(8));
        let (status, error) = server.post("/v1/chat/completions", &chat).await.error();
        let message = error["message"].as_str().expect("a message");
        let is_named = error["param"].as_str().is_some_and(|named| named == param || param.starts_with(named));
        assert!(status == 400 && is_named && message.contains(told), "{param}: {error:?}");
    }
    // The scripted engine checks like the real one.
    assert!(server.engine.requests().is_empty());
}
