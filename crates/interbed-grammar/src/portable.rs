//! Serializes a vocabulary as bytes, for another process.
//!
//! ```text
//! number of tokens        u32, little-endian
//! each token, by its id   u16 length, and what the trie has of it
//! tokens that end         u32 each, to the end
//! ```

use crate::{Vocabulary, VocabularyError};

impl Vocabulary {
    /// Serializes the vocabulary, so that [`from_bytes`](Self::from_bytes) can read it back.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (words, eos) = self.words();
        let mut bytes = (words.len() as u32).to_le_bytes().to_vec();
        for word in words {
            // The length always fits a `u16`, because the trie refuses longer tokens.
            let length = u16::try_from(word.len()).unwrap_or(0);
            bytes.extend(length.to_le_bytes());
            bytes.extend(&word[..usize::from(length)]);
        }
        bytes.extend(eos.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Reads the bytes that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// Fails if the bytes are cut off, or if the tokens cannot be put into a trie.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, VocabularyError> {
        let cut_off = || VocabularyError("what was sent of it is cut off".into());
        let mut take = |count: usize| bytes.split_off(..count);
        let count = take(4).and_then(<[u8]>::first_chunk).ok_or_else(cut_off)?;
        let mut words = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let length = take(2).and_then(<[u8]>::first_chunk).ok_or_else(cut_off)?;
            words.push(take(usize::from(u16::from_le_bytes(*length))).ok_or_else(cut_off)?.to_vec());
        }
        let eos = bytes.chunks_exact(4).filter_map(<[u8]>::first_chunk).map(|token| u32::from_le_bytes(*token));
        Self::of_words(&words, eos.collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::{GrammarSource, TokenText, Vocabulary};

    #[test]
    fn bytes_become_the_same_vocabulary_again() {
        let text = |text: &str| TokenText::Text(text.into());
        let tokens = [text("a"), text("ab"), TokenText::Special("<end>".into()), text("b"), TokenText::Unknown];
        let vocabulary = Vocabulary::new(&tokens, &[2]).unwrap();
        let bytes = vocabulary.to_bytes();
        let again = Vocabulary::from_bytes(&bytes).unwrap();
        assert_eq!(again.to_bytes(), bytes);
        let allowed = |vocabulary: &Vocabulary| {
            let mut state = vocabulary.compile(&GrammarSource::Regex("(ab)*".into())).unwrap();
            let mask = state.mask().unwrap().unwrap();
            (0..5).map(|token| mask.allows(token)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&again), allowed(&vocabulary));
        assert_eq!(allowed(&again), [true, true, true, false, false]);
        assert!(Vocabulary::from_bytes(&bytes[..7]).is_err() && Vocabulary::from_bytes(&[]).is_err());
    }
}
