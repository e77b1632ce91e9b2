//! Writes values as JSON in the form of Python's `json.dumps`. Models were trained on its spaces and escapes.

use std::fmt::Write;

use super::allowance::{self, VALUE_BYTES_MAX};
use super::arguments;
use super::fault::{Fault, Result};
use super::printing;
use super::value::{Number, Value};

/// The arguments of `json.dumps` that templates use.
pub(super) struct Options {
    /// The text that indents each level.
    pub(super) indent: Option<String>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// The separator between items, and the separator between a key and its value.
    pub(super) separators: Option<[String; 2]>,
}

/// Reads the argument `indent`, which is a text or a number of spaces.
pub(super) fn indent(value: Option<Value>) -> Result<Option<String>> {
    let indent = match value {
        None | Some(Value::None) => return Ok(None),
        Some(Value::Text(text)) => text.to_string(),
        Some(other) => {
            let spaces = arguments::integer("tojson", &other)?.clamp(0, 65);
            " ".repeat(usize::try_from(spaces).unwrap_or(0))
        }
    };
    if indent.len() > 64 {
        return Err(Fault::new("tojson: indent is longer than 64"));
    }
    Ok(Some(indent))
}

/// Reads the argument `separators`, which is a pair of texts.
pub(super) fn separators(value: Option<Value>) -> Result<Option<[String; 2]>> {
    let pair = match &value {
        None | Some(Value::None) => return Ok(None),
        Some(Value::List(pair) | Value::Tuple(pair)) => &pair.items[..],
        Some(_) => &[],
    };
    match pair {
        [item, key] => {
            let text = |value| arguments::text("tojson", value).map(|text| text.to_string());
            Ok(Some([text(item)?, text(key)?]))
        }
        _ => Err(Fault::new("tojson: separators must be a pair")),
    }
}

/// Evaluates `json.dumps(value, …)`.
pub(super) fn dumps(value: &Value, options: &Options) -> Result<String> {
    let (item_separator, key_separator) = match &options.separators {
        Some([item, key]) => (item.as_str(), key.as_str()),
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
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        if self.text.len() > VALUE_BYTES_MAX {
            return Err(allowance::Excess::Value.into());
        }
        match value {
            Value::None => self.text.push_str("null"),
            Value::Bool(value) => self.text.push_str(if *value { "true" } else { "false" }),
            Value::Integer(value) => self.text.push_str(&value.to_string()),
            Value::Float(value) => self.text.push_str(&float(*value)),
            Value::Sent(sent) => self.text.push_str(&sent.text),
            Value::Text(text) | Value::Markup(text) => self.string(text),
            Value::List(items) | Value::Tuple(items) => {
                let items = items.items.iter().map(|item| (None, item)).collect();
                self.container(('[', ']'), items, depth)?;
            }
            Value::Dict(dict) => {
                let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
                if self.options.sort_keys {
                    let texts = entries.iter().all(|(key, _)| key.as_text().is_some());
                    let integers = entries.iter().all(|(key, _)| matches!(key, Value::Integer(_)));
                    if !texts && !integers {
                        return Err(Fault::unsupported("tojson with sort_keys of keys of several types"));
                    }
                    entries.sort_by(|(a, _), (b, _)| match (a.as_text(), b.as_text()) {
                        (Some(a), Some(b)) => a.cmp(b),
                        _ => a.as_integer().cmp(&b.as_integer()),
                    });
                }
                let mut items = Vec::new();
                for (key, value) in entries {
                    items.push((Some(key_text(key)?), value));
                }
                self.container(('{', '}'), items, depth)?;
            }
            other => {
                let problem = format!("tojson: a value of type {} has no JSON form", other.type_name());
                return Err(Fault::new(problem));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        items: Vec<(Option<String>, &Value)>,
        depth: usize,
    ) -> Result<()> {
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
            self.value(item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.options.indent {
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

/// Returns the text that `json.dumps` makes of a key, which may be a value other than a text.
fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::Text(text) | Value::Markup(text) => text.to_string(),
        Value::None => "null".to_owned(),
        Value::Bool(value) => if *value { "true" } else { "false" }.to_owned(),
        other => match other.number() {
            Some(Number::Integer(value)) => value.to_string(),
            Some(Number::Float(value)) => float(value),
            None => return Err(Fault::new(format!("tojson: keys must not be of type {}", other.type_name()))),
        },
    })
}

fn float(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => printing::float(value),
    }
}
