//! Describes the batch that one forward pass computes, with chunks of prompts and single new tokens together.

use std::ops::Range;

/// One sequence's share of a batch: the tokens that a forward pass computes, and where the sequence's KV is.
#[derive(Debug, Clone, Copy)]
pub struct BatchSequence<'a> {
    /// The ids of the tokens to compute. There is at least one token, and each id is below the vocabulary size. The
    /// tokens have consecutive positions.
    pub tokens: &'a [u32],
    /// The position of the first of `tokens`. The KV of all earlier positions has been computed.
    pub first_position: usize,
    /// The length of the sequence's prompt in tokens, as first submitted. Dynamic RoPE scaling depends on this length.
    pub prompt_len: usize,
    /// The number of positions at the beginning of the sequence whose KV is not in `blocks`. The forward pass reads
    /// their KV through [`KvBelow`](crate::KvBelow). The number is a multiple of [`STRETCH`](interbed_kernels::STRETCH)
    /// and at most `first_position`.
    pub below: usize,
    /// The blocks of KV memory for the sequence's positions, up to and including the position of the last token. The
    /// positions that [`BatchSequence::below`] counts have no blocks.
    pub blocks: SequenceBlocks<'a>,
    /// The blocks of each further group of layers, in the order of [`KeptGroups::groups`](crate::KeptGroups::groups)
    /// without the first. The list is empty if the first group has all that the layers keep.
    pub groups: &'a [GroupBlocks<'a>],
    /// Which rows of logits or hidden states the forward pass returns.
    pub logits: LogitRows,
}

/// The blocks of a sequence, by their numbers in the device's KV memory.
#[derive(Debug, Clone, Copy)]
pub enum SequenceBlocks<'a> {
    /// The number of each block, in the order of positions. The blocks may lie anywhere in the KV memory.
    Listed(&'a [u32]),
    /// The number of the first block. The other blocks follow it directly in the KV memory.
    From(u32),
}

/// The blocks of a sequence in one group of layers.
#[derive(Debug, Clone, Copy)]
pub enum GroupBlocks<'a> {
    /// Keys and values of layers with a window.
    Window {
        /// The position of the first token of the first block, a multiple of the block size. No token of the forward
        /// pass sees earlier positions through the window.
        first: usize,
        /// The blocks of the positions from `first` on, up to and including the position of the last token.
        blocks: SequenceBlocks<'a>,
    },
    /// States.
    State {
        /// The number of the block with the states before the first token; `None` at the beginning of the sequence.
        from: Option<u32>,
        /// The number of the block to which states are written. It may be `from`, whose states are then lost. No other
        /// sequence of the batch reads or writes this block.
        to: u32,
        /// The number of last tokens, fewer than all, that the written states do not take in. They are drafts, which
        /// may be wrong, or are computed once more by the next pass.
        tokens_behind: usize,
    },
}

/// Selects the tokens of a sequence for which a forward pass returns a row. A row holds either logits, `[vocab_size]`,
/// or the hidden state after the final norm, `[hidden_size]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// No rows, for example for a chunk of a prompt that is not the last.
    None,
    /// The logits of the last token, from which the next token is sampled.
    Last,
    /// The logits of this many last tokens, at most all: of the last token that is certain, and of drafts behind it.
    LastFew(usize),
    /// The logits of every token, for example for log-probabilities of the prompt.
    All,
    /// This many of the greatest logits of the last token. The forward pass may return all logits of the token instead.
    Best(usize),
    /// The hidden state of the last token.
    LastHidden,
    /// The hidden state of every token.
    AllHidden,
}

impl LogitRows {
    /// Returns the indices of the tokens that get a row, for a sequence that has `count` tokens in the batch.
    pub fn of(self, count: usize) -> Range<usize> {
        match self {
            Self::None => count..count,
            Self::Last | Self::Best(_) | Self::LastHidden => count.saturating_sub(1)..count,
            Self::LastFew(rows) => count.saturating_sub(rows)..count,
            Self::All | Self::AllHidden => 0..count,
        }
    }

    /// Returns the number of greatest logits that [`LogitRows::Best`] asks for, or `None` for the other variants.
    pub fn best(self) -> Option<usize> {
        match self {
            Self::Best(count) => Some(count),
            _ => None,
        }
    }

    /// Returns whether the rows hold hidden states rather than logits.
    pub fn are_hidden(self) -> bool {
        matches!(self, Self::LastHidden | Self::AllHidden)
    }
}

impl SequenceBlocks<'_> {
    /// Returns the number of a block in the device's KV memory. `index` counts the blocks of this sequence from 0.
    ///
    /// # Panics
    /// Panics if the blocks are [`SequenceBlocks::Listed`] and the list has no entry at `index`.
    pub fn number(&self, index: usize) -> u32 {
        match *self {
            Self::Listed(table) => table[index],
            Self::From(first) => first + index as u32,
        }
    }
}

impl BatchSequence<'_> {
    /// Returns the number of rows of logits or hidden states that the forward pass returns for this sequence.
    pub fn num_logit_rows(&self) -> usize {
        self.logits.of(self.tokens.len()).len()
    }
}

/// Identifies the token to which a row of logits or a hidden state belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitRow {
    /// The index of the sequence in the batch.
    pub sequence: usize,
    /// The index of the token among the sequence's tokens in this batch.
    pub token: usize,
}

/// The content of a row that a forward pass returns.
#[derive(Debug)]
pub enum Logits<'a> {
    /// All logits, `[vocab_size]`, or a hidden state, `[hidden_size]`. The receiver may overwrite the numbers.
    All(&'a mut [f32]),
    /// The greatest logits, as pairs of token id and logit in descending order of logit. Pairs with equal logits are in
    /// ascending order of token id. If any logit of the row is NaN, the first pair has a NaN logit. A row takes this
    /// form only if [`LogitRows::Best`] asked for it.
    Best(&'a [[f32; 2]]),
}

impl<'a> Logits<'a> {
    /// Returns the whole row.
    ///
    /// # Panics
    /// Panics if this is [`Logits::Best`]. A forward pass returns that form only if [`LogitRows::Best`] asked for it.
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
