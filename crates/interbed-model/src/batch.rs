//! What one forward pass computes: prefill chunks and decodes together.

use std::ops::Range;

/// The tokens of one sequence that this pass computes.
#[derive(Debug, Clone, Copy)]
pub struct BatchSequence<'a> {
    /// Consecutive tokens; at least one. Ids below the vocabulary's size.
    pub tokens: &'a [u32],
    /// Position of the first token. The KV of all earlier positions has been computed.
    pub first_position: usize,
    /// Tokens of the sequence's prompt (as first submitted), which fixes the scale of dynamic rope.
    pub prompt_len: usize,
    /// Positions whose KV is below memory, from the first on: a multiple of [`STRETCH`](interbed_kernels::STRETCH), and
    /// at most `first_position`; 0 if all of it is in blocks.
    pub below: usize,
    /// The blocks from position `below` on, up to that of the last token.
    pub blocks: SequenceBlocks<'a>,
    /// The rows that are wanted, of logits or of hidden states.
    pub logits: LogitRows,
}

/// Which blocks of the device's KV memory a sequence has.
#[derive(Debug, Clone, Copy)]
pub enum SequenceBlocks<'a> {
    /// Blocks anywhere, in the order of their tokens.
    Listed(&'a [u32]),
    /// Blocks side by side, from this one on.
    From(u32),
}

/// The tokens of a sequence of which something is wanted: their logits, `[vocab_size]`, or their hidden states after
/// the last norm, `[hidden_size]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a prompt's chunk that is not its last.
    None,
    /// The last token's: what comes next is sampled from them.
    Last,
    /// Every token's: log-probabilities of the prompt.
    All,
    /// So many of the greatest of the last token's, or all of them.
    Best(usize),
    /// The last token's hidden state.
    LastHidden,
    /// Every token's hidden state.
    AllHidden,
}

impl LogitRows {
    /// Which of `count` tokens they are of.
    pub fn of(self, count: usize) -> Range<usize> {
        match self {
            Self::None => count..count,
            Self::Last | Self::Best(_) | Self::LastHidden => count.saturating_sub(1)..count,
            Self::All | Self::AllHidden => 0..count,
        }
    }

    /// How many logits suffice of each row, if not all are needed.
    pub fn best(self) -> Option<usize> {
        match self {
            Self::Best(count) => Some(count),
            _ => None,
        }
    }

    /// Whether they are hidden states rather than logits.
    pub fn are_hidden(self) -> bool {
        matches!(self, Self::LastHidden | Self::AllHidden)
    }
}

impl SequenceBlocks<'_> {
    /// The block number `index` of the sequence.
    ///
    /// # Panics
    /// If a list is too short.
    pub fn number(&self, index: usize) -> u32 {
        match *self {
            Self::Listed(table) => table[index],
            Self::From(first) => first + index as u32,
        }
    }
}

impl BatchSequence<'_> {
    /// Rows that this sequence gets.
    pub fn num_logit_rows(&self) -> usize {
        self.logits.of(self.tokens.len()).len()
    }
}

/// Whose logits, or whose hidden state, a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitRow {
    /// Index of the sequence in the batch.
    pub sequence: usize,
    /// Index of the token among the sequence's tokens in this batch.
    pub token: usize,
}

/// The logits of a row that is wanted.
#[derive(Debug)]
pub enum Logits<'a> {
    /// All of them, `[vocab_size]`, or a hidden state, `[hidden_size]`; they may be changed.
    All(&'a mut [f32]),
    /// The greatest, as pairs of token and logit: greatest first, and among equals that of the lowest token. If a logit
    /// of the row is NaN, so is the first. Only where [`LogitRows::Best`] was asked for.
    Best(&'a [[f32; 2]]),
}

impl<'a> Logits<'a> {
    /// The whole row.
    ///
    /// # Panics
    /// If it is not there. Whoever asks for whole rows gets them.
    pub fn all(self) -> &'a mut [f32] {
        match self {
            Self::All(row) => row,
            Self::Best(_) => panic!("the whole row was asked for"),
        }
    }

    /// Whether a logit of the row is NaN.
    pub fn has_nan(&self) -> bool {
        match self {
            Self::All(row) => row.iter().any(|logit| logit.is_nan()),
            Self::Best(best) => best.iter().any(|[_, logit]| logit.is_nan()),
        }
    }
}
