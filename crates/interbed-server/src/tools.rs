//! Reads `tools` of a chat, which has definitions of functions that the chat template shows to the model.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::shown;
use crate::json_text::object;

/// The longest name of a function in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Builds a function in the format of a chat's tools.
pub(crate) fn function_tool(name: &Value, description: Option<&Value>, schema: Option<&Value>, strict: bool) -> Value {
    let mut function = json!({"name": name});
    for (field, value) in [("description", description), ("parameters", schema)] {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            function[field] = value.clone();
        }
    }
    if strict {
        function["strict"] = true.into();
    }
    object([("type", "function".into()), ("function", function)])
}

/// Checks the name, the description and the schema of a function. The text `schema` is the name of the schema's field
/// in this API.
pub(crate) fn check_function(function: &Map<String, Value>, path: &str, schema: &str) -> Result<(), ApiError> {
    let refuse = |field: &str, expected: &str, is: &Value| {
        let path = format!("{path}.{field}");
        let message = format!("{path} must be {expected}, but is {}", shown(&is.to_string()));
        Err(ApiError::invalid(path, message))
    };
    let of = |field: &str| function.get(field).unwrap_or(&Value::Null);
    if !of("name").as_str().is_some_and(is_name) {
        let expected = "the name of a function, of 1 to 128 letters, digits, \"_\", \"-\", \".\", \":\" and \"/\"";
        return refuse("name", expected, of("name"));
    }
    if !of("description").is_null() && !of("description").is_string() {
        return refuse("description", "a string", of("description"));
    }
    if !of(schema).is_null() && !of(schema).is_object() && of(schema) != &Value::Bool(true) {
        return refuse(schema, "an object", of(schema));
    }
    Ok(())
}

/// Returns whether the name can be written in every syntax of calls. OpenAI and Anthropic allow fewer characters.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_names_and_schemas() {
        for (field, function) in [
            ("name", json!({})),
            ("name", json!({"name": ""})),
            ("name", json!({"name": "say \"hi\""})),
            ("name", json!({"name": "a\nb"})),
            ("name", json!({"name": "x".repeat(129)})),
            ("description", json!({"name": "f", "description": 1})),
            ("parameters", json!({"name": "f", "parameters": 42})),
        ] {
            let function = function.as_object().expect("an object");
            let error = check_function(function, "tools[1]", "parameters").expect_err(field);
            assert_eq!((error.status.as_u16(), error.param), (400, Some(format!("tools[1].{field}"))));
        }
        let whole = json!({"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
        check_function(whole.as_object().expect("an object"), "tools[0]", "parameters").expect("a function");
    }
}
