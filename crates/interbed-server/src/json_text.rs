//! Writes JSON piece by piece. As text, a long list uses a fraction of the memory of its values.

use std::fmt::Write;

use serde_json::{Map, Value};

/// Appends an item to the inside of a list.
pub(crate) fn push(list: &mut String, entry: &Value) {
    if !list.is_empty() {
        list.push(',');
    }
    // Writing to a String cannot fail.
    let _ = write!(list, "{entry}");
}

/// Returns an object of these fields. Unlike `json!`, it keeps numbers as the client wrote them.
pub(crate) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

/// Writes a list whose items exist as values only one at a time.
pub(crate) fn list_of(entries: impl Iterator<Item = Value>) -> String {
    let mut list = String::new();
    entries.for_each(|entry| push(&mut list, &entry));
    format!("[{list}]")
}

/// Writes `object` with the JSON `text` as the value of `key`.
pub(crate) fn with_field(object: &Map<String, Value>, key: &str, text: &str) -> String {
    let mut whole = String::with_capacity(text.len() + 1024);
    for (name, value) in object {
        whole.push(if whole.is_empty() { '{' } else { ',' });
        let _ = write!(whole, "{}:", Value::from(name.as_str()));
        if name == key {
            whole.push_str(text);
        } else {
            let _ = write!(whole, "{value}");
        }
    }
    whole.push_str(if whole.is_empty() { "{}" } else { "}" });
    whole
}

/// Appends a field with a JSON value to the text of a non-empty object.
pub(crate) fn add_field(object: &mut String, key: &str, text: Option<String>) {
    if let Some(text) = text {
        object.truncate(object.len().saturating_sub(1));
        let _ = write!(object, ",{}:{text}}}", Value::from(key));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_put_in_its_place() {
        let Value::Object(object) = json!({"a": 1, "q\"": null, "z": "\n"}) else { panic!("an object") };
        let text = with_field(&object, "q\"", &list_of([json!(1), json!({"x": "]"})].into_iter()));
        assert_eq!(text, r#"{"a":1,"q\"":[1,{"x":"]"}],"z":"\n"}"#);
        let mut text = text;
        add_field(&mut text, "k", Some("[2]".into()));
        add_field(&mut text, "none", None);
        assert_eq!(text, r#"{"a":1,"q\"":[1,{"x":"]"}],"z":"\n","k":[2]}"#);
        assert_eq!(with_field(&Map::new(), "a", "1"), "{}");
        assert_eq!(list_of(std::iter::empty()), "[]");
    }
}
