//! Classifies characters as the methods of Python's strings do.

use unicode_categories::UnicodeCategories;

/// Returns what Python's `str.isspace` returns. Regular expressions of Python have the same white space.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Returns whether Python's `str.splitlines` ends a line at this character.
pub(super) fn ends_line(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns what Python's `str.isalpha` returns.
pub(super) fn is_alphabetic(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_alphabetic() } else { character.is_letter() }
}

/// Returns whether a letter has title case, which is neither upper nor lower case.
pub(super) fn is_title_case(character: char) -> bool {
    !character.is_ascii() && character.is_letter_titlecase()
}

/// Returns what Python's `str.isdecimal` returns.
pub(super) fn is_decimal(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_digit() } else { character.is_number_decimal_digit() }
}

/// Returns what Python's `str.isalnum` returns. In regular expressions of Python, these characters and `_` form words.
pub(super) fn is_alphanumeric(character: char) -> bool {
    is_alphabetic(character) || character.is_numeric()
}

/// Returns what Python's `str.isprintable` returns. Python's `repr` escapes all other characters.
pub(super) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // The letter `a` goes first, because `escape_debug` would escape a combining character at the beginning.
    !format!("a{character}").escape_debug().to_string().starts_with("a\\u")
}
