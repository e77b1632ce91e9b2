//! Helpers for reading fields of messages and items, which all APIs share.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::shown;

/// Takes the text in a required field of an object.
pub(crate) fn text_in(object: &Map<String, Value>, field: &str, path: &str) -> Result<String, ApiError> {
    match object.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => {
            let is = other.unwrap_or(&Value::Null).to_string();
            refuse(&format!("{path}.{field}"), format!("must be a text, but is {}", shown(&is)))
        }
    }
}

/// Returns the fields of a message or item, which must be an object.
pub(crate) fn object_of(value: Value, path: &str) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(object) => Ok(object),
        other => refuse(path, format!("must be an object, but is {}", shown(&other.to_string()))),
    }
}

/// Returns the role of a message, which must be one of `roles`.
pub(crate) fn role_of(
    message: &Map<String, Value>,
    path: &str,
    roles: &[&'static str],
) -> Result<&'static str, ApiError> {
    let role = message.get("role").unwrap_or(&Value::Null);
    match roles.iter().find(|&known| role == known) {
        Some(known) => Ok(known),
        None => {
            let is = role.to_string();
            refuse(&format!("{path}.role"), format!("is {}, but must be one of {}", shown(&is), roles.join(", ")))
        }
    }
}

/// Returns an error about the field at `path`. The message is the path, followed by `problem`.
pub(crate) fn refuse<T>(path: &str, problem: String) -> Result<T, ApiError> {
    Err(ApiError::invalid(path, format!("{path} {problem}")))
}
