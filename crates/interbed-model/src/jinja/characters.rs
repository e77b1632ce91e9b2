//! Characters as Python's strings see them.

use unicode_categories::UnicodeCategories;

/// `str.isspace`, which is also what regular expressions call white space.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Whether `str.splitlines` ends a line there.
pub(super) fn ends_line(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.isalpha`.
pub(super) fn is_alphabetic(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_alphabetic() } else { character.is_letter() }
}

/// Whether a letter is the title form of a pair, neither upper nor lower case.
pub(super) fn is_title_case(character: char) -> bool {
    !character.is_ascii() && character.is_letter_titlecase()
}

/// `str.isdecimal`.
pub(super) fn is_decimal(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_digit() } else { character.is_number_decimal_digit() }
}

/// `str.isalnum`, which is also what regular expressions call part of a word, with `_`.
pub(super) fn is_alphanumeric(character: char) -> bool {
    is_alphabetic(character) || character.is_numeric()
}

/// `str.isprintable`: `repr` escapes the others.
pub(super) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // The letter keeps a character that joins the one before it from being escaped for that.
    !format!("a{character}").escape_debug().to_string().starts_with("a\\u")
}
