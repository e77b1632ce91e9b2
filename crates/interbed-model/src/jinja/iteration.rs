//! Iterates over values, and takes items and slices from them.

use super::allowance::{self, NODE_BYTES};
use super::fault::{Fault, Result};
use super::value::{Number, Object, Value, View};

/// The most items that a range of a template may have.
pub(super) const RANGE_MAX: i128 = 100_000;

/// Returns all items of a value, as a loop sees them. An iterator is empty afterwards.
///
/// # Errors
/// Fails if the value has no items, or if the items would exceed the allowance.
pub(super) fn items(value: &Value) -> Result<Vec<Value>> {
    Ok(match value {
        Value::Undefined(_) => Vec::new(),
        Value::Text(text) | Value::Markup(text) => {
            allowance::make(text.len().saturating_mul(NODE_BYTES))?;
            let mut buffer = [0; 4];
            text.chars().map(|character| Value::Text((&*character.encode_utf8(&mut buffer)).into())).collect()
        }
        Value::List(items) | Value::Tuple(items) => {
            allowance::make(items.items.len().saturating_mul(NODE_BYTES))?;
            items.items.clone()
        }
        Value::Dict(dict) | Value::View(View::Keys, dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
        Value::View(View::Values, dict) => dict.entries.iter().map(|(_, value)| value.clone()).collect(),
        Value::View(View::Items, dict) => {
            let pair = |(key, value): &(Value, Value)| Value::tuple(vec![key.clone(), value.clone()]);
            dict.entries.iter().map(pair).collect::<Result<_>>()?
        }
        Value::Range(start, _, step) => {
            let length = i128::try_from(length(value)?).unwrap_or(0);
            allowance::make(usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(NODE_BYTES))?;
            (0..length).map(|index| Value::Integer(start + index * step)).collect()
        }
        Value::Iterator(items) => items.left.borrow_mut().by_ref().collect(),
        Value::Object(object) if matches!(&**object, Object::Loop(_)) => {
            return Err(Fault::unsupported("iterating over `loop`"));
        }
        other => return Err(Fault::new(format!("'{}' object is not iterable", other.type_name()))),
    })
}

/// Returns whether a value has items, without taking them.
pub(super) fn is_iterable(value: &Value) -> bool {
    match value {
        Value::Object(object) => matches!(&**object, Object::Loop(_)),
        Value::None => false,
        other => other.number().is_none(),
    }
}

/// Evaluates `len(value)`.
pub(super) fn length(value: &Value) -> Result<usize> {
    Ok(match value {
        Value::Undefined(_) => 0,
        Value::Text(text) | Value::Markup(text) => text.chars().count(),
        Value::List(items) | Value::Tuple(items) => items.items.len(),
        Value::Dict(dict) | Value::View(_, dict) => dict.entries.len(),
        Value::Range(start, stop, step) => {
            let (low, high, step) = if *step > 0 { (*start, *stop, *step) } else { (*stop, *start, -*step) };
            let count = if low < high { (high - low - 1) / step + 1 } else { 0 };
            usize::try_from(count).unwrap_or(usize::MAX)
        }
        other => return Err(Fault::new(format!("object of type '{}' has no len()", other.type_name()))),
    })
}

/// Returns the place that an index names in a list of `length` items. A negative index counts from the end. Returns
/// `None` if the list has no such place.
pub(super) fn place(index: i128, length: usize) -> Option<usize> {
    let length = i128::try_from(length).ok()?;
    let index = if index < 0 { index + length } else { index };
    if (0..length).contains(&index) { usize::try_from(index).ok() } else { None }
}

/// Evaluates `value[start:stop:step]`.
pub(super) fn slice(value: &Value, parts: [Option<Value>; 3]) -> Result<Value> {
    let [start, stop, step] = parts;
    let step = part(step)?.unwrap_or(1);
    if step == 0 {
        return Err(Fault::new("slice step cannot be zero"));
    }
    let (start, stop) = (part(start)?, part(stop)?);
    match value {
        Value::Text(text) | Value::Markup(text) => {
            let safe = matches!(value, Value::Markup(_));
            let characters: Vec<char> = text.chars().collect();
            allowance::make(text.len() * 4)?;
            let picked: String = places(characters.len(), start, stop, step).map(|place| characters[place]).collect();
            if safe { Ok(Value::Markup(picked.into())) } else { Value::text(picked) }
        }
        Value::List(items) | Value::Tuple(items) => {
            let all = &items.items;
            let picked = places(all.len(), start, stop, step).map(|place| all[place].clone()).collect();
            if matches!(value, Value::List(_)) { Value::list(picked) } else { Value::tuple(picked) }
        }
        Value::Range(..) => Err(Fault::unsupported("a slice of a range")),
        Value::Undefined(name) => Err(Fault::new(format!("'{name}' is undefined"))),
        other => Err(Fault::new(format!("'{}' object cannot be sliced", other.type_name()))),
    }
}

fn part(value: Option<Value>) -> Result<Option<i128>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.number() {
            // More than any length is as good as that.
            Some(Number::Integer(value)) => Ok(Some(value.clamp(-(1 << 62), 1 << 62))),
            _ => Err(Fault::new(format!("slice indices must be integers, not {}", value.type_name()))),
        },
    }
}

/// Returns the places that a slice takes from a list of `length` items, in the order of the slice.
fn places(length: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let length = i128::try_from(length).unwrap_or(i128::MAX);
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(value) if value < 0 => (value + length).max(lowest),
        Some(value) => value.min(highest),
    };
    let (start, stop) = if step > 0 {
        (bound(start, lowest), bound(stop, highest))
    } else {
        (bound(start, highest), bound(stop, lowest))
    };
    let mut at = start;
    std::iter::from_fn(move || {
        let within = if step > 0 { at < stop } else { at > stop };
        let place = at;
        at += step;
        if within { usize::try_from(place).ok() } else { None }
    })
}
