//! The senders of texts, and the memory that their texts take outside the engine.

use interbed_device::Bytes;
use interbed_model::tokenizer::Tokenizer;

use crate::footprint::Footprint;

/// The minimum memory, in bytes, that a server reserves outside the engine for requests: bodies, texts and token ids.
pub const REQUEST_BYTES: usize = 128 << 20;

/// The minimum memory, in bytes, for texts if one is answered at a time: enough to tokenize a short conversation.
const TEXT_BYTES: u64 = 1 << 20;

/// The divisor for the memory of tokenizing: a conversation may take one part in this many of the budget.
const TALK_SHARE: u64 = 16;

/// The estimated number of bytes of text per token, rather too high than too low.
const BYTES_PER_TOKEN: usize = 5;

/// The sender of prompts. The kind of sender decides how much memory its texts take outside the engine.
#[derive(Clone, Copy)]
pub enum Audience<'a> {
    /// No text takes memory outside the engine, for example in a benchmark.
    Nobody,
    /// A single prompt, whose text and tokens take this many bytes.
    Prompt(Bytes),
    /// One person in a growing conversation, which this tokenizer tokenizes.
    Person(&'a Tokenizer),
    /// Many clients of a server, at the same time.
    Clients,
}

/// What uses memory outside the engine: the process itself, and the texts of prompts.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The memory of the process before the model is loaded.
    pub footprint: Footprint,
    /// Who sends prompts, which decides how much memory their texts take.
    pub audience: Audience<'a>,
}

impl Surroundings<'_> {
    /// Returns the surroundings of passes that no request asks for, as in a measurement.
    pub fn of_passes() -> Self {
        Self { footprint: Footprint::of(None), audience: Audience::Nobody }
    }
}

impl Audience<'_> {
    /// Returns the minimum memory for texts outside the engine.
    pub fn least(self) -> Bytes {
        match self {
            Self::Nobody => Bytes(0),
            Self::Prompt(bytes) => Bytes(bytes.0.max(TEXT_BYTES)),
            Self::Person(_) => Bytes(TEXT_BYTES),
            Self::Clients => Bytes(REQUEST_BYTES as u64),
        }
    }

    /// Returns the memory for tokenizing a conversation of `tokens` tokens, which is at most a sixteenth of the memory
    /// budget `total`. Returns `None` unless the sender is [`Person`](Self::Person).
    pub fn of_context(self, tokens: usize, total: Bytes) -> Option<Bytes> {
        let Self::Person(tokenizer) = self else { return None };
        // The sample text has lines of a usual length, as people write them.
        const LINE: &str = "Lines of some words, as they are written, and as they can be cut.\n";
        let text = LINE.repeat(tokens.saturating_mul(BYTES_PER_TOKEN).min(8 << 20).div_ceil(LINE.len()));
        let wanted = (tokenizer.scratch_bytes(&text) + text.len() * 2) as u64;
        Some(Bytes(wanted.min(total.0 / TALK_SHARE)))
    }
}
