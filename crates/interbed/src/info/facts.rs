//! Facts about a model: each is a row of text for people, a field for scripts, or both.

use std::fmt::Display;

use serde_json::{Map, Value};

/// Facts, in the order in which they were added.
#[derive(Default)]
pub struct Facts {
    /// The rows, each with its line break.
    pub text: String,
    pub fields: Map<String, Value>,
}

impl Facts {
    /// Adds a row.
    pub fn row(&mut self, name: &str, text: impl Display) {
        self.text.push_str(&format!("  {name:<14}{text}\n"));
    }

    /// Adds a field.
    pub fn field(&mut self, key: &str, value: impl Into<Value>) {
        self.fields.insert(key.to_owned(), value.into());
    }

    /// Adds a fact as a row and as a field.
    pub fn both(&mut self, name: &str, text: impl Display, key: &str, value: impl Into<Value>) {
        self.row(name, text);
        self.field(key, value);
    }
}
