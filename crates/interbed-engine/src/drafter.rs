//! The interface for speculation: a [`Drafter`] guesses tokens, and the model then computes several of them in one
//! pass.

use crate::TokenId;

/// Guesses how sequences go on. The engine thread asks the drafter between passes. The next pass computes the guesses
/// behind the last token of each sequence. It accepts guesses in order, for as long as each guess equals the token that
/// is sampled in its place. So guesses make tokens come sooner, and never change which tokens come.
pub trait Drafter {
    /// Appends at most `most` guesses to `drafts`. The guesses continue `tokens`, which are a prompt and what was
    /// generated so far. If a guess is not in the model's vocabulary, the engine drops that guess and all guesses
    /// behind it.
    fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>);
}
