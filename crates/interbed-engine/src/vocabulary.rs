//! Converts a tokenizer's tokens to the vocabulary that grammars use.

use interbed_grammar::{TokenText, Vocabulary, VocabularyError};
use interbed_model::tokenizer::Tokenizer;

use crate::TokenId;

/// Returns the bytes of all tokens of a tokenizer. `eos` are the tokens that end a sequence. This blocks, and takes a
/// second if there are many tokens.
///
/// # Errors
/// Fails if it is not known which bytes the tokens have, or if there are too many tokens.
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
