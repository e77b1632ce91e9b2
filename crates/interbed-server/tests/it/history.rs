//! Tests histories of conversations, which all three APIs pass to the template in the same way.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

/// Shows a whole history, and refuses what strict templates refuse: two messages of the assistant in a row, and results
/// that do not follow calls.
const PAIRS: &str = "{% set ns = namespace(last='', calls=false) %}{% for m in messages %}\
    {% if m.role == 'assistant' and ns.last == 'assistant' %}{{ raise_exception('two in a row') }}{% endif %}\
    {% if m.role == 'tool' and not ns.calls %}{{ raise_exception('a result alone') }}{% endif %}\
    {% set ns.calls = m.role == 'tool' or (m.tool_calls is defined and m.tool_calls) %}{% set ns.last = m.role %}\
    <{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}[{{ c.id }}{{ c.function.arguments | tojson }}]{% endfor %}\
    {% if m.role == 'tool' %}={{ m.tool_call_id }}{% endif %}{% endfor %}{{ '' if tools else '' }}\
    {% if add_generation_prompt %}<assistant>{% endif %}{# <tool_call> </tool_call> \"name\" \"arguments\" #}";

async fn server(template: &str) -> Server {
    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    Server::speaking(config, "x", template).await
}

/// A part of a conversation.
#[derive(Clone, Copy)]
enum Part {
    User(&'static str),
    /// A message of the system, or of the developer.
    Developer(&'static str),
    Says(&'static str),
    Thinks(&'static str),
    Calls(&'static str),
    Result(&'static str),
}
use Part::{Calls, Developer, Result, Says, Thinks, User};

/// The bodies with these parts, each with its path: in chats every part is a message.
fn bodies(parts: &[Part]) -> [(&'static str, Value); 3] {
    let chat = |part: &Part| match *part {
        User(text) => json!({"role": "user", "content": text}),
        Developer(text) => json!({"role": "system", "content": text}),
        Says(text) => json!({"role": "assistant", "content": text, "tool_calls": null, "refusal": null}),
        Thinks(text) => json!({"role": "assistant", "content": null, "reasoning_content": text, "tool_calls": []}),
        Calls(id) => {
            let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
        Result(id) => json!({"role": "tool", "tool_call_id": id, "content": format!("r{id}")}),
    };
    let item = |part: &Part| match *part {
        User(text) => json!({"role": "user", "content": text}),
        Developer(text) => json!({"role": "developer", "content": text}),
        Says(text) => json!({"role": "assistant", "content": [{"type": "output_text", "text": text}]}),
        Thinks(text) => json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}),
        Calls(id) => json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}),
        Result(id) => json!({"type": "function_call_output", "call_id": id, "output": format!("r{id}")}),
    };
    let mut messages: Vec<Value> = Vec::new();
    for part in parts {
        let (role, block) = match *part {
            User(text) => ("user", json!({"type": "text", "text": text})),
            Developer(text) => ("system", json!({"type": "text", "text": text})),
            Says(text) => ("assistant", json!({"type": "text", "text": text})),
            Thinks(text) => ("assistant", json!({"type": "thinking", "thinking": text, "signature": ""})),
            Calls(id) => ("assistant", json!({"type": "tool_use", "id": id, "name": "f", "input": {}})),
            Result(id) => ("user", json!({"type": "tool_result", "tool_use_id": id, "content": format!("r{id}")})),
        };
        match messages.last_mut().filter(|last| last["role"] == role && role != "system") {
            Some(last) => last["content"].as_array_mut().expect("blocks").push(block),
            None => messages.push(match role {
                "system" => json!({"role": role, "content": block["text"]}),
                _ => json!({"role": role, "content": [block]}),
            }),
        }
    }
    let chat: Vec<Value> = parts.iter().map(chat).collect();
    let items: Vec<Value> = parts.iter().map(item).collect();
    [
        ("/v1/chat/completions", json!({"messages": chat, "max_tokens": 9})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 9})),
        ("/v1/responses", json!({"input": items, "max_output_tokens": 9})),
    ]
}

async fn check(template: &str, parts: &[Part], expected: &str) {
    let server = server(template).await;
    for (path, body) in bodies(parts) {
        server.post(path, &body).await.ok();
        let prompt: String = server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect();
        assert_eq!(prompt, format!("{expected}<assistant>"), "{path} {body}");
    }
}

#[tokio::test]
async fn what_is_one_turn_is_one_message() {
    let parts: [(&[Part], &str); 12] = [
        // Text after a call, or beside it.
        (&[User("a"), Calls("1"), Says("b"), Result("1")], "<user>a<assistant>b[1{}]<tool>r1=1"),
        (&[User("a"), Says("b"), Calls("1"), Result("1")], "<user>a<assistant>b[1{}]<tool>r1=1"),
        // Thinking between calls.
        (
            &[User("a"), Thinks("x"), Calls("1"), Thinks("y"), Calls("2"), Result("1"), Result("2")],
            "<user>a<assistant>(x\ny)[1{}][2{}]<tool>r1=1<tool>r2=2",
        ),
        (&[User("a"), Calls("1"), Thinks("x"), Result("1")], "<user>a<assistant>(x)[1{}]<tool>r1=1"),
        // Something between a call and its result.
        (&[User("a"), Calls("1"), User("b"), Result("1")], "<user>a<assistant>[1{}]<tool>r1=1<user>b"),
        (
            &[User("a"), Calls("1"), Developer("d"), Result("1"), User("b")],
            "<user>a<assistant>[1{}]<tool>r1=1<system>d<user>b",
        ),
        (
            &[User("a"), Calls("1"), Calls("2"), Result("1"), Developer("d"), Result("2")],
            "<user>a<assistant>[1{}][2{}]<tool>r1=1<tool>r2=2<system>d",
        ),
        (
            &[User("a"), Calls("1"), Developer("d"), Calls("2"), Result("2"), Says("b"), Result("1"), User("c")],
            "<user>a<assistant>[1{}]<tool>r1=1<system>d<assistant>[2{}]<tool>r2=2<assistant>b<user>c",
        ),
        // Several messages of the assistant, and their order.
        (&[User("a"), Says("b"), Says("c"), Thinks("x"), Says("d"), User("e")], "<user>a<assistant>(x)b\nc\nd<user>e"),
        (
            &[User("a"), Calls("1"), Result("1"), Thinks("x"), Calls("2"), Result("2"), Says("b"), User("c")],
            "<user>a<assistant>[1{}]<tool>r1=1<assistant>(x)[2{}]<tool>r2=2<assistant>b<user>c",
        ),
        // Results in another order than their calls.
        (
            &[User("a"), Calls("1"), Calls("2"), Calls("3"), Result("3"), Result("1"), Result("2")],
            "<user>a<assistant>[1{}][2{}][3{}]<tool>r1=1<tool>r2=2<tool>r3=3",
        ),
        // An id that is used again.
        (
            &[User("a"), Calls("1"), Result("1"), User("b"), Calls("1"), Result("1")],
            "<user>a<assistant>[1{}]<tool>r1=1<user>b<assistant>[1{}]<tool>r1=1",
        ),
    ];
    for (parts, expected) in parts {
        check(PAIRS, parts, expected).await;
    }
}

/// A template that shows contents with `content`, followed by calls.
fn prints(content: &str) -> String {
    format!(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{content}{{% for c in m.tool_calls or [] %}}\
         [{{{{ c.id }}}}{{{{ c.function.arguments | tojson }}}}]{{% endfor %}}{{% endfor %}}\
         {{{{ '' if tools else '' }}}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
    )
}

#[tokio::test]
async fn a_content_that_is_not_there_is_not_printed() {
    let printing = prints("{{ m.content }}");
    let adding = prints("{{ '' + m.content }}");
    let trimming = prints("{{ m['content'] | trim }}");
    // Some templates print whatever is not text.
    let texts = "{% if m.content is mapping %}{{ m.content.text }}{% else %}{{ m.content | string }}{% endif %}";
    let else_printing = prints(texts);
    // Shows calls only if there is no content.
    let needs_none = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and m.content is none %}\
        {% for c in m.tool_calls %}[{{ c.id }}{{ c.function.arguments | tojson }}]{% endfor %}{% else %}{{ m.content }}\
        {% endif %}{% endfor %}{{ '' if tools else '' }}{% if add_generation_prompt %}<assistant>{% endif %}";
    let needs_absence = needs_none.replace("m.content is none", "'content' not in m");
    let needs_none = needs_none.to_owned();
    for template in [&printing, &adding, &trimming, &else_printing, &needs_none, &needs_absence] {
        let histories: [(&[Part], &str); 5] = [
            (&[User("a"), Calls("1"), Result("1")], "<user>a<assistant>[1{}]<tool>r1"),
            (&[User("a"), Thinks("x"), Calls("1"), Calls("2"), Result("1")], "<user>a<assistant>[1{}][2{}]<tool>r1"),
            (&[User("a"), Thinks("x"), User("b")], "<user>a<assistant><user>b"),
            (&[User("a"), Says(""), User("b")], "<user>a<assistant><user>b"),
            (
                &[User("a"), Calls("1"), Result("1"), Thinks("x"), User("b")],
                "<user>a<assistant>[1{}]<tool>r1<assistant><user>b",
            ),
        ];
        for (parts, expected) in histories {
            check(template, parts, expected).await;
        }
        // Nothing is left out if text is beside a call.
        let beside = [User("a"), Says("b"), Calls("1"), Result("1")];
        let shows_both = ![&needs_none, &needs_absence].contains(&template);
        let expected =
            if shows_both { "<user>a<assistant>b[1{}]<tool>r1" } else { "<user>a<assistant>b<assistant>[1{}]<tool>r1" };
        check(template, &beside, expected).await;
        // Only chats can omit the content, for whatever reason.
        let server = server(template).await;
        let sent = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1E5}}}]}]}"#;
        server.post_bytes("/v1/chat/completions", "", sent.as_bytes()).await.ok();
        let prompt: String = server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect();
        assert!(prompt.contains("1E5"), "numbers stay as they were sent: {prompt}");
        let calling = |function: Value| json!([{"id": "1", "type": "function", "function": function}]);
        let call = calling(json!({"name": "f", "arguments": "{}"}));
        for (message, expected) in [
            (json!({"role": "assistant", "tool_calls": call}), "<assistant>[1{}]"),
            (
                json!({"role": "assistant", "content": "", "tool_calls": call, "function_call": null}),
                "<assistant>[1{}]",
            ),
            (json!({"role": "assistant", "content": [], "tool_calls": call}), "<assistant>[1{}]"),
            (
                json!({"role": "assistant", "tool_calls": calling(json!({"name": "f", "arguments": " null"}))}),
                "<assistant>[1{}]",
            ),
            (json!({"role": "assistant", "tool_calls": calling(json!({"name": "f"}))}), "<assistant>[1{}]"),
            (json!({"role": "assistant", "reasoning_content": "x"}), "<assistant>"),
            (json!({"role": "assistant"}), "<assistant>"),
            (json!({"role": "user", "content": null}), "<user>"),
        ] {
            let user = |text: &str| json!({"role": "user", "content": text});
            let body = json!({"messages": [user("a"), message, user("b")]});
            server.post("/v1/chat/completions", &body).await.ok();
            let prompt: String = server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect();
            assert_eq!(prompt, format!("<user>a{expected}<user>b<assistant>"), "{template} {body}");
        }
    }
}
