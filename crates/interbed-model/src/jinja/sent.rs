//! Turns JSON that a client sent into values for templates.

use std::rc::Rc;

use serde_json::{Number, Value as Json};

use super::fault::Result;
use super::printing::float;
use super::value::{SentNumber, Value};

/// Turns `json` into a value for a template.
///
/// # Errors
/// Fails if the value is too large or nested too deeply.
pub(crate) fn value(json: &Json) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(sent) => number(sent),
        Json::String(text) => Value::Text(text.as_str().into()),
        Json::Array(values) => Value::list(values.iter().map(value).collect::<Result<_>>()?)?,
        Json::Object(values) => {
            let pair = |(key, json): (&String, &Json)| Ok((Value::Text(key.as_str().into()), value(json)?));
            Value::dict(values.iter().map(pair).collect::<Result<Vec<_>>>()?)?
        }
    })
}

/// Turns a number into a value. If Python would write the number differently, the value keeps the text that was sent.
fn number(sent: &Number) -> Value {
    let text = sent.to_string();
    let whole = text.parse::<i128>().ok();
    if let Some(value) = whole.filter(|value| value.to_string() == text) {
        return Value::Integer(value);
    }
    let real = text.parse::<f64>().unwrap_or(f64::NAN);
    if whole.is_none() && float(real) == text {
        return Value::Float(real);
    }
    let number = whole.map_or(Value::Float(real), Value::Integer);
    Value::Sent(Rc::new(SentNumber { text, number }))
}
