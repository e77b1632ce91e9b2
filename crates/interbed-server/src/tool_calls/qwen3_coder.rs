//! Implements the syntax of Qwen3-Coder and later models:
//! `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>`, and then `\n</tool_call>`. Values
//! are raw text, to which the function's schema gives a type.

use interbed_engine::quoted;
use serde_json::{Map, Value};

use super::body::{Body, Closing, Parameter};
use super::reading::{after, raw, reading, until, value};
use super::tagged::{TagForm, calls, checked};
use super::{Begun, Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "qwen3-coder",
    signs: &[&["<function=", "<parameter="]],
    marker: "<tool_call>",
    bare: None,
    between: "",
    around: &[],
    turn: None,
    read,
    checked,
    grammar,
    write,
};

fn read(text: &str) -> Reading {
    reading(|| {
        let Some(rest) = after(text, "<function=")? else { return Ok(None) };
        let Some((name, rest)) = until(rest, ">")? else { return Ok(None) };
        let (name, length) = (name.trim().to_owned(), text.len() - rest.len());
        if name.is_empty() {
            return Err(());
        }
        let body = Body::tagged(&name, parameter, Closing { ends: &["</tool_call>"], ..Closing::default() });
        Ok(Some(Begun { name, length, arguments: "{".into(), body }))
    })
}

fn parameter<'t>(text: &'t str, function: Option<&Function>) -> Parameter<'t> {
    if let Ok(end) = after(text, "</function>") {
        return end.map_or(Parameter::More, |rest| Parameter::End(text.len() - rest.len()));
    }
    let read = || {
        let Some(parameter) = after(text, "<parameter=")? else { return Ok(None) };
        let Some((key, text)) = until(parameter, ">")? else { return Ok(None) };
        let key = key.trim();
        let Some((value, rest)) = value(text, "</parameter>", function, key)? else { return Ok(None) };
        // One line end on each side belongs to the syntax.
        let value = value.strip_prefix('\n').unwrap_or(value);
        Ok(Some((key, value.strip_suffix('\n').unwrap_or(value), rest)))
    };
    Parameter::of(text, read())
}

fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    let form =
        TagForm { open: ["<parameter=", ">\n"], close: ["\n", "</parameter>", "\n"], end: "</function>\n</tool_call>" };
    calls(functions, |name| quoted(&format!("\n<function={name}>\n")), &form)
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    let one = |(key, value): (&String, &Value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value));
    let parameters: String = arguments.iter().map(one).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}
