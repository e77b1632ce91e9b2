//! Calls methods of lists, tuples, dicts and numbers. The methods of texts are in `text_methods.rs`.

use super::arguments::Given;
use super::fault::{Fault, Result};
use super::iteration::items;
use super::operators::equal;
use super::text_methods;
use super::value::{Key, Loop, Object, Value, View};

/// Calls the method `name` of a value.
pub(super) fn call(value: &Value, name: &str, given: Given) -> Result<Value> {
    match value {
        Value::Text(text) => text_methods::call(text, name, given),
        Value::Markup(_) => Err(Fault::unsupported(format!("the method '{name}' of an escaped text"))),
        Value::List(_) | Value::Tuple(_) | Value::Range(..) => sequence(value, name, given),
        Value::Dict(dict) => {
            let view = |view| Value::View(view, dict.clone());
            match name {
                "get" => {
                    let [key, default] = given.unnamed("get", 1)?;
                    let key = key.unwrap_or(Value::None);
                    let found = dict.get(&Key::of(&key)?).cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "keys" => given.unnamed::<0>(name, 0).map(|[]| view(View::Keys)),
                "values" => given.unnamed::<0>(name, 0).map(|[]| view(View::Values)),
                "items" => given.unnamed::<0>(name, 0).map(|[]| view(View::Items)),
                "copy" => given.unnamed::<0>(name, 0).and_then(|[]| Value::dict(dict.entries.clone())),
                other => Err(Fault::unsupported(format!("the method '{other}' of a dict"))),
            }
        }
        Value::Float(number) if name == "is_integer" => {
            given.unnamed::<0>(name, 0).map(|[]| Value::Bool(number.fract() == 0.0))
        }
        Value::Object(object) => match (&**object, name) {
            (Object::Cycler { items, position }, "next") => {
                given.unnamed::<0>(name, 0)?;
                let mut position = position.borrow_mut();
                let item = items[*position].clone();
                *position = (*position + 1) % items.len();
                Ok(item)
            }
            (Object::Cycler { position, .. }, "reset") => {
                given.unnamed::<0>(name, 0)?;
                *position.borrow_mut() = 0;
                Ok(Value::None)
            }
            _ => Err(Fault::unsupported(format!("the method '{name}' of a {}", value.type_name()))),
        },
        _ => Err(Fault::unsupported(format!("the method '{name}' of a {}", value.type_name()))),
    }
}

fn sequence(value: &Value, name: &str, given: Given) -> Result<Value> {
    match name {
        "copy" => given.unnamed::<0>(name, 0).map(|[]| value.clone()),
        "count" => {
            let [wanted] = given.unnamed("count", 1)?;
            let wanted = wanted.unwrap_or(Value::None);
            let mut count = 0;
            for item in items(value)? {
                count += i128::from(equal(&item, &wanted)?);
            }
            Ok(Value::Integer(count))
        }
        "index" => {
            let [wanted, start, stop] = match value {
                Value::Range(..) => given.unnamed("index", 1).map(|[wanted]: [_; 1]| [wanted, None, None])?,
                _ => given.unnamed("index", 1)?,
            };
            let all = items(value)?;
            let (start, stop) = text_methods::bounds("index", start, stop, all.len())?;
            let wanted = wanted.unwrap_or(Value::None);
            for (place, item) in all.iter().enumerate().take(stop).skip(start) {
                if equal(item, &wanted)? {
                    return Ok(Value::Integer(i128::try_from(place).unwrap_or(0)));
                }
            }
            Err(Fault::new(format!("the value that index looks for is not in the {}", value.type_name())))
        }
        other => Err(Fault::unsupported(format!("the method '{other}' of a {}", value.type_name()))),
    }
}

/// Calls the method `name` of `loop`.
pub(super) fn call_loop(running: &Loop, name: &str, given: Given) -> Result<Value> {
    if !given.named.is_empty() {
        return Err(Fault::new(format!("loop.{name} takes no named arguments")));
    }
    let values = given.positional;
    if name == "cycle" {
        if values.is_empty() {
            return Err(Fault::new("no items for cycling given"));
        }
        let place = running.index.get() % values.len();
        return Ok(values.into_iter().nth(place).unwrap_or(Value::None));
    }
    let values = Value::tuple(values)?;
    let Value::Tuple(now) = &values else { return Ok(Value::None) };
    let before = running.changed.replace(Some(now.items.clone()));
    let Some(before) = before else { return Ok(Value::Bool(true)) };
    Ok(Value::Bool(!equal(&Value::tuple(before)?, &values)?))
}
