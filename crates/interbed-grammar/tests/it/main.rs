//! Tests the crate's public interface.

mod bytes;
mod ebnf;
mod entangled;
mod instances;
mod keywords;
mod parts;
mod published;
mod refusals;
mod unique;
mod walks;

use interbed_grammar::{TokenText, Vocabulary};

/// The token that ends a text in [`bytes_and`].
pub const EOS: u32 = 256;
/// A special token in [`bytes_and`].
pub const CALL: u32 = 257;

/// Creates a vocabulary of all bytes, two special tokens, and `more` from id 258 on.
pub fn bytes_and(more: &[&str]) -> Vocabulary {
    let bytes = (0..=255).map(|byte| TokenText::Text(vec![byte]));
    let special = [TokenText::Special("<end>".into()), TokenText::Special("<call>".into())];
    let more = more.iter().map(|text| TokenText::Text(text.as_bytes().to_vec()));
    let tokens: Vec<_> = bytes.chain(special).chain(more).collect();
    Vocabulary::new(&tokens, &[EOS]).expect("a vocabulary")
}

/// Tokens of several bytes that cross all kinds of boundaries in JSON.
pub const PIECES: [&str; 40] = [
    "{\"",
    "\":",
    "\": ",
    ", ",
    ",\"",
    "\", \"",
    "\"}",
    "\"]",
    "]}",
    "}}",
    "[",
    "[]",
    "{}",
    "true",
    "false",
    "tru",
    "null",
    "red",
    "\"red\"",
    "name",
    "\"name\": ",
    "{\"name\"",
    "age",
    "tags",
    "is ok",
    "10",
    "-1",
    "42,",
    "abc",
    "ab-1",
    "\\\"",
    "a\\\"b",
    "gr\u{fc}n",
    "\u{fc}",
    "  ",
    " {",
    "\n",
    "\n  ",
    "]]",
    "\"a\"",
];
