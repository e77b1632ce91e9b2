//! Helpers for Lark's grammar syntax, which the library reads.

use serde_json::Value;

/// Quotes a text for Lark, whose quotes and escapes are JSON's.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
