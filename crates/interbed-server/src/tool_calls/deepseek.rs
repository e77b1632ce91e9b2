//! Implements the syntax of DeepSeek, whose calls stand between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`. R1 and
//! V3 write `function<｜tool▁sep｜>NAME` and the arguments as a block of code, and V3.1 writes `NAME<｜tool▁sep｜>{…}`.

use interbed_engine::checked_schema;
use serde_json::{Map, Value};

use super::body::Closing;
use super::reading::{begun, json_calls, json_of, reading, until};
use super::{Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "deepseek",
    signs: &[&["<｜tool▁call▁begin｜>"]],
    marker: "<｜tool▁call▁begin｜>",
    bare: None,
    between: "",
    around: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    turn: None,
    read,
    checked: checked_schema,
    grammar,
    write,
};

const BETWEEN: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";

fn read(text: &str) -> Reading {
    reading(|| {
        let Some((kind, rest)) = until(text, BETWEEN)? else { return Ok(None) };
        // A function may have the name that R1 and V3 write before all names.
        let (name, value) = match (kind.trim(), rest.trim_start().chars().next()) {
            ("function", None) => return Ok(None),
            ("function", Some(first)) if first != '{' => match until(rest, "```json")? {
                Some(both) => both,
                None => return Ok(None),
            },
            (name, _) => (name, rest),
        };
        begun(text, name.trim(), value, Closing { ends: &["```", END], ..Closing::default() })
    })
}

fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    json_calls(functions, "", BETWEEN, END)
}

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    format!("<｜tool▁call▁begin｜>{name}{BETWEEN}{}{END}", json_of(arguments))
}
