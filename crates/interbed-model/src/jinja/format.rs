//! Formats values as Python's operator `%` and `str.format` do.

use super::allowance;
use super::arguments::Given;
use super::attributes::{attribute_of, item_of};
use super::fault::{Fault, Result};
use super::iteration::items;
use super::printing::{self, with_exponent};
use super::syntax::Name;
use super::value::{Number, Value};

/// The widest field, in characters, and the most digits that a number may get.
const WIDTH_MAX: usize = 4096;

/// Describes how a value is laid out in its field.
#[derive(Default)]
struct Layout {
    fill: Option<char>,
    /// The alignment: `<`, `>`, `=` or `^`.
    align: Option<char>,
    /// The sign of numbers that are not negative: `+`, `-` or a space.
    sign: Option<char>,
    /// Whether the format has `#`, which asks for the alternate form.
    alternate: bool,
    zero: bool,
    width: usize,
    /// The separator between groups of digits: `,` or `_`.
    grouping: Option<char>,
    precision: Option<usize>,
    /// The letter at the end of the format, which names the kind of output.
    kind: Option<char>,
}

/// Evaluates `text % value`.
pub(super) fn percent(text: &str, value: &Value) -> Result<String> {
    let given: &[Value] = match value {
        Value::Tuple(values) => &values.items,
        other => std::slice::from_ref(other),
    };
    let mut used = 0;
    let mut output = String::new();
    let mut by_name = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            output.push(character);
            continue;
        }
        let mut layout = Layout::default();
        let mut left = false;
        let mut named = None;
        if characters.next_if_eq(&'(').is_some() {
            named = Some(entry_of(&mut characters, value)?);
            by_name = true;
        }
        while let Some(flag) = characters.next_if(|flag| "-+ #0".contains(*flag)) {
            match flag {
                '-' => left = true,
                '#' => layout.alternate = true,
                '0' => layout.zero = true,
                '+' => layout.sign = Some('+'),
                _ => layout.sign = layout.sign.or(Some(' ')),
            }
        }
        let mut take = || -> Result<Value> {
            used += 1;
            given.get(used - 1).cloned().ok_or_else(|| Fault::new("not enough arguments for format string"))
        };
        if characters.next_if_eq(&'*').is_some() {
            let width = take()?.as_integer().ok_or_else(|| Fault::new("* wants int"))?;
            left |= width < 0;
            layout.width = bounded(usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX))?;
        } else {
            layout.width = digits(&mut characters)?.unwrap_or(0);
        }
        if characters.next_if_eq(&'.').is_some() {
            layout.precision = Some(if characters.next_if_eq(&'*').is_some() {
                let precision = take()?.as_integer().ok_or_else(|| Fault::new("* wants int"))?;
                bounded(usize::try_from(precision.max(0)).unwrap_or(usize::MAX))?
            } else {
                digits(&mut characters)?.unwrap_or(0)
            });
        }
        characters.next_if(|length| "hlL".contains(*length));
        let Some(kind) = characters.next() else { return Err(Fault::new("incomplete format")) };
        if kind == '%' {
            output.push('%');
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => take()?,
        };
        layout.align = Some(if left { '<' } else { '>' });
        if left {
            layout.zero = false;
        }
        output.push_str(&percent_field(kind, &value, layout)?);
        allowance::make(output.len())?;
    }
    let is_mapping =
        by_name || matches!(value, Value::Dict(_) | Value::List(_) | Value::Range(..) | Value::Undefined(_));
    if used < given.len() && !is_mapping {
        return Err(Fault::new("not all arguments converted during string formatting"));
    }
    Ok(output)
}

/// Reads the rest of a key in parentheses, up to and including the closing parenthesis. Returns the entry of `mapping`
/// for this key.
fn entry_of(characters: &mut impl Iterator<Item = char>, mapping: &Value) -> Result<Value> {
    let mut key = String::new();
    let mut depth = 1;
    loop {
        match characters.next() {
            Some(')') if depth == 1 => break,
            Some(next) => {
                depth += i32::from(next == '(') - i32::from(next == ')');
                key.push(next);
            }
            None => return Err(Fault::new("incomplete format key")),
        }
    }
    let Value::Dict(dict) = mapping else { return Err(Fault::new("format requires a mapping")) };
    let found = dict.get_text(&key.as_str().into());
    found.cloned().ok_or_else(|| Fault::new(format!("the key '{key}' of a format is missing")))
}

fn percent_field(kind: char, value: &Value, mut layout: Layout) -> Result<String> {
    let text = match kind {
        's' => printing::text(value)?,
        'r' => represented(value)?,
        'c' => match value {
            Value::Text(text) if text.chars().count() == 1 => text.to_string(),
            other => character(other)?,
        },
        'd' | 'i' | 'u' => {
            value.defined()?;
            let number = match value.number() {
                Some(Number::Integer(value)) => value,
                Some(Number::Float(value)) => {
                    super::value::whole(value.trunc()).ok_or_else(|| Fault::new("a float has no integer for %d"))?
                }
                None => {
                    return Err(Fault::new(format!("%{kind} format: a number is required, not {}", value.type_name())));
                }
            };
            let mut digits = number.unsigned_abs().to_string();
            if let Some(precision) = layout.precision {
                digits = format!("{digits:0>precision$}");
            }
            return Ok(laid_out(number < 0, "", &digits, &layout));
        }
        'o' | 'x' | 'X' => {
            let Some(Number::Integer(number)) = value.number() else {
                return Err(Fault::new(format!("%{kind} format: an integer is required, not {}", value.type_name())));
            };
            layout.kind = Some(kind);
            let (prefix, mut digits) = radix(number, kind, layout.alternate);
            if let Some(precision) = layout.precision {
                digits = format!("{digits:0>precision$}");
            }
            return Ok(laid_out(number < 0, prefix, &digits, &layout));
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            value.defined()?;
            let Some(number) = value.number() else {
                return Err(Fault::new(format!("must be real number, not {}", value.type_name())));
            };
            layout.kind = Some(kind);
            let number = number.as_float();
            let digits = float_digits(number.abs(), &layout)?;
            let negative = number.is_sign_negative() && !number.is_nan();
            layout.zero &= number.is_finite();
            return Ok(laid_out(negative, "", &digits, &layout));
        }
        other => return Err(Fault::new(format!("unsupported format character {other:?}"))),
    };
    layout.zero = false;
    let text = match layout.precision {
        Some(precision) if kind != 'c' => text.chars().take(precision).collect(),
        _ => text,
    };
    Ok(padded(&text, &layout, '>'))
}

fn represented(value: &Value) -> Result<String> {
    let mut text = String::new();
    printing::represent(value, &mut text)?;
    Ok(text)
}

fn character(value: &Value) -> Result<String> {
    let code = value.as_integer().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
    code.map(String::from).ok_or_else(|| Fault::new("a character is needed"))
}

fn bounded(width: usize) -> Result<usize> {
    if width > WIDTH_MAX {
        return Err(Fault::new(format!("a format has fields of more than {WIDTH_MAX} characters")));
    }
    Ok(width)
}

fn digits(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let mut width = None;
    while let Some(digit) = characters.next_if(char::is_ascii_digit) {
        let digit = digit.to_digit(10).unwrap_or(0) as usize;
        width = Some(bounded(width.unwrap_or(0) * 10 + digit)?);
    }
    Ok(width)
}

fn radix(number: i128, kind: char, alternate: bool) -> (&'static str, String) {
    let number = number.unsigned_abs();
    let (prefix, digits) = match kind {
        'b' => ("0b", format!("{number:b}")),
        'o' => ("0o", format!("{number:o}")),
        'X' => ("0X", format!("{number:X}")),
        _ => ("0x", format!("{number:x}")),
    };
    (if alternate { prefix } else { "" }, digits)
}

/// Returns the digits of a float without its sign.
fn float_digits(value: f64, layout: &Layout) -> Result<String> {
    if layout.alternate {
        return Err(Fault::unsupported("the alternate form of a float's format"));
    }
    if layout.grouping.is_some() && !value.is_finite() {
        return Err(Fault::unsupported("a format with groups of a number that is not finite"));
    }
    let precision = layout.precision.unwrap_or(6);
    let kind = layout.kind.unwrap_or('g');
    let text = if value.is_nan() {
        "nan".into()
    } else if value.is_infinite() {
        "inf".into()
    } else {
        match kind.to_ascii_lowercase() {
            'f' => format!("{value:.precision$}"),
            'e' => with_exponent(&format!("{value:.precision$e}")),
            '%' => format!("{:.precision$}%", value * 100.0),
            _ => general(value, precision.max(1)),
        }
    };
    Ok(if kind.is_ascii_uppercase() { text.to_uppercase() } else { text })
}

/// Formats a number with `precision` significant digits, and with an exponent if the number is very large or small.
fn general(value: f64, precision: usize) -> String {
    let scientific = format!("{value:.*e}", precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if exponent < -4 || exponent >= i32::try_from(precision).unwrap_or(i32::MAX) {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return with_exponent(&format!("{}e{exponent}", without_zeros(digits)));
    }
    let decimals = usize::try_from(i32::try_from(precision).unwrap_or(0) - 1 - exponent).unwrap_or(0);
    without_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// Puts the sign, the prefix and the digits of a number into its field.
fn laid_out(negative: bool, prefix: &str, digits: &str, layout: &Layout) -> String {
    let sign = match (negative, layout.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let zeros = layout.zero || (layout.align == Some('=') && layout.fill == Some('0'));
    let room = layout.width.saturating_sub(sign.len() + prefix.len());
    let digits = match layout.grouping {
        Some(separator) => grouped(digits, separator, if zeros { room } else { 0 }, layout.kind),
        None if zeros => format!("{digits:0>room$}"),
        None => digits.to_owned(),
    };
    if layout.align == Some('=') && !zeros {
        let fill = layout.fill.unwrap_or(' ');
        let missing = room.saturating_sub(digits.chars().count());
        return format!("{sign}{prefix}{}{digits}", fill.to_string().repeat(missing));
    }
    padded(&format!("{sign}{prefix}{digits}"), layout, '>')
}

/// Inserts separators between groups of digits, and puts zeros before the digits to fill `room` characters.
fn grouped(digits: &str, separator: char, room: usize, kind: Option<char>) -> String {
    let size = if matches!(kind, Some('b' | 'o' | 'x' | 'X')) { 4 } else { 3 };
    let radix = if size == 4 { 16 } else { 10 };
    let end = digits.find(|character: char| !character.is_digit(radix)).unwrap_or(digits.len());
    let (mut whole, rest) = (digits[..end].to_owned(), &digits[end..]);
    let separated = |whole: &str| {
        let mut output = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(size) {
                output.push(separator);
            }
            output.push(digit);
        }
        output
    };
    while separated(&whole).len() + rest.len() < room {
        whole.insert(0, '0');
    }
    separated(&whole) + rest
}

fn padded(text: &str, layout: &Layout, default: char) -> String {
    let missing = layout.width.saturating_sub(text.chars().count());
    let fill = layout.fill.unwrap_or(' ').to_string();
    let before = match layout.align.unwrap_or(default) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    format!("{}{text}{}", fill.repeat(before), fill.repeat(missing - before))
}

/// Evaluates `text.format(…)`.
pub(super) fn braces(text: &str, given: &Given) -> Result<String> {
    let mut numbering = Numbering::Unknown;
    fields(text, given, &mut numbering, 0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbering {
    Unknown,
    /// The fields have no numbers, as in `{} {}`, and take the arguments one after the other. Holds the index of the
    /// next argument.
    Automatic(usize),
    Manual,
}

fn fields(text: &str, given: &Given, numbering: &mut Numbering, depth: usize) -> Result<String> {
    let mut output = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        output.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if rest.starts_with(brace) {
            output.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        if brace == "}" {
            return Err(Fault::new("single '}' encountered in format string"));
        }
        let end = field_end(rest)?;
        let (field, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        let (field, layout) = split_field(field);
        let (field, conversion) = match field.split_once('!') {
            Some((field, conversion)) => (field, Some(conversion)),
            None => (field, None),
        };
        let value = looked_up(field, given, numbering)?;
        let layout = if layout.contains(['{', '}']) {
            if depth > 0 {
                return Err(Fault::new("a format is nested too deeply"));
            }
            fields(layout, given, numbering, depth + 1)?
        } else {
            layout.to_owned()
        };
        let value = match conversion {
            None => value,
            Some("s") => Value::text(printing::text(&value)?)?,
            Some("r") => Value::text(represented(&value)?)?,
            Some(other) => return Err(Fault::unsupported(format!("the conversion !{other} of a format"))),
        };
        output.push_str(&formatted(&value, &layout)?);
        allowance::make(output.len())?;
    }
    output.push_str(rest);
    Ok(output)
}

/// Returns the byte at which a field ends. The layout of a field may hold fields.
fn field_end(text: &str) -> Result<usize> {
    let mut depth = 0;
    let mut bracket = false;
    for (index, character) in text.char_indices() {
        match character {
            '[' if depth == 0 => bracket = true,
            ']' => bracket = false,
            '{' if bracket => {}
            '}' if bracket => {}
            '{' => depth += 1,
            '}' if depth == 0 => return Ok(index),
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err(Fault::new("single '{' encountered in format string"))
}

fn split_field(field: &str) -> (&str, &str) {
    let mut bracket = false;
    for (index, character) in field.char_indices() {
        match character {
            '[' => bracket = true,
            ']' => bracket = false,
            ':' if !bracket => return (&field[..index], &field[index + 1..]),
            _ => {}
        }
    }
    (field, "")
}

fn looked_up(field: &str, given: &Given, numbering: &mut Numbering) -> Result<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut path) = field.split_at(end);
    let value = if name.is_empty() {
        let next = match *numbering {
            Numbering::Unknown => 0,
            Numbering::Automatic(next) => next,
            Numbering::Manual => return Err(Fault::new("a format cannot switch to automatic field numbering")),
        };
        *numbering = Numbering::Automatic(next + 1);
        given.positional.get(next)
    } else if let Ok(index) = name.parse::<usize>() {
        if matches!(numbering, Numbering::Automatic(_)) {
            return Err(Fault::new("a format cannot switch to manual field numbering"));
        }
        *numbering = Numbering::Manual;
        given.positional.get(index)
    } else {
        given.named.iter().find(|(known, _): &&(Name, Value)| **known == *name).map(|(_, value)| value)
    };
    let Some(mut value) = value.cloned() else {
        return Err(Fault::new(format!("a format names the argument '{name}', which is not given")));
    };
    while !path.is_empty() {
        if let Some(rest) = path.strip_prefix('[') {
            let Some((key, rest)) = rest.split_once(']') else {
                return Err(Fault::new("missing ']' in format string"));
            };
            let key = match key.parse::<i128>() {
                Ok(index) if !key.starts_with(['+', '-']) => Value::Integer(index),
                _ => Value::text(key)?,
            };
            value = item_of(&value, &key)?;
            path = rest;
        } else {
            let rest = path.strip_prefix('.').ok_or_else(|| Fault::new("a format's field is not valid"))?;
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = attribute_of(&value, &rest[..end].into())?;
            path = &rest[end..];
        }
    }
    Ok(value)
}

/// Evaluates Python's `format(value, layout)`.
fn formatted(value: &Value, layout: &str) -> Result<String> {
    if layout.is_empty() {
        return printing::text(value);
    }
    let mut parsed = parse_layout(layout)?;
    match value {
        Value::Text(text) => {
            if !matches!(parsed.kind, None | Some('s'))
                || parsed.sign.is_some()
                || parsed.alternate
                || parsed.align == Some('=')
                || parsed.grouping.is_some()
            {
                return Err(Fault::new(format!("the format {layout:?} is not for texts")));
            }
            if parsed.zero && parsed.fill.is_none() {
                parsed.fill = Some('0');
            }
            let shown: String = match parsed.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text.to_string(),
            };
            return Ok(padded(&shown, &parsed, '<'));
        }
        Value::Bool(_) if matches!(parsed.kind, None | Some('s')) => {
            return Err(Fault::unsupported("the format of a boolean"));
        }
        _ => {}
    }
    let Some(number) = value.number() else {
        return Err(Fault::new(format!("unsupported format string passed to {}", value.type_name())));
    };
    // Zeros go between sign and digits, unless an alignment says otherwise.
    if parsed.zero && (parsed.align.is_some() || parsed.fill.is_some()) {
        parsed.zero = false;
        if parsed.fill.is_none() {
            parsed.fill = Some('0');
        }
    }
    match (number, parsed.kind) {
        (Number::Integer(_), Some('c'))
            if parsed.sign.is_some() || parsed.alternate || parsed.grouping.is_some() || parsed.precision.is_some() =>
        {
            Err(Fault::new(format!("the format {layout:?} is not for characters")))
        }
        (Number::Integer(_), Some('c')) if parsed.zero || parsed.align == Some('=') => {
            Err(Fault::unsupported("a character's format with zeros"))
        }
        (Number::Integer(code), Some('c')) => Ok(padded(&character(&Value::Integer(code))?, &parsed, '<')),
        (Number::Integer(number), None | Some('d' | 'b' | 'o' | 'x' | 'X')) => {
            if parsed.precision.is_some() {
                return Err(Fault::new("precision not allowed in integer format specifier"));
            }
            let kind = parsed.kind.unwrap_or('d');
            if kind == 'd' {
                return Ok(laid_out(number < 0, "", &number.unsigned_abs().to_string(), &parsed));
            }
            if parsed.grouping == Some(',') {
                return Err(Fault::new(format!("cannot specify ',' with '{kind}'")));
            }
            let (prefix, digits) = radix(number, kind, parsed.alternate);
            Ok(laid_out(number < 0, prefix, &digits, &parsed))
        }
        (number, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) => {
            let number = number.as_float();
            let digits = float_digits(number.abs(), &parsed)?;
            Ok(laid_out(number.is_sign_negative() && !number.is_nan(), "", &digits, &parsed))
        }
        (Number::Float(number), None) => {
            let digits = match parsed.precision {
                None => printing::float(number.abs()),
                Some(_) => return Err(Fault::unsupported("a float's format with a precision and no letter")),
            };
            Ok(laid_out(number.is_sign_negative() && !number.is_nan(), "", &digits, &parsed))
        }
        (_, Some(kind)) => Err(Fault::new(format!("unknown format code '{kind}' for a {}", value.type_name()))),
    }
}

fn parse_layout(text: &str) -> Result<Layout> {
    let mut layout = Layout::default();
    let characters: Vec<char> = text.chars().collect();
    let is_align = |character: Option<&char>| character.is_some_and(|character| "<>=^".contains(*character));
    let mut at = 0;
    if is_align(characters.get(1)) {
        layout.fill = Some(characters[0]);
        layout.align = Some(characters[1]);
        at = 2;
    } else if is_align(characters.first()) {
        layout.align = Some(characters[0]);
        at = 1;
    }
    let rest: String = characters[at..].iter().collect();
    let mut characters = rest.chars().peekable();
    layout.sign = characters.next_if(|sign| "+- ".contains(*sign));
    layout.alternate = characters.next_if_eq(&'#').is_some();
    layout.zero = characters.next_if_eq(&'0').is_some();
    layout.width = digits(&mut characters)?.unwrap_or(0);
    layout.grouping = characters.next_if(|separator| ",_".contains(*separator));
    if characters.next_if_eq(&'.').is_some() {
        let precision = digits(&mut characters)?;
        layout.precision = Some(precision.ok_or_else(|| Fault::new("format specifier missing precision"))?);
    }
    layout.kind = characters.next();
    match characters.next() {
        Some(_) => Err(Fault::new(format!("invalid format specifier {text:?}"))),
        None => Ok(layout),
    }
}

/// Applies the filter `format`.
pub(super) fn filter(text: &str, given: Given) -> Result<Value> {
    if !given.named.is_empty() {
        if !given.positional.is_empty() {
            return Err(Fault::new("format takes positional or named arguments, but not both"));
        }
        let pairs = given.named.into_iter().map(|(name, value)| (Value::Text(name), value));
        return Value::text(percent(text, &Value::dict(pairs)?)?);
    }
    let values = Value::tuple(given.positional)?;
    debug_assert!(items(&values).is_ok());
    Value::text(percent(text, &values)?)
}
