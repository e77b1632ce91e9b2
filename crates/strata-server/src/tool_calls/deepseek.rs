//! DeepSeek: between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`, R1 and V3 write
//! `function<｜tool▁sep｜>NAME` and the arguments as a block of code, V3.1 `NAME<｜tool▁sep｜>{…}`.

use super::reading::{after, json, json_calls, reading, until};
use super::{Family, Function, Reading, ToolCall};

pub(super) const FAMILY: Family = Family {
    name: "deepseek",
    signs: &[&["<｜tool▁call▁begin｜>"]],
    marker: "<｜tool▁call▁begin｜>",
    bare: None,
    around: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    read,
    grammar,
};

const BETWEEN: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";

fn read(text: &str, _: &[Function]) -> Reading {
    reading(text, || {
        let Some((kind, rest)) = until(text, BETWEEN)? else { return Ok(None) };
        let (name, value) = match kind.trim() {
            "function" => match until(rest, "```json")? {
                Some(both) => both,
                None => return Ok(None),
            },
            name => (name, rest),
        };
        let Some((arguments, length)) = json(value)? else { return Ok(None) };
        let mut rest = &value[length..];
        if kind.trim() == "function" {
            match after(rest, "```")? {
                Some(behind) => rest = behind,
                None => return Ok(None),
            }
        }
        let Some(rest) = after(rest, END)? else { return Ok(None) };
        let name = name.trim().to_owned();
        if name.is_empty() {
            return Err(());
        }
        Ok(Some((vec![ToolCall { name, arguments: arguments.to_owned() }], rest.len())))
    })
}

fn grammar(functions: &[Function]) -> String {
    json_calls(functions, "", BETWEEN, END)
}
