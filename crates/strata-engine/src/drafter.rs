//! The seam for speculation: whatever guesses at tokens that the model then computes several at a time.

use crate::TokenId;

/// Guesses how sequences go on. The engine thread asks between passes. The next pass computes the guesses behind the
/// last token of each sequence, and as many of them are accepted as equal what is sampled in their places: they change
/// when tokens come, never which.
pub trait Drafter {
    /// Appends at most `most` guesses at what follows `tokens`, a prompt and what was generated so far, to `drafts`.
    /// One that the model's vocabulary does not have is dropped, with all behind it.
    fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>);
}
