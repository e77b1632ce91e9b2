//! Prints values as Python's `str` and `repr` do.

use std::fmt::Write;

use super::characters::is_printable;
use super::fault::{Fault, Result};
use super::value::{Object, Value, View, printed_loop};

/// Evaluates Python's `str(value)`.
pub(super) fn text(value: &Value) -> Result<String> {
    let mut output = String::new();
    print(value, &mut output)?;
    Ok(output)
}

/// Appends Python's `str(value)` to `output`.
pub(super) fn print(value: &Value, output: &mut String) -> Result<()> {
    match value {
        Value::Undefined(_) => {}
        Value::Text(text) | Value::Markup(text) => output.push_str(text),
        other => represent(other, output)?,
    }
    Ok(())
}

/// Appends Python's `repr(value)` to `output`.
pub(super) fn represent(value: &Value, output: &mut String) -> Result<()> {
    match value {
        Value::Undefined(_) => output.push_str("Undefined"),
        Value::None => output.push_str("None"),
        Value::Bool(true) => output.push_str("True"),
        Value::Bool(false) => output.push_str("False"),
        Value::Integer(value) => {
            let _ = write!(output, "{value}");
        }
        Value::Float(value) => output.push_str(&float(*value)),
        Value::Sent(sent) => output.push_str(&sent.text),
        Value::Text(text) => quoted(text, output),
        Value::Markup(text) => {
            output.push_str("Markup(");
            quoted(text, output);
            output.push(')');
        }
        Value::List(items) => {
            output.push('[');
            all(&items.items, output)?;
            output.push(']');
        }
        Value::Tuple(items) => {
            output.push('(');
            all(&items.items, output)?;
            output.push_str(if items.items.len() == 1 { ",)" } else { ")" });
        }
        Value::Dict(dict) => pairs(&dict.entries, output)?,
        Value::Range(start, stop, 1) => {
            let _ = write!(output, "range({start}, {stop})");
        }
        Value::Range(start, stop, step) => {
            let _ = write!(output, "range({start}, {stop}, {step})");
        }
        Value::View(view, dict) => {
            output.push_str(value.type_name());
            output.push_str("([");
            for (index, (key, value)) in dict.entries.iter().enumerate() {
                if index > 0 {
                    output.push_str(", ");
                }
                match view {
                    View::Keys => represent(key, output)?,
                    View::Values => represent(value, output)?,
                    View::Items => {
                        output.push('(');
                        represent(key, output)?;
                        output.push_str(", ");
                        represent(value, output)?;
                        output.push(')');
                    }
                }
            }
            output.push_str("])");
        }
        Value::Object(object) => match &**object {
            Object::Namespace(values) => {
                output.push_str("<Namespace {");
                for (index, (name, value)) in values.borrow().iter().enumerate() {
                    if index > 0 {
                        output.push_str(", ");
                    }
                    quoted(name, output);
                    output.push_str(": ");
                    represent(value, output)?;
                }
                output.push_str("}>");
            }
            Object::Macro(node) => {
                output.push_str("<Macro ");
                quoted(node.name(), output);
                output.push('>');
            }
            Object::Loop(state) => output.push_str(&printed_loop(state)?),
            _ => return Err(Fault::unsupported(format!("printing a {}", value.type_name()))),
        },
        Value::Iterator(_) => return Err(Fault::unsupported("printing a generator (`| list` makes a list of it)")),
    }
    Ok(())
}

fn all(items: &[Value], output: &mut String) -> Result<()> {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            output.push_str(", ");
        }
        represent(item, output)?;
    }
    Ok(())
}

fn pairs(entries: &[(Value, Value)], output: &mut String) -> Result<()> {
    output.push('{');
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            output.push_str(", ");
        }
        represent(key, output)?;
        output.push_str(": ");
        represent(value, output)?;
    }
    output.push('}');
    Ok(())
}

/// Appends Python's `repr` of a text to `output`.
pub(super) fn quoted(text: &str, output: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    output.push(quote);
    for character in text.chars() {
        match character {
            '\\' => output.push_str("\\\\"),
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            _ if character == quote => {
                output.push('\\');
                output.push(quote);
            }
            _ if is_printable(character) => output.push(character),
            _ => {
                // Writing to a String cannot fail.
                let _ = match u32::from(character) {
                    code @ ..=0xff => write!(output, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(output, "\\u{code:04x}"),
                    code => write!(output, "\\U{code:08x}"),
                };
            }
        }
    }
    output.push(quote);
}

/// Evaluates Python's `repr` of a float: the fewest digits that read back as the same number. Numbers below 1e-4 and
/// from 1e16 on are written with an exponent.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let shortest = format!("{value:e}");
    let decimals = shortest.bytes().filter(u8::is_ascii_digit).count();
    let decimals = decimals - shortest.split_once('e').map_or(0, |(_, exponent)| exponent.trim_matches('-').len());
    // Of two shortest texts that are equally near, Python takes the one with an even digit at the end.
    let nearest = format!("{value:.*e}", decimals.saturating_sub(1));
    let scientific = if nearest.parse() == Ok(value) { nearest } else { shortest };
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        // Rust writes 1e16, Python 1e+16; and at least two digits of exponent.
        return with_exponent(&scientific);
    }
    positional(&scientific)
}

/// Rewrites a number that has an exponent without one, with at least one decimal.
fn positional(scientific: &str) -> String {
    let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let digits = digits.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let Ok(whole) = usize::try_from(exponent + 1) else {
        let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or(0));
        return format!("{sign}0.{zeros}{digits}");
    };
    if whole == 0 {
        return format!("{sign}0.{digits}");
    }
    let digits = format!("{digits:0<width$}", width = whole + 1);
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}

/// Rewrites a number's exponent as Python writes it, with a sign and at least two digits.
pub(super) fn with_exponent(scientific: &str) -> String {
    let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
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
            (f64::INFINITY, "inf"),
            (0.00012, "0.00012"),
            (123_456.5, "123456.5"),
            (-6_962_583_580_020_521.0 / 4.0, "-1740645895005130.2"),
            (6_962_583_580_020_523.0 / 4.0, "1740645895005130.8"),
        ] {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn texts_are_quoted_as_python_does() {
        for (text, expected) in [
            ("it's", "\"it's\""),
            ("\"it's\"", "'\"it\\'s\"'"),
            ("é\u{a0}\u{200b}\u{2028}\u{301}😀\u{7f}", "'é\\xa0\\u200b\\u2028\u{301}😀\\x7f'"),
        ] {
            let mut output = String::new();
            quoted(text, &mut output);
            assert_eq!(output, expected);
        }
    }
}
