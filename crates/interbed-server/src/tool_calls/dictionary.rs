//! Translates arguments that are written as a dictionary with marks around texts, `{key:<|"|>text<|"|>,n:3,list:[…]}`,
//! to JSON while they arrive.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::thinking::begun_at_end;

/// The mark before and after a text.
pub(super) const QUOTE: &str = "<|\"|>";

/// The state of translating a dictionary.
#[derive(Default)]
pub(super) struct Dictionary {
    /// The open brackets, the outermost first.
    open: Vec<Bracket>,
    at: At,
    /// The part of a key, or of a value that is neither a text nor in brackets, that has arrived.
    bare: String,
}

struct Bracket {
    is_object: bool,
    /// Whether a member was reported.
    has_members: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum At {
    /// Before a value.
    #[default]
    Value,
    /// In a value that is neither a text nor in brackets.
    Bare,
    /// In a text between marks.
    Text,
    /// In a text that is a JSON string. The flag says whether the next character is escaped.
    Json(bool),
    /// Before or in a key.
    Key,
    /// Behind a value.
    After,
}

impl Dictionary {
    /// Translates the part of `text` that is certain, and appends it to `json`. Returns the length of this part, and
    /// whether the dictionary ends with it.
    pub(super) fn read(&mut self, text: &str, json: &mut String) -> (usize, bool) {
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let taken = match self.at {
                At::Value => self.value(rest, next, json),
                At::Bare => Some(self.bare(rest, json)),
                At::Text => self.text(rest, json),
                At::Json(is_escaped) => Some(self.json(next, is_escaped, json)),
                At::Key => Some(self.key(rest, json)),
                At::After => Some(self.after(next, json)),
            };
            let Some(taken) = taken else { break };
            rest = &rest[taken..];
            if self.at == At::After && self.open.is_empty() {
                return (text.len() - rest.len(), true);
            }
        }
        (text.len() - rest.len(), false)
    }

    fn value(&mut self, rest: &str, next: char, json: &mut String) -> Option<usize> {
        match next {
            '<' if rest.starts_with(QUOTE) => {
                self.begin_member(json);
                json.push('"');
                self.at = At::Text;
                return Some(QUOTE.len());
            }
            '<' if QUOTE.starts_with(rest) => return None,
            '"' => {
                self.begin_member(json);
                json.push('"');
                self.at = At::Json(false);
            }
            '{' | '[' => {
                self.begin_member(json);
                json.push(next);
                let is_object = next == '{';
                self.open.push(Bracket { is_object, has_members: false });
                self.at = if is_object { At::Key } else { At::Value };
            }
            '}' | ']' | ',' => {
                if self.open.last().is_some_and(|bracket| bracket.is_object) {
                    json.push_str("null");
                }
                self.at = At::After;
                return Some(0);
            }
            _ if next.is_whitespace() => {}
            _ => {
                self.at = At::Bare;
                return Some(0);
            }
        }
        Some(next.len_utf8())
    }

    /// Writes the comma before a member of a list; keys write their own.
    fn begin_member(&mut self, json: &mut String) {
        if let Some(Bracket { is_object: false, has_members }) = self.open.last_mut()
            && std::mem::replace(has_members, true)
        {
            json.push(',');
        }
    }

    fn bare(&mut self, rest: &str, json: &mut String) -> usize {
        let end = rest.find([',', '}', ']']);
        self.bare.push_str(&rest[..end.unwrap_or(rest.len())]);
        if end.is_some() {
            self.begin_member(json);
            json.push_str(&json_of(std::mem::take(&mut self.bare).trim()));
            self.at = At::After;
        }
        end.unwrap_or(rest.len())
    }

    fn text(&mut self, rest: &str, json: &mut String) -> Option<usize> {
        let quote = rest.find(QUOTE);
        let end = quote.unwrap_or_else(|| rest.len() - begun_at_end(rest, &[QUOTE]));
        let written = Value::from(&rest[..end]).to_string();
        json.push_str(&written[1..written.len() - 1]);
        match quote {
            Some(_) => {
                json.push('"');
                self.at = At::After;
                Some(end + QUOTE.len())
            }
            None => Some(end).filter(|&end| end > 0),
        }
    }

    fn json(&mut self, next: char, is_escaped: bool, json: &mut String) -> usize {
        self.at = match next {
            '"' if !is_escaped => At::After,
            _ => At::Json(next == '\\' && !is_escaped),
        };
        match next {
            '\u{0}'..'\u{20}' => json.push_str(Value::from(next.to_string()).to_string().trim_matches('"')),
            _ => json.push(next),
        }
        next.len_utf8()
    }

    fn key(&mut self, rest: &str, json: &mut String) -> usize {
        let Some(end) = rest.find([':', '}', ',']) else {
            self.bare.push_str(rest);
            return rest.len();
        };
        self.bare.push_str(&rest[..end]);
        let is_end = rest[end..].starts_with('}');
        let Some(key) = key_of(&self.bare) else {
            // What was found is within the quotes of the key.
            self.bare.push_str(&rest[end..=end]);
            return end + 1;
        };
        if rest[end..].starts_with(':') {
            let has_members = self.open.last_mut().map(|bracket| std::mem::replace(&mut bracket.has_members, true));
            let separator = if has_members == Some(true) { "," } else { "" };
            json.push_str(&format!("{separator}{}:", Value::from(key)));
            self.at = At::Value;
        } else if is_end {
            self.at = At::After;
        }
        self.bare.clear();
        // The bracket is read behind the last value.
        if is_end { end } else { end + 1 }
    }

    fn after(&mut self, next: char, json: &mut String) -> usize {
        match (next, self.open.last()) {
            (',', Some(bracket)) => self.at = if bracket.is_object { At::Key } else { At::Value },
            ('}' | ']', Some(bracket)) => {
                json.push(if bracket.is_object { '}' } else { ']' });
                self.open.pop();
            }
            _ => {}
        }
        next.len_utf8()
    }
}

/// Returns a key without its quotes, or `None` if their end has not come.
fn key_of(text: &str) -> Option<&str> {
    let text = text.trim();
    let Some(quote) = [QUOTE, "\""].into_iter().find(|quote| text.starts_with(quote)) else { return Some(text) };
    text[quote.len()..].strip_suffix(quote)
}

/// Returns a value that is neither a text nor in brackets as JSON. A value that JSON does not have is a text.
fn json_of(text: &str) -> String {
    match text {
        // As templates in Jinja print them.
        "None" => "null".to_owned(),
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        _ if serde_json::from_str::<&RawValue>(text).is_ok() => text.to_owned(),
        _ => Value::from(text).to_string(),
    }
}

/// Writes a value as a part of a dictionary.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Value::Array(values) => format!("[{}]", values.iter().map(written).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| format!("{key}:{}", written(value));
            format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(","))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the JSON of a dictionary and what follows it, and checks that they do not depend on how the text is
    /// split.
    fn read(text: &str) -> (String, Option<String>) {
        let told = |pieces: &[&str]| {
            let (mut dictionary, mut held, mut json) = (Dictionary::default(), String::new(), String::new());
            let mut ended = false;
            for piece in pieces {
                held.push_str(piece);
                if !ended {
                    let (taken, whole) = dictionary.read(&held, &mut json);
                    held.drain(..taken);
                    ended = whole;
                }
            }
            (json, ended.then_some(held))
        };
        let whole = told(&[text]);
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let split = told(&[&text[..at], &text[at..]]);
            assert_eq!(split, whole, "cut at {at} of {text:?}");
        }
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(told(&characters.iter().map(String::as_str).collect::<Vec<_>>()), whole, "in characters: {text:?}");
        whole
    }

    #[test]
    fn dictionaries_become_json() {
        for (text, json) in [
            ("{}", "{}"),
            ("{ }", "{}"),
            ("{a:<|\"|>x \"y\"\n\u{e9} <| }<|\"|>}", r#"{"a":"x \"y\"\né <| }"}"#),
            ("{a:1,b:-2.50e+3,c:true,d:false,e:null}", r#"{"a":1,"b":-2.50e+3,"c":true,"d":false,"e":null}"#),
            ("{ a : 1 ,\n b : [ ] }", r#"{"a":1,"b":[]}"#),
            ("{a:{b:{},c:[[],[{d:<|\"|><|\"|>}]]}}", r#"{"a":{"b":{},"c":[[],[{"d":""}]]}}"#),
            ("{a:[1,<|\"|>b,]}<|\"|>,2]}", r#"{"a":[1,"b,]}",2]}"#),
            // Keys in quotes, and texts in JSON's.
            ("{<|\"|>a:b,}<|\"|>:1,\"c:d\":2}", r#"{"a:b,}":1,"c:d":2}"#),
            ("{a:\"x\\\"}\n\",b:\"\"}", r#"{"a":"x\"}\n","b":""}"#),
            // Texts without quotes, and what Python calls these values.
            (
                "{a:New York,b:[x, y],c:None,d:True,e:False,f:<b>}",
                r#"{"a":"New York","b":["x","y"],"c":null,"d":true,"e":false,"f":"<b>"}"#,
            ),
            // What is missing or too much.
            ("{a:,b:}", r#"{"a":null,"b":null}"#),
            ("{a:[1,],,b,c:2,}", r#"{"a":[1],"c":2}"#),
            ("{a:<|\"|>x<|\"|> y,b:[1]]}", r#"{"a":"x","b":[1]}"#),
        ] {
            let (told, rest) = read(&format!("{text} {{"));
            assert_eq!(told, json, "{text}");
            assert!(serde_json::from_str::<Value>(&told).is_ok(), "{told}");
            assert!(rest.is_some_and(|rest| rest.ends_with(" {")), "{text}");
        }
    }

    #[test]
    fn what_breaks_off_is_the_beginning_of_json() {
        for (text, json) in [
            ("", ""),
            ("{a", "{"),
            ("{a:", r#"{"a":"#),
            ("{a:12", r#"{"a":"#),
            ("{a:<|\"", r#"{"a":"#),
            ("{a:<|\"|>x<|", r#"{"a":"x"#),
            ("{a:[1,2", r#"{"a":[1"#),
        ] {
            assert_eq!(read(text), (json.to_owned(), None), "{text}");
        }
    }
}
