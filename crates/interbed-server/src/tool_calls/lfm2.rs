//! Implements the syntax of LFM2: calls as Python writes them, in a list,
//! `<|tool_call_start|>[NAME(KEY=VALUE, …), …]<|tool_call_end|>`, or as JSON if a prompt asks for that.

use interbed_engine::{GrammarError, quoted};
use serde_json::{Map, Value};

use super::body::{Body, Closing, Parameter};
use super::python::literal;
use super::reading::{after, object_call, reading, until};
use super::tagged::{by_itself, is_required, refuse_name};
use super::{Begun, Family, Function, Mark, Reading, tagged};

pub(super) const FAMILY: Family = Family {
    name: "lfm2",
    signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["<|im_start|>", "List of tools: ["]],
    marker: "<|tool_call_start|>",
    bare: None,
    between: "",
    around: &[],
    turn: None,
    read,
    checked,
    grammar,
    write,
};

const CLOSING: Closing = Closing { object: false, ends: &[], list: true, behind: &["<|tool_call_end|>"] };

/// Characters that names of functions and parameters do not have.
const MARKS: [char; 12] = ['(', ')', '[', ']', '{', '}', '<', '>', '\'', '"', ',', '='];

fn read(text: &str) -> Reading {
    let Ok(list) = after(text, "[") else { return Reading::Nothing };
    let Some(call) = list else { return Reading::More };
    let begins = text.len() - call.len();
    if call.trim_start().starts_with('{') {
        return match object_call(call, CLOSING, false) {
            Reading::Begun(begun) => Reading::Begun(Begun { length: begins + begun.length, ..begun }),
            other => other,
        };
    }
    reading(|| {
        let Some((name, arguments)) = until(call, "(")? else { return Ok(None) };
        let name = name.trim();
        if !is_name(name) {
            return Err(());
        }
        let body = Body::tagged(name, parameter, CLOSING).decided_by(&[',', ')']);
        Ok(Some(Begun { name: name.to_owned(), length: text.len() - arguments.len(), arguments: "{".into(), body }))
    })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|one: char| one.is_whitespace() || MARKS.contains(&one))
}

fn parameter<'t>(text: &'t str, _: Option<&Function>) -> Parameter<'t> {
    if let Ok(end) = after(text, ")") {
        return end.map_or(Parameter::More, |rest| Parameter::End(text.len() - rest.len()));
    }
    let Some((key, behind)) = text.split_once('=') else {
        return if text.contains(MARKS) { Parameter::Nothing } else { Parameter::More };
    };
    let key = key.trim();
    if !is_name(key) {
        return Parameter::Nothing;
    }
    match literal(behind) {
        Err(()) => Parameter::Nothing,
        Ok(None) => Parameter::More,
        Ok(Some((json, rest))) => {
            let rest = rest.trim_start();
            match rest.chars().next() {
                None => Parameter::More,
                Some(',') => Parameter::Known { key, json, length: text.len() - rest.len() + 1 },
                Some(')') => Parameter::Known { key, json, length: text.len() - rest.len() },
                Some(_) => Parameter::Nothing,
            }
        }
    }
}

/// Checks the schema of a function's arguments as for parameters between tags. Names may have no character that
/// separates them from values.
fn checked(parameters: &Value) -> Result<Value, GrammarError> {
    let schema = tagged::checked(parameters)?;
    let names = schema["properties"].as_object().into_iter().flat_map(Map::keys);
    match names.into_iter().find(|name| !is_name(name)) {
        Some(name) => refuse_name(name),
        None => Ok(schema),
    }
}

/// Returns the grammar of a call. Values are JSON, which is Python but for three words. What follows the list may be
/// missing: some tokenizers have a special token for it.
fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    let (mut rules, mut calls) = ("name: /[A-Za-z_][A-Za-z0-9_]*/\n".to_owned(), Vec::new());
    for (number, function) in functions.iter().enumerate() {
        let (arguments, more) = arguments(number, &function.parameters);
        rules += &more;
        calls.push(format!("{} {arguments} \")]\"", quoted(&format!("[{}(", function.name))));
    }
    format!("{rules}call: {}\n", calls.join("\n    | "))
}

/// Returns an expression for the arguments of a function, in the order of its schema, and the rules that it uses.
fn arguments(number: usize, parameters: &Value) -> (String, String) {
    let Some(properties) = parameters["properties"].as_object() else {
        // Nothing is known about the parameters.
        let one = "name \"=\" %json {}";
        let any = format!("({one} (\", \" {one})*)?");
        return (if parameters["additionalProperties"] == false { String::new() } else { any }, String::new());
    };
    let written: Vec<_> = properties.iter().filter(|(_, schema)| **schema != false).collect();
    let one = |index: usize| {
        let (key, schema) = written[index];
        format!("{} %json {}", quoted(&format!("{key}=")), by_itself(schema, parameters))
    };
    let is_required = |index: usize| is_required(parameters, written[index].0);
    // What follows the parameters before number `index`, of which one is there.
    let more = |index: usize| if index < written.len() { format!("more_{number}_{index}") } else { String::new() };
    let rule = |index: usize| {
        let optional = if is_required(index) { "" } else { "?" };
        format!("{}: (\", \" {}){optional} {}\n", more(index), one(index), more(index + 1))
    };
    let rules = (1..written.len()).map(rule).collect();
    // The first parameter that is there is one of those up to the first that has to be.
    let required = (0..written.len()).find(|&index| is_required(index));
    let first = 0..required.map_or(written.len(), |required| required + 1);
    let begins: Vec<_> = first.map(|index| format!("{} {}", one(index), more(index + 1))).collect();
    let all = format!("({})", begins.join(" | "));
    let all = if begins.is_empty() { String::new() } else { all };
    (if required.is_some() || all.is_empty() { all } else { format!("{all}?") }, rules)
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    let arguments: Vec<_> = arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("<|tool_call_start|>[{name}({})]<|tool_call_end|>", arguments.join(", "))
}
