//! Lark's form of grammars, which the library reads.

use serde_json::Value;

/// A text in Lark's quotes, which are JSON's.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
