//! Follows JSON text and notes the property names of its objects. This is needed because no grammar of finite size can
//! forbid repeated names.

/// The property names of the objects that contain the end of a JSON text. Text outside of all brackets is skipped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    /// The open brackets, from the outside in. An object has its names as they are written, and an array has `None`.
    open: Vec<Option<Vec<Vec<u8>>>>,
    /// Whether a string that begins next is a property name.
    is_name_next: bool,
    text: Option<Text>,
}

/// A string that is not closed yet.
#[derive(Debug, Clone)]
struct Text {
    /// The bytes so far, if the string is a property name.
    name: Option<Vec<u8>>,
    is_escaped: bool,
}

impl Names {
    /// Appends text. Returns whether it completes a property name that the object already has.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        let mut is_repeated = false;
        for &byte in bytes {
            let Some(text) = &mut self.text else {
                self.begin(byte);
                continue;
            };
            if byte == b'"' && !text.is_escaped {
                let name = text.name.take();
                self.text = None;
                if let (Some(name), Some(Some(names))) = (name, self.open.last_mut()) {
                    is_repeated |= names.contains(&name);
                    names.push(name);
                }
                continue;
            }
            text.is_escaped = byte == b'\\' && !text.is_escaped;
            text.name.iter_mut().for_each(|name| name.push(byte));
        }
        is_repeated
    }

    /// Processes a byte that is outside of strings.
    fn begin(&mut self, byte: u8) {
        match byte {
            b'"' => {
                let name = self.is_name_next.then(Vec::new);
                self.text = Some(Text { name, is_escaped: false });
                self.is_name_next = false;
            }
            b'{' | b'[' => {
                self.open.push((byte == b'{').then(Vec::new));
                self.is_name_next = byte == b'{';
            }
            b'}' | b']' => {
                self.open.pop();
                self.is_name_next = false;
            }
            b',' => self.is_name_next = matches!(self.open.last(), Some(Some(_))),
            _ => {}
        }
    }

    /// Returns the number of quotation marks that a token needs in order to complete the next property name.
    pub(crate) fn quotes_needed(&self) -> usize {
        match &self.text {
            Some(Text { name: Some(_), .. }) => 1,
            Some(_) => 3,
            None => 2,
        }
    }

    /// Returns whether `bytes` would complete a property name that the object already has.
    pub(crate) fn repeats(&self, bytes: &[u8]) -> bool {
        let quotes = bytes.iter().filter(|&&byte| byte == b'"').count();
        if quotes < self.quotes_needed() {
            return false;
        }
        if let Some(Text { name: Some(begun), is_escaped: false }) = &self.text
            && quotes < 3
            && let Some(rest) = bytes.split(|&byte| byte == b'"').next().filter(|rest| !rest.contains(&b'\\'))
        {
            let is_this = |name: &Vec<u8>| {
                name.len() == begun.len() + rest.len() && name.starts_with(begun) && name.ends_with(rest)
            };
            return self.open.last().and_then(Option::as_ref).is_some_and(|names| names.iter().any(is_this));
        }
        self.clone().push(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_their_object() {
        for (text, next, repeats) in [
            (r#"{"a":1,"a"#, r#"""#, true),
            (r#"{"a":1,"a"#, r#"b""#, false),
            (r#"{"a":1,"#, r#""a":"#, true),
            (r#"{"a":1"#, r#","a":"#, true),
            (r#"{"a":"","#, r#""b":"","a""#, true),
            (r#"{"a":{"a":[{"a":1}, {"#, r#""a""#, false),
            (r#"{"a":{"b":1},"b"#, r#"""#, false),
            (r#"{"a":{"b":1},"a"#, r#"":"#, true),
            (r#"{"a":"a","b":"a"#, r#"""#, false),
            (r#"{"a":"x"#, r#"","a""#, true),
            (r#"{"a":["a","a"#, r#"""#, false),
            (r#"{"\"":1,"\"#, r#"""#, false),
            (r#"{"\"":1,"\""#, r#"""#, true),
            (r#"{"\\":1,"\\"#, r#"""#, true),
            (r#"{"a":1} {"a"#, r#"""#, false),
            (r#"text, "{"a":1,"#, r#""a""#, false),
            ("", r#"{"a":1,"a":2}"#, true),
        ] {
            let mut names = Names::default();
            assert!(!names.push(text.as_bytes()), "{text}");
            assert_eq!(names.repeats(next.as_bytes()), repeats, "{text} {next}");
            assert_eq!(names.push(next.as_bytes()), repeats, "{text} {next}");
        }
    }
}
