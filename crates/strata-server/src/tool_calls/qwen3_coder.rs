//! Qwen3-Coder and later: `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>`, and
//! `\n</tool_call>`. Values are raw text, which the function's schema gives a type.

use serde_json::{Map, Value};

use super::reading::{after, named, quoted, reading, typed, until};
use super::{Family, Function, Reading, ToolCall};

pub(super) const FAMILY: Family = Family {
    name: "qwen3-coder",
    signs: &[&["<function=", "<parameter="]],
    marker: "<tool_call>",
    bare: None,
    around: &[],
    read,
    grammar,
};

fn read(text: &str, functions: &[Function]) -> Reading {
    reading(text, || {
        let Some(rest) = after(text, "<function=")? else { return Ok(None) };
        let Some((name, mut rest)) = until(rest, ">")? else { return Ok(None) };
        let name = name.trim();
        let function = named(functions, name);
        let mut arguments = Map::new();
        loop {
            if let Ok(end) = after(rest, "</function>") {
                let Some(rest) = end else { return Ok(None) };
                let Some(rest) = after(rest, "</tool_call>")? else { return Ok(None) };
                let arguments = Value::Object(arguments).to_string();
                return Ok(Some((vec![ToolCall { name: name.to_owned(), arguments }], rest.len())));
            }
            let Some(parameter) = after(rest, "<parameter=")? else { return Ok(None) };
            let Some((key, value)) = until(parameter, ">")? else { return Ok(None) };
            let Some((value, behind)) = until(value, "</parameter>")? else { return Ok(None) };
            // One line end on each side belongs to the form.
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.trim().to_owned(), typed(value, function, key.trim()));
            rest = behind;
        }
    })
}

fn grammar(functions: &[Function]) -> String {
    super::reading::tagged_calls(
        functions,
        |name| quoted(&format!("\n<function={name}>\n")),
        |key| quoted(&format!("<parameter={key}>\n")),
        "\n</parameter>\n",
        "</function>\n</tool_call>",
    )
}
