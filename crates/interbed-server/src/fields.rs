//! Parses typed fields of request bodies. Each part of a request is a struct of [`Field`]s, which are parsed one by
//! one.
//!
//! A field that is `null` counts as absent, and fields that no struct names are ignored, as vLLM does. The raw value is
//! examined before it is parsed, so that an error can name the value without copying arbitrary client data.

use std::fmt;
use std::marker::PhantomData;

use interbed_engine::json_value;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::error::ApiError;

/// The longest value that an error message shows, in bytes.
const SHOWN_BYTES_MAX: usize = 40;

/// Parses the fields of `T` from a body that must be a JSON object.
pub(crate) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    if body.trim_ascii_start().first().is_some_and(|&first| first != b'{') {
        return Err(ApiError::malformed("the body must be a JSON object"));
    }
    parse(body).map_err(|(path, error)| match (error.classify(), path) {
        (Category::Data, Some(path)) => {
            let message = format!("{path}{}", problem(&error));
            ApiError::invalid(path, message)
        }
        (Category::Data, None) => ApiError::malformed(format!("the body has a{}", problem(&error))),
        _ => ApiError::malformed(format!("the body is not valid JSON: {error}")),
    })
}

/// Parses the fields of `T`. An error comes with the path of the wrong field, if there is one.
fn parse<'b, T: Deserialize<'b>>(text: &'b [u8]) -> Result<T, (Option<String>, serde_json::Error)> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let fields = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = error.path().iter().next().is_some().then(|| error.path().to_string());
        (path, error.into_inner())
    })?;
    parser.end().map_err(|error| (None, error))?;
    Ok(fields)
}

/// Returns why the values of a field cannot be built, as the rest of a sentence.
pub(crate) fn unbuildable(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Data => problem(error).trim_start().to_owned(),
        _ => format!("cannot be read:{}", problem(error)),
    }
}

/// Returns the message of an error without its position, which may be relative to a part of the body.
fn problem(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let told = error.to_string();
    let told = told.strip_suffix(&place).unwrap_or(&told);
    // A message about a nested field begins with that field's name.
    if told.starts_with('.') { told.to_owned() } else { format!(" {told}") }
}

/// Formats a value for an error message: a short value in full, and a longer one by its type.
pub(crate) fn shown(value: &str) -> &str {
    match value.as_bytes().first() {
        _ if value.len() <= SHOWN_BYTES_MAX => value,
        Some(b'"') => "a string",
        Some(b'[') => "a list",
        Some(b'{') => "an object",
        _ => "a number",
    }
}

/// Returns whether `raw` is the JSON string `text`.
pub(crate) fn is_text(raw: &RawValue, text: &str) -> bool {
    serde_json::from_str::<String>(raw.get()).is_ok_and(|sent| sent == text)
}

/// A type that the value of a field may have.
pub(crate) trait FromJson<'b>: Sized {
    /// The description of the type for an error, such as "a number".
    const EXPECTED: &'static str;

    /// Parses the value.
    ///
    /// # Errors
    /// Describes the problem, as the rest of a sentence that begins with the field's name.
    fn from_json(raw: &'b RawValue) -> Result<Self, String>;

    /// Returns the error for a value of another type.
    fn other(raw: &RawValue) -> String {
        format!("must be {}, but is {}", Self::EXPECTED, shown(raw.get()))
    }
}

/// A field of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<T>(pub(crate) T);

impl<'de, T: FromJson<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Deserialize::deserialize(deserializer)?;
        T::from_json(raw).map(Self).map_err(D::Error::custom)
    }
}

/// Returns the value of a field, if it was sent.
pub(crate) fn sent<T>(field: Option<Field<T>>) -> Option<T> {
    field.map(|Field(value)| value)
}

impl FromJson<'_> for bool {
    const EXPECTED: &'static str = "true or false";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Self::other(raw)),
        }
    }
}

impl FromJson<'_> for f32 {
    const EXPECTED: &'static str = "a number";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        if raw.get().starts_with('"') {
            return Err(Self::other(raw));
        }
        serde_json::from_str(raw.get()).ok().filter(|number: &f32| number.is_finite()).ok_or_else(|| Self::other(raw))
    }
}

/// Accepts whole numbers, written with or without a decimal point.
impl FromJson<'_> for i64 {
    const EXPECTED: &'static str = "a whole number";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        // Whole numbers below 2^53 are exact in floating point.
        let whole = |float: f64| float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0;
        let number: Option<Number> =
            if raw.get().starts_with('"') { None } else { serde_json::from_str(raw.get()).ok() };
        let number = number.ok_or_else(|| Self::other(raw))?;
        match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Ok(number),
            (_, Some(number), _) => Err(format!("is {number}, which is too large a number")),
            (.., Some(float)) if whole(float) => Ok(float as i64),
            _ => Err(format!("is {}, which is no whole number, or too large a one", shown(raw.get()))),
        }
    }
}

impl FromJson<'_> for usize {
    const EXPECTED: &'static str = "a whole number";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let number = i64::from_json(raw)?;
        Self::try_from(number).map_err(|_| format!("is {number}, but must not be negative"))
    }
}

impl FromJson<'_> for String {
    const EXPECTED: &'static str = "a string";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        if !raw.get().starts_with('"') {
            return Err(Self::other(raw));
        }
        serde_json::from_str(raw.get()).map_err(|error| unbuildable(&error))
    }
}

/// Accepts values of any type, whose memory [`crate::json_cost::JsonCost`] has to have counted before.
impl FromJson<'_> for Vec<Value> {
    const EXPECTED: &'static str = "a list";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        if !raw.get().starts_with('[') {
            return Err(Self::other(raw));
        }
        match json_value(raw.get()) {
            Ok(Value::Array(list)) => Ok(list),
            Ok(_) => Err(Self::other(raw)),
            Err(error) => Err(unbuildable(&error)),
        }
    }
}

/// Accepts values of any type, whose memory [`crate::json_cost::JsonCost`] has to have counted before.
impl FromJson<'_> for Map<String, Value> {
    const EXPECTED: &'static str = "an object";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        if !raw.get().starts_with('{') {
            return Err(Self::other(raw));
        }
        match json_value(raw.get()) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) => Err(Self::other(raw)),
            Err(error) => Err(unbuildable(&error)),
        }
    }
}

/// An object with its own fields.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'b, T: Deserialize<'b>> FromJson<'b> for Object<T> {
    const EXPECTED: &'static str = "an object";
    fn from_json(raw: &'b RawValue) -> Result<Self, String> {
        if !raw.get().starts_with('{') {
            return Err(Self::other(raw));
        }
        parse(raw.get().as_bytes()).map(Self).map_err(|(path, error)| match path {
            Some(path) => format!(".{path}{}", problem(&error)),
            None => format!("has a{}", problem(&error)),
        })
    }
}

/// Parses the list `raw` of at most `most` token ids. Only the model knows whether the ids exist.
///
/// # Errors
/// Fails like [`FromJson::from_json`].
pub(crate) fn token_ids(raw: &RawValue, most: usize) -> Result<Vec<u32>, String> {
    struct Ids {
        capacity: usize,
        most: usize,
    }
    impl<'de> Visitor<'de> for Ids {
        type Value = Vec<u32>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
            let mut ids = Vec::with_capacity(self.capacity);
            while let Some(id) = list.next_element::<&RawValue>()? {
                if ids.len() == self.most {
                    return Err(A::Error::custom(format!("has more than {} entries", self.most)));
                }
                let known = i64::from_json(id).ok().and_then(|id| u32::try_from(id).ok());
                ids.push(
                    known.ok_or_else(|| A::Error::custom(format!("has {}, which is no token id", shown(id.get()))))?,
                );
            }
            Ok(ids)
        }
    }
    if !raw.get().starts_with('[') {
        return Err(format!("must be a list of token ids, but is {}", shown(raw.get())));
    }
    // An id and its comma have at least two bytes, so the list never grows; unused capacity is released.
    let ids = Ids { capacity: (raw.get().len() / 2).min(most), most };
    let mut ids =
        serde_json::Deserializer::from_str(raw.get()).deserialize_seq(ids).map_err(|error| unbuildable(&error))?;
    ids.shrink_to_fit();
    Ok(ids)
}

/// Returns the first items of the array `raw`, at most `most`, and the number of all items, or `None` if it is not an
/// array.
pub(crate) fn entries(raw: &RawValue, most: usize) -> Option<(Vec<&RawValue>, usize)> {
    struct Entries(usize);
    impl<'de> Visitor<'de> for Entries {
        type Value = (Vec<&'de RawValue>, usize);
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let (mut entries, mut count) = (Vec::new(), 0);
            while let Some(entry) = list.next_element()? {
                if entries.len() < self.0 {
                    entries.push(entry);
                }
                count += 1;
            }
            Ok((entries, count))
        }
    }
    let list = raw.get().starts_with('[').then_some(raw.get())?;
    serde_json::Deserializer::from_str(list).deserialize_seq(Entries(most)).ok()
}

/// Returns the fields of the object `raw` in order, with values of type `T`.
///
/// # Errors
/// Fails like [`FromJson::from_json`].
pub(crate) fn pairs<'b, T: FromJson<'b>>(raw: &'b RawValue) -> Result<Vec<(String, T)>, String> {
    struct Pairs<T>(PhantomData<T>);
    impl<'de, T: FromJson<'de>> Visitor<'de> for Pairs<T> {
        type Value = Vec<(String, T)>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                let value = T::from_json(value);
                let value = value.map_err(|problem| A::Error::custom(format!(".{} {problem}", shown(&key))))?;
                pairs.push((key, value));
            }
            Ok(pairs)
        }
    }
    if !raw.get().starts_with('{') {
        return Err(format!("must be an object, but is {}", shown(raw.get())));
    }
    let mut parser = serde_json::Deserializer::from_str(raw.get());
    parser.deserialize_map(Pairs(PhantomData)).map_err(|error| unbuildable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        on: Option<Field<bool>>,
    }

    #[derive(Debug, Deserialize)]
    struct Fields<'b> {
        count: Option<Field<usize>>,
        share: Option<Field<f32>>,
        text: Option<Field<String>>,
        inner: Option<Field<Object<Inner>>>,
        list: Option<Field<Vec<Value>>>,
        #[serde(borrow)]
        raw: Option<&'b RawValue>,
    }

    #[test]
    fn fields_are_read_and_others_passed_over() {
        let body = br#" {"other": [[{}]], "count": 3.0, "share": -1, "text": "\u00e9", "inner": {"on": true}, "raw": [1, "x"]} "#;
        let fields: Fields<'_> = read(body).expect("fields");
        assert_eq!(
            (sent(fields.count), sent(fields.share), fields.raw.map(RawValue::get)),
            (Some(3), Some(-1.0), Some(r#"[1, "x"]"#))
        );
        assert_eq!(
            (sent(fields.text).as_deref(), sent(fields.inner).and_then(|Object(inner)| sent(inner.on))),
            (Some("é"), Some(true))
        );
        let fields: Fields<'_> = read(br#"{"count": null, "raw": null, "list": []}"#).expect("nothing");
        assert!(
            fields.count.is_none() && fields.raw.is_none() && sent(fields.list).is_some_and(|list| list.is_empty())
        );
    }

    #[test]
    fn errors_name_the_field_and_what_it_is() {
        let long = "é".repeat(1000);
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        for (body, param, told) in [
            (r#"{"count": -1}"#, Some("count"), "count is -1, but must not be negative"),
            (r#"{"count": 1.5}"#, Some("count"), "count is 1.5, which is no whole number, or too large a one"),
            (r#"{"count": 1e300}"#, Some("count"), "count is 1e300, which is no whole number, or too large a one"),
            (r#"{"count": 1e999}"#, Some("count"), "count is 1e999, which is no whole number, or too large a one"),
            (r#"{"count": 18446744073709551615}"#, Some("count"), "count is 18446744073709551615, which is too large"),
            (r#"{"count": "3"}"#, Some("count"), r#"count must be a whole number, but is "3""#),
            (r#"{"count": [1]}"#, Some("count"), "count must be a whole number, but is [1]"),
            (r#"{"share": 1e40}"#, Some("share"), "share must be a number, but is 1e40"),
            (r#"{"share": true}"#, Some("share"), "share must be a number, but is true"),
            (r#"{"text": 1}"#, Some("text"), "text must be a string, but is 1"),
            (r#"{"text": "\ud800"}"#, Some("text"), "text cannot be read: "),
            (&format!(r#"{{"share": "{long}"}}"#), Some("share"), "share must be a number, but is a string"),
            (&format!(r#"{{"inner": "{long}"}}"#), Some("inner"), "inner must be an object, but is a string"),
            (&format!(r#"{{"list": {deep}}}"#), Some("list"), "list cannot be read: recursion limit exceeded"),
            (r#"{"list": {}}"#, Some("list"), "list must be a list, but is {}"),
            (r#"{"inner": {"on": 1}}"#, Some("inner"), "inner.on must be true or false, but is 1"),
            (r#"{"count": 1, "count": 2}"#, None, "the body has a duplicate field `count`"),
            ("[1, 2]", None, "the body must be a JSON object"),
            ("3", None, "the body must be a JSON object"),
            ("{} {}", None, "the body is not valid JSON: trailing characters at line 1 column 4"),
            ("{", None, "the body is not valid JSON: "),
            ("", None, "the body is not valid JSON: "),
        ] {
            let error = read::<Fields<'_>>(body.as_bytes()).expect_err(body);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, param), "{body}: {}", error.message);
            assert!(error.message.starts_with(told), "{body}: {}", error.message);
        }
    }

    #[test]
    fn lists_keep_what_they_may_and_count_all() {
        let text = format!("[{}0]", "0,".repeat(9_999));
        let raw: &RawValue = serde_json::from_str(&text).expect("JSON");
        let (kept, count) = entries(raw, 64).expect("a list");
        assert_eq!((kept.len(), count), (64, 10_000));
        assert_eq!(token_ids(raw, usize::MAX).expect("ids"), [0; 10_000]);
        assert_eq!(token_ids(raw, 9_999).expect_err("too many"), "has more than 9999 entries");
        let raw: &RawValue = serde_json::from_str(r#"[1, 4294967296]"#).expect("JSON");
        assert_eq!(token_ids(raw, 9).expect_err("no id"), "has 4294967296, which is no token id");
    }
}
