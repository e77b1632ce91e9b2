//! The interface for speculation: a [`Drafter`] guesses tokens, and the model then computes several of them in one
//! pass.

use crate::TokenId;

/// Guesses the next tokens of sequences, for speculative decoding. The engine thread calls the drafter between forward
/// passes. The next forward pass processes the guesses together with the last token of each sequence. A guess is
/// accepted if all guesses before it were accepted and it equals the token that the sampler chooses at its position.
/// Accepted guesses save time. No guess changes the output.
pub trait Drafter {
    /// Appends at most `most` guesses to `drafts`. The guesses continue `tokens`, which are the prompt and the tokens
    /// generated so far. If a guess is not in the model's vocabulary, the engine drops this guess and all guesses after
    /// it.
    fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>);
}
