//! The keyword to blame where a schema as a whole cannot be used: without it, the schema could be.

use serde_json::Value;

use crate::GrammarError;

use super::pointer::{fragment, names, pointer, step};
use super::rules::Rules;

/// Most schemas that are tried, and most bytes of one.
const TRIES_MAX: usize = 64;
const BYTES_MAX: usize = 16 << 10;
/// What describes no values.
const ASIDE: [&str; 6] = ["$schema", "$id", "$defs", "definitions", "title", "description"];

/// `error`, which is about the whole of `schema`, at the keyword without which there would be none, if that is found.
pub(super) fn blamed(error: GrammarError, schema: &Value) -> GrammarError {
    let is_whole = matches!(&error, GrammarError::Schema { place, .. } if place == "#");
    if !(is_whole || matches!(error, GrammarError::Invalid { .. } | GrammarError::TooLarge { .. })) {
        return error;
    }
    match (error.placed(), keyword(schema)) {
        (GrammarError::Schema { problem, .. }, Some(place)) => GrammarError::Schema {
            place: pointer(&place),
            problem: format!("{problem}; without this, it could be used"),
        },
        (error, _) => error,
    }
}

/// The names that lead to the innermost such keyword.
fn keyword(schema: &Value) -> Option<Vec<String>> {
    if schema.to_string().len() > BYTES_MAX {
        return None;
    }
    let (mut place, mut tries) = (Vec::new(), 0);
    loop {
        let at = place.iter().try_fold(schema, |at, name: &String| step(at, name))?;
        let inner: Vec<String> = match at {
            Value::Object(map) => {
                let mut names: Vec<String> =
                    map.keys().filter(|name| !ASIDE.contains(&name.as_str())).cloned().collect();
                // Without its type, a schema mostly has other values, so that says least.
                names.sort_by_key(|name| name == "type");
                names
            }
            Value::Array(list) => (0..list.len()).map(|index| index.to_string()).collect(),
            Value::String(to) if place.last().is_some_and(|name| name == "$ref") => {
                place = fragment(schema, to).and_then(names)?;
                tries += 1;
                if tries > TRIES_MAX { return None } else { continue }
            }
            _ => Vec::new(),
        };
        let mut found = None;
        for name in inner {
            tries += 1;
            if tries > TRIES_MAX {
                break;
            }
            let mut copy = schema.clone();
            let within = place.iter().try_fold(&mut copy, |at, name| step_mut(at, name))?;
            match within {
                Value::Object(map) => drop(map.remove(&name)),
                // Others keep their places.
                Value::Array(list) if place.last().is_some_and(|name| name == "required") => {
                    list.remove(name.parse().ok()?);
                }
                Value::Array(list) => *list.get_mut(name.parse::<usize>().ok()?)? = Value::Bool(true),
                _ => return None,
            }
            if Rules::default().add(&copy).is_ok() {
                found = Some(name);
                break;
            }
        }
        match found {
            Some(name) => place.push(name),
            None => return (!place.is_empty()).then_some(place),
        }
    }
}

fn step_mut<'a>(at: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    match at {
        Value::Object(map) => map.get_mut(name),
        Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}
