//! The editions (drafts) of JSON Schema, which disagree about some keywords. Validators recognize an edition by its
//! exact URI, so this module does too.

use serde_json::Value;

/// An edition of JSON Schema. Later editions compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dialect {
    Draft3,
    Draft4,
    Draft6,
    Draft7,
    Draft2019,
    Draft2020,
}

impl Dialect {
    /// Returns the edition that a schema names in `$schema`. Returns the latest edition if the schema names none or an
    /// unknown one.
    pub(super) fn of(schema: &Value) -> Self {
        let named = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
        match named.strip_suffix('#').unwrap_or(named) {
            "http://json-schema.org/draft-03/schema" => Self::Draft3,
            "http://json-schema.org/draft-04/schema" => Self::Draft4,
            "http://json-schema.org/draft-06/schema" => Self::Draft6,
            "http://json-schema.org/draft-07/schema" => Self::Draft7,
            "https://json-schema.org/draft/2019-09/schema" => Self::Draft2019,
            _ => Self::Draft2020,
        }
    }

    /// Returns the keyword that gives a schema its own URI.
    pub(super) fn name(self) -> &'static str {
        if self <= Self::Draft4 { "id" } else { "$id" }
    }

    /// Returns whether keywords beside a `$ref` are ignored.
    pub(super) fn refers_alone(self) -> bool {
        self <= Self::Draft7
    }

    /// Returns whether this edition ignores the keyword.
    pub(super) fn ignores(self, keyword: &str) -> bool {
        match keyword {
            "const" | "contains" | "propertyNames" => self < Self::Draft6,
            "if" | "then" | "else" => self < Self::Draft7,
            "minContains" | "maxContains" => self < Self::Draft2019,
            "dependentRequired" | "dependentSchemas" => self < Self::Draft2019,
            "dependencies" => self >= Self::Draft2019,
            "allOf" | "anyOf" | "oneOf" | "not" | "minProperties" | "maxProperties" => self < Self::Draft4,
            _ => false,
        }
    }
}
