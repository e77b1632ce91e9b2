//! Finds the keyword to blame when a schema as a whole cannot be used. This is a keyword without which the schema could
//! be used.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::GrammarError;

use super::pointer::{fragment, names, pointer, step};

/// Maximum number of variants of the schema that are tried.
const TRIES_MAX: usize = 64;
/// Largest schema in bytes for which variants are tried.
const BYTES_MAX: usize = 64 << 10;
/// Longest time that is spent on the search.
const TIME_MAX: Duration = Duration::from_millis(200);
/// Keywords that constrain no values.
const ASIDE: [&str; 6] = ["$schema", "$id", "$defs", "definitions", "title", "description"];

/// Moves `error`, which concerns the whole of `schema`, to the keyword without which the schema `is_ok`, or to a
/// keyword that is not ok even alone. Returns `error` at the root if there is no such keyword.
pub(crate) fn blamed(error: GrammarError, schema: &Value, is_ok: impl Fn(&Value) -> bool) -> GrammarError {
    let (place, problem) = match error.placed() {
        GrammarError::Schema { place, problem } if place == "#" => (place, problem),
        error => return error,
    };
    if let Some(place) = keyword(schema, &is_ok) {
        let problem = format!("{problem}; without this, it could be used");
        return GrammarError::Schema { place: pointer(&place), problem };
    }
    let place = alone(schema, &is_ok).map_or(place, |name| pointer(&[name]));
    GrammarError::Schema { place, problem }
}

/// Returns the path to the innermost keyword or item without which the schema is ok.
fn keyword(schema: &Value, is_ok: &impl Fn(&Value) -> bool) -> Option<Vec<String>> {
    if schema.to_string().len() > BYTES_MAX {
        return None;
    }
    let (mut place, mut tries, begun) = (Vec::new(), 0, Instant::now());
    loop {
        let at = place.iter().try_fold(schema, |at, name: &String| step(at, name))?;
        let inner: Vec<String> = match at {
            Value::Object(map) => {
                let mut names: Vec<String> =
                    map.keys().filter(|name| !ASIDE.contains(&name.as_str())).cloned().collect();
                // Without its type a schema usually allows other values, so removing `type` is tried last.
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
            if tries > TRIES_MAX || begun.elapsed() > TIME_MAX {
                break;
            }
            let mut copy = schema.clone();
            let within = place.iter().try_fold(&mut copy, |at, name| step_mut(at, name))?;
            match within {
                Value::Object(map) => drop(map.remove(&name)),
                // Items of other arrays are replaced by `true`, so that their siblings keep their indices.
                Value::Array(list) if place.last().is_some_and(|name| name == "required") => {
                    list.remove(name.parse().ok()?);
                }
                Value::Array(list) => *list.get_mut(name.parse::<usize>().ok()?)? = Value::Bool(true),
                _ => return None,
            }
            if is_ok(&copy) {
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

/// Returns a keyword that is not ok even without the other keywords beside it.
fn alone(schema: &Value, is_ok: &impl Fn(&Value) -> bool) -> Option<String> {
    let keywords = schema.as_object().filter(|_| schema.to_string().len() <= BYTES_MAX)?;
    let is_aside = |name: &String| ASIDE.contains(&name.as_str());
    let begun = Instant::now();
    for name in keywords.keys().filter(|name| !is_aside(name)).take(TRIES_MAX) {
        let kept = keywords.iter().filter(|(known, _)| *known == name || is_aside(known));
        let kept: Map<String, Value> = kept.map(|(known, value)| (known.clone(), value.clone())).collect();
        if begun.elapsed() > TIME_MAX {
            break;
        }
        if !is_ok(&Value::Object(kept)) {
            return Some(name.clone());
        }
    }
    None
}

fn step_mut<'a>(at: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    match at {
        Value::Object(map) => map.get_mut(name),
        Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}
