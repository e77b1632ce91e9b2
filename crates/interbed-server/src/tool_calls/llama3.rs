//! Implements the syntax of Llama 3: `{"name": …, "parameters": {…}}`, alone at the start of an answer or behind
//! `<|python_tag|>`. Several calls have `;` between them.

use interbed_engine::{checked_schema, quoted};
use serde_json::{Map, Value};

use super::body::Closing;
use super::reading::{json_of, object_call};
use super::{Family, Function, Mark, Reading};

pub(super) const FAMILY: Family = Family {
    name: "llama3",
    signs: &[&["<|python_tag|>"], &["<|start_header_id|>", "\"parameters\""]],
    marker: "<|python_tag|>",
    bare: Some("{"),
    between: ";",
    around: &[],
    turn: None,
    read,
    checked: checked_schema,
    grammar,
    write,
};

fn read(text: &str) -> Reading {
    object_call(text, Closing::default(), true)
}

/// Returns the grammar of a call. White space may stand between the fields as between arguments, and some models state
/// the type first.
fn grammar(functions: &[Function], _: Mark<'_>) -> String {
    let one = |function: &Function| format!("{} MIDDLE %json {} END", quoted(&function.name), function.parameters);
    let calls: Vec<_> = functions.iter().map(one).collect();
    format!(
        "call: BEGIN ({})\nBEGIN: /\\{{{W}(\"type\"{W}:{W}\"function\"{W},{W})?\"name\"{W}:{W}\"/\n\
         MIDDLE: /\"{W},{W}\"parameters\"{W}:{W}/\nEND: /{W}\\}}/\n",
        calls.join("\n    | ")
    )
}

/// A space, or a line end with the indentation of the next line.
const W: &str = "( |\\n[ \\t]{0,40})?";

fn write(name: &str, arguments: &Map<String, Value>) -> String {
    format!("{{\"name\": {}, \"parameters\": {}}}", quoted(name), json_of(arguments))
}
