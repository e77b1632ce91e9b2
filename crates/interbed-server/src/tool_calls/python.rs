//! Reads literals of Python, and says what they are in JSON.

use serde_json::Value;
use serde_json::value::RawValue;

/// The most brackets around a value.
const DEPTH_MAX: usize = 64;

/// Characters that may follow a string, after white space.
const BEHIND_STRINGS: [char; 5] = [',', ')', ']', '}', ':'];

/// Returns the literal at the beginning of `text` as JSON, and the rest. Returns `None` if the literal is incomplete,
/// and an error if there is none. Numbers and words are incomplete until something follows them.
///
/// Models do not always escape quotes in strings, so a quote ends a string only if what may follow a string comes next.
pub(super) fn literal(text: &str) -> Result<Option<(String, &str)>, ()> {
    value(text, DEPTH_MAX)
}

fn value(text: &str, depth: usize) -> Result<Option<(String, &str)>, ()> {
    let text = text.trim_start();
    match text.chars().next() {
        None => Ok(None),
        Some('\'' | '"') => Ok(string(text).map(|(string, rest)| (Value::from(string).to_string(), rest))),
        Some('[' | '(' | '{') if depth == 0 => Err(()),
        Some('[' | '(') => list(text, depth - 1),
        Some('{') => dictionary(text, depth - 1),
        Some(first) if first.is_ascii_digit() || matches!(first, '-' | '+' | '.') => number(text),
        Some(_) => word(text),
    }
}

fn word(text: &str) -> Result<Option<(String, &str)>, ()> {
    let Some(end) = text.find(|one: char| !one.is_ascii_alphanumeric() && one != '_') else { return Ok(None) };
    let json = match &text[..end] {
        "True" | "true" => "true",
        "False" | "false" => "false",
        "None" | "null" => "null",
        _ => return Err(()),
    };
    Ok(Some((json.to_owned(), &text[end..])))
}

fn number(text: &str) -> Result<Option<(String, &str)>, ()> {
    let belongs = |one: char| one.is_ascii_alphanumeric() || matches!(one, '.' | '+' | '-' | '_');
    let Some(end) = text.find(|one| !belongs(one)) else { return Ok(None) };
    let (written, rest) = text.split_at(end);
    let is_json = |number: &str| serde_json::from_str::<&RawValue>(number).is_ok();
    if is_json(written) {
        return Ok(Some((written.to_owned(), rest)));
    }
    // What Python allows and JSON does not: a plus before the number, `_` within it, and nothing beside its point.
    let mut number = written.strip_prefix('+').unwrap_or(written).replace('_', "");
    if let Some(point) = number.find('.') {
        let is_digit = |at: usize| number.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let (before, behind) = (point > 0 && is_digit(point - 1), is_digit(point + 1));
        let digits = |has: bool| if has { "" } else { "0" };
        number.replace_range(point..=point, &format!("{}.{}", digits(before), digits(behind)));
    }
    if is_json(&number) { Ok(Some((number, rest))) } else { Err(()) }
}

/// Reads a list or a tuple, which begins with its bracket.
fn list(text: &str, depth: usize) -> Result<Option<(String, &str)>, ()> {
    let (open, mut rest) = text.split_at(1);
    let close = if open == "[" { ']' } else { ')' };
    let (mut items, mut has_comma) = (Vec::new(), false);
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix(close) {
            // A value in round brackets is no tuple.
            let json = match &items[..] {
                [one] if close == ')' && !has_comma => String::clone(one),
                _ => format!("[{}]", items.join(",")),
            };
            return Ok(Some((json, behind)));
        }
        let Some((item, behind)) = value(rest, depth)? else { return Ok(None) };
        items.push(item);
        match separated(behind, close)? {
            None => return Ok(None),
            Some((comma, behind)) => (has_comma, rest) = (has_comma | comma, behind),
        }
    }
}

/// Reads a dictionary, which begins with its bracket.
fn dictionary(text: &str, depth: usize) -> Result<Option<(String, &str)>, ()> {
    let (mut rest, mut fields) = (&text[1..], Vec::new());
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok(Some((format!("{{{}}}", fields.join(",")), behind)));
        }
        let Some((key, behind)) = value(rest, depth)? else { return Ok(None) };
        let behind = behind.trim_start();
        let Some(behind) = behind.strip_prefix(':') else { return if behind.is_empty() { Ok(None) } else { Err(()) } };
        let Some((item, behind)) = value(behind, depth)? else { return Ok(None) };
        // Keys of JSON are strings.
        let key = if key.starts_with('"') { key } else { Value::from(key).to_string() };
        fields.push(format!("{key}:{item}"));
        match separated(behind, '}')? {
            None => return Ok(None),
            Some((_, behind)) => rest = behind,
        }
    }
}

/// Reads what follows an item: a comma, or the closing bracket, which stays. Returns whether there was a comma, and the
/// rest.
fn separated(text: &str, close: char) -> Result<Option<(bool, &str)>, ()> {
    let text = text.trim_start();
    match text.chars().next() {
        None => Ok(None),
        Some(',') => Ok(Some((true, &text[1..]))),
        Some(next) if next == close => Ok(Some((false, text))),
        Some(_) => Err(()),
    }
}

/// Returns the string at the beginning of `text`, which begins with its quote, and the rest; `None` if the string is
/// incomplete.
fn string(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    let triple = String::from_iter([quote; 3]);
    let (long, start) = if text.starts_with(&triple) { (true, 3) } else { (false, 1) };
    let (mut out, mut rest) = (String::new(), &text[start..]);
    loop {
        let one = rest.chars().next()?;
        let behind = &rest[one.len_utf8()..];
        rest = if one == '\\' {
            escape(behind, &mut out)?
        } else if one == quote && long && rest.starts_with(&triple) {
            return Some((out, &rest[3..]));
        } else if one == quote && !long && BEHIND_STRINGS.contains(&behind.trim_start().chars().next()?) {
            return Some((out, behind));
        } else {
            out.push(one);
            behind
        };
    }
}

/// Appends what an escape stands for, which begins behind the backslash, and returns the rest; `None` if the escape is
/// incomplete.
fn escape<'t>(text: &'t str, out: &mut String) -> Option<&'t str> {
    let one = text.chars().next()?;
    let rest = &text[one.len_utf8()..];
    let simple = match one {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        '\\' | '\'' | '"' | '/' => Some(one),
        _ => None,
    };
    if let Some(simple) = simple {
        out.push(simple);
        return Some(rest);
    }
    let digits = match one {
        '\n' => return Some(rest),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => {
            out.extend(['\\', one]);
            return Some(rest);
        }
    };
    let Some((code, rest)) = code(rest, digits)? else {
        out.extend(['\\', one]);
        return Some(rest);
    };
    // JSON writes some characters as two escapes.
    if (0xd800..0xdc00).contains(&code) && one == 'u' {
        let low = match rest.strip_prefix("\\u") {
            None if "\\u".starts_with(rest) => return None,
            None => None,
            Some(low) => code_of_low(low)?,
        };
        if let Some((low, rest)) = low {
            let whole = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            out.push(char::from_u32(whole).unwrap_or(char::REPLACEMENT_CHARACTER));
            return Some(rest);
        }
    }
    out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    Some(rest)
}

/// Returns the second half of a character that is written as two escapes.
fn code_of_low(text: &str) -> Option<Option<(u32, &str)>> {
    Some(code(text, 4)?.filter(|(low, _)| (0xdc00..0xe000).contains(low)))
}

/// Reads a number of hexadecimal digits: the inner `None` if there are others than these, the outer one if the text
/// ends before them.
fn code(text: &str, digits: usize) -> Option<Option<(u32, &str)>> {
    let count = text.bytes().take(digits).take_while(u8::is_ascii_hexdigit).count();
    if count == digits {
        return Some(u32::from_str_radix(&text[..digits], 16).ok().map(|code| (code, &text[digits..])));
    }
    if count == text.len() { None } else { Some(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_read_as_json() {
        for (python, json) in [
            ("'a'", r#""a""#),
            ("\"it's\"", r#""it's""#),
            ("'it's so'", r#""it's so""#),
            (r"'a\'b\\n\n\x41\u00e9\q'", r#""a'b\\n\nAé\\q""#),
            (r#""\ud83d\ude42 \ud83d x""#, "\"🙂 \u{fffd} x\""),
            ("'''two\n'lines' '''", r#""two\n'lines' ""#),
            ("\"\"", r#""""#),
            ("12345678901234567890123", "12345678901234567890123"),
            ("-1.50E+7", "-1.50E+7"),
            ("+1_000", "1000"),
            ("-.5", "-0.5"),
            ("5.", "5.0"),
            ("True", "true"),
            ("None", "null"),
            ("false", "false"),
            ("[1, 'b', (2, ), (3)]", r#"[1,"b",[2],3]"#),
            ("{'a': {\"b\": [None, ]}, 3: 4}", r#"{"a":{"b":[null]},"3":4}"#),
            ("[]", "[]"),
            ("()", "[]"),
            ("{}", "{}"),
        ] {
            let text = format!(" {python} , more");
            let (read, rest) = literal(&text).unwrap_or_else(|()| panic!("{python} is refused")).expect("it is whole");
            assert_eq!((read.as_str(), rest.trim_start()), (json, ", more"), "{python}");
            assert!(serde_json::from_str::<Value>(&read).is_ok(), "{read}");
            // No beginning of it is another literal.
            for end in (0..1 + python.len()).filter(|&end| text.is_char_boundary(end)) {
                assert!(matches!(literal(&text[..end]), Ok(None)), "{:?}", &text[..end]);
            }
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        for python in ["f(x)", "a.b", "1 + 2", "0x", "1__a", "[1 2]", "{1}", "{'a' 1}", "}", "@", &"[".repeat(65)] {
            let text = format!("{python}, ");
            let is_whole = matches!(literal(&text), Ok(Some((_, rest))) if rest.trim_start().starts_with(','));
            assert!(!is_whole, "{python}");
        }
    }
}
