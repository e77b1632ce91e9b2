//! What a client sent, as values of a template.

use std::rc::Rc;

use serde_json::{Number, Value as Json};

use super::fault::Result;
use super::printing::float;
use super::value::{SentNumber, Value};

/// `json` for a template.
///
/// # Errors
/// It is too large or nested too deeply.
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

/// A number that is printed as it was sent, where Python would write it in another way.
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
