//! Implements the syntax of Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and for newer models
//! `[TOOL_CALLS]NAME[ARGS]{…}`.

use interbed_engine::{checked_schema, quoted};
use serde_json::{Map, Value};

use super::body::Closing;
use super::reading::{after, begun, json_calls, json_of, object_call, reading, until};
use super::{Begun, Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    signs: &[&["[TOOL_CALLS]"]],
    marker: "[TOOL_CALLS]",
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
    if let Ok(list) = after(text, "[") {
        let Some(call) = list else { return Reading::More };
        return match object_call(call, Closing { list: true, ..Closing::default() }, false) {
            Reading::Begun(begun) => Reading::Begun(Begun { length: text.len() - call.len() + begun.length, ..begun }),
            other => other,
        };
    }
    reading(|| {
        let Some((name, rest)) = until(text, "[ARGS]")? else { return Ok(None) };
        let name = name.split("[CALL_ID]").next().unwrap_or(name).trim();
        if name.contains(char::is_whitespace) {
            return Err(());
        }
        begun(text, name, rest, Closing::default())
    })
}

/// Uses the older syntax, which newer models know too.
fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    json_calls(functions, "[{\"name\": \"", "\", \"arguments\": ", "}]")
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    format!("[TOOL_CALLS][{{\"name\": {}, \"arguments\": {}}}]", quoted(name), json_of(arguments))
}
