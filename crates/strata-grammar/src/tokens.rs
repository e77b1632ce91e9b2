//! The trie of a model's tokens.

use llguidance::toktrie::{TokTrie, TokenizerEnv};

use crate::TokenMask;

/// What stands in front of a special token's name: no text has this byte.
pub(crate) const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The trie, and the tokens that end a sequence.
pub(crate) struct Tokens {
    trie: TokTrie,
    eos: Vec<u32>,
}

impl Tokens {
    pub(crate) fn new(trie: TokTrie, eos: Vec<u32>) -> Self {
        Self { trie, eos }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.trie.vocab_size()
    }

    pub(crate) fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    /// Only the end may come.
    pub(crate) fn eos_mask(&self) -> TokenMask {
        TokenMask::new(self.trie.eos_token_set())
    }

    pub(crate) fn text(&self, token: u32) -> &[u8] {
        if (token as usize) >= self.trie.vocab_size() {
            return &[];
        }
        let bytes = self.trie.token(token);
        bytes.strip_prefix(&[SPECIAL]).unwrap_or(bytes)
    }

    /// Tokens that have these bytes together; `None` where there are none.
    pub(crate) fn spelled(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let tokens = self.trie.greedy_tokenize(bytes);
        let length: usize = tokens.iter().map(|&token| self.trie.token_len(token)).sum();
        (length == bytes.len()).then_some(tokens)
    }
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Else a grammar would force one way of cutting a text into tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
