//! Hermes and Qwen up to 3: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`.

use super::reading::{after, call_of, json, json_calls, reading};
use super::{Family, Function, Reading};

pub(super) const FAMILY: Family = Family {
    name: "hermes",
    signs: &[&["<tool_call>", "arguments"]],
    marker: "<tool_call>",
    bare: None,
    around: &[],
    read,
    grammar,
};

fn read(text: &str, _: &[Function]) -> Reading {
    reading(text, || {
        let Some((value, length)) = json(text)? else { return Ok(None) };
        let call = call_of(value).ok_or(())?;
        let Some(rest) = after(&text[length..], "</tool_call>")? else { return Ok(None) };
        Ok(Some((vec![call], rest.len())))
    })
}

fn grammar(functions: &[Function]) -> String {
    json_calls(functions, "\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>")
}
