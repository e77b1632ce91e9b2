//! A tokenizer's tokens, as grammars see them.

use interbed_grammar::{TokenText, Vocabulary, VocabularyError};
use interbed_model::tokenizer::Tokenizer;

use crate::TokenId;

/// The bytes of all tokens of a tokenizer; `eos` are those that end a sequence. Blocking: it takes a second where there
/// are many tokens.
///
/// # Errors
/// It is not known which bytes the tokens have, or they are too many.
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
