//! Hermes and Qwen up to 3: `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`.

use interbed_engine::{checked_schema, quoted};
use serde_json::{Map, Value};

use super::body::Closing;
use super::reading::{json_calls, json_of, object_call};
use super::{Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "hermes",
    signs: &[&["<tool_call>", "arguments"]],
    marker: "<tool_call>",
    bare: None,
    between: "",
    around: &[],
    turn: None,
    read,
    checked: checked_schema,
    grammar,
    write,
};

fn read(text: &str) -> Reading {
    object_call(text, Closing { ends: &["</tool_call>"], ..Closing::default() }, false)
}

fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    json_calls(functions, "\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>")
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    format!("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>", quoted(name), json_of(arguments))
}
