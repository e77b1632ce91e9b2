//! Describes the batch that one forward pass computes, with chunks of prompts and single new tokens together.

use std::ops::Range;

/// The tokens of one sequence that a pass computes.
#[derive(Debug, Clone, Copy)]
pub struct BatchSequence<'a> {
    /// At least one token, at consecutive positions. All ids are below the vocabulary's size.
    pub tokens: &'a [u32],
    /// The position of the first token. The KV of all earlier positions has been computed.
    pub first_position: usize,
    /// The number of tokens of the sequence's prompt as first submitted. This number fixes the scale of dynamic rope.
    pub prompt_len: usize,
    /// The number of positions, from the first on, whose KV is below memory. The number is a multiple of
    /// [`STRETCH`](interbed_kernels::STRETCH) and at most `first_position`. If all KV is in blocks, the number is 0.
    pub below: usize,
    /// The blocks of the positions from `below` up to that of the last token.
    pub blocks: SequenceBlocks<'a>,
    /// The rows of logits or of hidden states that are wanted.
    pub logits: LogitRows,
}

/// The blocks of the device's KV memory that belong to a sequence.
#[derive(Debug, Clone, Copy)]
pub enum SequenceBlocks<'a> {
    /// The numbers of blocks at any places, in the order of their tokens.
    Listed(&'a [u32]),
    /// The number of the first of several blocks that lie side by side.
    From(u32),
}

/// Says for which tokens of a sequence a pass returns a row, which has either logits, `[vocab_size]`, or the hidden
/// state after the last norm, `[hidden_size]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// No row is wanted, as for a chunk of a prompt that is not the last one.
    None,
    /// The logits of the last token are wanted, from which the next token is sampled.
    Last,
    /// The logits of every token are wanted, for log-probabilities of the prompt.
    All,
    /// This many of the greatest logits of the last token suffice. The pass may still return all of them.
    Best(usize),
    /// The last token's hidden state is wanted.
    LastHidden,
    /// Every token's hidden state is wanted.
    AllHidden,
}

impl LogitRows {
    /// Returns which of `count` tokens get a row.
    pub fn of(self, count: usize) -> Range<usize> {
        match self {
            Self::None => count..count,
            Self::Last | Self::Best(_) | Self::LastHidden => count.saturating_sub(1)..count,
            Self::All | Self::AllHidden => 0..count,
        }
    }

    /// Returns how many logits of each row suffice, or `None` if all are needed.
    pub fn best(self) -> Option<usize> {
        match self {
            Self::Best(count) => Some(count),
            _ => None,
        }
    }

    /// Returns whether the rows have hidden states rather than logits.
    pub fn are_hidden(self) -> bool {
        matches!(self, Self::LastHidden | Self::AllHidden)
    }
}

impl SequenceBlocks<'_> {
    /// Returns the number of the sequence's block with this index.
    ///
    /// # Panics
    /// Panics if the list of blocks is too short.
    pub fn number(&self, index: usize) -> u32 {
        match *self {
            Self::Listed(table) => table[index],
            Self::From(first) => first + index as u32,
        }
    }
}

impl BatchSequence<'_> {
    /// Returns the number of rows that this sequence gets.
    pub fn num_logit_rows(&self) -> usize {
        self.logits.of(self.tokens.len()).len()
    }
}

/// Says to which token a row of logits or of hidden states belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitRow {
    /// The index of the sequence in the batch.
    pub sequence: usize,
    /// The index of the token among the sequence's tokens in this batch.
    pub token: usize,
}

/// The logits of a wanted row.
#[derive(Debug)]
pub enum Logits<'a> {
    /// All logits, `[vocab_size]`, or a hidden state, `[hidden_size]`. The receiver may change the numbers.
    All(&'a mut [f32]),
    /// The greatest logits, as pairs of token and logit in descending order. Of equal logits, the one of the lowest
    /// token comes first. If any logit of the row is NaN, the first is NaN. A row has this form only if
    /// [`LogitRows::Best`] was wanted.
    Best(&'a [[f32; 2]]),
}

impl<'a> Logits<'a> {
    /// Returns the whole row.
    ///
    /// # Panics
    /// Panics if only the greatest logits are there. A pass returns whole rows unless [`LogitRows::Best`] was wanted.
    pub fn all(self) -> &'a mut [f32] {
        match self {
            Self::All(row) => row,
            Self::Best(_) => panic!("the whole row was asked for"),
        }
    }

    /// Returns whether a logit of the row is NaN.
    pub fn has_nan(&self) -> bool {
        match self {
            Self::All(row) => row.iter().any(|logit| logit.is_nan()),
            Self::Best(best) => best.iter().any(|[_, logit]| logit.is_nan()),
        }
    }
}
