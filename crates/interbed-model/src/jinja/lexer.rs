//! Divides the source of a template into tokens, with Jinja's rules for white space. The options `trim_blocks` and
//! `lstrip_blocks` are on, and one newline at the end of the source is dropped.

use std::sync::Arc;

use super::characters::is_space;
use super::fault::{Fault, Result};

/// A token of a template's source.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(Arc<str>),
    /// The token `{{`. The end of an expression, `}}`, is [`Token::VariableEnd`].
    VariableBegin,
    VariableEnd,
    /// The token `{%`. The end of a statement, `%}`, is [`Token::BlockEnd`].
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Text(Arc<str>),
    Integer(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// A token with the number of its line, counted from 1.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) token: Token,
    pub(super) line: usize,
}

/// The operators of Jinja. Longer ones come first, because the lexer takes the first that fits.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";", "\u{0}",
];

/// Returns the tokens of a source.
///
/// # Errors
/// Fails if a tag or a string does not end, or if a character belongs to no token.
pub(super) fn tokens(source: &str) -> Result<Vec<Placed>> {
    let source = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer = Lexer { source, position: 0, line: 1, line_starting: true, tokens: Vec::new() };
    lexer.root()?;
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    position: usize,
    line: usize,
    /// Whether the last match ended with a newline.
    line_starting: bool,
    tokens: Vec<Placed>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Variable,
    Block,
    Comment,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.position..]
    }

    fn push(&mut self, token: Token) {
        self.tokens.push(Placed { token, line: self.line });
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.rest()[..bytes];
        self.line += passed.matches('\n').count();
        if let Some(last) = passed.chars().next_back() {
            self.line_starting = last == '\n';
        }
        self.position += bytes;
    }

    fn root(&mut self) -> Result<()> {
        while !self.rest().is_empty() {
            let Some((start, kind)) = self.next_tag() else {
                let text = self.rest();
                self.data(text);
                self.advance(text.len());
                return Ok(());
            };
            let text = &self.rest()[..start];
            let tag = &self.rest()[start..];
            let raw = if kind == Kind::Block { raw_begin(tag) } else { None };
            let sign = tag[2..].chars().next().filter(|&sign| matches!(sign, '-' | '+'));
            let kept = self.before_tag(text, sign, kind == Kind::Variable);
            self.data(kept);
            if let Some(length) = raw {
                self.advance(start + length);
                self.raw()?;
                continue;
            }
            self.advance(start + 2 + usize::from(sign.is_some()));
            match kind {
                Kind::Comment => self.comment()?,
                Kind::Block => self.tag(Token::BlockBegin)?,
                Kind::Variable => self.tag(Token::VariableBegin)?,
            }
        }
        Ok(())
    }

    fn next_tag(&self) -> Option<(usize, Kind)> {
        let rest = self.rest();
        let mut from = 0;
        loop {
            let start = from + rest[from..].find('{')?;
            match rest.as_bytes().get(start + 1) {
                Some(b'{') => return Some((start, Kind::Variable)),
                Some(b'%') => return Some((start, Kind::Block)),
                Some(b'#') => return Some((start, Kind::Comment)),
                _ => from = start + 1,
            }
        }
    }

    /// Returns what is kept of the `text` before a tag. `sign` is the `-` or `+` with which the tag begins.
    fn before_tag(&self, text: &'s str, sign: Option<char>, variable: bool) -> &'s str {
        match sign {
            Some('-') => text.trim_end_matches(is_space),
            Some(_) => text,
            None if variable => text,
            None => {
                let line = text.rfind('\n').map_or(0, |newline| newline + 1);
                let only_space = !text[line..].is_empty() && text[line..].chars().all(is_space);
                if (line > 0 || self.line_starting) && only_space { &text[..line] } else { text }
            }
        }
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.into()));
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return Err(Fault::at("a comment does not end", self.line));
        };
        let minus = end > 0 && self.rest().as_bytes()[end - 1] == b'-';
        let plus = end > 0 && self.rest().as_bytes()[end - 1] == b'+';
        let after = &self.rest()[end + 2..];
        self.advance(end + 2 + after_tag(after, minus, plus));
        Ok(())
    }

    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("{%") {
            let start = from + found;
            if let Some((sign, length)) = raw_end(&rest[start..]) {
                let kept = self.before_tag(&rest[..start], sign, false);
                self.data(kept);
                self.advance(start + length);
                return Ok(());
            }
            from = start + 2;
        }
        Err(Fault::at("a raw block does not end", self.line))
    }

    /// Reads the tokens between the beginning of a tag, `{{` or `{%`, and its end.
    fn tag(&mut self, begin: Token) -> Result<()> {
        let (close, end) = match begin {
            Token::BlockBegin => ("%}", Token::BlockEnd),
            _ => ("}}", Token::VariableEnd),
        };
        let block = begin == Token::BlockBegin;
        self.push(begin);
        let mut open: Vec<&str> = Vec::new();
        loop {
            let rest = self.rest();
            if open.is_empty() {
                let signed = ["-", "+"].into_iter().find(|sign| {
                    (block || *sign == "-") && rest.strip_prefix(sign).is_some_and(|rest| rest.starts_with(close))
                });
                if signed.is_some() || rest.starts_with(close) {
                    self.push(end);
                    let length = signed.map_or(0, str::len) + close.len();
                    let after = &rest[length..];
                    let skipped = match signed {
                        Some("-") => after_tag(after, true, false),
                        None if block => after_tag(after, false, false),
                        _ => 0,
                    };
                    self.advance(length + skipped);
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                return Err(Fault::at("a tag does not end", self.line));
            };
            if is_space(first) {
                let length = rest.find(|character| !is_space(character)).unwrap_or(rest.len());
                self.advance(length);
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let is_part = |character: char| character == '_' || character.is_alphanumeric();
                let length = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
                let name = &rest[..length];
                if !name.is_ascii() {
                    return Err(
                        Fault::unsupported(format!("the name {name:?}, which is not ASCII,")).in_line(self.line)
                    );
                }
                self.push(Token::Name(name.into()));
                self.advance(length);
            } else if first == '\'' || first == '"' {
                self.string(first)?;
            } else {
                self.operator(first, &mut open)?;
            }
        }
    }

    fn operator(&mut self, first: char, open: &mut Vec<&str>) -> Result<()> {
        let rest = self.rest();
        let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) else {
            return Err(Fault::at(format!("unexpected character {first:?}"), self.line));
        };
        match *operator {
            "{" => open.push("}"),
            "(" => open.push(")"),
            "[" => open.push("]"),
            "}" | ")" | "]" if open.pop() != Some(*operator) => {
                return Err(Fault::at(format!("unexpected `{operator}`"), self.line));
            }
            _ => {}
        }
        self.push(Token::Operator(operator));
        self.advance(operator.len());
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let after_dot = self.source[..self.position].ends_with('.');
        if let Some(length) = if after_dot { None } else { float_length(rest) } {
            let text = rest[..length].replace('_', "");
            let value = text.parse().map_err(|_| Fault::at(format!("{text} is no number"), self.line))?;
            self.push(Token::Float(value));
            self.advance(length);
            return Ok(());
        }
        let (length, radix) = integer_length(rest);
        let digits = rest[if radix == 10 { 0 } else { 2 }..length].replace('_', "");
        let value = i128::from_str_radix(&digits, radix)
            .map_err(|_| Fault::at(format!("the integer {} is too large", &rest[..length]), self.line))?;
        self.push(Token::Integer(value));
        self.advance(length);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut escaped = false;
        for (index, character) in rest.char_indices().skip(1) {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if character == quote => {
                    let text = unescaped(&rest[1..index]).map_err(|fault| fault.in_line(self.line))?;
                    self.push(Token::Text(text.into()));
                    self.advance(index + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(Fault::at("a string does not end", self.line))
    }
}

/// Returns how many bytes of white space the end of a tag removes from the text `after` the tag.
fn after_tag(after: &str, minus: bool, plus: bool) -> usize {
    if minus {
        return after.find(|character| !is_space(character)).unwrap_or(after.len());
    }
    usize::from(!plus && after.starts_with('\n'))
}

fn skip_space(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Returns the length of `{% raw %}` in bytes, with the white space that its end removes, or `None` if `tag` begins
/// another tag.
fn raw_begin(tag: &str) -> Option<usize> {
    let inner = tag[2..].strip_prefix(['-', '+']).unwrap_or(&tag[2..]);
    let after = skip_space(skip_space(inner).strip_prefix("raw")?);
    let rest = match after.strip_prefix("-%}") {
        Some(rest) => skip_space(rest),
        None => after.strip_prefix("%}")?,
    };
    Some(tag.len() - rest.len())
}

/// Returns the sign and the length of `{% endraw %}` in bytes, with the white space that its end removes, or `None` if
/// `tag` begins another tag.
fn raw_end(tag: &str) -> Option<(Option<char>, usize)> {
    let sign = tag[2..].chars().next().filter(|&sign| matches!(sign, '-' | '+'));
    let inner = &tag[2 + usize::from(sign.is_some())..];
    let after = skip_space(skip_space(inner).strip_prefix("endraw")?);
    let (minus, plus) = (after.starts_with('-'), after.starts_with('+'));
    let rest = after.strip_prefix(['-', '+']).unwrap_or(after).strip_prefix("%}")?;
    Some((sign, tag.len() - rest.len() + after_tag(rest, minus, plus)))
}

/// Returns how many bytes at the beginning of `text` are digits, with single underscores between them.
fn digits_length(text: &str) -> usize {
    let mut length = 0;
    let bytes = text.as_bytes();
    loop {
        match bytes.get(length) {
            Some(digit) if digit.is_ascii_digit() => length += 1,
            Some(b'_') if length > 0 && bytes.get(length + 1).is_some_and(u8::is_ascii_digit) => length += 1,
            _ => return length,
        }
    }
}

fn float_length(text: &str) -> Option<usize> {
    let whole = digits_length(text);
    let mut length = whole;
    let mut fraction = 0;
    if text[whole..].starts_with('.') {
        fraction = digits_length(&text[whole + 1..]);
        if fraction > 0 {
            length = whole + 1 + fraction;
        }
    }
    let exponent = text[length..].strip_prefix(['e', 'E']).and_then(|rest| {
        let sign = usize::from(rest.starts_with(['+', '-']));
        let digits = digits_length(&rest[sign..]);
        (digits > 0).then_some(1 + sign + digits)
    });
    match exponent {
        Some(exponent) => Some(length + exponent),
        None => (fraction > 0).then_some(length),
    }
}

/// Returns the length of an integer in bytes, and its radix.
fn integer_length(text: &str) -> (usize, u32) {
    for (letter, radix) in [('b', 2), ('o', 8), ('x', 16)] {
        let bytes = text.as_bytes();
        if bytes[0] == b'0' && bytes.get(1).is_some_and(|byte| byte.to_ascii_lowercase() == letter as u8) {
            let is_digit = |byte: Option<&u8>| byte.is_some_and(|&byte| char::from(byte).is_digit(radix));
            let mut length = 2;
            loop {
                if is_digit(bytes.get(length)) {
                    length += 1;
                } else if bytes.get(length) == Some(&b'_') && is_digit(bytes.get(length + 1)) {
                    length += 2;
                } else {
                    break;
                }
            }
            if length > 2 {
                return (length, radix);
            }
        }
    }
    if text.starts_with('0') {
        let zeros = text.char_indices().take_while(|&(_, digit)| digit == '0' || digit == '_').count();
        let zeros = text[..zeros].trim_end_matches('_').len();
        return (if text[..zeros].contains("__") { 1 } else { zeros }, 10);
    }
    (digits_length(text), 10)
}

/// Returns the value of a string. Escapes have the meaning that Python's `unicode-escape` gives them after every
/// character beyond ASCII was written as an escape.
fn unescaped(text: &str) -> Result<String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut value = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        value.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escape) = rest.chars().next() else { return Err(Fault::new("a string ends with a backslash")) };
        rest = &rest[escape.len_utf8()..];
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => value.push(escape),
            'a' => value.push('\u{7}'),
            'b' => value.push('\u{8}'),
            'f' => value.push('\u{c}'),
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            'v' => value.push('\u{b}'),
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let digits = format!("{escape}{}", &rest[..more]);
                rest = &rest[more..];
                value.push(code_point(u32::from_str_radix(&digits, 8).unwrap_or(0))?);
            }
            'x' | 'u' | 'U' => {
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code = rest.get(..digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let Some(code) = code else {
                    return Err(Fault::new(format!("a string has \\{escape} without {digits} hexadecimal digits")));
                };
                rest = &rest[digits..];
                value.push(code_point(u32::from_str_radix(code, 16).unwrap_or(u32::MAX))?);
            }
            'N' => return Err(Fault::unsupported("the escape \\N")),
            other if other.is_ascii() => {
                value.push('\\');
                value.push(other);
            }
            // Python doubles the backslash with that of the escape.
            other => value.push_str(&backslashed(other)),
        }
    }
    value.push_str(rest);
    Ok(value)
}

fn code_point(code: u32) -> Result<char> {
    char::from_u32(code)
        .ok_or_else(|| Fault::unsupported(format!("the escape of U+{code:04X}, a half of a character,")))
}

fn backslashed(character: char) -> String {
    match u32::from(character) {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}
