//! What a client sent, as values of a template.

use minijinja::Value;
use serde_json::{Number, Value as Json};

use super::python_json::float;
use super::sent_number::SentNumber;

/// `json` for a template.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(sent) => number(sent),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(values) => values.iter().map(value).collect(),
        Json::Object(values) => Value::from_pairs(values.iter().map(|(key, json)| (key.as_str(), value(json)))),
    }
}

/// A number of the engine's, unless that would be written in another way.
fn number(sent: &Number) -> Value {
    let text = sent.to_string();
    let whole = || text.parse::<i64>().ok().filter(|value| value.to_string() == text).map(Value::from);
    let large = || text.parse::<i128>().ok().filter(|value| value.to_string() == text).map(Value::from);
    let is_written = |value: f64| float(value) == text && Value::from(value).to_string() == text;
    let real = || sent.as_f64().filter(|&value| is_written(value)).map(Value::from);
    whole().or_else(large).or_else(real).unwrap_or_else(|| Value::from_object(SentNumber(text)))
}
