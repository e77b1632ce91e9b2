//! Reads the tools of a request, of all kinds that clients send. These are functions, tools that take plain text in
//! place of arguments, groups of functions, and tools that only the API provider's own servers can run, which are left
//! out.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::blocks::{object_of, refuse};
use crate::error::ApiError;
use crate::fields::shown;
use crate::json_text::object;
use crate::notes::Notes;
use crate::tools::{check_function, function_tool};

/// The argument in which a model writes the text for a tool that takes plain text.
pub(crate) const INPUT: &str = "input";
/// The separator between the names of a group and its function, in the name that the model knows.
const WITHIN: &str = "__";

/// The prefixes of the `type` of tools that the servers of OpenAI and Anthropic run, or that only their models know.
const OF_OTHERS: [&str; 19] = [
    "advisor",
    "apply_patch",
    "bash_",
    "code_execution",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "memory",
    "programmatic_tool_calling",
    "shell",
    "str_replace_based_edit_tool",
    "text_editor_",
    "tool_search",
    "web_fetch",
    "web_search",
    "x_search",
];

/// Describes how the client knows a tool that is not a function with the name that the model uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// The name that the client gave.
    pub(crate) name: String,
    /// The group that contains the tool.
    pub(crate) namespace: Option<String>,
    /// Whether the tool takes plain text in place of arguments.
    pub(crate) is_text: bool,
}

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolList {
    /// Functions that are shown to the model, checked, in the format of a chat.
    pub(crate) functions: Vec<Value>,
    /// Describes how the client knows tools that are not functions by their own names. The keys are the names that the
    /// model knows.
    pub(crate) forms: HashMap<String, CallForm>,
    /// The names of all functions.
    known: HashSet<String>,
    /// The names and kinds of tools that were left out.
    left_out: HashSet<String>,
}

impl ToolList {
    /// Parses the tools of a chat.
    ///
    /// # Errors
    /// Fails if a tool is invalid, or of an unknown kind.
    pub(crate) fn of_chat(tools: Vec<Value>, notes: &Notes) -> Result<Self, ApiError> {
        let mut list = Self::default();
        for (index, tool) in tools.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            let mut tool = object_of(tool, &path)?;
            match kind_of(&tool) {
                Some("function") => {
                    let path = format!("{path}.function");
                    let function = object_of(tool.get("function").cloned().unwrap_or_default(), &path)?;
                    check_function(&function, &path, "parameters")?;
                    list.add(Value::Object(tool), None, &path)?;
                }
                Some("custom") => {
                    let path = format!("{path}.custom");
                    let custom = object_of(tool.get_mut("custom").map_or(Value::Null, Value::take), &path)?;
                    // The grammar is one level deeper than in the format of responses.
                    let format =
                        custom.get("format").map_or(&Value::Null, |format| format.get("grammar").unwrap_or(format));
                    list.add_text_tool(&custom, format, None, &path, notes)?;
                }
                _ => list.leave_out(&tool, &path, "function and custom", notes)?,
            }
        }
        Ok(list)
    }

    /// Parses the tools of `/v1/responses`.
    ///
    /// # Errors
    /// Fails if a tool is invalid, or of an unknown kind.
    pub(crate) fn of_responses(tools: &[Value], notes: &Notes) -> Result<Self, ApiError> {
        let mut list = Self::default();
        for (index, tool) in tools.iter().enumerate() {
            let path = format!("tools[{index}]");
            let tool = fields_of(tool, &path)?;
            match kind_of(tool) {
                Some("namespace") => list.add_group(tool, &path, notes)?,
                _ => list.add_tool(tool, None, &path, notes)?,
            }
        }
        Ok(list)
    }

    /// Adds a tool of `/v1/responses` that is not a group. The tool may belong to the group `namespace`.
    fn add_tool(
        &mut self,
        tool: &Map<String, Value>,
        namespace: Option<&str>,
        path: &str,
        notes: &Notes,
    ) -> Result<(), ApiError> {
        match kind_of(tool) {
            Some("function") => self.add_function(tool, namespace, path, "parameters"),
            Some("custom") => {
                let format = tool.get("format").unwrap_or(&Value::Null);
                self.add_text_tool(tool, format, namespace, path, notes)
            }
            _ => self.leave_out(tool, path, "function, custom and, outside of one, namespace", notes),
        }
    }

    /// Parses the tools of `/v1/messages`.
    ///
    /// # Errors
    /// Fails if a tool is invalid, or of an unknown kind.
    pub(crate) fn of_messages(tools: Vec<Value>, notes: &Notes) -> Result<Self, ApiError> {
        let mut list = Self::default();
        for (index, tool) in tools.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            let tool = object_of(tool, &path)?;
            match tool.get("type").filter(|kind| !kind.is_null()) {
                None => list.add_function(&tool, None, &path, "input_schema")?,
                Some(kind) if kind == "custom" => list.add_function(&tool, None, &path, "input_schema")?,
                Some(_) => list.leave_out(&tool, &path, "custom, or without one,", notes)?,
            }
        }
        Ok(list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the names that the model knows.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter_map(|tool| tool["function"]["name"].as_str())
    }

    /// Returns whether the model knows a tool by this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.contains(name)
    }

    /// Returns whether a tool of this name or kind was sent and left out.
    pub(crate) fn is_left_out(&self, name: &str) -> bool {
        self.left_out.contains(name)
    }

    /// Adds a function. If the client knows the function in another form, `form` describes that.
    ///
    /// # Errors
    /// Fails if another tool has the same name, so that calls would be ambiguous.
    fn add(&mut self, function: Value, form: Option<CallForm>, path: &str) -> Result<(), ApiError> {
        let name = function["function"]["name"].as_str().unwrap_or_default().to_owned();
        let is_new = self.known.insert(name.clone());
        if !is_new && (form.is_some() || self.forms.contains_key(&name)) {
            let problem = format!("is another tool that the model would know as {}; rename one", shown(&name));
            return refuse(path, problem);
        }
        self.functions.push(function);
        self.forms.extend(form.map(|form| (name, form)));
        Ok(())
    }

    fn add_function(
        &mut self,
        tool: &Map<String, Value>,
        namespace: Option<&str>,
        path: &str,
        schema: &str,
    ) -> Result<(), ApiError> {
        check_function(tool, path, schema)?;
        let strict = tool.get("strict").is_some_and(|strict| strict == true);
        let (name, form) = named_within(namespace, tool, false);
        self.add(function_tool(&name, tool.get("description"), tool.get(schema), strict), form, path)
    }

    /// Adds a tool that takes plain text, as a function with one argument. A grammar of the text is shown to the model.
    fn add_text_tool(
        &mut self,
        tool: &Map<String, Value>,
        format: &Value,
        namespace: Option<&str>,
        path: &str,
        notes: &Notes,
    ) -> Result<(), ApiError> {
        check_function(tool, path, "parameters")?;
        if !format.is_null() && !format.is_object() {
            return refuse(
                &format!("{path}.format"),
                format!("must be an object, but is {}", shown(&format.to_string())),
            );
        }
        let mut description = tool.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(definition) = format["definition"].as_str() {
            let syntax = format["syntax"].as_str().unwrap_or("grammar");
            description.push_str(&format!("\n\nThe input is a text of this {syntax}:\n{definition}"));
            notes.tell("tools that take a text of a grammar", "which the model is shown and need not keep to");
        }
        let schema = json!({
            "type": "object",
            "properties": {INPUT: {"type": "string", "description": "All of the text."}},
            "required": [INPUT],
            "additionalProperties": false,
        });
        let (name, form) = named_within(namespace, tool, true);
        self.add(function_tool(&name, Some(&description.trim_start().into()), Some(&schema), false), form, path)
    }

    /// Adds the functions of a group, under names that begin with the group's name.
    fn add_group(&mut self, group: &Map<String, Value>, path: &str, notes: &Notes) -> Result<(), ApiError> {
        check_function(group, path, "parameters")?;
        let namespace = group["name"].as_str().unwrap_or_default();
        let path = format!("{path}.tools");
        let Some(tools) = group.get("tools").and_then(Value::as_array) else {
            return refuse(&path, "is missing; send the functions of the group as a list".into());
        };
        for (index, tool) in tools.iter().enumerate() {
            let path = format!("{path}[{index}]");
            self.add_tool(fields_of(tool, &path)?, Some(namespace), &path, notes)?;
        }
        Ok(())
    }

    /// Leaves out a tool that others run. An unknown kind is refused, and the message names the kinds that are `taken`.
    fn leave_out(&mut self, tool: &Map<String, Value>, path: &str, taken: &str, notes: &Notes) -> Result<(), ApiError> {
        let kind = kind_of(tool).unwrap_or_default();
        let Some(of_others) = of_others(kind) else {
            let kind = tool.get("type").unwrap_or(&Value::Null).to_string();
            let problem = format!("which is not known here; tools of type {taken} are");
            return refuse(&format!("{path}.type"), format!("is {}, {problem}", shown(&kind)));
        };
        notes.tell(&format!("tools of type {of_others}"), "which this server does not run and leaves out");
        self.left_out.insert(kind.to_owned());
        self.left_out.extend(tool.get("name").and_then(Value::as_str).map(str::to_owned));
        Ok(())
    }
}

/// Returns whether tools of this `type` are run by others.
pub(crate) fn is_of_others(kind: &str) -> bool {
    of_others(kind).is_some()
}

/// Returns the matching prefix in [`OF_OTHERS`] of such a `type`.
fn of_others(kind: &str) -> Option<&'static str> {
    OF_OTHERS.into_iter().find(|of_others| kind.starts_with(of_others))
}

fn fields_of<'v>(tool: &'v Value, path: &str) -> Result<&'v Map<String, Value>, ApiError> {
    match tool {
        Value::Object(tool) => Ok(tool),
        other => refuse(path, format!("must be an object, but is {}", shown(&other.to_string()))),
    }
}

/// Returns the name by which the model knows a tool, which may be in the group `namespace`, and how the client knows
/// it.
fn named_within(namespace: Option<&str>, tool: &Map<String, Value>, is_text: bool) -> (Value, Option<CallForm>) {
    let own = tool.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = namespace.map_or_else(|| own.to_owned(), |namespace| joined_name(namespace, own));
    let form = CallForm { name: own.to_owned(), namespace: namespace.map(str::to_owned), is_text };
    (name.into(), Some(form).filter(|form| form.is_text || form.namespace.is_some()))
}

/// Returns the name by which the model knows a function of a group.
pub(crate) fn joined_name(namespace: &str, name: &str) -> String {
    let between = if namespace.ends_with(WITHIN) { "" } else { WITHIN };
    format!("{namespace}{between}{name}")
}

/// Wraps plain text as the arguments of a call.
pub(crate) fn arguments_of_text(text: Value) -> Value {
    object([(INPUT, text)])
}

/// Returns the plain text in arguments that were cut off.
pub(crate) fn begun_text_of_arguments(arguments: &str) -> String {
    let begun = arguments.split_once(&format!("\"{INPUT}\"")).and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let Some(begun) = begun.and_then(|rest| rest.trim_start().strip_prefix('"')) else { return String::new() };
    // An incomplete escape has at most five characters, and a pair of them eleven.
    let ends = (0..=begun.len()).rev().filter(|&end| begun.is_char_boundary(end)).take(12);
    let mut texts = ends.filter_map(|end| serde_json::from_str(&format!("\"{}\"", &begun[..end])).ok());
    texts.next().unwrap_or_default()
}

/// Returns the plain text in the arguments of a call, or the arguments themselves if they have no plain text.
pub(crate) fn text_of_arguments(arguments: String) -> String {
    let parsed: Option<Map<String, Value>> = serde_json::from_str(&arguments).ok();
    match parsed.and_then(|mut arguments| arguments.get_mut(INPUT).map(Value::take)) {
        Some(Value::String(text)) => text,
        _ => arguments,
    }
}

fn kind_of(tool: &Map<String, Value>) -> Option<&str> {
    tool.get("type").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &ToolList) -> Vec<&str> {
        list.names().collect()
    }

    #[test]
    fn tools_of_all_kinds_become_functions_or_are_left_out() {
        let notes = Notes::default();
        let schema = json!({"type": "object", "properties": {}});
        let function = json!({"type": "function", "name": "shell", "strict": true, "parameters": schema});
        let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""});
        let custom = json!({"type": "custom", "name": "patch", "description": "Edits", "format": grammar});
        let group = json!({"type": "namespace", "name": "mcp__x", "tools": [function, custom]});
        let tools = [function.clone(), custom.clone(), group, json!({"type": "web_search"}), json!({"type": "mcp"})];
        let list = ToolList::of_responses(&tools, &notes).expect("tools");
        assert_eq!(names(&list), ["shell", "patch", "mcp__x__shell", "mcp__x__patch"]);
        let form = |name: &str, namespace: Option<&str>, is_text| CallForm {
            name: name.into(),
            namespace: namespace.map(str::to_owned),
            is_text,
        };
        assert_eq!(list.forms["patch"], form("patch", None, true));
        assert_eq!(list.forms["mcp__x__shell"], form("shell", Some("mcp__x"), false));
        assert_eq!(list.forms["mcp__x__patch"], form("patch", Some("mcp__x"), true));
        assert_eq!(list.forms.len(), 3);
        assert!(list.is_left_out("web_search") && list.is_left_out("mcp") && !list.is_left_out("shell"));
        assert_eq!(list.functions[0]["function"]["strict"], true);
        let description = list.functions[1]["function"]["description"].as_str().expect("a description");
        assert!(description.starts_with("Edits") && description.ends_with("start: \"x\""), "{description}");
        assert!(!notes.tell("tools of type web_search", "as was told"));

        let inner = json!({"type": "namespace", "name": "h", "tools": []});
        for (tools, param) in [
            (json!([{"type": "namespace", "name": "g", "tools": [inner]}]), "tools[0].tools[0].type"),
            (json!([function, {"type": "custom", "name": "shell"}]), "tools[1]"),
            (
                json!([{"type": "function", "name": "g__f"},
                {"type": "namespace", "name": "g", "tools": [{"type": "function", "name": "f"}]}]),
                "tools[1].tools[0]",
            ),
            (json!([{"type": "custom", "name": "c", "format": 5}]), "tools[0].format"),
            (json!([3]), "tools[0]"),
        ] {
            let error = ToolList::of_responses(tools.as_array().expect("a list"), &notes).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }

        let chat = [
            json!({"type": "function", "function": {"name": "f"}}),
            json!({"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": grammar}}}),
        ];
        let list = ToolList::of_chat(chat.to_vec(), &notes).expect("tools");
        assert_eq!((names(&list), list.forms["c"].is_text), (vec!["f", "c"], true));
        assert!(list.functions[1]["function"]["description"].as_str().is_some_and(|text| text.contains("start")));

        let messages = [
            json!({"name": "f", "input_schema": schema}),
            json!({"type": "custom", "name": "g", "input_schema": schema}),
            json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8}),
        ];
        let list = ToolList::of_messages(messages.to_vec(), &notes).expect("tools");
        assert_eq!((names(&list), list.is_left_out("web_search")), (vec!["f", "g"], true));
    }

    #[test]
    fn unknown_kinds_are_refused_by_name() {
        let notes = Notes::default();
        let error = ToolList::of_responses(&[json!({"type": "retrieval"})], &notes).expect_err("an unknown kind");
        assert_eq!(error.param.as_deref(), Some("tools[0].type"));
        assert!(error.message.contains("retrieval"), "{}", error.message);
        let group = json!({"type": "namespace", "name": "g", "tools": [{"type": "function", "name": ""}]});
        let error = ToolList::of_responses(&[group], &notes).expect_err("a function without a name");
        assert_eq!(error.param.as_deref(), Some("tools[0].tools[0].name"));
        let tools = vec![json!({"type": "surprise_1", "name": "x"})];
        let error = ToolList::of_messages(tools, &notes).expect_err("an unknown kind");
        assert_eq!(error.param.as_deref(), Some("tools[0].type"));
        for (tool, param) in [
            (json!({}), "tools[0].type"),
            (json!({"type": "function"}), "tools[0].function"),
            (json!({"type": "function", "name": "f", "parameters": {}}), "tools[0].function"),
            (json!({"type": "custom"}), "tools[0].custom"),
        ] {
            let error = ToolList::of_chat(vec![tool], &notes).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn texts_go_into_arguments_and_come_out_of_them() {
        let arguments = arguments_of_text("a\n\"b\"".into()).to_string();
        assert_eq!(text_of_arguments(arguments), "a\n\"b\"");
        for (begun, text) in [
            ("{\"inp", ""),
            ("{\"input\": ", ""),
            ("{\"input\": \"a\\nb", "a\nb"),
            ("{\"input\": \"a\\", "a"),
            ("{\"input\": \"a\\u00", "a"),
            ("{\"input\": \"a\\ud83d\\ude0", "a"),
        ] {
            assert_eq!(begun_text_of_arguments(begun), text, "{begun}");
        }
        for other in [r#"{"path": "x"}"#, r#"{"input": 1}"#, "{\"inp"] {
            assert_eq!(text_of_arguments(other.into()), other);
        }
    }
}
