//! Counts the memory of JSON values before they are built.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::fields::FromJson;

/// The number of bytes of memory that a JSON value takes, without the texts of strings.
///
/// A value has 72 bytes. A list grows by doubling, so it may have room for twice as many values as it holds, and while
/// it grows there is a copy of it. A list of one value has room for four. A field of an object has 104 bytes, plus the
/// key's own allocation and the index. A number is stored as its text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonCost(pub(crate) usize);

impl JsonCost {
    const LIST: usize = 72 + 32;
    const LIST_VALUE: usize = 3 * 72;
    const OBJECT: usize = 104 + 64 + 32;
    const OBJECT_ENTRY: usize = 3 * 104 + 24 + 32;
    /// The number of bytes of the smallest allocation.
    const STRING: usize = 32;
}

/// Returns the number of bytes of memory that the value with this JSON text takes, including its strings.
pub(crate) fn bytes_of(text: &str) -> usize {
    serde_json::from_str(text).map_or(0, |JsonCost(cost)| cost).saturating_add(text.len())
}

impl<'de> Deserialize<'de> for JsonCost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Costs;
        impl<'de> Visitor<'de> for Costs {
            type Value = JsonCost;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("any value")
            }
            fn visit_unit<E>(self) -> Result<JsonCost, E> {
                Ok(JsonCost(0))
            }
            fn visit_bool<E>(self, _: bool) -> Result<JsonCost, E> {
                Ok(JsonCost(0))
            }
            fn visit_i64<E>(self, _: i64) -> Result<JsonCost, E> {
                Ok(JsonCost(JsonCost::STRING))
            }
            fn visit_u64<E>(self, _: u64) -> Result<JsonCost, E> {
                Ok(JsonCost(JsonCost::STRING))
            }
            fn visit_f64<E>(self, _: f64) -> Result<JsonCost, E> {
                Ok(JsonCost(JsonCost::STRING))
            }
            fn visit_str<E>(self, _: &str) -> Result<JsonCost, E> {
                Ok(JsonCost(JsonCost::STRING))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonCost, A::Error> {
                let mut cost = JsonCost::LIST;
                while let Some(JsonCost(entry)) = list.next_element()? {
                    cost = cost.saturating_add(JsonCost::LIST_VALUE + entry);
                }
                Ok(JsonCost(cost))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonCost, A::Error> {
                let mut cost = JsonCost::OBJECT;
                let mut is_first = true;
                while let Some(key) = map.next_key::<Key>()? {
                    let JsonCost(entry) = map.next_value()?;
                    match key {
                        // `serde_json` passes a number as an object with its text.
                        Key::Number if is_first => return Ok(JsonCost(entry)),
                        Key::Number => return Err(A::Error::custom(RESERVED)),
                        Key::Name => cost = cost.saturating_add(JsonCost::OBJECT_ENTRY + JsonCost::STRING + entry),
                    }
                    is_first = false;
                }
                Ok(JsonCost(cost))
            }
        }
        deserializer.deserialize_any(Costs)
    }
}

/// Accepts any value as a field that is not nested too deeply to be built. The value itself is checked later.
impl FromJson<'_> for JsonCost {
    const EXPECTED: &'static str = "a value";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        serde_json::from_str(raw.get()).map_err(|error| crate::fields::unbuildable(&error))
    }
}

/// The kind of a key in a JSON object. One reserved key of `serde_json` is refused, because the string after it would
/// be parsed as JSON of any depth, without being counted. Another reserved key marks a number, whose text follows.
enum Key {
    Name,
    Number,
}

const NUMBER: &str = "$serde_json::private::Number";
const RESERVED: &str = "has a key that is reserved";

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
                match name {
                    NUMBER => Ok(Key::Number),
                    _ if name.starts_with("$serde_json::private::") => Err(E::custom(RESERVED)),
                    _ => Ok(Key::Name),
                }
            }
        }
        deserializer.deserialize_str(Name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(text: &str) -> usize {
        serde_json::from_str::<JsonCost>(text).expect("JSON").0
    }

    #[test]
    fn values_are_counted_by_kind() {
        assert_eq!((cost("true"), cost("1"), cost("-1e400")), (0, JsonCost::STRING, JsonCost::STRING));
        assert_eq!(cost("[1,2]"), JsonCost::LIST + 2 * (JsonCost::LIST_VALUE + JsonCost::STRING));
        // Brackets inside of strings count for nothing.
        assert_eq!(cost(r#"",[{\",","#.trim_end_matches(',')), JsonCost::STRING);
        let entry = JsonCost::OBJECT_ENTRY + JsonCost::STRING;
        let list = JsonCost::LIST + 2 * (JsonCost::LIST_VALUE + JsonCost::STRING);
        assert_eq!(cost(r#"{"a": [1,2], "b": {}}"#), 2 * JsonCost::OBJECT + 2 * entry + list);
        assert!(serde_json::from_str::<JsonCost>(&("[".repeat(1000) + &"]".repeat(1000))).is_err());
    }

    #[test]
    fn json_in_strings_stays_in_strings() {
        let hidden = r#"{"a": [{"$serde_json::private::RawValue": "[[[[0]]]]"}]}"#;
        assert!(serde_json::from_str::<JsonCost>(hidden).is_err());
        let spelled = r#"{"\u0024serde_json::private::RawValue": "[0]"}"#;
        assert!(serde_json::from_str::<JsonCost>(spelled).is_err());
        assert!(serde_json::from_str::<JsonCost>(r#"{"$ref": "[0]"}"#).is_ok());
        // The object that `serde_json` uses for a number counts as one.
        assert_eq!(cost(r#"{"$serde_json::private::Number": "1"}"#), JsonCost::STRING);
        let second = r#"{"a": 1, "$serde_json::private::Number": "1"}"#;
        assert!(serde_json::from_str::<JsonCost>(second).is_err());
    }
}
