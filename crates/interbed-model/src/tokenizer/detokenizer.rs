//! Converts tokens to text, one token at a time.

use std::sync::Arc;

use super::Tokenizer;
use super::decoder::{DecoderKind, fallback_byte, replaced};

/// The most tokens in the window of [`DecoderKind::Other`]. If this many tokens have no certain text, their text is
/// taken as it is.
const MAX_WINDOW: usize = 64;

/// Decodes a growing sequence of tokens.
///
/// [`push`](Self::push) and [`finish`](Self::finish) return pieces of text. The pieces, joined, are the text that
/// [`Tokenizer::decode`] returns for the whole sequence. No piece ends inside a character. The work for each token is
/// proportional to the token's length. Returning text that was held back takes additional work, proportional to the
/// length of that text.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: State,
}

impl Detokenizer {
    /// Makes a detokenizer for an empty sequence. With `skip_special`, special tokens have no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, state: State::new(skip_special) }
    }

    /// Takes the next token and returns the text that is now certain. The text is empty while a character is
    /// incomplete.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.state.push(&self.tokenizer, id, &mut text);
        text
    }

    /// Ends the sequence and returns the text that was held back, with U+FFFD for incomplete characters. A token that
    /// is pushed afterwards begins a new sequence.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.state.finish(&self.tokenizer, &mut text);
        self.state = State::new(self.state.skip_special);
        text
    }

    /// Returns the tokenizer of the decoded tokens.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}

/// The decoding state of one sequence.
#[derive(Debug)]
pub(super) struct State {
    skip_special: bool,
    /// Whether a piece has been decoded before. SentencePiece treats the first piece of a text specially.
    started: bool,
    /// The number of characters that were removed from the beginning of the text.
    stripped: usize,
    stripping: bool,
    /// The bytes of an incomplete character (byte level), or of a run of byte pieces (SentencePiece).
    bytes: Vec<u8>,
    /// The window of [`DecoderKind::Other`]: the latest tokens, of which the first `window_read` have become text.
    window: Vec<u32>,
    window_read: usize,
}

impl State {
    pub(super) fn new(skip_special: bool) -> Self {
        Self {
            skip_special,
            started: false,
            stripped: 0,
            stripping: true,
            bytes: Vec::new(),
            window: Vec::new(),
            window_read: 0,
        }
    }

    /// Takes the next token and appends to `text` the text that is now certain.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        if self.skip_special && tokenizer.is_special(id) {
            return;
        }
        if let DecoderKind::Other = tokenizer.decoder {
            return self.push_window(tokenizer, id, text);
        }
        let Some(piece) = tokenizer.vocabulary_entry(id) else { return };
        match &tokenizer.decoder {
            DecoderKind::ByteLevel => {
                self.bytes.extend(tokenizer.decoder.piece_bytes(&piece));
                drain_utf8(&mut self.bytes, text);
            }
            DecoderKind::SentencePiece { replacements, byte_fallback, strip } => {
                let piece = replaced(&piece, replacements);
                // A run of byte pieces is text only if all of it is UTF-8, so it is held until it ends.
                match fallback_byte(&piece).filter(|_| *byte_fallback) {
                    Some(byte) => self.bytes.push(byte),
                    None => {
                        self.end_byte_run(*strip, text);
                        self.append_stripped(&piece, *strip, text);
                    }
                }
            }
            DecoderKind::Metaspace { replacement, strip_first } => {
                let mark = if *strip_first && !self.started { "" } else { " " };
                text.push_str(&piece.replace(*replacement, mark));
            }
            DecoderKind::Other => {}
        }
        self.started = true;
    }

    /// Appends the text that was held back.
    pub(super) fn finish(&mut self, tokenizer: &Tokenizer, text: &mut String) {
        match &tokenizer.decoder {
            DecoderKind::ByteLevel => text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes))),
            DecoderKind::SentencePiece { strip, .. } => self.end_byte_run(*strip, text),
            DecoderKind::Metaspace { .. } => {}
            DecoderKind::Other => {
                let (before, now) = self.window_texts(tokenizer);
                text.push_str(now.get(before.len()..).unwrap_or_default());
            }
        }
    }

    fn end_byte_run(&mut self, strip: Option<(char, usize)>, text: &mut String) {
        if self.bytes.is_empty() {
            return;
        }
        let run = String::from_utf8(std::mem::take(&mut self.bytes));
        let run = run.unwrap_or_else(|error| "\u{FFFD}".repeat(error.as_bytes().len()));
        self.append_stripped(&run, strip, text);
    }

    /// Appends `piece` to `text`, but leaves out the characters at the beginning of the whole text that `strip` names.
    fn append_stripped(&mut self, mut piece: &str, strip: Option<(char, usize)>, text: &mut String) {
        if let Some((character, times)) = strip.filter(|_| self.stripping) {
            while self.stripped < times && piece.starts_with(character) {
                piece = &piece[character.len_utf8()..];
                self.stripped += 1;
            }
            // An empty piece decides nothing: the next may still begin with the character.
            self.stripping = piece.is_empty() && self.stripped < times;
        }
        text.push_str(piece);
    }

    /// Appends the text that a window of tokens gains by one more token. The window is used for decoders of other
    /// kinds. Its first tokens have become text already, so that a token whose text depends on the token before it is
    /// decoded correctly.
    fn push_window(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        self.window.push(id);
        let (before, now) = self.window_texts(tokenizer);
        let gained = now.get(before.len()..).unwrap_or_default();
        let certain = !gained.is_empty() && !gained.ends_with('\u{FFFD}');
        if !certain && self.window.len() < MAX_WINDOW {
            return;
        }
        text.push_str(gained);
        self.window.drain(..self.window_read);
        self.window_read = self.window.len();
    }

    fn window_texts(&self, tokenizer: &Tokenizer) -> (String, String) {
        let decode = |ids: &[u32]| tokenizer.decode_by_crate(ids, self.skip_special);
        (decode(&self.window[..self.window_read]), decode(&self.window))
    }
}

/// Moves all complete characters from the front of `bytes` to `text`, with U+FFFD for what can never become one:
/// exactly what `String::from_utf8_lossy` would put there.
fn drain_utf8(bytes: &mut Vec<u8>, text: &mut String) {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return;
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(invalid) = error.error_len() else {
                    *bytes = rest.to_vec();
                    return;
                };
                text.push('\u{FFFD}');
                *bytes = rest[invalid..].to_vec();
            }
        }
    }
}
