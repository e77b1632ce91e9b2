//! GLM 4.5 and later: `<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>`. Values are
//! raw text, which the function's schema gives a type.

use serde_json::{Map, Value};

use super::reading::{after, named, quoted, reading, tagged_calls, typed, until};
use super::{Family, Function, Reading, ToolCall};

pub(super) const FAMILY: Family = Family {
    name: "glm",
    signs: &[&["<arg_key>", "<arg_value>"]],
    marker: "<tool_call>",
    bare: None,
    around: &[],
    read,
    grammar,
};

fn read(text: &str, functions: &[Function]) -> Reading {
    reading(text, || {
        let Some((at, _)) = text.match_indices('<').next() else { return Ok(None) };
        let (name, mut rest) = (text[..at].trim(), &text[at..]);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(());
        }
        let function = named(functions, name);
        let mut arguments = Map::new();
        loop {
            if let Ok(end) = after(rest, "</tool_call>") {
                let Some(rest) = end else { return Ok(None) };
                let arguments = Value::Object(arguments).to_string();
                return Ok(Some((vec![ToolCall { name: name.to_owned(), arguments }], rest.len())));
            }
            let Some(key) = after(rest, "<arg_key>")? else { return Ok(None) };
            let Some((key, value)) = until(key, "</arg_key>")? else { return Ok(None) };
            let Some(value) = after(value, "<arg_value>")? else { return Ok(None) };
            let Some((value, behind)) = until(value, "</arg_value>")? else { return Ok(None) };
            arguments.insert(key.trim().to_owned(), typed(value, function, key.trim()));
            rest = behind;
        }
    })
}

fn grammar(functions: &[Function]) -> String {
    tagged_calls(
        functions,
        |name| quoted(&format!("{name}\n")),
        |key| quoted(&format!("<arg_key>{key}</arg_key>\n<arg_value>")),
        "</arg_value>\n",
        "</tool_call>",
    )
}
