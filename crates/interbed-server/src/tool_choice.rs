//! Reads `tool_choice`, which says which tools must be called and which may be called.

use std::collections::HashSet;

use interbed_engine::json_value;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::blocks::refuse;
use crate::error::ApiError;
use crate::fields::shown;
use crate::tool_list::{ToolList, is_of_others, joined_name};

const FIELD: &str = "tool_choice";
/// The longest choice in bytes, as it may list tools.
const BYTES_MAX: usize = 64 << 10;
/// The longest name of a tool in a message, in bytes.
const SHOWN_BYTES: usize = 64;
/// The maximum number of tools that a message lists.
const SHOWN_TOOLS: usize = 8;

/// Says which call is required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The model decides whether to call a tool.
    Auto,
    Required,
    Named(String),
}

/// The required call, if calls are allowed at all, and the tools that may be called. `None` in `allowed` allows all
/// tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolChoice {
    pub(crate) choice: Option<Choice>,
    pub(crate) allowed: Option<HashSet<String>>,
}

impl From<Option<Choice>> for ToolChoice {
    fn from(choice: Option<Choice>) -> Self {
        Self { choice, allowed: None }
    }
}

impl ToolChoice {
    /// Parses the field, in the format of chats or of responses.
    ///
    /// # Errors
    /// Fails if the value is unknown.
    pub(crate) fn read(raw: Option<&RawValue>) -> Result<Self, ApiError> {
        let Some(raw) = raw else { return Ok(Some(Choice::Auto).into()) };
        if raw.get().len() > BYTES_MAX {
            let bytes = raw.get().len();
            return refuse(FIELD, format!("has {bytes} bytes, but at most {BYTES_MAX} are allowed"));
        }
        let Ok(value) = json_value(raw.get()) else { return unknown(raw.get()) };
        if let Value::String(mode) = &value {
            return mode_of(mode, &["none", "auto", "required"])
                .map_or_else(|| unknown(raw.get()), |choice| Ok(choice.into()));
        }
        match value["type"].as_str() {
            Some("function" | "custom") => match name_of(&value) {
                Some(name) => Ok(Some(Choice::Named(name)).into()),
                None => unknown(raw.get()),
            },
            Some("allowed_tools") => {
                let listed = value.get("allowed_tools").unwrap_or(&value);
                let mode = listed["mode"].as_str().unwrap_or("auto");
                let choice = mode_of(mode, &["auto", "required"]);
                let (Some(choice), Some(tools)) = (choice, listed["tools"].as_array()) else {
                    return unknown(raw.get());
                };
                let mut allowed = HashSet::with_capacity(tools.len());
                for (index, tool) in tools.iter().enumerate() {
                    match name_of(tool) {
                        Some(name) => drop(allowed.insert(name)),
                        // Tools other than functions were left out of the list.
                        None if tool["type"].as_str().is_some_and(is_of_others) => {}
                        None => {
                            let path = format!("{FIELD}.tools[{index}]");
                            return refuse(&path, "must be a function or custom tool by its name".into());
                        }
                    }
                }
                Ok(Self { choice, allowed: Some(allowed) })
            }
            Some(kind) => {
                let shown = shown(kind);
                refuse(FIELD, format!("asks for a tool of type {shown:?}, which this server does not run"))
            }
            None => unknown(raw.get()),
        }
    }

    /// Checks the choice against the tools of the request.
    ///
    /// # Errors
    /// Fails if the choice names an unknown tool, or requires a call where there are no tools.
    pub(crate) fn checked(self, tools: &ToolList) -> Result<Self, ApiError> {
        let Self { choice, allowed } = self;
        for name in allowed.iter().flatten() {
            check_name(name, tools)?;
        }
        let may_call = allowed.as_ref().map_or(!tools.is_empty(), |allowed| !allowed.is_empty());
        let choice = match choice {
            Some(Choice::Named(name)) => {
                check_name(&name, tools)?;
                Some(Choice::Named(name))
            }
            Some(Choice::Required) if !may_call => {
                return refuse(FIELD, "requires a call, but there are no tools that this server can offer".into());
            }
            Some(Choice::Auto) if !may_call => None,
            choice => choice,
        };
        Ok(Self { choice, allowed })
    }

    /// Returns whether a function with this name may be called.
    pub(crate) fn allows(&self, name: &str) -> bool {
        match (&self.choice, &self.allowed) {
            (None, _) => false,
            (Some(Choice::Named(named)), _) => named == name,
            (_, Some(allowed)) => allowed.contains(name),
            (_, None) => true,
        }
    }
}

/// Parses `mode`, if it is one of `modes`.
fn mode_of(mode: &str, modes: &[&str]) -> Option<Option<Choice>> {
    if !modes.contains(&mode) {
        return None;
    }
    match mode {
        "none" => Some(None),
        "auto" => Some(Some(Choice::Auto)),
        _ => Some(Some(Choice::Required)),
    }
}

/// Returns the name by which the model knows a tool. The name is in the tool itself, or one level deeper.
fn name_of(tool: &Value) -> Option<String> {
    let kind = tool["type"].as_str().filter(|kind| matches!(*kind, "function" | "custom"))?;
    let inner = tool.get(kind).filter(|inner| inner.is_object()).unwrap_or(tool);
    let name = inner["name"].as_str()?;
    Some(inner["namespace"].as_str().map_or_else(|| name.to_owned(), |namespace| joined_name(namespace, name)))
}

fn check_name(name: &str, tools: &ToolList) -> Result<(), ApiError> {
    if tools.has(name) {
        return Ok(());
    }
    let shown = &name[..name.floor_char_boundary(SHOWN_BYTES)];
    if tools.is_left_out(name) {
        return refuse(FIELD, format!("names the tool {shown:?}, which this server does not run"));
    }
    let names: String = tools.names().take(SHOWN_TOOLS).map(|name| format!(" {name:?},")).collect();
    let problem = match names.trim_end_matches(',') {
        "" => "but there are no tools; send it among them".to_owned(),
        names => format!("which is not among the tools; they are{names}"),
    };
    refuse(FIELD, format!("names the function {shown:?}, {problem}"))
}

fn unknown<T>(raw: &str) -> Result<T, ApiError> {
    let expected = "but must be \"none\", \"auto\", \"required\", a function by its name, or a list of allowed_tools";
    refuse(FIELD, format!("is {}, {expected}", shown(raw)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::notes::Notes;

    fn read(text: &str) -> Result<ToolChoice, ApiError> {
        let raw: Box<RawValue> = serde_json::from_str(text).expect("JSON");
        ToolChoice::read(Some(&raw))
    }

    #[test]
    fn choices_of_both_apis_are_read() {
        let named = |name: &str| ToolChoice::from(Some(Choice::Named(name.into())));
        assert_eq!(ToolChoice::read(None).expect("none"), Some(Choice::Auto).into());
        for (text, choice) in [
            (r#""auto""#, Some(Choice::Auto).into()),
            (r#""none""#, None.into()),
            (r#""required""#, Some(Choice::Required).into()),
            (r#"{"type": "function", "function": {"name": "f"}}"#, named("f")),
            (r#"{"type": "function", "name": "f"}"#, named("f")),
            (r#"{"type": "function", "name": "f", "namespace": "g"}"#, named("g__f")),
            (r#"{"type": "custom", "custom": {"name": "c"}}"#, named("c")),
            (r#"{"type": "custom", "name": "c"}"#, named("c")),
        ] {
            assert_eq!(read(text).expect(text), choice, "{text}");
        }
        let tools = r#"[{"type": "function", "function": {"name": "f"}}, {"type": "custom", "name": "c"}, {"type": "web_search"}]"#;
        for text in [
            format!(r#"{{"type": "allowed_tools", "allowed_tools": {{"mode": "required", "tools": {tools}}}}}"#),
            format!(r#"{{"type": "allowed_tools", "mode": "required", "tools": {tools}}}"#),
        ] {
            let allowed = Some(["f".to_owned(), "c".to_owned()].into());
            assert_eq!(read(&text).expect(&text), ToolChoice { choice: Some(Choice::Required), allowed });
        }
        let text = r#"{"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "g"}]}"#;
        assert_eq!(read(text).expect_err("a group").param.as_deref(), Some("tool_choice.tools[0]"));
        for text in [
            r#""sometimes""#,
            r#"{"type": "function"}"#,
            r#"{"type": "web_search_preview"}"#,
            r#"{"type": "allowed_tools", "mode": "none", "tools": []}"#,
            r#"{"type": "allowed_tools"}"#,
            "3",
            "{}",
        ] {
            let error = read(text).expect_err(text);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(FIELD)), "{}", error.message);
        }
    }

    #[test]
    fn choices_are_checked_against_the_tools() {
        let notes = Notes::default();
        let function = |name: &str| json!({"type": "function", "name": name});
        let tools = [function("f"), function("g"), json!({"type": "web_search"})];
        let tools = ToolList::of_responses(&tools, &notes).expect("tools");
        let checked = |choice: &ToolChoice| choice.clone().checked(&tools);
        let named = |name: &str| ToolChoice::from(Some(Choice::Named(name.into())));
        assert!(checked(&named("f")).is_ok_and(|choice| choice.allows("f") && !choice.allows("g")));
        assert!(checked(&named("h")).expect_err("unknown").message.contains("\"f\", \"g\""));
        assert!(checked(&named("web_search")).expect_err("left out").message.contains("does not run"));
        let only = |names: &[&str]| ToolChoice {
            choice: Some(Choice::Auto),
            allowed: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        };
        assert!(checked(&only(&["g"])).is_ok_and(|choice| choice.allows("g") && !choice.allows("f")));
        assert_eq!(checked(&only(&[])).expect("nothing").choice, None);
        checked(&only(&["h"])).expect_err("unknown");
        let none = ToolList::default();
        assert_eq!(ToolChoice::from(Some(Choice::Auto)).checked(&none).expect("nothing").choice, None);
        ToolChoice::from(Some(Choice::Required)).checked(&none).expect_err("no tools");
        assert!(!ToolChoice::from(None).allows("f"));
    }
}
