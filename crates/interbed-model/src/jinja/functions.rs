//! Provides the global functions of templates.

use std::cell::RefCell;
use std::rc::Rc;

use super::arguments::{Given, integer};
use super::fault::{Fault, Result};
use super::iteration::{RANGE_MAX, items, length};
use super::printing;
use super::value::{Object, Value};

/// The names of all global functions.
pub(super) const NAMES: [&str; 8] =
    ["range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"];

/// Calls the global function `name`. The function `date` formats the present date.
pub(super) fn call(name: &str, given: Given, date: &dyn Fn(&str) -> Result<String>) -> Result<Value> {
    match name {
        "range" => range(given),
        "dict" => dict(given),
        "namespace" => {
            let Value::Dict(values) = dict(given)? else { return Err(Fault::new("a namespace needs a dict")) };
            let mut stored = Vec::new();
            for (name, value) in &values.entries {
                let Some(name) = name.as_text() else {
                    return Err(Fault::unsupported("a namespace with a name that is no text"));
                };
                stored.push((name.clone(), value.clone()));
            }
            Ok(Value::object(Object::Namespace(RefCell::new(stored))))
        }
        "cycler" => {
            if !given.named.is_empty() {
                return Err(Fault::new("cycler takes no named arguments"));
            }
            if given.positional.is_empty() {
                return Err(Fault::new("at least one item has to be provided"));
            }
            // Measured as a list is.
            Value::list(given.positional.clone())?;
            Ok(Value::object(Object::Cycler { items: given.positional, position: RefCell::new(0) }))
        }
        "joiner" => {
            let [separator] = given.fill("joiner", ["sep"], 0)?;
            let separator = separator.map_or_else(|| Value::text(", "), Ok)?;
            Ok(Value::object(Object::Joiner { separator, used: RefCell::new(false) }))
        }
        "raise_exception" => {
            let [message] = given.fill("raise_exception", ["message"], 1)?;
            let message = printing::text(&message.unwrap_or(Value::None))?;
            Err(Fault::raised(message))
        }
        "strftime_now" => {
            let [format] = given.fill("strftime_now", ["format"], 1)?;
            let format = super::arguments::text("strftime_now", &format.unwrap_or(Value::None))?;
            Value::text(date(&format)?)
        }
        other => Err(Fault::unsupported(format!("the function {other}"))),
    }
}

fn range(given: Given) -> Result<Value> {
    let [first, second, step] = given.unnamed("range", 1)?;
    let value = |value: &Value| integer("range", value);
    let first = value(&first.unwrap_or(Value::None))?;
    let (start, stop) = match &second {
        Some(second) => (first, value(second)?),
        None => (0, first),
    };
    let step = step.as_ref().map_or(Ok(1), value)?;
    if step == 0 {
        return Err(Fault::new("range() arg 3 must not be zero"));
    }
    if [start, stop, step].iter().any(|part| part.abs() > 1 << 62) {
        return Err(Fault::unsupported("a range of large numbers"));
    }
    let range = Value::Range(start, stop, step);
    if i128::try_from(length(&range)?).unwrap_or(i128::MAX) > RANGE_MAX {
        return Err(Fault::new(format!("range too big: at most {RANGE_MAX} items are allowed")));
    }
    Ok(range)
}

fn dict(mut given: Given) -> Result<Value> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    if given.positional.len() > 1 {
        return Err(Fault::new(format!("dict expected at most 1 argument, got {}", given.positional.len())));
    }
    match given.positional.pop() {
        None => {}
        Some(Value::Dict(dict)) => pairs.extend(dict.entries.iter().cloned()),
        Some(other) => {
            other.defined()?;
            for pair in items(&other)? {
                let mut pair = items(&pair)?;
                let (Some(value), Some(key), None) = (pair.pop(), pair.pop(), pair.pop()) else {
                    return Err(Fault::new("dict takes pairs of keys and values"));
                };
                pairs.push((key, value));
            }
        }
    }
    pairs.extend(given.named.into_iter().map(|(name, value)| (Value::Text(name), value)));
    Value::dict(pairs)
}

/// Calls an object that the function `joiner` made. The first call returns an empty text, and later calls the
/// separator.
pub(super) fn join(separator: &Value, used: &RefCell<bool>, given: Given) -> Result<Value> {
    given.unnamed::<0>("joiner", 0)?;
    if used.replace(true) { Ok(separator.clone()) } else { Value::text("") }
}

/// Returns the global function with this name, or `None` if there is none.
pub(super) fn global(name: &str) -> Option<Value> {
    NAMES.iter().find(|known| **known == name).map(|known| Value::Object(Rc::new(Object::Function(known))))
}
