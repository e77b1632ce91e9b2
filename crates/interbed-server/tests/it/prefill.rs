//! Tests last messages that are continued: the prompt ends where they do, whatever the template does.

use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::Server;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const HEAD: &str = "<|user|>\nSay e<|end|>\n<|assistant|>\n";

/// A template that writes each message between its role and an end mark, with the assistant's content as `content`.
fn template(content: &str) -> String {
    format!(
        "{{% for m in messages %}}<|{{{{ m.role }}}}|>\n{{% if m.role == 'assistant' %}}{content}{{% else %}}\
         {{{{ m.content }}}}{{% endif %}}<|end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|assistant|>\n{{% endif %}}"
    )
}

fn body(path: &str, last: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Say e"}, last], "max_tokens": 99});
    if path == CHAT {
        body["continue_final_message"] = true.into();
    }
    body
}

/// The prompt after its beginning, if `last` is continued.
async fn continued(server: &Server, path: &str, last: &str) -> String {
    server.post(path, &body(path, &json!({"role": "assistant", "content": last}))).await.ok();
    let bytes = server.last_request().prompt.iter().map(|&id| u8::try_from(id).expect("a byte")).collect();
    let prompt = String::from_utf8(bytes).expect("a text");
    let (_, rest) = prompt.split_once(HEAD).unwrap_or_else(|| panic!("{prompt:?}"));
    assert!(!prompt.chars().any(char::is_numeric), "no mark is left: {prompt:?}");
    rest.to_owned()
}

#[tokio::test]
async fn a_prefill_ends_the_prompt_wherever_else_its_text_stands() {
    let plain = template("{{ m.content }}");
    // Tests also a template that shows the last message twice.
    for template in [plain.clone(), format!("[{{{{ messages[-1].content }}}}]{plain}")] {
        let server = Server::with_template(&template).await;
        let parts = ["e", "end", "<", "|", "<|", "d|>", "<|end|>", "<|end|>\n<|assistant|>", "Say e", "{", "\u{e9}"];
        let blank = ["", " ", "\n", "a\n", "a \n\n", " a", "\te\u{2003}", ">\n"];
        for path in [CHAT, MESSAGES] {
            for last in parts.into_iter().chain(blank) {
                assert_eq!(continued(&server, path, last).await, last, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn templates_may_write_a_prefill_in_their_own_way() {
    let trims = template("{{ m.content | trim }}");
    let spaces = template("{{ ' ' + m.content.strip() + ' ' }}");
    let escapes = template("{{ m.content | tojson }}");
    let shouts = template("{{ m.content | upper }}");
    let only_texts = template("{% if m.content %}[{{ m.content }}]{% else %}nothing{% endif %}");
    let strips = template("{{ m.content.split('</think>')[-1].lstrip('\\n') }}");
    let thinks = template(
        "{% set parts = m.content.split('</think>') %}<think>\n\
         {{ parts[0].split('<think>')[-1].strip() if parts | length > 1 else '' }}\n</think>\n\n\
         {{ parts[-1].lstrip('\\n') }}",
    );
    for (template, last, expected) in [
        (&trims, "e", "e"),
        (&trims, " e \n", "e"),
        (&trims, "\n", ""),
        (&trims, "", ""),
        (&spaces, "end ", " end "),
        (&spaces, "end\n", " end"),
        (&escapes, "e", "\"e"),
        (&escapes, "say \"e", "\"say \\\"e"),
        (&shouts, "end", "END"),
        (&only_texts, "", "["),
        (&only_texts, "]", "[]"),
        (&strips, "<think>a</think>\n\ne", "e"),
        (&strips, "<think>so", "<think>so"),
        (&strips, "<think>\n\n</think>\n\n", ""),
        (&thinks, "e", "<think>\n\n</think>\n\ne"),
        (&thinks, "<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        (&thinks, "<think>a</think>e", "<think>\na\n</think>\n\ne"),
    ] {
        let server = Server::with_template(template).await;
        for path in [CHAT, MESSAGES] {
            assert_eq!(continued(&server, path, last).await, expected, "{path} {template} {last:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_continued_is_refused_by_name() {
    let call = json!({"role": "assistant", "content": "e", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let text = |text: &str| json!({"role": "assistant", "content": text});
    for (content, last) in [
        ("{{ m.content[:3] }}", text("begun")),
        ("said: {{ m.content | length }}", text("e")),
        ("{{ m.content.split('<think>')[0] }}", text("So <think>e")),
        ("{{ m.content }}", call),
    ] {
        let server = Server::with_template(&template(content)).await;
        let (status, error) = server.post(CHAT, &body(CHAT, &last)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("continue_final_message")), "{content}");
        if last["tool_calls"].is_null() {
            let refused = server.post(MESSAGES, &body(MESSAGES, &last)).await;
            let message = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
            assert!(refused.status == 400 && message.starts_with("messages: the chat template"), "{message}");
        }
        assert!(server.engine.requests().is_empty());
    }
}

#[tokio::test]
async fn an_answer_that_continues_begins_where_the_message_ends() {
    let knows = template("{{ m.content }}{# </think> #}");
    let closes = template("<think>\n\n</think>\n\n{{ m.content }}");
    for (template, last, answer, thought, text) in [
        (&knows, "So", "<think>a</think>b", Value::Null, "<think>a</think>b"),
        (&knows, "<think>So", " a</think>b", json!("a"), "b"),
        // The message is empty, so the answer is complete from its first token on.
        (&knows, "", "<think>a</think>b", json!("a"), "b"),
        (&closes, "", "<think>a</think>b", Value::Null, "<think>a</think>b"),
    ] {
        let server = Server::speaking(ServerConfig::default(), answer, template).await;
        let told = server.post(CHAT, &body(CHAT, &json!({"role": "assistant", "content": last}))).await.ok();
        let message = &told["choices"][0]["message"];
        assert_eq!((&message["reasoning_content"], &message["content"]), (&thought, &json!(text)), "{last:?}");
    }
}
