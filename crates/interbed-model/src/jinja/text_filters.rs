//! Applies Jinja's filters that make texts and numbers.

use std::sync::Arc;

use super::allowance;
use super::arguments::{Given, optional};
use super::characters::{is_alphanumeric, is_space};
use super::fault::{Fault, Result};
use super::format;
use super::iteration::{is_iterable, items, length};
use super::json;
use super::operators::{escaped, is_true};
use super::printing;
use super::text_methods::{self, capitalized, lines, replaced, stripped};
use super::value::{Number, Value, View, whole};

/// The number of characters by which a text may exceed the limit of `truncate` and still be left unchanged.
const LEEWAY: i128 = 5;

/// Evaluates `value | name(…)`.
pub(super) fn apply(name: &str, value: Value, given: Given) -> Result<Value> {
    let plain = |given: Given| given.unnamed::<0>(name, 0).map(drop);
    match name {
        "string" => plain(given).and_then(|()| match value {
            Value::Text(_) | Value::Markup(_) => Ok(value),
            other => Value::text(printing::text(&other)?),
        }),
        "upper" => plain(given).and_then(|()| Value::text(soft(&value)?.to_uppercase())),
        "lower" => plain(given).and_then(|()| Value::text(soft(&value)?.to_lowercase())),
        "capitalize" => plain(given).and_then(|()| Value::text(capitalized(&soft(&value)?)?)),
        "title" => plain(given).and_then(|()| Value::text(title(&soft(&value)?))),
        "trim" => {
            let [characters] = given.fill(name, ["chars"], 0)?;
            Value::text(stripped(&soft(&value)?, &characters.unwrap_or(Value::None), "strip")?)
        }
        "replace" => {
            let [old, new, count] = given.fill(name, ["old", "new", "count"], 2)?;
            let texts = [old, new].map(|part| printing::text(&part.unwrap_or(Value::None)));
            let [old, new] = texts;
            let count = optional(name, count, -1)?;
            Value::text(replaced(&soft(&value)?, &old?, &new?, count)?)
        }
        "center" => {
            let [width] = given.fill(name, ["width"], 0)?;
            let width = width.unwrap_or(Value::Integer(80));
            text_methods::call(&soft(&value)?, name, Given { positional: vec![width], named: Vec::new() })
        }
        "format" => format::filter(&soft(&value)?, given),
        "indent" => indent(&value, given),
        "truncate" => truncate(value, given),
        "wordcount" => {
            plain(given)?;
            let text = soft(&value)?;
            let words = text.split(|character| character != '_' && !is_alphanumeric(character));
            let count = words.filter(|word| !word.is_empty()).count();
            Ok(Value::Integer(i128::try_from(count).unwrap_or(0)))
        }
        "urlencode" => plain(given).and_then(|()| urlencode(&value)),
        "e" | "escape" => plain(given).and_then(|()| match value {
            Value::Markup(_) => Ok(value),
            other => markup(escaped(&printing::text(&other)?)),
        }),
        "forceescape" => plain(given).and_then(|()| markup(escaped(&printing::text(&value)?))),
        "safe" => plain(given).and_then(|()| markup(printing::text(&value)?)),
        "tojson" => tojson(&value, given),
        "filesizeformat" | "pprint" | "random" | "striptags" | "urlize" | "wordwrap" | "xmlattr" => {
            Err(Fault::unsupported(format!("the filter '{name}'")))
        }
        other => Err(Fault::new(format!("there is no filter named '{other}'"))),
    }
}

fn markup(text: String) -> Result<Value> {
    allowance::make(text.len())?;
    Ok(Value::Markup(text.into()))
}

/// Returns a value as a text, and fails for an escaped text.
fn soft(value: &Value) -> Result<Arc<str>> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Markup(_) => Err(Fault::unsupported("a filter of an escaped text")),
        other => Ok(printing::text(other)?.into()),
    }
}

/// Applies the filter `title`, for which words begin after white space, `-` and opening brackets.
fn title(text: &str) -> String {
    let begins = |character: char| is_space(character) || matches!(character, '-' | '(' | '{' | '[' | '<');
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if begins(first) {
            output.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let word = &rest[..rest.find(begins).unwrap_or(rest.len())];
        output.extend(first.to_uppercase());
        output.push_str(&word[first.len_utf8()..].to_lowercase());
        rest = &rest[word.len()..];
    }
    output
}

fn indent(value: &Value, given: Given) -> Result<Value> {
    let [width, first, blank] = given.fill("indent", ["width", "first", "blank"], 0)?;
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Markup(_) => return Err(Fault::unsupported("indent of an escaped text")),
        other => {
            other.defined()?;
            return Err(Fault::new(format!("indent needs a text, not {}", other.type_name())));
        }
    };
    let indention = match width {
        Some(Value::Text(text)) => text.to_string(),
        other => {
            let width = usize::try_from(optional("indent", other, 4)?.max(0)).unwrap_or(usize::MAX);
            allowance::make(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (first.is_some_and(|first| is_true(&first)), blank.is_some_and(|blank| is_true(&blank)));
    // Jinja adds a newline before it splits.
    let whole = format!("{text}\n");
    let lines = lines(&whole, false);
    allowance::make(text.len().saturating_add((lines.len() + 1).saturating_mul(indention.len())))?;
    let mut output = String::new();
    for (index, line) in lines.into_iter().enumerate() {
        if index > 0 {
            output.push('\n');
        }
        if (index == 0 && first) || (index > 0 && (blank || !line.is_empty())) {
            output.push_str(&indention);
        }
        output.push_str(line);
    }
    Value::text(output)
}

fn truncate(value: Value, given: Given) -> Result<Value> {
    let [limit, kill, end, leeway] = given.fill("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let limit = optional("truncate", limit, 255)?;
    let leeway = optional("truncate", leeway, LEEWAY)?;
    let end = end.map_or_else(|| Ok("...".into()), |end| super::arguments::text("truncate", &end))?;
    let end_length = i128::try_from(end.chars().count()).unwrap_or(0);
    if limit < end_length || leeway < 0 {
        return Err(Fault::new("truncate needs a length of at least its end's, and a leeway of at least 0"));
    }
    let characters = i128::try_from(length(&value)?).unwrap_or(i128::MAX);
    if characters <= limit.saturating_add(leeway) {
        return Ok(value);
    }
    let text = soft_only(&value)?;
    let kept: String = text.chars().take(usize::try_from(limit - end_length).unwrap_or(0)).collect();
    let kept = if kill.is_some_and(|kill| is_true(&kill)) {
        &kept[..]
    } else {
        kept.rsplit_once(' ').map_or(&kept[..], |(before, _)| before)
    };
    Value::text(format!("{kept}{end}"))
}

fn soft_only(value: &Value) -> Result<Arc<str>> {
    super::arguments::text("truncate", value)
}

fn quoted(text: &str, is_query: bool) -> String {
    let mut output = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => output.push(char::from(byte)),
            b'/' if !is_query => output.push('/'),
            b' ' if is_query => output.push('+'),
            other => output.push_str(&format!("%{other:02X}")),
        }
    }
    output
}

fn urlencode(value: &Value) -> Result<Value> {
    let pairs = match value {
        Value::Text(text) => return Value::text(quoted(text, false)),
        Value::Markup(_) => return Err(Fault::unsupported("urlencode of an escaped text")),
        Value::Dict(dict) => items(&Value::View(View::Items, dict.clone()))?,
        other if is_iterable(other) => items(other)?,
        other => return Value::text(quoted(&printing::text(other)?, false)),
    };
    let mut parts = Vec::new();
    for pair in pairs {
        let mut pair = items(&pair)?;
        let (Some(value), Some(key), None) = (pair.pop(), pair.pop(), pair.pop()) else {
            return Err(Fault::new("urlencode takes pairs of names and values"));
        };
        parts.push(format!("{}={}", quoted(&printing::text(&key)?, true), quoted(&printing::text(&value)?, true)));
    }
    Value::text(parts.join("&"))
}

/// Applies the filter `tojson`, which is `json.dumps` with the parameters that `transformers` gives the filter.
fn tojson(value: &Value, given: Given) -> Result<Value> {
    let parameters = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = given.fill("tojson", parameters, 0)?;
    let truth = |value: Option<Value>| value.is_some_and(|value| is_true(&value));
    let options = json::Options {
        indent: json::indent(indent)?,
        ensure_ascii: truth(ensure_ascii),
        sort_keys: truth(sort_keys),
        separators: json::separators(separators)?,
    };
    Value::text(json::dumps(value, &options)?)
}

/// Applies the filter `int`.
pub(super) fn int(value: &Value, given: Given) -> Result<Value> {
    let [default, base] = given.fill("int", ["default", "base"], 0)?;
    let default = default.unwrap_or(Value::Integer(0));
    let base = optional("int", base, 10)?;
    value.defined()?;
    match value {
        Value::Text(text) => {
            if let Some(number) = parsed_integer(text, base)? {
                return Ok(Value::Integer(number));
            }
            match parsed_float(text)? {
                Some(number) if number.is_finite() => truncated(number),
                _ => Ok(default),
            }
        }
        Value::Markup(_) => Err(Fault::unsupported("int of an escaped text")),
        other => match other.number() {
            Some(Number::Integer(number)) => Ok(Value::Integer(number)),
            Some(Number::Float(number)) if number.is_nan() => Ok(default),
            Some(Number::Float(number)) if number.is_infinite() => {
                Err(Fault::new("cannot convert float infinity to integer"))
            }
            Some(Number::Float(number)) => truncated(number),
            None => Ok(default),
        },
    }
}

fn truncated(number: f64) -> Result<Value> {
    whole(number.trunc()).map(Value::Integer).ok_or_else(|| Fault::unsupported("an integer of more than 127 bits"))
}

/// Evaluates Python's `int(text, base)`. Returns `None` if the text is not an integer.
fn parsed_integer(text: &str, base: i128) -> Result<Option<i128>> {
    let text = text.trim_matches(is_space);
    if !text.is_ascii() {
        if text.chars().any(char::is_numeric) {
            return Err(Fault::unsupported("int of digits that are not ASCII"));
        }
        return Ok(None);
    }
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        10 => "",
        16 => "0x",
        other => return Err(Fault::unsupported(format!("int with base {other}"))),
    };
    let has_prefix = !prefix.is_empty() && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let digits = if has_prefix { digits[2..].strip_prefix('_').unwrap_or(&digits[2..]) } else { digits };
    let radix = u32::try_from(base).unwrap_or(10);
    let valid = !digits.is_empty()
        && digits.split('_').all(|part| !part.is_empty() && part.chars().all(|digit| digit.is_digit(radix)));
    if !valid {
        return Ok(None);
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), radix);
    let number = number.map_err(|_| Fault::unsupported("an integer of more than 127 bits"))?;
    Ok(Some(if negative { -number } else { number }))
}

/// Evaluates Python's `float(text)`. Returns `None` if the text is not a number.
fn parsed_float(text: &str) -> Result<Option<f64>> {
    let text = text.trim_matches(is_space);
    if !text.is_ascii() {
        if text.chars().any(char::is_numeric) {
            return Err(Fault::unsupported("float of digits that are not ASCII"));
        }
        return Ok(None);
    }
    let bytes = text.as_bytes();
    let between_digits = |at: usize| {
        let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        at > 0 && digit(bytes.get(at - 1)) && digit(bytes.get(at + 1))
    };
    if bytes.iter().enumerate().any(|(at, byte)| *byte == b'_' && !between_digits(at)) {
        return Ok(None);
    }
    Ok(text.replace('_', "").parse().ok())
}

/// Applies the filter `float`.
pub(super) fn float(value: &Value, given: Given) -> Result<Value> {
    let [default] = given.fill("float", ["default"], 0)?;
    value.defined()?;
    let number = match value {
        Value::Text(text) => parsed_float(text)?,
        Value::Markup(_) => return Err(Fault::unsupported("float of an escaped text")),
        other => other.number().map(Number::as_float),
    };
    Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
}

/// Applies the filter `round`.
pub(super) fn round(value: &Value, given: Given) -> Result<Value> {
    let [precision, method] = given.fill("round", ["precision", "method"], 0)?;
    let precision = match precision {
        None => 0,
        Some(precision) => super::arguments::integer("round", &precision)?,
    };
    let method = method.map_or_else(|| Ok("common".into()), |method| super::arguments::text("round", &method))?;
    value.defined()?;
    let Some(number) = value.number() else {
        return Err(Fault::new(format!("type {} doesn't define __round__ method", value.type_name())));
    };
    let decimals = usize::try_from(precision).ok().filter(|&decimals| decimals <= 300);
    let Some(decimals) = decimals else {
        return Err(Fault::unsupported("round to less than none or to many decimals"));
    };
    match &*method {
        "common" => Ok(match number {
            Number::Integer(number) => Value::Integer(number),
            Number::Float(number) if !number.is_finite() => Value::Float(number),
            Number::Float(number) => Value::Float(format!("{number:.decimals$}").parse().unwrap_or(number)),
        }),
        "ceil" | "floor" => {
            let factor = 10f64.powi(i32::try_from(decimals).unwrap_or(0));
            let scaled = match number {
                Number::Float(number) => number * factor,
                // Multiplied and divided by the same.
                Number::Integer(number) => return Ok(Value::Float(number as f64)),
            };
            // A factor beyond that is no exact float.
            if decimals > 22 || !scaled.is_finite() {
                return Err(Fault::unsupported("round of a number to so many decimals by a method"));
            }
            let rounded = if &*method == "ceil" { scaled.ceil() } else { scaled.floor() };
            // An integer in between has no negative zero.
            Ok(Value::Float((rounded + 0.0) / factor))
        }
        _ => Err(Fault::new("method must be common, ceil or floor")),
    }
}
