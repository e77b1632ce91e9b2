//! Groups of texts and numbers by which the entries of a list are told apart.
//!
//! Two values that are the same are in the same group, however they are written. So a list that takes each group once
//! has no value twice. A grammar counts groups, but not values.

use super::decimal::Decimal;

/// One of some groups: texts are told apart by their last character, and by their first where there are all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group {
    index: usize,
    is_fine: bool,
}

/// How many groups there are, by the last character, and by the first.
const BY_LAST: usize = 16;
const BY_FIRST: usize = 4;
/// Where groups of characters begin that ASCII does not have; the last one ends with the last character.
const BORDERS: [u32; BY_LAST + 1] = [
    0x80, 0xc0, 0x180, 0x400, 0x440, 0x600, 0x1000, 0x3040, 0x3100, 0x6000, 0x7000, 0x8000, 0x9000, 0xac00, 0xc400,
    0xe000, 0x110000,
];
/// How many groups there are of the character before the last digit of a number.
const BEFORE_DIGIT: usize = 6;
/// A number with one form, but for zero, which floating point tells from others of these.
const NUMBER: &str = r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{0,4}[1-9])?|-?[1-9][0-9]{0,14}";

impl Group {
    /// All groups: fine ones, or those of the last character alone.
    pub(super) fn all(is_fine: bool) -> impl Iterator<Item = Self> {
        let count = if is_fine { BY_LAST * BY_FIRST } else { BY_LAST };
        (0..count).map(move |index| Self { index, is_fine })
    }

    /// Whether values are in it that nothing tells apart.
    pub(super) fn has_others(self) -> bool {
        self.index == self.behind_numbers()
    }

    /// Whether a truth value is in it.
    pub(super) fn has_bool(self, value: bool) -> bool {
        self.index == self.behind_numbers() + 1 + usize::from(value)
    }

    /// The first group without numbers.
    fn behind_numbers(self) -> usize {
        if self.is_fine { 10 * BEFORE_DIGIT } else { 10 }
    }

    /// Whether a text is in it.
    pub(super) fn has_text(self, text: &str) -> bool {
        let (Some(first), Some(last)) = (text.chars().next(), text.chars().next_back()) else { return self.index == 0 };
        self.last() == place(last, BY_LAST) && (!self.is_fine || self.first() == place(first, BY_FIRST))
    }

    /// Whether a number is in it; `None` if it has another form than those in groups.
    pub(super) fn has_number(self, text: &str) -> Option<bool> {
        let bare = text.strip_prefix('-').unwrap_or(text);
        let (whole, places) = bare.split_once('.').map_or((bare, None), |(whole, places)| (whole, Some(places)));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_known = is_digits(whole)
            && match places {
                None => whole.len() <= 15,
                Some(places) => is_digits(places) && !places.ends_with('0') && whole.len() <= 9 && places.len() <= 5,
            };
        if !is_known || Decimal::of(text).is_none() {
            return None;
        }
        let mut digits = bare.bytes().rev();
        let last = digits.next().map(|byte| usize::from(byte - b'0'))?;
        let before = digits.next().filter(u8::is_ascii_digit).map_or(0, |byte| usize::from(byte - b'0') % BEFORE_DIGIT);
        Some(self.has_digits(before, last))
    }

    fn has_digits(self, before: usize, last: usize) -> bool {
        if self.is_fine { self.index == before * 10 + last } else { self.index == last }
    }

    fn last(self) -> usize {
        self.index % BY_LAST
    }

    fn first(self) -> usize {
        self.index / BY_LAST
    }

    /// An expression of its texts as JSON strings, of which `character` is one of a character. Neither the first nor
    /// the last has an escape.
    pub(super) fn texts(self, character: &str) -> String {
        let last = class(self.last(), BY_LAST);
        let empty = if self.index == 0 { "|" } else { "" };
        if !self.is_fine {
            return format!("\"({character}*{last}{empty})\"");
        }
        let first = class(self.first(), BY_FIRST);
        // One character alone is the first and the last.
        let alone = if self.first() == self.last() % BY_FIRST { format!("|{last}") } else { String::new() };
        format!("\"({first}{character}*{last}{alone}{empty})\"")
    }

    /// Expressions of its numbers, which match all of them; none if it has no numbers.
    pub(super) fn numbers(self) -> Option<[String; 2]> {
        let (mut all, mut ways) = (NUMBER.to_owned(), Vec::new());
        for last in 0..10 {
            for before in 0..BEFORE_DIGIT {
                if !self.has_digits(before, last) {
                    continue;
                }
                let digits: String =
                    (0..10).filter(|digit| digit % BEFORE_DIGIT == before).map(|digit| digit.to_string()).collect();
                ways.push(format!(r"[0-9.-]*[{digits}]{last}"));
                if before == 0 {
                    ways.push(format!(r"-?{last}|-?[0-9]+\.{last}"));
                }
            }
        }
        all = format!("({all})");
        if ways.is_empty() { None } else { Some([all, format!("({})", ways.join("|"))]) }
    }
}

/// The group of a character.
fn place(one: char, count: usize) -> usize {
    let code = one as u32;
    let index = if code < BORDERS[0] {
        code as usize
    } else {
        BORDERS.iter().skip(1).position(|&border| code < border).unwrap_or(0)
    };
    index % count
}

/// The characters of a group that stand for themselves in JSON, in an expression.
fn class(index: usize, count: usize) -> String {
    let plain = (b' '..0x7f).filter(|byte| !matches!(byte, b'"' | b'\\') && place(char::from(*byte), count) == index);
    let mut class = String::from("[");
    for byte in plain {
        class += &if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("\\x{byte:02x}") };
    }
    for at in (0..BY_LAST).filter(|at| at % count == index) {
        // Surrogates are no characters.
        let end = if BORDERS[at + 1] == 0xe000 { 0xd800 } else { BORDERS[at + 1] };
        class += &format!("\\u{{{:x}}}-\\u{{{:x}}}", BORDERS[at], end - 1);
    }
    class + "]"
}
