//! The seam for speculation: whatever guesses at tokens that the model then computes several at a time.

use crate::TokenId;

/// Guesses how sequences go on. The engine thread asks between passes. The next pass computes the guesses behind the
/// last token of each sequence and accepts those that equal what is sampled in their places, up to the first that does
/// not. Guesses change when tokens come, never which tokens come.
pub trait Drafter {
    /// Appends at most `most` guesses at what follows `tokens`, a prompt and what was generated so far, to `drafts`. A
    /// guess that is not in the model's vocabulary is dropped, with all that follow it.
    fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>);
}
