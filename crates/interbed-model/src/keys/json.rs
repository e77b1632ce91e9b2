//! Access to the keys of a JSON object, which checks types and limits.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::bounded_file::{self, Fault};
use crate::config_error::{ConfigError, ConfigProblem};

/// The longest configuration file that is read, in bytes; real ones have a few thousand.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a whole configuration file; `None` if it does not exist.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, ConfigError> {
    let fault = |problem| ConfigError { file: path.to_owned(), problem };
    let bytes = bounded_file::read(path, FILE_BYTES_MAX).map_err(|error| {
        fault(match error {
            Fault::Read(error) => ConfigProblem::Read(error),
            Fault::TooLong(_) => ConfigProblem::TooLong { limit: FILE_BYTES_MAX },
        })
    })?;
    let text = bytes.map(String::from_utf8).transpose();
    text.map_err(|_| fault(ConfigProblem::Read(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))))
}

/// Parses a JSON object.
///
/// Python writes infinite numbers as words, which JSON does not have. They are read as null.
pub(crate) fn parse_object(text: &str) -> Result<Map<String, Value>, ConfigProblem> {
    serde_json::from_str(text).or_else(|error| match without_infinities(text) {
        Some(text) => serde_json::from_str(&text).map_err(ConfigProblem::Json),
        None => Err(ConfigProblem::Json(error)),
    })
}

/// Replaces the word for an infinite number by null outside strings. Returns `None` if the word does not occur there.
fn without_infinities(text: &str) -> Option<String> {
    const WORD: &str = "Infinity";
    let (mut out, mut rest, mut is_string, mut found) = (String::with_capacity(text.len()), text, false, false);
    while let Some(next) = rest.chars().next() {
        let is_number = !is_string && rest.starts_with(WORD);
        let length = match next {
            _ if is_number => WORD.len(),
            // What follows a backslash in a string ends nothing.
            '\\' if is_string => next.len_utf8() + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ => next.len_utf8(),
        };
        out.push_str(if is_number { "null" } else { &rest[..length] });
        is_string ^= next == '"';
        found |= is_number;
        rest = &rest[length..];
    }
    found.then_some(out)
}

/// The keys of one JSON object. A key whose value is null counts as absent, unless a method says otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What messages put before the names of keys: "", or "rope_scaling." for the keys of an object with that name.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    /// Returns the object under `key`; messages put `prefix` before the names of its keys.
    pub(crate) fn object(&self, key: &str, prefix: &'a str) -> Result<Option<Fields<'a>>, ConfigProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map, prefix })),
            Some(other) => Err(self.wrong_type(key, "an object", other)),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns whether the key is present, even with the value null.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// Returns the name of a key for messages, with the prefix of its object.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Reads a whole number within `limits`; `None` if the key is absent.
    pub(crate) fn count(&self, key: &str, limits: RangeInclusive<usize>) -> Result<Option<usize>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // A whole number may be written as 8192.0; up to 2^53 that is exact.
        let whole = |number: f64| number.fract() == 0.0 && (0.0..9e15).contains(&number);
        let number =
            value.as_u64().or_else(|| value.as_f64().filter(|&number| whole(number)).map(|number| number as u64));
        let in_range = number.and_then(|number| usize::try_from(number).ok()).filter(|number| limits.contains(number));
        match in_range {
            Some(number) => Ok(Some(number)),
            None if value.is_number() => {
                let limit = format!("a whole number from {} to {}", limits.start(), limits.end());
                Err(ConfigProblem::OutOfRange { key: self.name(key), found: shorten(value), limit })
            }
            None => Err(self.wrong_type(key, "a whole number", value)),
        }
    }

    /// Reads a number that passes `check` and is finite as f32; `None` if the key is absent. Messages use `limit` as
    /// the description of the check.
    pub(crate) fn number(
        &self,
        key: &str,
        check: impl Fn(f64) -> bool,
        limit: &str,
    ) -> Result<Option<f64>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(self.wrong_type(key, "a number", value)) };
        match beyond(number, check, limit) {
            Some(limit) => Err(ConfigProblem::OutOfRange { key: self.name(key), found: shorten(value), limit }),
            None => Ok(Some(number)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong_type(key, "true or false", other)),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, "a string", other)),
        }
    }

    /// Reads a token id or a list of them. Negative ids, which mean "none" in some configurations, are left out.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>, ConfigProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let values = match value {
            Value::Array(values) => values.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut ids = Vec::with_capacity(values.len());
        for value in values {
            match value.as_i64().map(u32::try_from) {
                Some(Ok(id)) => ids.push(id),
                Some(Err(_)) if value.as_i64() < Some(0) => {}
                _ => return Err(self.wrong_type(key, "a token id or a list of token ids", value)),
            }
        }
        Ok(Some(ids))
    }

    pub(crate) fn wrong_type(&self, key: &str, expected: &'static str, value: &Value) -> ConfigProblem {
        ConfigProblem::WrongType { key: self.name(key), expected, found: shorten(value) }
    }

    pub(crate) fn unsupported(&self, key: &str, value: &Value, hint: &'static str) -> ConfigProblem {
        ConfigProblem::Unsupported { key: self.name(key), found: shorten(value), hint }
    }
}

/// Returns the limit that `number` breaks, for a message: `limit` if `check` fails, or the range of f32.
pub(crate) fn beyond(number: f64, check: impl Fn(f64) -> bool, limit: &str) -> Option<String> {
    match (check(number), (number as f32).is_finite()) {
        (true, true) => None,
        (false, true) => Some(limit.to_owned()),
        (_, false) => Some(format!("{limit}, below {:e}", f32::MAX)),
    }
}

/// Returns a value as text, cut off if it is too long for a message.
pub(crate) fn shorten(value: &Value) -> String {
    const CHARS_MAX: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
