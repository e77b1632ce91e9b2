//! Makes text safe to print on a terminal: text from files may hold characters that control it.

use std::borrow::Cow;
use std::io::{self, Write, stdout};

use serde_json::Value;

/// Returns the text with escapes in place of characters that move the cursor, change colours, or reverse the direction
/// of writing. Line breaks and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_command)
}

/// Returns text that a model generated, safe to print on a terminal. Control characters except newline and tab could
/// change the terminal's title, colours or clipboard, so they are replaced by escapes such as `\u{1b}`.
pub fn without_controls(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

/// Returns the text with escapes in place of the characters that `is_meant` chooses. Line breaks and tabs stay.
fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_meant(character) && !matches!(character, '\n' | '\t');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_escaped(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Prints what a command was asked for on stdout: one JSON object, or a text in which nothing commands a terminal.
///
/// # Errors
/// Fails if stdout cannot be written.
pub fn print_answer(as_json: bool, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> io::Result<()> {
    let mut out = stdout().lock();
    if as_json {
        writeln!(out, "{:#}", json())?;
    } else {
        out.write_all(printable(&text()).as_bytes())?;
    }
    out.flush()
}

/// Returns the name with `_` in place of characters that control a terminal, line breaks included. Logs, metrics and
/// answers contain such names.
pub fn plain_name(name: &str) -> String {
    name.replace(is_command, "_")
}

/// Returns whether a character controls how a terminal shows text.
pub fn is_command(character: char) -> bool {
    // Some format characters change the direction of writing, or break lines and paragraphs.
    let formats =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || formats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_command_a_terminal_is_written_out() {
        for (text, shown) in [
            ("plain, h\u{e9}llo \u{1f600}\n\tand more", "plain, h\u{e9}llo \u{1f600}\n\tand more"),
            ("a\u{1b}[31mred\u{1b}[0m", "a\\u{1b}[31mred\\u{1b}[0m"),
            ("\u{9b}2J\u{7}\u{8}\r", "\\u{9b}2J\\u{7}\\u{8}\\u{d}"),
            ("txt.\u{202e}exe", "txt.\\u{202e}exe"),
            ("a\u{2066}b\u{2029}c\u{7f}", "a\\u{2066}b\\u{2029}c\\u{7f}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(without_controls("one\n\ttwo \u{e9}"), "one\n\ttwo \u{e9}");
        assert_eq!(without_controls("\x1b]0;title\x07\r\u{9b}31m"), "\\u{1b}]0;title\\u{7}\\u{d}\\u{9b}31m");
        assert_eq!(plain_name("m\u{1b}]0;x\u{7}\n\u{202e}y z"), "m_]0;x___y z");
    }
}
