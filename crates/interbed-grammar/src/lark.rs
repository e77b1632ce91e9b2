//! Helpers for Lark's grammar syntax, which the library reads.

use serde_json::Value;

/// Returns a string literal for `text` in Lark's syntax, which has the quotes and escapes of JSON.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
