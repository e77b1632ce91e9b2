//! Looks up attributes and items of values, and withholds those that Jinja's sandbox keeps from templates.

use std::sync::Arc;

use super::fault::{Fault, Result};
use super::iteration::place;
use super::value::{Key, Object, Value, loop_attribute};

const TEXT_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const DICT_METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
/// The methods that change a list. The sandbox keeps them from templates.
const LIST_CHANGERS: [&str; 8] = ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const DICT_CHANGERS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const INTEGER_ATTRIBUTES: [&str; 10] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "imag",
    "is_integer",
    "numerator",
    "real",
];
const FLOAT_ATTRIBUTES: [&str; 7] = ["as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"];

/// Evaluates `value.name`. Returns the attribute `name` if the value has one, or else the item with that key.
pub(super) fn attribute_of(value: &Value, name: &Arc<str>) -> Result<Value> {
    if let Some(found) = own_attribute(value, name)? {
        return Ok(found);
    }
    if let Value::Dict(dict) = value
        && let Some(found) = dict.get_text(name)
    {
        return Ok(found.clone());
    }
    Ok(Value::Undefined(name.clone()))
}

/// Evaluates `value[key]`. Returns the item with that key if the value has one, or else the attribute with that name.
pub(super) fn item_of(value: &Value, key: &Value) -> Result<Value> {
    value.defined()?;
    let missing = |key: &Value| -> Result<Value> {
        let Value::Text(name) = key else {
            return Ok(Value::undefined(super::printing::text(key).unwrap_or_default()));
        };
        Ok(own_attribute(value, name)?.unwrap_or_else(|| Value::Undefined(name.clone())))
    };
    match value {
        Value::Dict(dict) => match key {
            // Lists and dicts cannot be keys, and so a dict has no items by them.
            Value::List(_) | Value::Dict(_) => missing(key),
            _ => match dict.get(&Key::of(key)?) {
                Some(found) => Ok(found.clone()),
                None => missing(key),
            },
        },
        Value::List(items) | Value::Tuple(items) => {
            match key.as_integer().and_then(|at| place(at, items.items.len())) {
                Some(at) => Ok(items.items[at].clone()),
                None => missing(key),
            }
        }
        Value::Text(text) => match key.as_integer().and_then(|at| place(at, text.chars().count())) {
            Some(at) => Value::text(text.chars().nth(at).map(String::from).unwrap_or_default()),
            None => missing(key),
        },
        Value::Markup(_) => Err(Fault::unsupported("an index of an escaped text")),
        Value::Range(start, _, step) => {
            let length = super::iteration::length(value)?;
            match key.as_integer().and_then(|at| place(at, length)) {
                Some(at) => Ok(Value::Integer(start + i128::try_from(at).unwrap_or(0) * step)),
                None => missing(key),
            }
        }
        _ => missing(key),
    }
}

/// Returns the attribute that a Python object of this kind has, or `None` if it has no attribute of this name.
pub(super) fn own_attribute(value: &Value, name: &Arc<str>) -> Result<Option<Value>> {
    value.defined()?;
    if name.starts_with("__") && name.ends_with("__") && name.len() > 4 {
        return Err(Fault::unsupported(format!("the attribute '{name}'")));
    }
    let method = || Some(Value::object(Object::Method(value.clone(), name.clone())));
    let known = |names: &[&str]| names.contains(&&**name);
    // The sandbox treats these attributes as undefined.
    let forbidden = || Some(Value::Undefined(name.clone()));
    Ok(match value {
        Value::Text(_) | Value::Markup(_) if known(&TEXT_METHODS) => method(),
        Value::Markup(_) if known(&["escape", "unescape", "striptags"]) => method(),
        Value::List(_) if known(&LIST_CHANGERS) => forbidden(),
        Value::List(_) if known(&["count", "index", "copy"]) => method(),
        Value::Tuple(_) if known(&["count", "index"]) => method(),
        Value::Tuple(pair) if pair.is_group && &**name == "grouper" => Some(pair.items[0].clone()),
        Value::Tuple(pair) if pair.is_group && &**name == "list" => Some(pair.items[1].clone()),
        Value::Dict(_) if known(&DICT_CHANGERS) => forbidden(),
        Value::Dict(_) if known(&DICT_METHODS) => method(),
        Value::Bool(number) if &**name == "real" => Some(Value::Integer(i128::from(*number))),
        Value::Integer(_) | Value::Float(_) if &**name == "real" => Some(value.clone()),
        Value::Bool(_) | Value::Integer(_) if known(&INTEGER_ATTRIBUTES) => {
            return Err(Fault::unsupported(format!("the attribute '{name}' of a number")));
        }
        Value::Float(_) if &**name == "is_integer" => method(),
        Value::Float(_) if known(&FLOAT_ATTRIBUTES) => {
            return Err(Fault::unsupported(format!("the attribute '{name}' of a number")));
        }
        Value::Range(start, stop, step) => match &**name {
            "start" => Some(Value::Integer(*start)),
            "stop" => Some(Value::Integer(*stop)),
            "step" => Some(Value::Integer(*step)),
            "count" | "index" => method(),
            _ => None,
        },
        Value::View(..) if known(&["isdisjoint", "mapping"]) => {
            return Err(Fault::unsupported(format!("the attribute '{name}' of a view")));
        }
        Value::Iterator(_) if name.starts_with("gi_") || known(&["send", "throw", "close"]) => {
            return Err(Fault::unsupported(format!("the attribute '{name}' of a generator")));
        }
        Value::Object(object) => match &**object {
            Object::Namespace(values) => {
                let values = values.borrow();
                values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            }
            Object::Cycler { items, position } => match &**name {
                "current" => items.get(*position.borrow()).cloned(),
                "items" => Some(Value::tuple(items.clone())?),
                "pos" => Some(Value::Integer(i128::try_from(*position.borrow()).unwrap_or(0))),
                "next" | "reset" => method(),
                _ => None,
            },
            Object::Joiner { separator, used } => match &**name {
                "sep" => Some(separator.clone()),
                "used" => Some(Value::Bool(*used.borrow())),
                _ => None,
            },
            Object::Macro(node) => node.attribute(name)?,
            Object::Loop(state) => match &**name {
                "cycle" | "changed" => method(),
                _ => loop_attribute(state, name)?,
            },
            Object::Method(..) | Object::Function(_) => {
                return Err(Fault::unsupported(format!("the attribute '{name}' of a function")));
            }
        },
        _ => None,
    })
}
