//! Converts a tokenizer's tokens to the vocabulary that grammars use.

use interbed_grammar::{TokenText, Vocabulary, VocabularyError};
use interbed_model::tokenizer::Tokenizer;

use crate::TokenId;

/// Builds the vocabulary for grammars from the bytes of all tokens of a tokenizer. `eos` lists the end-of-sequence
/// tokens. The call blocks; with a large vocabulary, it takes about a second.
///
/// # Errors
/// Fails if the bytes of the tokens are not known, or if [`Vocabulary::new`] fails.
pub fn vocabulary_of(tokenizer: &Tokenizer, eos: &[TokenId]) -> Result<Vocabulary, VocabularyError> {
    if !tokenizer.spells_bytes() {
        return Err(VocabularyError("it is not known which bytes its tokens have".into()));
    }
    let text = |id| match tokenizer.vocabulary_entry(id) {
        None => TokenText::Unknown,
        Some(name) if tokenizer.is_special(id) => TokenText::Special(name),
        Some(_) => TokenText::Text(tokenizer.token_bytes(id)),
    };
    let size = TokenId::try_from(tokenizer.vocab_size()).unwrap_or(TokenId::MAX);
    Vocabulary::new(&(0..size).map(text).collect::<Vec<_>>(), eos)
}
