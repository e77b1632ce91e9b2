//! Compares JSON text that has begun with a whole value, to find out whether it may become a text of that value.

use serde_json::{Map, Value};

/// Returns whether the JSON text `begun`, without white space outside of strings, may continue to a text of `value`.
/// The result is wrong only for numbers whose text so far is another number than `value` and could still become `value`
/// by an exponent.
pub(crate) fn may_become(begun: &[u8], value: &Value) -> bool {
    Walk { rest: begun }.value(value) != Fit::Differs
}

/// Returns the canonical text of a number, which is equal for all texts of the number. Integers are exact. Other
/// numbers are compared as 64-bit floating-point numbers, because most readers see them so.
pub(crate) fn canonical_number(number: &serde_json::Number) -> String {
    if let Some(integer) = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)) {
        return integer.to_string();
    }
    match number.as_f64().filter(|float| float.is_finite()) {
        // Every float of this size is an integer that an i128 can hold.
        Some(float) if float.fract() == 0.0 && float.abs() < 1e30 => (float as i128).to_string(),
        Some(float) => float.to_string(),
        None => number.to_string(),
    }
}

/// The result of comparing a text with a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fit {
    /// The text does not describe the value, however it continues.
    Differs,
    /// The text ends before it is clear whether it describes the value.
    Open,
    /// The text is complete and describes the value.
    Equal,
}

/// The part of a text that has not been compared yet.
struct Walk<'t> {
    rest: &'t [u8],
}

impl Walk<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn value(&mut self, value: &Value) -> Fit {
        match (self.rest.first(), value) {
            (None, _) => Fit::Open,
            (Some(b'"'), Value::String(text)) => {
                self.next();
                self.string(text)
            }
            (Some(b'['), Value::Array(items)) => {
                self.next();
                self.array(items)
            }
            (Some(b'{'), Value::Object(properties)) => {
                self.next();
                self.object(properties)
            }
            (Some(_), Value::Number(_) | Value::Bool(_) | Value::Null) => self.word(value),
            _ => Fit::Differs,
        }
    }

    /// Compares a number or a word such as `true`, up to the byte that ends it.
    fn word(&mut self, value: &Value) -> Fit {
        let length = self.rest.iter().position(|&byte| !is_of_word(byte)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(length);
        let is_whole = !rest.is_empty();
        self.rest = rest;
        let Ok(word) = std::str::from_utf8(word) else { return Fit::Differs };
        let (equal, may_equal) = match value {
            Value::Number(number) => {
                let canonical = canonical_number(number);
                let is_number =
                    |text: &str| serde_json::from_str(text).is_ok_and(|number| canonical_number(&number) == canonical);
                // Characters that cannot end a number are cut off, because `1.`, for example, may become 1.
                let so_far = word.trim_end_matches(['e', 'E', '+', '-', '.']);
                let may_equal = match so_far {
                    "" => canonical == "0" || canonical.starts_with(word),
                    so_far => is_number(so_far) || canonical.starts_with(word),
                };
                (is_number(word), may_equal)
            }
            other => {
                let expected = other.to_string();
                (expected == word, expected.starts_with(word))
            }
        };
        match is_whole {
            true if equal => Fit::Equal,
            false if may_equal => Fit::Open,
            _ => Fit::Differs,
        }
    }

    /// Compares a string from behind its opening quote.
    fn string(&mut self, text: &str) -> Fit {
        let mut expected = text.bytes();
        loop {
            let Some(byte) = self.next() else { return Fit::Open };
            match byte {
                b'"' => return if expected.next().is_none() { Fit::Equal } else { Fit::Differs },
                b'\\' => {
                    let Some(character) = self.escaped() else { return Fit::Open };
                    let mut bytes = [0; 4];
                    let bytes = character.encode_utf8(&mut bytes).bytes();
                    if bytes.into_iter().any(|byte| expected.next() != Some(byte)) {
                        return Fit::Differs;
                    }
                }
                byte if expected.next() != Some(byte) => return Fit::Differs,
                _ => {}
            }
        }
    }

    /// Returns the character of an escape, read from behind its backslash. Returns `None` if the text ends within the
    /// escape.
    fn escaped(&mut self) -> Option<char> {
        Some(match self.next()? {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let second = match (0xd800..0xdc00).contains(&first) {
                    false => return Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)),
                    true => match (self.next()?, self.next()?) {
                        (b'\\', b'u') => self.unit()?,
                        _ => return Some(char::REPLACEMENT_CHARACTER),
                    },
                };
                let code = 0x10000 + ((first - 0xd800) << 10) + (second & 0x3ff);
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            other => char::from(other),
        })
    }

    /// Returns the value of four hexadecimal digits.
    fn unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// Compares an array from behind its opening bracket.
    fn array(&mut self, items: &[Value]) -> Fit {
        for index in 0.. {
            match self.rest.first() {
                None => return Fit::Open,
                Some(b']') => {
                    self.next();
                    return if index == items.len() { Fit::Equal } else { Fit::Differs };
                }
                Some(b',') if index > 0 => drop(self.next()),
                Some(_) => {}
            }
            let Some(item) = items.get(index) else { return Fit::Differs };
            match self.value(item) {
                Fit::Equal => {}
                undone => return undone,
            }
        }
        Fit::Differs
    }

    /// Compares an object from behind its opening brace, with its properties in any order.
    fn object(&mut self, properties: &Map<String, Value>) -> Fit {
        for seen in 0.. {
            match self.next() {
                None => return Fit::Open,
                Some(b'}') => return if seen == properties.len() { Fit::Equal } else { Fit::Differs },
                Some(b',') if self.rest.is_empty() => return Fit::Open,
                Some(b',') => drop(self.next()),
                Some(_) => {}
            }
            let name = self.rest;
            let mut fitting = properties.iter().filter_map(|(key, value)| match (Walk { rest: name }).named(key) {
                (Fit::Differs, _) => None,
                (fit, rest) => Some((fit, rest, value)),
            });
            let Some((fit, rest, value)) = fitting.next() else { return Fit::Differs };
            if fit == Fit::Open {
                return Fit::Open;
            }
            self.rest = rest;
            if self.next().is_none() {
                return Fit::Open;
            }
            match self.value(value) {
                Fit::Equal => {}
                undone => return undone,
            }
        }
        Fit::Differs
    }
}

impl<'t> Walk<'t> {
    /// Returns how a property name, read from behind its opening quote, compares with `key`, and the text behind the
    /// name.
    fn named(mut self, key: &str) -> (Fit, &'t [u8]) {
        let fit = self.string(key);
        (fit, self.rest)
    }
}

/// Returns whether a byte belongs to a number or a word such as `true`.
pub(crate) fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::may_become;

    /// Checks that every beginning of every text of a value may become the value, and that no beginning of a text of
    /// another value may once it is decided.
    #[test]
    fn beginnings_of_all_texts_of_a_value_fit_it() {
        let texts: [(Value, &[&str]); 8] = [
            (json!(1), &["1", "1.0", "1.00"]),
            (json!(0), &["0", "-0", "-0.0", "0.000"]),
            (json!(12.5), &["12.5", "12.50"]),
            (json!("aé\n"), &[r#""aé\n""#, r#""\u0061\u00e9\u000a""#, r#""a\u00E9\n""#]),
            (json!("𝄞"), &[r#""𝄞""#, r#""\ud834\udd1e""#]),
            (json!([1, [true], {}]), &["[1,[true],{}]", "[1.0,[true],{}]"]),
            (json!({"a": 1, "ab": "x"}), &[r#"{"a":1,"ab":"x"}"#, r#"{"ab":"x","a":1.0}"#]),
            (json!([null, false]), &["[null,false]"]),
        ];
        for (value, texts) in &texts {
            for text in *texts {
                for end in 0..=text.len() {
                    // As in a text that ends within: what follows a whole number is not there yet.
                    assert!(may_become(&text.as_bytes()[..end], value), "{} of {text} and {value}", &end);
                }
            }
        }
        let others: [(Value, &[&str]); 7] = [
            (json!(1), &["2", "12", "1.5", "\"", "[", "t"]),
            (json!(0), &["1", "0.1", "-1"]),
            (json!("ab"), &[r#""b"#, r#""a""#, r#""abc"#, r#""\u0062"#, "1"]),
            (json!([1, 2]), &["[2", "[1]", "[1,3", "[1,2,", "{"]),
            (json!({"a": 1, "ab": 2}), &[r#"{"b"#, r#"{"a":2"#, r#"{"a":1}"#, r#"{"ab":1"#, "{}"]),
            (json!(true), &["f", "tru1", "1"]),
            (json!(9_007_199_254_740_993_u64), &["9007199254740992,"]),
        ];
        for (value, texts) in &others {
            for text in *texts {
                assert!(!may_become(text.as_bytes(), value), "{text} and {value}");
            }
        }
    }
}
