//! The kinds of callers, and the memory that their texts take outside the engine.

use interbed_device::Bytes;
use interbed_model::tokenizer::Tokenizer;

use crate::footprint::Footprint;

/// Least memory for requests of many clients that wait or are being read: bodies, texts, token ids.
pub const REQUEST_BYTES: usize = 128 << 20;

/// Least memory for the one text that is answered: what a short conversation takes to be tokenized.
const TEXT_BYTES: u64 = 1 << 20;

/// Tokenizing a conversation may take one part in this many of the budget.
const TALK_SHARE: u64 = 16;

/// Bytes of text of a token, rather too many than too few.
const BYTES_PER_TOKEN: usize = 5;

/// The kind of caller, which decides how much memory texts take outside the engine.
#[derive(Clone, Copy)]
pub enum Audience<'a> {
    /// No texts: passes are measured.
    Nobody,
    /// One prompt that has been tokenized; its tokens and text take this many bytes.
    Prompt(Bytes),
    /// One person at a time, whose conversation grows and is tokenized by this.
    Person(&'a Tokenizer),
    /// Many clients at once.
    Clients,
}

/// What takes memory outside the engine.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The memory of the process before the model is loaded.
    pub footprint: Footprint,
    /// Who will send texts.
    pub audience: Audience<'a>,
}

impl Audience<'_> {
    /// The least memory that texts need.
    pub fn least(self) -> Bytes {
        match self {
            Self::Nobody => Bytes(0),
            Self::Prompt(bytes) => Bytes(bytes.0.max(TEXT_BYTES)),
            Self::Person(_) => Bytes(TEXT_BYTES),
            Self::Clients => Bytes(REQUEST_BYTES as u64),
        }
    }

    /// What texts as long as a context of `tokens` would take, if texts can become that long; limited to a share of
    /// `total`.
    pub fn of_context(self, tokens: usize, total: Bytes) -> Option<Bytes> {
        let Self::Person(tokenizer) = self else { return None };
        // Lines of a usual length, as text that people write has them.
        const LINE: &str = "Lines of some words, as they are written, and as they can be cut.\n";
        let text = LINE.repeat(tokens.saturating_mul(BYTES_PER_TOKEN).min(8 << 20).div_ceil(LINE.len()));
        let wanted = (tokenizer.scratch_bytes(&text) + text.len() * 2) as u64;
        Some(Bytes(wanted.min(total.0 / TALK_SHARE)))
    }
}
