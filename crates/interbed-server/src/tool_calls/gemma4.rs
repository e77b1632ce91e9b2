//! Implements the syntax of Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:3,list:[…]}<tool_call|>`.

use interbed_engine::{GrammarError, quoted};
use serde_json::{Map, Value};

use super::body::{Body, Closing};
use super::dictionary::written;
use super::dictionary_schema;
use super::reading::{after, reading};
use super::{Begun, Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "gemma4",
    signs: &[&["<|tool_call>call:"]],
    marker: "<|tool_call>",
    bare: None,
    between: "",
    around: &[],
    turn: Some(["<turn|>\n", "<|turn>model\n"]),
    read,
    checked,
    grammar,
    write,
};

const BEGIN: &str = "call:";
const END: &str = "<tool_call|>";

fn read(text: &str) -> Reading {
    reading(|| {
        let Some(rest) = after(text, BEGIN)? else { return Ok(None) };
        let is_part = |one: char| one.is_ascii_alphanumeric() || "_-.:/".contains(one) || one.is_ascii_whitespace();
        let Some(at) = rest.find(|one| !is_part(one)) else { return Ok(None) };
        let name = rest[..at].trim();
        if !rest[at..].starts_with('{') || name.is_empty() || name.contains(char::is_whitespace) {
            return Err(());
        }
        let (name, length) = (name.to_owned(), text.len() - rest.len() + at);
        let body = Body::dictionary(Closing { ends: &[END], ..Closing::default() });
        Ok(Some(Begun { name, length, arguments: String::new(), body }))
    })
}

fn checked(parameters: &Value) -> Result<Value, GrammarError> {
    dictionary_schema::checked(parameters)
}

fn grammar(functions: &[Function], mark: Mark<'_>) -> String {
    dictionary_schema::calls(functions, |name| quoted(&format!("{BEGIN}{name}")), &mark(END), mark)
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    format!("<|tool_call>{BEGIN}{name}{}{END}", written(&Value::Object(arguments.clone())))
}
