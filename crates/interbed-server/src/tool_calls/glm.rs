//! Implements the syntax of GLM 4.5 and later models:
//! `<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>`. Values are raw text, to which
//! the function's schema gives a type.

use interbed_engine::quoted;
use serde_json::{Map, Value};

use super::body::{Body, Closing, Parameter};
use super::reading::{after, raw, reading, until, value};
use super::tagged::{TagForm, calls, checked};
use super::{Begun, Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "glm",
    signs: &[&["<arg_key>", "<arg_value>"]],
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
        let Some(at) = text.find('<') else { return Ok(None) };
        let (name, rest) = (text[..at].trim(), &text[at..]);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(());
        }
        match (after(rest, "<arg_key>"), after(rest, END)) {
            (Ok(Some(_)), _) | (_, Ok(Some(_))) => {}
            (Err(()), Err(())) => return Err(()),
            _ => return Ok(None),
        }
        let body = Body::tagged(name, parameter, Closing::default());
        Ok(Some(Begun { name: name.to_owned(), length: at, arguments: "{".into(), body }))
    })
}

const END: &str = "</tool_call>";

fn parameter<'t>(text: &'t str, function: Option<&Function>) -> Parameter<'t> {
    if let Ok(end) = after(text, END) {
        return end.map_or(Parameter::More, |rest| Parameter::End(text.len() - rest.len()));
    }
    let read = || {
        let Some(key) = after(text, "<arg_key>")? else { return Ok(None) };
        let Some((key, behind)) = until(key, "</arg_key>")? else { return Ok(None) };
        let Some(text) = after(behind, "<arg_value>")? else { return Ok(None) };
        let key = key.trim();
        Ok(value(text, "</arg_value>", function, key)?.map(|(value, rest)| (key, value, rest)))
    };
    Parameter::of(text, read())
}

fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    let form = TagForm {
        open: ["<arg_key>", "</arg_key>\n<arg_value>"],
        close: ["", "</arg_value>", "\n"],
        end: "</tool_call>",
    };
    calls(functions, |name| quoted(&format!("{name}\n")), &form)
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    let one =
        |(key, value): (&String, &Value)| format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", raw(value));
    let parameters: String = arguments.iter().map(one).collect();
    format!("<tool_call>{name}\n{parameters}</tool_call>")
}
