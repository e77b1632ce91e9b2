//! Computes `text_offset` of `/v1/completions`, which is the offset of each token in a choice's text, in characters.
//!
//! A token that is not part of the text, such as the one that begins every prompt, has no length. A token that begins
//! inside a character has that character's offset.

use std::sync::Arc;

use interbed_engine::TokenId;
use interbed_model::tokenizer::{Detokenizer, Tokenizer};

/// Computes the offsets of one choice's tokens.
#[derive(Debug)]
pub(crate) struct TextOffsets {
    detokenizer: Detokenizer,
    skip_special: bool,
    started: bool,
    /// The number of characters so far.
    chars: usize,
    /// The number of bytes of an incomplete character.
    bytes: Vec<u8>,
}

impl TextOffsets {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let detokenizer = Detokenizer::new(tokenizer, skip_special);
        Self { detokenizer, skip_special, started: false, chars: 0, bytes: Vec::new() }
    }

    /// Returns the offset of `token`, the next one of the answer.
    pub(crate) fn next(&mut self, token: TokenId) -> usize {
        let at = self.chars;
        let text = self.text(token);
        self.bytes.extend(text);
        while !self.bytes.is_empty() {
            let (whole, rest) = match std::str::from_utf8(&self.bytes) {
                Ok(text) => (text.chars().count(), self.bytes.len()),
                // Invalid bytes become a replacement character in the text.
                Err(error) => {
                    let whole = String::from_utf8_lossy(&self.bytes[..error.valid_up_to()]).chars().count();
                    let Some(invalid) = error.error_len() else {
                        self.chars += whole;
                        self.bytes.drain(..error.valid_up_to());
                        break;
                    };
                    (whole + 1, error.valid_up_to() + invalid)
                }
            };
            self.chars += whole;
            self.bytes.drain(..rest);
        }
        at
    }

    /// Returns the offsets of the prompt's tokens. The prompt's text precedes the answer's.
    pub(crate) fn of_prompt(&mut self, tokens: &[TokenId], text: &str) -> Vec<usize> {
        let mut place = Place { text, at: 0, chars: 0 };
        let tokenizer = Arc::clone(self.detokenizer.tokenizer());
        let place_of = |&token: &TokenId| {
            let bytes = tokenizer.token_bytes(token);
            place.take(&bytes, tokenizer.is_special(token))
        };
        let places = tokens.iter().map(place_of).collect();
        self.chars = text.chars().count();
        places
    }

    /// Returns the bytes that `token` adds to the answer.
    fn text(&mut self, token: TokenId) -> Vec<u8> {
        let tokenizer = self.detokenizer.tokenizer();
        if self.skip_special && tokenizer.is_special(token) {
            return Vec::new();
        }
        let is_first = !std::mem::replace(&mut self.started, true);
        if !tokenizer.spells_bytes() {
            return self.detokenizer.push(token).into_bytes();
        }
        let bytes = tokenizer.token_bytes(token);
        // The first token may lose a space.
        match is_first && bytes.starts_with(b" ") {
            true => tokenizer.decode(&[token], self.skip_special).into_bytes(),
            false => bytes,
        }
    }
}

/// A position in a text that tokens spell, apart from changes by a normalizer.
struct Place<'a> {
    text: &'a str,
    /// The offset of the position in bytes.
    at: usize,
    /// The number of characters before the position.
    chars: usize,
}

impl Place<'_> {
    /// Moves past a token that spells `bytes`, and returns the token's offset in characters.
    fn take(&mut self, bytes: &[u8], is_special: bool) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        let spaces = rest.len() - rest.trim_ascii_start().len();
        if rest.starts_with(bytes) {
            return self.pass(0, bytes.len());
        }
        // Some tokens include the space before them, or what follows; others add one.
        if rest[spaces..].starts_with(bytes) {
            return self.pass(spaces, bytes.len());
        }
        if is_special {
            return self.pass(0, 0);
        }
        let without = bytes.trim_ascii_start();
        if !without.is_empty() && rest.starts_with(without) {
            return self.pass(0, without.len());
        }
        // A normalizer has changed the text of this token, so it is assumed to have as many characters as the token.
        let count = String::from_utf8_lossy(bytes).chars().count();
        let from = (self.at..).find(|&at| self.text.is_char_boundary(at)).unwrap_or(self.text.len());
        let taken: usize = self.text[from..].chars().take(count).map(char::len_utf8).sum();
        self.pass(0, from + taken - self.at)
    }

    /// Skips `before` bytes, then `bytes` bytes of a token, and returns the token's offset in characters.
    fn pass(&mut self, before: usize, bytes: usize) -> usize {
        self.go(before);
        let begins = self.chars - usize::from(!self.text.is_char_boundary(self.at));
        self.go(bytes);
        begins
    }

    fn go(&mut self, bytes: usize) {
        let passed = &self.text.as_bytes()[self.at..self.at + bytes];
        self.chars += passed.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        self.at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use interbed_engine::testing::{BOS, EOS, byte_tokenizer};

    use super::*;

    fn of_answer(skip_special: bool, tokens: &[TokenId]) -> Vec<usize> {
        let mut offsets = TextOffsets::new(Arc::new(byte_tokenizer()), skip_special);
        tokens.iter().map(|&token| offsets.next(token)).collect()
    }

    #[test]
    fn tokens_begin_where_their_text_does() {
        let a = u32::from(b'a');
        // Tests a character of two tokens, an incomplete one, and special tokens.
        assert_eq!(of_answer(true, &[a, 0xC3, 0xA9, a, 0xC3, a, EOS, a]), [0, 1, 1, 2, 3, 3, 5, 5]);
        assert_eq!(of_answer(false, &[a, EOS, a]), [0, 1, 5]);
        assert_eq!(of_answer(true, &[0xE4, 0xBD, 0xA0, a]), [0, 0, 0, 1]);
    }

    #[test]
    fn what_is_not_in_the_prompts_text_takes_no_room() {
        let of = |text: &str, tokens: &[TokenId]| {
            let mut offsets = TextOffsets::new(Arc::new(byte_tokenizer()), true);
            let mut all = offsets.of_prompt(tokens, text);
            all.push(offsets.next(u32::from(b'x')));
            all
        };
        let [a, b] = [u32::from(b'a'), u32::from(b'b')];
        assert_eq!(of("ab", &[BOS, a, b, EOS]), [0, 0, 1, 2, 2]);
        // Special tokens that the text contains count, with or without white space that they absorb.
        assert_eq!(of("<s>a</s>b", &[BOS, a, EOS, b]), [0, 3, 4, 8, 9]);
        assert_eq!(of("a </s>\n b", &[BOS, a, EOS, b]), [0, 0, 2, 8, 9]);
        assert_eq!(of("\u{e9}a", &[0xC3, 0xA9, a]), [0, 0, 1, 2]);
        // A normalizer has made the text shorter, or longer.
        assert_eq!(of("e\u{301}a", &[0xC3, 0xA9, a]).last(), Some(&3));
        assert_eq!(of("A", &[a, b]), [0, 1, 1]);
    }
}
