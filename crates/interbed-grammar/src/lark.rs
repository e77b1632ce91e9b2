//! Helpers for Lark's grammar syntax, which the library reads.

use serde_json::Value;

/// Quotes a text for Lark, which has the quotes and escapes of JSON.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
