//! Evaluates Jinja's tests, which are written after `is`.

use super::arguments::Given;
use super::fault::{Fault, Result};
use super::iteration::is_iterable;
use super::operators::{self, binary, compare, equal};
use super::printing;
use super::syntax::{Binary, Comparison};
use super::text_methods;
use super::value::{Number, Object, Value};

/// The names of all filters.
const FILTERS: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];
/// The names of all tests.
const NAMES: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

/// Evaluates `value is name(…)`.
pub(super) fn check(name: &str, value: &Value, given: Given) -> Result<bool> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(Comparison::Equal),
        "!=" | "ne" => Some(Comparison::NotEqual),
        ">" | "gt" | "greaterthan" => Some(Comparison::Greater),
        ">=" | "ge" => Some(Comparison::GreaterEqual),
        "<" | "lt" | "lessthan" => Some(Comparison::Less),
        "<=" | "le" => Some(Comparison::LessEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let [other] = given.unnamed(name, 1)?;
        return compare(comparison, value, &other.unwrap_or(Value::None));
    }
    match name {
        "divisibleby" => {
            let [divisor] = given.fill(name, ["num"], 1)?;
            return is_zero(&binary(Binary::Remainder, value, &divisor.unwrap_or(Value::None))?);
        }
        "sameas" => {
            let [other] = given.fill(name, ["other"], 1)?;
            return same(value, &other.unwrap_or(Value::None));
        }
        _ => {}
    }
    given.unnamed::<0>(name, 0)?;
    Ok(match name {
        "odd" => equal(&binary(Binary::Remainder, value, &Value::Integer(2))?, &Value::Integer(1))?,
        "even" => is_zero(&binary(Binary::Remainder, value, &Value::Integer(2))?)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" => FILTERS.contains(&&**operand(value)?),
        "test" => NAMES.contains(&&**operand(value)?),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value.number(), Some(Number::Integer(_))) && !matches!(value, Value::Bool(_)),
        "float" => matches!(value.number(), Some(Number::Float(_))),
        "number" => value.number().is_some(),
        "lower" | "upper" => {
            let method = if name == "lower" { "islower" } else { "isupper" };
            operators::is_true(&text_methods::call(&printing::text(value)?, method, Given::default())?)
        }
        "string" => matches!(value, Value::Text(_) | Value::Markup(_)),
        "escaped" => matches!(value, Value::Markup(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Markup(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
        ),
        "iterable" => is_iterable(value),
        "callable" => match value {
            // Calling it fails, but it has the method.
            Value::Undefined(_) => true,
            Value::Object(object) => !matches!(&**object, Object::Namespace(_) | Object::Cycler { .. }),
            _ => false,
        },
        other => return Err(Fault::new(format!("there is no test named '{other}'"))),
    })
}

fn operand(value: &Value) -> Result<&std::sync::Arc<str>> {
    value.as_text().ok_or_else(|| Fault::unsupported("the name of a filter or a test that is no text"))
}

fn is_zero(value: &Value) -> Result<bool> {
    equal(value, &Value::Integer(0))
}

/// Evaluates Python's `value is other`.
fn same(value: &Value, other: &Value) -> Result<bool> {
    let is_small = |value: &Value| matches!(value, Value::Integer(-5..=256));
    Ok(match (value, other) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (a, b) if a.type_name() != b.type_name() => false,
        (a, b) if is_small(a) && is_small(b) => equal(a, b)?,
        (a, b) if matches!(a, Value::Text(_) | Value::Integer(_) | Value::Float(_)) && !equal(a, b)? => false,
        (a, _) => return Err(Fault::unsupported(format!("sameas of two values of the type {}", a.type_name()))),
    })
}
