//! The metadata of a GGUF file: keys and values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::error::GgufProblem;
use super::undecoded::Undecoded;

/// The metadata of a GGUF model, by key. Accessors such as [`text`](Self::text) return `None` if a key is absent, and
/// fail if its value has another type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    pairs: BTreeMap<String, MetadataValue>,
}

/// A metadata value, in the type that it has in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// A number of any width.
    Number(Number),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of numbers of one width.
    Numbers(Numbers),
    /// A list of flags.
    Bools(Vec<bool>),
    /// A list of texts.
    Texts(Texts),
    /// A text, or a list of texts, that is not valid UTF-8. [`Metadata::description`] can show such a text; accessors
    /// that need valid text fail.
    Undecoded(Undecoded),
}

/// A number, in the type that it has in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Number {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A list of numbers, kept as the bytes in the file to save memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    kind: u32,
    bytes: Vec<u8>,
}

/// A list of texts, kept as one string to save memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts {
    text: String,
    /// Offset behind the last byte of each text; headers are shorter than 4 GiB.
    ends: Vec<u32>,
}

impl Metadata {
    /// Creates metadata from these pairs.
    pub fn new(pairs: BTreeMap<String, MetadataValue>) -> Self {
        Self { pairs }
    }

    /// Returns the value of `key`; `None` if the key is absent.
    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.pairs.get(key)
    }

    /// Returns all pairs of key and value, in ascending order of keys.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&str, &MetadataValue)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets the value of `key`.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<MetadataValue>) {
        self.pairs.insert(key.into(), value.into());
    }

    /// Returns the text of `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(key, "a text", other)),
        }
    }

    /// Returns the text of `key`, with replacement characters in place of bytes that are not valid UTF-8. This is for
    /// texts that only describe the model, such as its name. Returns `None` if the key is absent or its value is not a
    /// text.
    pub fn description(&self, key: &str) -> Option<Cow<'_, str>> {
        match self.get(key)? {
            MetadataValue::Text(text) => Some(Cow::Borrowed(text)),
            MetadataValue::Undecoded(text) => text.readable(),
            _ => None,
        }
    }

    /// Returns the value of `key`, which must be a non-negative integer of any width; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a non-negative integer.
    pub fn count(&self, key: &str) -> Result<Option<u64>, GgufProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let count = match value {
            MetadataValue::Number(number) => number.as_integer().and_then(|number| u64::try_from(number).ok()),
            _ => None,
        };
        count.map(Some).ok_or_else(|| wrong_type(key, "a whole number from 0 up", value))
    }

    /// Returns the value of `key`, which must be a finite number of any type; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value {
            MetadataValue::Number(number) => Some(number.as_f64()).filter(|number| number.is_finite()),
            _ => None,
        };
        number.map(Some).ok_or_else(|| wrong_type(key, "a finite number", value))
    }

    /// Returns the Boolean value of `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a Boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(wrong_type(key, "true or false", other)),
        }
    }

    /// Returns the list of texts of `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<&Texts>, GgufProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Texts(texts)) => Ok(Some(texts)),
            Some(other) => Err(wrong_type(key, "a list of texts", other)),
        }
    }

    /// Returns the list of numbers of `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// Fails with [`GgufProblem::WrongType`] if the value is not a list of numbers.
    pub fn numbers(&self, key: &str) -> Result<Option<&Numbers>, GgufProblem> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Numbers(numbers)) => Ok(Some(numbers)),
            Some(other) => Err(wrong_type(key, "a list of numbers", other)),
        }
    }
}

fn wrong_type(key: &str, expected: &'static str, found: &MetadataValue) -> GgufProblem {
    GgufProblem::WrongType { key: key.to_owned(), expected, found: found.to_string() }
}

impl Number {
    /// Returns the number if it has an integer type; `None` if it has a float type, even if its value is whole.
    pub fn as_integer(self) -> Option<i128> {
        Some(match self {
            Self::U8(number) => number.into(),
            Self::I8(number) => number.into(),
            Self::U16(number) => number.into(),
            Self::I16(number) => number.into(),
            Self::U32(number) => number.into(),
            Self::I32(number) => number.into(),
            Self::U64(number) => number.into(),
            Self::I64(number) => number.into(),
            Self::F32(_) | Self::F64(_) => return None,
        })
    }

    /// Returns the number as a float, rounded if necessary.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::F32(number) => number.into(),
            Self::F64(number) => number,
            // Every other kind is an integer.
            integer => integer.as_integer().unwrap_or(0) as f64,
        }
    }

    /// Returns the format's number of this kind.
    pub(super) fn kind(self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// Returns the number of bytes of a number of `kind`; `None` if the kind is not one of numbers.
    pub(super) fn width(kind: u32) -> Option<usize> {
        match kind {
            0 | 1 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        }
    }

    /// Returns the number of `kind` in the first bytes of `bytes`, which are padded to eight; `None` if the kind is not
    /// one of numbers.
    pub(super) fn from_le(kind: u32, bytes: [u8; 8]) -> Option<Self> {
        let [a, b, c, d, ..] = bytes;
        Some(match kind {
            0 => Self::U8(a),
            1 => Self::I8(i8::from_le_bytes([a])),
            2 => Self::U16(u16::from_le_bytes([a, b])),
            3 => Self::I16(i16::from_le_bytes([a, b])),
            4 => Self::U32(u32::from_le_bytes([a, b, c, d])),
            5 => Self::I32(i32::from_le_bytes([a, b, c, d])),
            6 => Self::F32(f32::from_le_bytes([a, b, c, d])),
            10 => Self::U64(u64::from_le_bytes(bytes)),
            11 => Self::I64(i64::from_le_bytes(bytes)),
            12 => Self::F64(f64::from_le_bytes(bytes)),
            _ => return None,
        })
    }

    /// Appends the number's bytes, in little-endian order, to `out`.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::U8(number) => out.push(number),
            Self::I8(number) => out.extend(number.to_le_bytes()),
            Self::U16(number) => out.extend(number.to_le_bytes()),
            Self::I16(number) => out.extend(number.to_le_bytes()),
            Self::U32(number) => out.extend(number.to_le_bytes()),
            Self::I32(number) => out.extend(number.to_le_bytes()),
            Self::F32(number) => out.extend(number.to_le_bytes()),
            Self::U64(number) => out.extend(number.to_le_bytes()),
            Self::I64(number) => out.extend(number.to_le_bytes()),
            Self::F64(number) => out.extend(number.to_le_bytes()),
        }
    }
}

impl Numbers {
    /// Creates a list of `bytes` that are numbers of `kind`. The width of these numbers must divide the number of
    /// bytes.
    pub(super) fn new(kind: u32, bytes: Vec<u8>) -> Self {
        Self { kind, bytes }
    }

    /// Creates a list of 32-bit integers.
    pub fn from_i32(numbers: impl IntoIterator<Item = i32>) -> Self {
        Self { kind: Number::I32(0).kind(), bytes: numbers.into_iter().flat_map(i32::to_le_bytes).collect() }
    }

    /// Creates a list of single-precision floats.
    pub fn from_f32(numbers: impl IntoIterator<Item = f32>) -> Self {
        Self { kind: Number::F32(0.0).kind(), bytes: numbers.into_iter().flat_map(f32::to_le_bytes).collect() }
    }

    /// Returns the number of entries in the list.
    pub fn len(&self) -> usize {
        self.bytes.len() / Number::width(self.kind).unwrap_or(1)
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns all entries of the list, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Number> + '_ {
        let width = Number::width(self.kind).unwrap_or(1);
        self.bytes.chunks_exact(width).map(move |bytes| {
            let mut padded = [0; 8];
            padded[..width].copy_from_slice(bytes);
            // Lists are made of kinds of numbers only.
            Number::from_le(self.kind, padded).unwrap_or(Number::U8(0))
        })
    }

    pub(super) fn kind(&self) -> u32 {
        self.kind
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Texts {
    /// Returns the number of entries in the list.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of bytes of all texts together.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the text at `index`; `None` if there is no such entry.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }

    /// Returns all entries of the list, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    /// Appends a text.
    ///
    /// # Panics
    /// Panics if the texts have 4 GiB or more in total. Readers accept far less, and no real vocabulary is that large.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(u32::try_from(self.text.len()).expect("texts are shorter than 4 GiB"));
    }
}

impl<'a> FromIterator<&'a str> for Texts {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        let mut all = Self::default();
        texts.into_iter().for_each(|text| all.push(text));
        all
    }
}

impl fmt::Display for MetadataValue {
    /// Writes the value as messages show it: short values themselves, lists by their length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 80;
        match self {
            Self::Number(number) => match number.as_integer() {
                Some(integer) => write!(f, "{integer}"),
                None => write!(f, "{:?}", number.as_f64()),
            },
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Text(text) => write!(f, "{:?}", text.chars().take(CHARS_MAX).collect::<String>()),
            Self::Numbers(numbers) => write!(f, "a list of {} numbers", numbers.len()),
            Self::Bools(flags) => write!(f, "a list of {} flags", flags.len()),
            Self::Texts(texts) => write!(f, "a list of {} texts", texts.len()),
            Self::Undecoded(text) => write!(f, "{text}"),
        }
    }
}

macro_rules! from {
    ($($source:ty => $value:ident => $target:expr),+ $(,)?) => {$(
        impl From<$source> for MetadataValue {
            fn from($value: $source) -> Self {
                $target
            }
        }
    )+};
}

from! {
    u32 => value => Self::Number(Number::U32(value)),
    f32 => value => Self::Number(Number::F32(value)),
    bool => value => Self::Bool(value),
    &str => value => Self::Text(value.to_owned()),
    String => value => Self::Text(value),
    Numbers => value => Self::Numbers(value),
    Texts => value => Self::Texts(value),
}
