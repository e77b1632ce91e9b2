//! Moves system messages to where the model's chat template accepts them.

use interbed_model::chat_template::SystemPlaces;
use serde_json::{Value, json};

/// The separator between texts that were separate messages.
const BETWEEN: &str = "\n\n";

/// Returns whether a message has the role `system`.
pub(crate) fn is_by_system(message: &Value) -> bool {
    message["role"] == "system"
}

/// Merges the system messages of `messages` into the first message or, if the template accepts none, puts them before
/// the text of the first user message. User messages that become adjacent are merged.
pub(crate) fn placed(messages: Vec<Value>, places: SystemPlaces) -> Vec<Value> {
    let later = |messages: &[Value]| messages.iter().skip(1).any(is_by_system);
    match places {
        SystemPlaces::Anywhere => return messages,
        SystemPlaces::First if !later(&messages) => return messages,
        SystemPlaces::First | SystemPlaces::Nowhere => {}
    }
    let mut texts: Vec<String> = Vec::new();
    let mut others: Vec<Value> = Vec::with_capacity(messages.len());
    let mut lifted = false;
    for mut message in messages {
        if is_by_system(&message) {
            texts.extend(text_of(&mut message).filter(|text| !text.is_empty()));
            lifted = true;
            continue;
        }
        match others.last_mut() {
            Some(last) if lifted && last["role"] == "user" && message["role"] == "user" => {
                append(last, &text_of(&mut message).unwrap_or_default());
            }
            _ => others.push(message),
        }
        lifted = false;
    }
    let text = texts.join(BETWEEN);
    if places == SystemPlaces::First {
        others.insert(0, json!({"role": "system", "content": text}));
        return others;
    }
    match others.iter_mut().find(|message| message["role"] == "user") {
        Some(message) => prepend(message, text),
        None if text.is_empty() => {}
        None => others.insert(0, json!({"role": "user", "content": text})),
    }
    others
}

/// Takes the text out of a message.
fn text_of(message: &mut Value) -> Option<String> {
    match message.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Puts a text before that of a message.
fn prepend(message: &mut Value, before: String) {
    let after = text_of(message).unwrap_or_default();
    message["content"] = before.into();
    append(message, &after);
}

/// Appends a text to the text of a message, in place, so that a long row of messages is not copied for each of them.
fn append(message: &mut Value, after: &str) {
    match message.get_mut("content") {
        Some(Value::String(text)) if !text.is_empty() => {
            if !after.is_empty() {
                text.push_str(BETWEEN);
                text.push_str(after);
            }
        }
        _ => message["content"] = after.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns messages from abbreviations, each of which is the first letter of a role and the text.
    fn messages(short: &str) -> Vec<Value> {
        let one = |part: &str| {
            let (role, text) = part.split_at(1);
            let role = ["system", "user", "assistant", "tool"].into_iter().find(|known| known.starts_with(role));
            json!({"role": role, "content": text})
        };
        short.split(' ').map(one).collect()
    }

    fn short(messages: &[Value]) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().replace(BETWEEN, "|");
        let one = |message: &Value| format!("{}{}", &text(&message["role"])[..1], text(&message["content"]));
        messages.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn messages_of_the_system_go_where_the_template_takes_them() {
        for (sent, first, nowhere) in [
            ("u1", "u1", "u1"),
            ("s1 u1", "s1 u1", "u1|1"),
            ("s1 s2 u1", "s1|2 u1", "u1|2|1"),
            ("s1 u1 a1 s2 u2", "s1|2 u1 a1 u2", "u1|2|1 a1 u2"),
            ("u1 s2 u2 a1", "s2 u1|2 a1", "u2|1|2 a1"),
            ("u1 u2 s3", "s3 u1 u2", "u3|1 u2"),
            ("u1 a1 t1 s2", "s2 u1 a1 t1", "u2|1 a1 t1"),
            ("a1 s2", "s2 a1", "u2 a1"),
        ] {
            assert_eq!(short(&placed(messages(sent), SystemPlaces::Anywhere)), sent);
            assert_eq!(short(&placed(messages(sent), SystemPlaces::First)), first, "{sent}");
            assert_eq!(short(&placed(messages(sent), SystemPlaces::Nowhere)), nowhere, "{sent}");
        }
    }
}
