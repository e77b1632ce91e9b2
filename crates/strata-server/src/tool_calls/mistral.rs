//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and newer models' `[TOOL_CALLS]NAME[ARGS]{…}`.

use super::reading::{call_of, json, json_calls, reading, until};
use super::{Family, Function, Reading, ToolCall};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    signs: &[&["[TOOL_CALLS]"]],
    marker: "[TOOL_CALLS]",
    bare: None,
    around: &[],
    read,
    grammar,
};

fn read(text: &str, _: &[Function]) -> Reading {
    reading(text, || {
        let begun = text.trim_start();
        if begun.is_empty() {
            return Ok(None);
        }
        if begun.starts_with('[') {
            let Some((list, length)) = json(text)? else { return Ok(None) };
            let list: Vec<&serde_json::value::RawValue> = serde_json::from_str(list).map_err(|_| ())?;
            let calls: Option<Vec<_>> = list.into_iter().map(|call| call_of(call.get())).collect();
            return Ok(Some((calls.filter(|calls| !calls.is_empty()).ok_or(())?, text.len() - length)));
        }
        let Some((name, rest)) = until(begun, "[ARGS]")? else { return Ok(None) };
        let name = name.split("[CALL_ID]").next().unwrap_or(name).trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(());
        }
        let Some((arguments, length)) = json(rest)? else { return Ok(None) };
        let call = ToolCall { name: name.to_owned(), arguments: arguments.to_owned() };
        Ok(Some((vec![call], rest.len() - length)))
    })
}

/// The older form, which newer models know too.
fn grammar(functions: &[Function]) -> String {
    json_calls(functions, "[{\"name\": \"", "\", \"arguments\": ", "}]")
}
