//! Places in a schema.

use serde_json::Value;

/// What a reference, `#/…`, leads to.
pub(crate) fn find<'a>(schema: &'a Value, to: &str) -> Option<&'a Value> {
    if to == "#" || to == "#/" {
        return Some(schema);
    }
    to.strip_prefix("#/")?.split('/').try_fold(schema, |at, name| match at {
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    })
}

/// A place as a JSON pointer; `#` is the schema itself.
pub(super) fn pointer(place: &[String]) -> String {
    let place: String = place.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
    format!("#{place}")
}
