//! Writes tools into the prompt of a model whose chat template does not support them. The system message describes the
//! tools, and calls and their results are written into the other messages, in the syntax of `--tool-parser`.

use serde_json::{Map, Value, json};

use crate::tool_calls::Family;

/// Writes `tools`, calls and results into `messages`, which are in the format of a chat, with arguments that are
/// objects.
pub(crate) fn tell_tools(messages: Vec<Value>, tools: &[Value], family: &Family) -> Vec<Value> {
    let mut told: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    if !tools.is_empty() {
        told.push(json!({"role": "system", "content": introduction(tools, family)}));
    }
    for mut message in messages {
        let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        let calls = message.as_object_mut().and_then(|message| message.shift_remove("tool_calls"));
        if let Some(Value::Array(calls)) = calls {
            let said = Some(text(&message)).filter(|text| !text.is_empty());
            let calls = calls.iter().map(|call| written(call, family));
            let texts: Vec<String> = said.into_iter().chain(calls).collect();
            message["content"] = texts.join("\n").into();
        }
        if message["role"] == "tool" {
            let response = format!("<tool_response>\n{}\n</tool_response>", text(&message));
            message = json!({"role": "user", "content": response});
        }
        // Many templates require a single system message, and alternating roles.
        match told.last_mut() {
            Some(last) if last["role"] == message["role"] && (last["role"] == "system" || last["role"] == "user") => {
                if !last["content"].is_string() {
                    last["content"] = "".into();
                }
                if let Value::String(before) = &mut last["content"] {
                    before.push_str("\n\n");
                    before.push_str(message["content"].as_str().unwrap_or_default());
                }
            }
            _ => told.push(message),
        }
    }
    told
}

fn introduction(tools: &[Value], family: &Family) -> String {
    let tools: Vec<String> = tools.iter().map(Value::to_string).collect();
    let example = Map::from_iter([("PARAMETER".to_owned(), Value::from("VALUE"))]);
    format!(
        "You can call functions. Each line between <tools> and </tools> describes one as JSON.\n<tools>\n{}\n</tools>\n\
         To call a function, write its name and its arguments in this form and nothing behind it:\n{}\n\
         What the call brings follows between <tool_response> and </tool_response>.",
        tools.join("\n"),
        family.written("NAME", &example)
    )
}

/// Writes a call in the family's syntax.
fn written(call: &Value, family: &Family) -> String {
    let function = &call["function"];
    let none = Map::new();
    let arguments = function["arguments"].as_object().unwrap_or(&none);
    family.written(function["name"].as_str().unwrap_or_default(), arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_become_text() {
        let family = Family::named("hermes").expect("a family");
        let call = |arguments: Value| json!({"id": "1", "function": {"name": "f", "arguments": arguments}});
        let messages = vec![
            json!({"role": "system", "content": "be kind"}),
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": "I look.", "tool_calls": [call(json!({"x": 1})), call(json!({}))]}),
            json!({"role": "tool", "content": "one"}),
            json!({"role": "tool", "content": "two"}),
        ];
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let told = tell_tools(messages.clone(), &tools, family);
        let roles: Vec<&str> = told.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        let text = |index: usize| told[index]["content"].as_str().expect("a text");
        assert!(text(0).contains(&tools[0].to_string()) && text(0).ends_with("\n\nbe kind"), "{}", text(0));
        assert!(text(0).contains("<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\""), "{}", text(0));
        let calls = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>\n\
            <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        assert_eq!(text(2), calls);
        let results = "<tool_response>\none\n</tool_response>\n\n<tool_response>\ntwo\n</tool_response>";
        assert_eq!(text(3), results);
        assert_eq!(tell_tools(messages, &[], family)[0]["content"], "be kind");
    }
}
