//! Parses JSON whose numbers keep the text in which they were sent.

use serde_json::{Number, Value};

/// Parses a JSON text. Numbers keep their spelling, so `1e5`, `1E5` and `1e+5` stay distinct, `1.0` does not become
/// `1`, and long integers keep all digits.
///
/// # Errors
/// Fails if `text` is not valid JSON.
pub fn json_value(text: &str) -> serde_json::Result<Value> {
    let mut value = serde_json::from_str(text)?;
    // `serde_json` keeps a number's spelling except for that of its exponent.
    if has_exponent(text) {
        let _ = restore(&mut value, &mut Numbers { text, at: 0 });
    }
    Ok(value)
}

fn has_exponent(text: &str) -> bool {
    let is_exponent = |pair: &[u8]| pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E');
    text.as_bytes().windows(2).any(is_exponent)
}

/// Restores the spelling of the numbers in `value` from `texts`. Returns `None` and stops if a number does not
/// correspond, as happens after a repeated property name.
fn restore(value: &mut Value, texts: &mut Numbers<'_>) -> Option<()> {
    match value {
        Value::Number(number) => {
            let text = texts.next()?;
            if number.to_string() != known(text) {
                return None;
            }
            *number = Number::from_string_unchecked(text.to_owned());
            Some(())
        }
        Value::Array(values) => values.iter_mut().try_for_each(|value| restore(value, texts)),
        Value::Object(values) => values.values_mut().try_for_each(|value| restore(value, texts)),
        _ => Some(()),
    }
}

/// Spells a number in the way of `serde_json`.
fn known(text: &str) -> String {
    match text.split_once(['e', 'E']) {
        None => text.to_owned(),
        Some((digits, exponent)) if exponent.starts_with(['+', '-']) => format!("{digits}e{exponent}"),
        Some((digits, exponent)) => format!("{digits}e+{exponent}"),
    }
}

/// Iterates over the numbers of a JSON text.
struct Numbers<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Iterator for Numbers<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let bytes = self.text.as_bytes();
        let mut in_text = false;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'\\' if in_text => self.at += 1,
                b'"' => in_text = !in_text,
                b'-' | b'0'..=b'9' if !in_text => {
                    let is_part = |byte: &&u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                    let length = bytes[self.at..].iter().take_while(is_part).count();
                    let number = self.text.get(self.at..self.at + length);
                    self.at += length;
                    return number;
                }
                _ => {}
            }
            self.at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_text() {
        for text in [
            r#"[1e400,1E5,1e+5,1E-05,-0.0,1.50,7,12345678901234567890123,0.1000000000000000055]"#,
            r#"{"a\"1e5":"1e5","b":{"c":[1e5,"\\",2E2],"d":null},"e":-1E+0}"#,
            "1e5",
            r#""1e5""#,
        ] {
            assert_eq!(json_value(text).expect(text).to_string(), text);
        }
        // If a property name is repeated, the last one counts.
        let twice = json_value(r#"{"a":1e5,"b":2e5,"a":3e5}"#).expect("JSON");
        assert_eq!((twice["a"].as_f64(), twice["b"].as_f64()), (Some(3e5), Some(2e5)));
        assert!(json_value("1e").is_err() && json_value("[1e5").is_err());
    }
}
