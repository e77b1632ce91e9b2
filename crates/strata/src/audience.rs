//! Who is answered, and what texts take of memory for it besides the engine.

use strata_device::Bytes;
use strata_model::tokenizer::Tokenizer;

use crate::footprint::Footprint;

/// Least memory for requests of many clients that wait or are being read: bodies, texts, token ids.
pub const REQUEST_BYTES: usize = 128 << 20;

/// Least memory for the one text that is answered: what a short conversation takes to be tokenized.
const TEXT_BYTES: u64 = 1 << 20;

/// Tokenizing a conversation may take one part in so many of the budget.
const TALK_SHARE: u64 = 16;

/// Bytes of text that a token stands for, rather more than fewer.
const BYTES_PER_TOKEN: usize = 5;

/// Who is answered, which says what texts take besides the engine.
#[derive(Clone, Copy)]
pub enum Audience<'a> {
    /// Nobody: passes are measured.
    Nobody,
    /// One prompt, which has been tokenized, and takes so many bytes with its text.
    Prompt(Bytes),
    /// One person at a time, whose conversation grows and is tokenized by this.
    Person(&'a Tokenizer),
    /// Many clients at once.
    Clients,
}

/// What takes memory besides the engine.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub footprint: Footprint,
    pub audience: Audience<'a>,
}

impl Audience<'_> {
    /// Memory for texts, at the least.
    pub fn least(self) -> Bytes {
        match self {
            Self::Nobody => Bytes(0),
            Self::Prompt(bytes) => Bytes(bytes.0.max(TEXT_BYTES)),
            Self::Person(_) => Bytes(TEXT_BYTES),
            Self::Clients => Bytes(REQUEST_BYTES as u64),
        }
    }

    /// What texts would take if they were as long as a context of so many tokens, where that is to be foreseen; not too
    /// much of `total`.
    pub fn of_context(self, tokens: usize, total: Bytes) -> Option<Bytes> {
        let Self::Person(tokenizer) = self else { return None };
        // Lines of a usual length, as text that people write has them.
        const LINE: &str = "Lines of some words, as they are written, and as they can be cut.\n";
        let text = LINE.repeat(tokens.saturating_mul(BYTES_PER_TOKEN).min(8 << 20).div_ceil(LINE.len()));
        let wanted = (tokenizer.scratch_bytes(&text) + text.len() * 2) as u64;
        Some(Bytes(wanted.min(total.0 / TALK_SHARE)))
    }
}
