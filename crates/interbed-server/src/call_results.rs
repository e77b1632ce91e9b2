//! Moves the results of calls into the messages with the calls, for chat templates that expect them there.

use serde_json::{Value, json};

/// Moves results into the messages with their calls, as `tool_responses`. The text of the model that follows the
/// results becomes the content of the same message, unless it is the last message and is to be `continued`. A text
/// before the calls becomes a message of its own. Results without calls stay as they are.
pub(crate) fn with_calls(messages: Vec<Value>, continued: bool) -> Vec<Value> {
    let last = messages.len().saturating_sub(1);
    let mut moved: Vec<Value> = Vec::with_capacity(messages.len());
    // Whether the last of `moved` has calls whose results, and the text after them, may follow.
    let mut takes = false;
    for (index, mut message) in messages.into_iter().enumerate() {
        let calls = has_calls(&message);
        match moved.last_mut().filter(|_| takes) {
            Some(caller) if message["role"] == "tool" => {
                let result = json!({"name": name_of(&message, caller), "response": message["content"].take()});
                match &mut caller["tool_responses"] {
                    Value::Array(results) => results.push(result),
                    none => *none = json!([result]),
                }
                continue;
            }
            Some(caller)
                if message["role"] == "assistant"
                    && !calls
                    && caller["tool_responses"].is_array()
                    && !(continued && index == last) =>
            {
                caller["content"] = message["content"].take();
                takes = false;
                continue;
            }
            _ => {}
        }
        if calls && message["content"].as_str().is_some_and(|text| !text.is_empty()) {
            moved.push(json!({"role": message["role"], "content": message["content"].take()}));
        }
        takes = calls;
        moved.push(message);
    }
    moved
}

fn has_calls(message: &Value) -> bool {
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

/// Returns the function that brought a result.
fn name_of(result: &Value, caller: &Value) -> Value {
    let id = &result["tool_call_id"];
    let calls = caller["tool_calls"].as_array().into_iter().flatten();
    let call = calls.filter(|_| id.is_string()).find(|call| call["id"] == *id);
    let name = call.map_or(&result["name"], |call| &call["function"]["name"]);
    if name.is_string() { name.clone() } else { "unknown".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_the_text_after_them_go_to_the_calls() {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": {}}});
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let says = |role: &str, text: &str| json!({"role": role, "content": text});
        let messages = vec![
            says("user", "a"),
            json!({"role": "assistant", "content": "I look.", "tool_calls": [call("1", "f"), call("2", "g")]}),
            result("1", "one"),
            result("2", "two"),
            json!({"role": "assistant", "content": "", "tool_calls": [call("3", "f")]}),
            result("3", "three"),
            says("assistant", "Done."),
            says("user", "b"),
            result("9", "lost"),
        ];
        let moved = with_calls(messages.clone(), false);
        let expected = [
            says("user", "a"),
            says("assistant", "I look."),
            json!({"role": "assistant", "content": null, "tool_calls": [call("1", "f"), call("2", "g")],
                "tool_responses": [{"name": "f", "response": "one"}, {"name": "g", "response": "two"}]}),
            json!({"role": "assistant", "content": "Done.", "tool_calls": [call("3", "f")],
                "tool_responses": [{"name": "f", "response": "three"}]}),
            says("user", "b"),
            result("9", "lost"),
        ];
        assert_eq!(moved, expected);
        // What is to be continued stays a message.
        let moved = with_calls(messages[4..7].to_vec(), true);
        assert_eq!(moved.len(), 2);
        assert_eq!(moved[1], says("assistant", "Done."));
        let unknown = with_calls(vec![messages[4].clone(), json!({"role": "tool", "content": "x"})], false);
        assert_eq!(unknown[0]["tool_responses"][0]["name"], "unknown");
    }
}
