//! References and JSON pointers in a schema.

use std::borrow::Cow;

use serde_json::Value;

/// Resolves the reference `to`, which is `#/…` behind the schema's own `$id` or behind nothing. Decodes the escapes of
/// JSON pointers and URIs.
pub(crate) fn find<'a>(schema: &'a Value, to: &str) -> Option<&'a Value> {
    let names = names(fragment(schema, to)?)?;
    names.iter().try_fold(schema, |at, name| step(at, name))
}

/// Splits a JSON pointer into names. Returns no names for the schema itself.
pub(crate) fn names(fragment: &str) -> Option<Vec<String>> {
    let fragment = unescaped(fragment)?;
    if fragment.is_empty() || fragment == "/" {
        return Some(Vec::new());
    }
    let one = |name: &str| name.replace("~1", "/").replace("~0", "~");
    Some(fragment.strip_prefix('/')?.split('/').map(one).collect())
}

/// Returns the fragment of a reference after its `#`. Returns `None` if the reference leads out of the schema.
pub(crate) fn fragment<'t>(schema: &Value, to: &'t str) -> Option<&'t str> {
    let own = ["$id", "id"].iter().find_map(|keyword| schema.get(keyword)?.as_str());
    let own = own.map(|own| own.split('#').next().unwrap_or_default()).filter(|own| !own.is_empty());
    let behind = own.and_then(|own| to.strip_prefix(own)).filter(|rest| rest.is_empty() || rest.starts_with('#'));
    let behind = behind.unwrap_or(to);
    if behind.is_empty() { Some("").filter(|_| behind.len() < to.len()) } else { behind.strip_prefix('#') }
}

/// Returns the value at this property name or array index.
pub(super) fn step<'a>(at: &'a Value, name: &str) -> Option<&'a Value> {
    match at {
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    }
}

/// Formats a place as a JSON pointer, where `#` is the schema itself.
pub(super) fn pointer(place: &[String]) -> String {
    let place: String = place.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
    format!("#{place}")
}

/// Decodes the percent escapes of a URI. Returns `None` if the result is not UTF-8.
fn unescaped(escapes: &str) -> Option<Cow<'_, str>> {
    if !escapes.contains('%') {
        return Some(Cow::Borrowed(escapes));
    }
    let (bytes, mut text, mut at) = (escapes.as_bytes(), Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let escaped = escapes.get(at + 1..at + 3).filter(|_| byte == b'%');
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                text.push(escaped);
                at += 3;
            }
            None => {
                text.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(text).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_found_behind_escapes() {
        let schema = json!({"$id": "https://e.x/s#", "a/b": {"c~d": [1, {"é %": 2}]}, "": 3, "~1": 4});
        for (to, found) in [
            ("#/a~1b/c~0d/0", Some(json!(1))),
            ("#/a%2Fb/c~0d", None),
            ("#/a~1b/c%7E0d/1/%C3%A9%20%25", Some(json!(2))),
            ("https://e.x/s#/~01", Some(json!(4))),
            ("#/a~1b/c~0d/1/%FF", None),
            ("https://e.x/s", Some(schema.clone())),
            ("https://e.x/sub#/a~1b", None),
            ("", None),
            ("#", Some(schema.clone())),
            ("#a", None),
        ] {
            assert_eq!(find(&schema, to), found.as_ref(), "{to}");
        }
    }
}
