//! What a body says: each part of a request is a type that reads its own fields, and passes over those of others.
//!
//! Fields that are `null` count as absent; fields that nobody reads are ignored, as vLLM does.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_path_to_error::Segment;

use crate::error::ApiError;

/// Longest part of a parser's message that a client is shown, in bytes: it may quote a whole text.
const MESSAGE_BYTES_MAX: usize = 300;
/// Most stop tokens of a request.
const STOP_TOKENS_MAX: usize = 1 << 16;

/// Reads the fields of `T` from a body that must be a JSON object.
pub(crate) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let Object(fields) = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let field = match error.path().iter().next() {
            Some(Segment::Map { key }) => Some(key.clone()),
            _ => None,
        };
        refusal(field, error.inner())
    })?;
    parser.end().map_err(|error| refusal(None, &error))?;
    Ok(fields)
}

/// Token ids of the list `raw`, of which only the model knows whether they exist.
pub(crate) fn token_ids(name: &str, raw: &RawValue) -> Result<Vec<u32>, ApiError> {
    // An id and its comma are two bytes at least: the list need not grow, and is given back what it did not need.
    let ids = Ids { capacity: raw.get().len() / 2, most: usize::MAX };
    let mut ids = ids.deserialize(&mut serde_json::Deserializer::from_str(raw.get())).map_err(|error| {
        let message = format!("{name} must be a list of token ids: {}", shortened(&error));
        ApiError::invalid(name, message)
    })?;
    ids.shrink_to_fit();
    Ok(ids)
}

fn refusal(field: Option<String>, error: &serde_json::Error) -> ApiError {
    match (error.classify(), field) {
        (Category::Data, Some(field)) => {
            let message = format!("{field}: {}", shortened(error));
            ApiError::invalid(field, message)
        }
        (Category::Data, None) => ApiError::malformed(format!("the body: {}", shortened(error))),
        _ => ApiError::malformed(format!("the body is not valid JSON: {}", shortened(error))),
    }
}

/// The parser's message, without the length of what it may quote.
pub(crate) fn shortened(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push('…');
    }
    message
}

/// A value as an error message shows it: small ones in full, others by their kind.
pub(crate) fn shown(value: &str) -> &str {
    match value.as_bytes().first() {
        _ if value.len() <= 40 => value,
        Some(b'"') => "a string",
        Some(b'[') => "a list",
        Some(b'{') => "an object",
        _ => "a number",
    }
}

/// An object, and nothing else that Serde would take for one.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// A whole number, written with or without a decimal point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole(pub(crate) i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number")
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                i64::try_from(number).map(Whole).map_err(|_| E::custom(format!("{number} is too large a number")))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                // Floats below 2^53 are exact.
                if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
                    Ok(Whole(number as i64))
                } else {
                    Err(E::custom(format!("{number} is no whole number, or too large a one")))
                }
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// A whole number that is not negative.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Whole")]
pub(crate) struct Count(pub(crate) usize);

impl TryFrom<Whole> for Count {
    type Error = String;
    fn try_from(Whole(number): Whole) -> Result<Self, String> {
        usize::try_from(number).map(Self).map_err(|_| format!("{number} is negative"))
    }
}

/// Ids that end a text.
#[derive(Debug, Default)]
pub(crate) struct StopTokens(pub(crate) Vec<u32>);

impl<'de> Deserialize<'de> for StopTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ids { capacity: 0, most: STOP_TOKENS_MAX }.deserialize(deserializer).map(Self)
    }
}

/// A list of token ids, at most so many.
struct Ids {
    capacity: usize,
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Ids {
    type Value = Vec<u32>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u32>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Ids {
    type Value = Vec<u32>;
    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of token ids")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
        let mut ids = Vec::with_capacity(self.capacity);
        while let Some(Whole(id)) = list.next_element()? {
            if ids.len() == self.most {
                return Err(A::Error::custom(format!("more than {} tokens", self.most)));
            }
            ids.push(u32::try_from(id).map_err(|_| A::Error::custom(format!("{id} is no token id")))?);
        }
        Ok(ids)
    }
}

/// A list of which no more than [`ENTRIES_MAX`] entries are kept.
#[derive(Debug)]
pub(crate) struct List<T> {
    pub(crate) entries: Vec<T>,
    /// How many there were.
    pub(crate) count: usize,
}

/// Entries of a [`List`] that are kept, at most. Each costs some 24 bytes besides its text, of which it may have two.
pub(crate) const ENTRIES_MAX: usize = 4096;

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = List<T>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
                let mut entries = Vec::new();
                while entries.len() < ENTRIES_MAX {
                    let Some(entry) = list.next_element()? else { break };
                    entries.push(entry);
                }
                let mut count = entries.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(List { entries, count })
            }
        }
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

/// What a JSON value costs in memory beside the texts of strings: counted without building it.
///
/// A value has 72 bytes. A list grows by doubling, so its last value may have brought along two more of its size; a
/// list of one has room for four. An entry of an object has 104 bytes, with the key's own allocation and the index
/// besides.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonCost(pub(crate) usize);

impl JsonCost {
    const LIST: usize = 72 + 32;
    const LIST_VALUE: usize = 3 * 72;
    const OBJECT: usize = 104 + 64 + 32;
    const OBJECT_ENTRY: usize = 3 * 104 + 24 + 32;
    /// The smallest allocation.
    const STRING: usize = 32;
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
                Ok(JsonCost(0))
            }
            fn visit_u64<E>(self, _: u64) -> Result<JsonCost, E> {
                Ok(JsonCost(0))
            }
            fn visit_f64<E>(self, _: f64) -> Result<JsonCost, E> {
                Ok(JsonCost(0))
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
                while let Some((Key, JsonCost(entry))) = map.next_entry()? {
                    cost = cost.saturating_add(JsonCost::OBJECT_ENTRY + JsonCost::STRING + entry);
                }
                Ok(JsonCost(cost))
            }
        }
        deserializer.deserialize_any(Costs)
    }
}

/// A key that may stand in a JSON value. One may not: where `serde_json` finds it, it takes the string behind it for
/// JSON and reads that too, as deep as it likes and uncounted.
struct Key;

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
                if name.starts_with("$serde_json::private::") {
                    return Err(E::custom(format!("{} is not allowed as a key", shown(name))));
                }
                Ok(Key)
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// Whether `raw` is this text.
pub(crate) fn is_text(raw: &RawValue, text: &str) -> bool {
    serde_json::from_str::<String>(raw.get()).is_ok_and(|sent| sent == text)
}

/// What the fields that become free JSON values cost.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FreeFields {
    messages: Option<JsonCost>,
    tools: Option<JsonCost>,
    chat_template_kwargs: Option<JsonCost>,
}

impl FreeFields {
    /// Bytes of memory besides the texts of strings.
    pub(crate) fn bytes(&self) -> usize {
        let costs = [self.messages, self.tools, self.chat_template_kwargs];
        costs.into_iter().flatten().fold(0, |sum, JsonCost(cost)| sum.saturating_add(cost))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn cost(text: &str) -> usize {
        serde_json::from_str::<JsonCost>(text).expect("JSON").0
    }

    #[test]
    fn values_are_counted_by_kind() {
        assert_eq!(cost("1"), 0);
        assert_eq!(cost("[1,2]"), JsonCost::LIST + 2 * JsonCost::LIST_VALUE);
        // Whatever is in a string is text.
        assert_eq!(cost(r#"",[{\",","#.trim_end_matches(',')), JsonCost::STRING);
        let entry = JsonCost::OBJECT_ENTRY + JsonCost::STRING;
        let list = JsonCost::LIST + 2 * JsonCost::LIST_VALUE;
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
    }

    #[test]
    fn errors_name_the_field() {
        #[derive(Debug, Deserialize)]
        struct Fields<'b> {
            count: Option<Count>,
            #[serde(borrow)]
            raw: Option<&'b RawValue>,
        }
        let fields: Fields<'_> = read(br#"{"other": [[{}]], "count": 3.0, "raw": [1, "x"]}"#).expect("fields");
        assert_eq!((fields.count.map(|count| count.0), fields.raw.map(RawValue::get)), (Some(3), Some(r#"[1, "x"]"#)));
        assert!(read::<Fields<'_>>(br#" {"count": null, "raw": null} "#).expect("nothing").raw.is_none());
        for (body, param) in [
            (r#"{"count": -1}"#, Some("count")),
            (r#"{"count": 1.5}"#, Some("count")),
            (r#"{"count": 1e300}"#, Some("count")),
            (r#"{"count": 18446744073709551615}"#, Some("count")),
            (r#"{"count": [1]}"#, Some("count")),
            (r#"{"count": 1, "count": 2}"#, None),
            ("[1, 2]", None),
            ("3", None),
            ("{} {}", None),
            ("{", None),
            ("", None),
        ] {
            let error = read::<Fields<'_>>(body.as_bytes()).expect_err(body);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, param), "{body}: {}", error.message);
        }
        let long = format!("{{\"count\": \"{}\"}}", "é".repeat(1000));
        assert!(read::<Fields<'_>>(long.as_bytes()).expect_err("a text").message.len() < 400);
    }

    #[test]
    fn lists_keep_what_they_may_and_count_all() {
        let text = format!("[{}0]", "0,".repeat(9_999));
        let list: List<Value> = serde_json::from_str(&text).expect("a list");
        assert_eq!((list.entries.len(), list.count), (ENTRIES_MAX, 10_000));
        let raw: &RawValue = serde_json::from_str(&text).expect("JSON");
        assert_eq!(token_ids("prompt", raw).expect("ids"), [0; 10_000]);
        let stops: Result<StopTokens, _> = serde_json::from_str(&format!("[{}0]", "0,".repeat(STOP_TOKENS_MAX)));
        assert!(stops.expect_err("too many").to_string().contains("65536"));
    }
}
