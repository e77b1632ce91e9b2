//! Llama 3: `{"name": …, "parameters": {…}}`, alone at the start of an answer or behind `<|python_tag|>`; several
//! with `;` between them.

use super::reading::{call_of, json, json_calls, reading};
use super::{Family, Function, Reading};

pub(super) const FAMILY: Family = Family {
    name: "llama3",
    signs: &[&["<|python_tag|>"], &["<|start_header_id|>", "\"parameters\""]],
    marker: "<|python_tag|>",
    bare: Some("{"),
    around: &[],
    read,
    grammar,
};

fn read(text: &str, _: &[Function]) -> Reading {
    reading(text, || {
        let Some((value, length)) = json(text)? else { return Ok(None) };
        let has_arguments = ["\"parameters\"", "\"arguments\""].iter().any(|key| value.contains(key));
        let call = call_of(value).filter(|_| has_arguments).ok_or(())?;
        Ok(Some((vec![call], text.len() - length)))
    })
}

fn grammar(functions: &[Function]) -> String {
    json_calls(functions, "{\"name\": \"", "\", \"parameters\": ", "}")
}
