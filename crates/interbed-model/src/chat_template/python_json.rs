//! Values to JSON as Python's `json.dumps` writes it: models were trained on its spaces and escapes.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::sent_number::SentNumber;

/// Deepest nesting that is written; requests are parsed with about the same limit.
const MAX_DEPTH: usize = 200;
/// Longest JSON that one call writes, in bytes.
const MAX_BYTES: usize = super::MAX_OUTPUT_BYTES;

/// The arguments of `json.dumps` that templates use.
pub(super) struct Options {
    pub(super) indent: Option<Indent>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// Between items, and between key and value.
    pub(super) separators: Option<Vec<String>>,
}

/// The indentation of a level.
pub(super) struct Indent(String);

impl TryFrom<Value> for Indent {
    type Error = Error;

    fn try_from(value: Value) -> Result<Self, Error> {
        match value.as_str() {
            Some(text) if text.len() <= 64 => Ok(Self(text.to_owned())),
            Some(_) => Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is longer than 64")),
            None => match value.as_i64() {
                Some(spaces) if spaces <= 64 => Ok(Self(" ".repeat(usize::try_from(spaces).unwrap_or(0)))),
                _ => Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent must be a number of at most 64")),
            },
        }
    }
}

/// `json.dumps(value, …)`.
pub(super) fn dumps(value: &Value, options: &Options) -> Result<String, Error> {
    let separators = options.separators.as_deref();
    let (item_separator, key_separator) = match separators {
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair")),
        None => (if options.indent.is_some() { "," } else { ", " }, ": "),
    };
    let mut writer = Writer { text: String::new(), options, item_separator, key_separator };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer<'a> {
    text: String,
    options: &'a Options,
    item_separator: &'a str,
    key_separator: &'a str,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        if self.text.len() > MAX_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: longer than {MAX_BYTES} bytes")));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => self.text.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.container(('[', ']'), items, depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    items.push((Some(key_text(&key)?), item));
                }
                if self.options.sort_keys {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.container(('{', '}'), items, depth)?;
            }
            kind => match value.downcast_object_ref::<SentNumber>() {
                Some(SentNumber(text)) => self.text.push_str(text),
                None => {
                    let problem = format!("tojson: a value of type {kind} has no JSON form");
                    return Err(Error::new(ErrorKind::InvalidOperation, problem));
                }
            },
        }
        Ok(())
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        items: Vec<(Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        self.text.push(open);
        let empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            if index > 0 {
                self.text.push_str(self.item_separator);
            }
            self.new_line(depth + 1);
            if let Some(key) = key {
                self.string(&key);
                self.text.push_str(self.key_separator);
            }
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(Indent(indent)) = &self.options.indent {
            self.text.push('\n');
            (0..depth).for_each(|_| self.text.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                control @ '\0'..='\u{1f}' => self.escape(control),
                other if self.options.ensure_ascii && (!other.is_ascii() || other == '\u{7f}') => self.escape(other),
                other => self.text.push(other),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(self.text, "\\u{unit:04x}");
        }
    }
}

/// Python turns keys that are no strings into their JSON form.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number if !key.is_integer() => float(f64::try_from(key.clone())?),
        _ => key.to_string(),
    })
}

/// `repr(float)`: the shortest digits that read back the same; with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    // Rust writes 1e16, Python 1e+16; and at least two digits of exponent.
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ] {
            assert_eq!(float(value), expected);
        }
    }
}
