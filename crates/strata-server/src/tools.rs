//! `tools` of a chat: definitions of functions, which the model's template shows to the model.

use serde_json::Value;
use strata_model::chat_template::ChatTemplate;

use crate::error::ApiError;
use crate::fields::shown;

/// Checks that all tools are functions, and that the template renders them.
pub(crate) fn check_tools(tools: &[Value], template: &ChatTemplate) -> Result<(), ApiError> {
    if !template.reads_tools() {
        let message = "tools is sent, but this model's chat template shows no tools to the model; leave tools out";
        return Err(ApiError::invalid("tools", message));
    }
    tools.iter().enumerate().try_for_each(|(index, tool)| check(index, tool))
}

fn check(index: usize, tool: &Value) -> Result<(), ApiError> {
    let refuse = |field: &str, expected: &str, is: &Value| {
        let path = format!("tools[{index}]{field}");
        let message = format!("{path} must be {expected}, but is {}", shown(&is.to_string()));
        Err(ApiError::invalid(path, message))
    };
    let none = &Value::Null;
    if !tool.is_object() {
        return refuse("", "an object", tool);
    }
    let kind = tool.get("type").unwrap_or(none);
    if kind != "function" {
        return refuse(".type", "\"function\"", kind);
    }
    let function = tool.get("function").unwrap_or(none);
    if !function.is_object() {
        return refuse(".function", "an object", function);
    }
    let name = function.get("name").unwrap_or(none);
    if name.as_str().is_none_or(str::is_empty) {
        return refuse(".function.name", "the name of a function", name);
    }
    let description = function.get("description").unwrap_or(none);
    if !description.is_null() && !description.is_string() {
        return refuse(".function.description", "a string", description);
    }
    let parameters = function.get("parameters").unwrap_or(none);
    if !parameters.is_null() && !parameters.is_object() {
        return refuse(".function.parameters", "an object", parameters);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use strata_model::chat_template::SpecialTokens;

    use super::*;

    #[test]
    fn only_functions_are_tools() {
        for (field, tool) in [
            ("", json!(3)),
            (".type", json!({})),
            (".type", json!({"type": "web_search"})),
            (".function", json!({"type": "function"})),
            (".function.name", json!({"type": "function", "function": {}})),
            (".function.name", json!({"type": "function", "function": {"name": ""}})),
            (".function.description", json!({"type": "function", "function": {"name": "f", "description": 1}})),
            (".function.parameters", json!({"type": "function", "function": {"name": "f", "parameters": 42}})),
        ] {
            let error = check(1, &tool).expect_err(field);
            assert_eq!((error.status.as_u16(), error.param), (400, Some(format!("tools[1]{field}"))));
        }
        check(0, &json!({"type": "function", "function": {"name": "f"}})).expect("a tool");
        let whole = json!({"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
        check(0, &json!({"type": "function", "function": whole})).expect("a tool");
    }

    #[test]
    fn a_template_must_show_tools() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let template = |source| ChatTemplate::new(source, SpecialTokens::default()).expect("a template");
        let error = check_tools(&tools, &template("{{ mytools }} {{ tools_x }}")).expect_err("no place for tools");
        assert_eq!(error.param.as_deref(), Some("tools"));
        let shows = template("{% for t in tools %}{{ t.function.name }}{% endfor %}");
        check_tools(&tools, &shows).expect("a place for tools");
        assert_eq!(shows.render(&[], Some(&tools), false, &Map::new()).expect("a prompt"), "f");
    }
}
