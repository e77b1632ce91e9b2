//! Holds the trie of a model's tokens.

use std::collections::HashMap;

use llguidance::toktrie::{SimpleVob, TokTrie, TokenizerEnv};

use crate::TokenMask;

/// The byte before the name of a special token in the trie. It occurs in no UTF-8 text.
pub(crate) const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The bytes that usually make a text differ from an earlier one. The most effective ones come first.
const TRIED: &[u8] =
    b"a10zAe2-_ ./,\"}]{[:tfn3456789bcdghijklmopqrsuvwxyBCDEFGHIJKLMNOPQRSTUVWXYZ@#$%&'()*+;<=>?\\^`|~!";

/// The trie of the vocabulary, and the tokens that end a sequence.
pub(crate) struct Tokens {
    trie: TokTrie,
    eos: Vec<u32>,
    /// The tokens that are white space.
    blanks: TokenMask,
    /// The tokens whose text contains quotation marks, with how many each has.
    quoted: Vec<(u32, usize)>,
    /// The one-byte tokens that usually make a text differ from an earlier one.
    tried: Vec<u32>,
    /// The tokens that may begin an array and complete several of its items.
    lists: Vec<u32>,
    /// The length of the longest token in bytes.
    longest: usize,
    /// Further tokens of the same text, by the token that the trie finds. Tokens of single bytes often have such a
    /// twin.
    twins: HashMap<u32, Vec<u32>>,
}

impl Tokens {
    pub(crate) fn new(trie: TokTrie, eos: Vec<u32>) -> Self {
        let mut blanks = SimpleVob::alloc(trie.vocab_size());
        for token in 0..trie.vocab_size() as u32 {
            let text = trie.token(token);
            if !text.is_empty() && text.iter().all(u8::is_ascii_whitespace) {
                blanks.allow_token(token);
            }
        }
        let quotes = |token: u32| (token, trie.token(token).iter().filter(|&&byte| byte == b'"').count());
        let quoted = (0..trie.vocab_size() as u32).map(quotes).filter(|&(_, quotes)| quotes > 0).collect();
        let tried = TRIED.iter().filter_map(|&byte| trie.token_id_at_bytes(&[byte])).collect();
        let has_entries = |&token: &u32| {
            let text = trie.token(token);
            text.iter().position(|&byte| byte == b'[').is_some_and(|begin| text[begin..].contains(&b','))
        };
        let lists = (0..trie.vocab_size() as u32).filter(has_entries).collect();
        let longest = (0..trie.vocab_size() as u32).map(|token| trie.token_len(token)).max().unwrap_or(0);
        let mut twins: HashMap<u32, Vec<u32>> = HashMap::new();
        for token in 0..trie.vocab_size() as u32 {
            if let Some(first) = trie.token_id_at_bytes(trie.token(token)).filter(|&first| first != token) {
                twins.entry(first).or_default().push(token);
            }
        }
        Self { trie, eos, blanks: TokenMask::new(blanks), quoted, tried, lists, longest, twins }
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.trie.vocab_size()
    }

    /// Returns the bytes of each token as the trie has them, and the tokens that end a sequence.
    pub(crate) fn words(&self) -> (impl ExactSizeIterator<Item = &[u8]>, &[u32]) {
        ((0..self.len()).map(|token| self.trie.token(token as u32)), &self.eos)
    }

    pub(crate) fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    /// Returns a mask that allows only the tokens that end a sequence.
    pub(crate) fn eos_mask(&self) -> TokenMask {
        TokenMask::new(self.trie.eos_token_set())
    }

    /// Returns a mask that allows all tokens but those that end a sequence.
    pub(crate) fn mask_but_eos(&self) -> TokenMask {
        self.mask_but(&self.eos)
    }

    /// Returns a mask that allows all tokens but `refused`.
    pub(crate) fn mask_but(&self, refused: &[u32]) -> TokenMask {
        let mut all = SimpleVob::alloc_ones(self.trie.vocab_size());
        refused.iter().for_each(|&token| all.disallow_token(token));
        TokenMask::new(all)
    }

    /// Returns the tokens that are white space.
    pub(crate) fn blanks(&self) -> &TokenMask {
        &self.blanks
    }

    /// Returns the tokens with at least `least` quotation marks.
    pub(crate) fn quoted(&self, least: usize) -> impl Iterator<Item = u32> {
        self.quoted.iter().filter(move |&&(_, quotes)| quotes >= least).map(|&(token, _)| token)
    }

    /// Returns the one-byte tokens that usually make a text differ from an earlier one, the most effective first.
    pub(crate) fn tried(&self) -> &[u32] {
        &self.tried
    }

    /// Returns the tokens that may begin an array and complete several of its items.
    pub(crate) fn lists(&self) -> impl Iterator<Item = u32> {
        self.lists.iter().copied()
    }

    /// Returns the length of the longest token in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn text(&self, token: u32) -> &[u8] {
        if (token as usize) >= self.trie.vocab_size() {
            return &[];
        }
        let bytes = self.trie.token(token);
        bytes.strip_prefix(&[SPECIAL]).unwrap_or(bytes)
    }

    /// Returns all tokens with exactly these bytes.
    pub(crate) fn all_of_text(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        let first = self.of_text(bytes);
        let twins = first.and_then(|first| self.twins.get(&first)).into_iter().flatten();
        first.into_iter().chain(twins.copied())
    }

    /// Returns a token with exactly these bytes, if there is one.
    pub(crate) fn of_text(&self, bytes: &[u8]) -> Option<u32> {
        self.trie.token_id_at_bytes(bytes)
    }

    /// Returns tokens that together have these bytes; `None` if there are none.
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

    /// Returns false, because otherwise a grammar would force one way of splitting a text into tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
