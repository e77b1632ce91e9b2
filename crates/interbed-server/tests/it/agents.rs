//! Tests requests as coding agents send them: fields that change no answer are accepted, and histories are put in
//! order.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

/// Shows tools, results and calls like a template of the Hermes family, and accepts a system message only at the start.
const TEMPLATE: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}\
    {% endif %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \
    \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

async fn server(text: &str) -> Server {
    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    Server::speaking(config, text, TEMPLATE).await
}

fn prompt(server: &Server) -> String {
    server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect()
}

/// Whether exactly this text may be the answer.
fn may_be(server: &Server, text: &str) -> bool {
    let mut constraint = server.last_request().constraint.expect("a constraint");
    text.bytes().all(|byte| constraint.advance(u32::from(byte)).is_ok()) && constraint.may_end()
}

fn with(base: &Value, more: Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A request like those of Claude Code.
fn messages(number: usize) -> Value {
    let schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {"path": {"type": "string"}, "count": {"type": "integer", "exclusiveMinimum": 0}},
        "required": ["path"], "additionalProperties": false});
    json!({
        "model": "interbed", "max_tokens": 9, "stream": false, "metadata": {"user_id": format!("user-{number}")},
        "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2; cch={number:05};")},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "tools": [
            {"name": "Read", "description": "Reads.", "input_schema": schema, "eager_input_streaming": true},
            {"name": "Late", "input_schema": {"type": "object"}, "defer_loading": true},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "xhigh"},
        "service_tier": "auto", "speed": "standard", "inference_geo": null, "diagnostics": {"a": 1},
        "cache_control": {"type": "ephemeral"},
    })
}

#[tokio::test]
async fn requests_that_differ_in_what_is_not_for_the_model_have_one_prompt() {
    let server = server("x").await;
    let expected = "[Read][Late]<system>You help.<user>hi<assistant>";
    for number in [1, 2] {
        server.post("/v1/messages?beta=true", &messages(number)).await.ok();
        assert_eq!(prompt(&server), expected);
    }
    let told = server.post("/v1/messages/count_tokens?beta=true", &messages(3)).await.ok();
    assert_eq!(told, json!({"input_tokens": expected.len()}));
    let body = with(&messages(1), json!({"system": "x-anthropic-billing-header: a=1\nYou help."}));
    server.post("/v1/messages", &body).await.ok();
    assert_eq!(prompt(&server), expected);
}

#[tokio::test]
async fn messages_are_put_in_order() {
    let server = server("x").await;
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
    let conversation = json!([
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "zzz"},
            {"type": "text", "text": "so"},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [picture]}]},
        {"role": "system", "content": "9 left"},
        {"role": "user", "content": "go on"},
    ]);
    server.post("/v1/messages", &with(&messages(1), json!({"messages": conversation}))).await.ok();
    let left_out = "[A picture was left out here, as this model reads text alone.]";
    let expected = format!(
        "[Read][Late]<system>You help.\n\n9 left<user>look\n{left_out}<assistant>so\n\
         [server_tool_use: {{\"name\":\"web_search\",\"input\":{{\"query\":\"q\"}}}}]\n\
         [web_search_tool_result: {{\"tool_use_id\":\"s1\",\"content\":[]}}]\
         <tool_call>{{\"name\": \"Read\", \"arguments\": {{\"path\": \"a\"}}}}</tool_call>\
         <tool>{left_out}<user>go on<assistant>"
    );
    assert_eq!(prompt(&server), expected);
    // Content that the model is asked about cannot be left out.
    let newest = json!({"messages": [{"role": "user", "content": [picture]}]});
    let reply = server.post("/v1/messages", &with(&messages(1), newest)).await;
    let problem = "messages[0].content[0].type is \\\"image\\\", a picture";
    assert!(reply.status == 400 && reply.body.contains(problem), "{}", reply.body);
}

#[tokio::test]
async fn a_schema_beside_tools_binds_what_is_no_call() {
    let server = server("x").await;
    let schema = json!({"type": "object", "properties": {"title": {"enum": ["a", "b"]}}, "required": ["title"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    let call = "<tool_call>\n{\"name\": \"Read\", \"arguments\": {\"path\": \"x\"}}\n</tool_call>";
    let path = "/v1/messages";
    for more in [json!({"output_config": {"format": format}}), json!({"output_config": {}, "output_format": format})] {
        server.post(path, &with(&messages(1), more.clone())).await.ok();
        assert!(may_be(&server, "{\"title\": \"a\"}") && may_be(&server, call), "{more}");
        assert!(may_be(&server, &format!("{call}\n{call}")));
        assert!(!may_be(&server, "{\"title\": \"c\"}") && !may_be(&server, "Well") && !may_be(&server, "{}"));
        let alone = with(&with(&messages(1), more), json!({"tools": []}));
        server.post(path, &alone).await.ok();
        assert!(may_be(&server, "{\"title\": \"a\"}") && !may_be(&server, call));
    }
    let both = json!({"output_format": format, "output_config": {"format": format}});
    assert_eq!(server.post(path, &with(&messages(1), both)).await.status, 400);
    let chat = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
    });
    server.post("/v1/chat/completions", &chat).await.ok();
    assert!(may_be(&server, "{\"title\": \"b\"}") && may_be(&server, call) && !may_be(&server, "Well"));
    // If a call is required, it is the whole answer.
    server.post("/v1/chat/completions", &with(&chat, json!({"tool_choice": "required"}))).await.ok();
    assert!(may_be(&server, call) && !may_be(&server, "{\"title\": \"b\"}"));
}

/// A request like those of Codex.
fn responses() -> Value {
    let shell = json!({"type": "function", "name": "shell", "strict": false, "parameters": {"type": "object",
        "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": false}});
    json!({
        "model": "interbed", "instructions": "You help.", "store": false, "tool_choice": "auto",
        "parallel_tool_calls": false, "max_output_tokens": 300, "prompt_cache_key": "k",
        "reasoning": {"effort": null, "summary": "detailed"}, "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "client_metadata": {"a": "b"}, "service_tier": "auto",
        "tools": [
            shell,
            {"type": "custom", "name": "patch", "description": "Edits.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
            {"type": "namespace", "name": "mcp__x", "description": "d", "tools": [shell]},
            {"type": "web_search", "external_web_access": false},
            {"type": "local_shell"},
            {"type": "image_generation", "output_format": "png"},
        ],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be safe."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
    })
}

#[tokio::test]
async fn items_of_the_past_become_messages_or_text() {
    let server = server("x").await;
    let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,aGk="});
    let input = json!([
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, picture]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": null, "encrypted_content": "abc"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{\"command\": ["},
        {"type": "function_call_output", "call_id": "c1", "output": [picture]},
        {"type": "function_call", "call_id": "c2", "name": "shell", "namespace": "mcp__x", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": []},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a \"b\""},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
        {"type": "function_call_output", "call_id": "c0", "output": "y"},
        {"type": "local_shell_call_output", "id": "l1", "output": "z"},
        {"type": "message", "role": "developer", "content": "Hurry."},
        {"role": "user", "content": "b"},
    ]);
    server.post("/v1/responses", &with(&responses(), json!({"input": input}))).await.ok();
    let left_out = "[A picture was left out here, as this model reads text alone.]";
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {arguments}}}</tool_call>")
    };
    let expected = format!(
        "[shell][patch][mcp__x__shell]<system>You help.\n\nHurry.<user>a\n{left_out}\
         <assistant>[web_search_call: {{\"action\":{{\"query\":\"q\"}}}}]\nno{}<tool>{left_out}\
         <assistant>{}<tool><assistant>{}<tool>done\
         <user>[An earlier call brought: y]\n[local_shell_call_output: {{\"output\":\"z\"}}]\n\nb<assistant>",
        call("shell", "\"{\\\"command\\\": [\""),
        call("mcp__x__shell", "{}"),
        call("patch", "{\"input\": \"a \\\"b\\\"\"}"),
    );
    assert_eq!(prompt(&server), expected);
    let told = server.post("/v1/responses/input_tokens", &with(&responses(), json!({"input": input}))).await.ok();
    assert_eq!(told, json!({"object": "response.input_tokens", "input_tokens": expected.len()}));
}

#[tokio::test]
async fn tools_of_groups_and_for_texts_are_called_by_their_own_names() {
    let calls = "<tool_call>\n{\"name\": \"mcp__x__shell\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"a\\n\\\"b\\\"\"}}\n</tool_call>";
    let server = server(calls).await;
    let body = with(&responses(), json!({"parallel_tool_calls": true}));
    let told = server.post("/v1/responses", &body).await.ok();
    let call = |index: usize, field: &str| told["output"][index][field].clone();
    assert_eq!((call(0, "type"), call(0, "name")), (json!("function_call"), json!("shell")));
    assert_eq!((call(0, "namespace"), call(0, "arguments")), (json!("mcp__x"), json!("{\"command\": \"ls\"}")));
    assert_eq!((call(1, "type"), call(1, "name")), (json!("custom_tool_call"), json!("patch")));
    assert_eq!((call(1, "input"), call(1, "namespace")), (json!("a\n\"b\""), Value::Null));
    let stream = server.post("/v1/responses", &with(&body, json!({"stream": true}))).await;
    let has = |text: &str| stream.body.contains(text);
    assert!(has("event: response.custom_tool_call_input.delta") && has("event: response.custom_tool_call_input.done"));
    assert!(has(r#""input":"a\n\"b\"""#) && has(r#""namespace":"mcp__x""#), "{}", stream.body);
    // Custom tools in the format of chats.
    let tools = json!([{"type": "custom", "custom": {"name": "patch"}}]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 300});
    let chosen = json!({"type": "custom", "custom": {"name": "patch"}});
    let only = "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"a\\nb\"}}\n</tool_call>";
    let server = self::server(only).await;
    for more in [json!({}), json!({"tool_choice": chosen})] {
        let told = server.post("/v1/chat/completions", &with(&chat, more)).await.ok();
        let call = &told["choices"][0]["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["custom"]), (&json!("custom"), &json!({"name": "patch", "input": "a\nb"})));
    }
    assert!(may_be(&server, only) && !may_be(&server, "x"));
    let chunks = server.post("/v1/chat/completions", &with(&chat, json!({"stream": true}))).await.chunks();
    let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]["custom"]["input"]);
    assert_eq!(deltas.filter_map(Value::as_str).collect::<String>(), "a\nb");
    // The call is part of the next prompt.
    let call = json!({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a"}});
    let next = json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]});
    server.post("/v1/chat/completions", &with(&chat, next)).await.ok();
    assert!(prompt(&server).contains("{\"name\": \"patch\", \"arguments\": {\"input\": \"a\"}}</tool_call><tool>ok"));
}

#[tokio::test]
async fn some_tools_are_allowed_and_others_shown() {
    let server = server("x").await;
    let tools = ["one", "two"].map(|name| json!({"type": "function", "function": {"name": name}}));
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools});
    let call = |name: &str| format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>");
    for mode in ["auto", "required"] {
        let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tools[1]]}});
        server.post("/v1/chat/completions", &with(&chat, json!({"tool_choice": choice}))).await.ok();
        assert_eq!(prompt(&server), "[one][two]<user>a<assistant>");
        assert!(may_be(&server, &call("two")) && !may_be(&server, &call("one")));
        assert_eq!(may_be(&server, "Well"), mode == "auto");
    }
}

#[tokio::test]
async fn histories_of_chats_are_put_in_order() {
    let server = server("x").await;
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "refusal": null, "audio": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    };
    for (arguments, shown) in [
        (json!(""), "{}"),
        (json!(null), "{}"),
        (json!("null"), "{}"),
        (json!("{\"a\": "), "\"{\\\"a\\\": \""),
        (json!("[]"), "\"[]\""),
        (json!({"a": 1}), "{\"a\": 1}"),
    ] {
        let body = json!({"messages": [
            {"role": "developer", "content": "D"},
            {"role": "user", "content": "a"},
            call(arguments.clone()),
            {"role": "tool", "tool_call_id": "c1", "content": null},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []},
            {"role": "system", "content": "S"},
            {"role": "assistant", "content": null, "refusal": "never"},
            {"role": "user", "content": "b"},
        ]});
        server.post("/v1/chat/completions", &body).await.ok();
        let expected = format!(
            "<system>D\n\nS<user>a<assistant><tool_call>{{\"name\": \"f\", \"arguments\": {shown}}}</tool_call>\
             <tool><assistant>no<assistant>never<user>b<assistant>"
        );
        assert_eq!(prompt(&server), expected, "{arguments}");
    }
    // The older format of calls.
    let body = json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{\"x\": 1}"}},
        {"role": "function", "name": "f", "content": "r"},
    ], "function_call": "none", "top_p": 0, "verbosity": "low", "store": true});
    server.post("/v1/chat/completions", &body).await.ok();
    let expected =
        "<user>a<assistant><tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call><tool>r<assistant>";
    assert_eq!(prompt(&server), expected);
}

#[tokio::test]
async fn a_template_that_iterates_over_arguments_gets_an_object() {
    let template = "{{ tools or '' }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
        {% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}\
        {% endfor %}{% endfor %}";
    let server = Server::with_template(template).await;
    for (arguments, shown) in [("{\"a\": 1}", "a=1"), ("{\"a\": ", ""), ("[1]", ""), ("", "")] {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let body = json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ]});
        server.post("/v1/chat/completions", &body).await.ok();
        assert_eq!(prompt(&server), format!("<user>a<assistant>{shown}<tool>r"), "{arguments}");
    }
}
