//! Reports which contents have become findable and which no longer are, for indexes of this cache that are kept
//! elsewhere.

use crate::{hash::BlockHash, ids::TokenId};

/// A change of which contents are findable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange<'t> {
    /// A content has become findable.
    Stored {
        /// The hash that names the content by its tokens and all tokens before them.
        hash: BlockHash,
        /// The hash of the parent, which was findable already; `None` for the first content of a chain.
        parent: Option<BlockHash>,
        /// The tokens of the content, which fill a block.
        tokens: &'t [TokenId],
    },
    /// A content is no longer findable. No content that continues it is findable either.
    Removed {
        /// The hash under which the content was stored.
        hash: BlockHash,
    },
    /// No content is findable any more.
    Cleared,
}

/// The changes of the cache in the order in which they happened.
///
/// A hash identifies a content as long as no two 64-bit hashes collide. Look-ups compare tokens as well. If hashes
/// collide in an index elsewhere, a request may be routed to a server that has less of its prefix; no worse harm
/// results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheChanges {
    changes: Vec<Change>,
    /// The tokens of all stored blocks, one block behind the other.
    tokens: Vec<TokenId>,
}

/// Receives the changes of a cache, on the engine's thread, which owns the cache.
pub trait CacheWatcher: Send {
    /// Receives the changes since the last call, at least one. The watcher must not wait here, because the engine waits
    /// for it.
    fn changed(&mut self, changes: &CacheChanges);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stored { hash: BlockHash, parent: Option<BlockHash>, tokens: u32 },
    Removed { hash: BlockHash },
    Cleared,
}

impl CacheChanges {
    /// Returns whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Goes through the changes, from the first to the last.
    pub fn iter(&self) -> impl Iterator<Item = CacheChange<'_>> {
        let mut rest = &self.tokens[..];
        self.changes.iter().map(move |change| match *change {
            Change::Stored { hash, parent, tokens } => {
                let tokens = rest.split_off(..tokens as usize).expect("the tokens of every stored block were kept");
                CacheChange::Stored { hash, parent, tokens }
            }
            Change::Removed { hash } => CacheChange::Removed { hash },
            Change::Cleared => CacheChange::Cleared,
        })
    }

    /// Forgets all changes, and keeps their memory for later ones.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.changes.clear();
    }

    pub(crate) fn stored(&mut self, hash: BlockHash, parent: Option<BlockHash>, tokens: &[TokenId]) {
        self.changes.push(Change::Stored { hash, parent, tokens: tokens.len() as u32 });
        self.tokens.extend_from_slice(tokens);
    }

    pub(crate) fn removed(&mut self, hash: BlockHash) {
        self.changes.push(Change::Removed { hash });
    }

    /// Records that no content is findable any more. Earlier changes no longer matter and are dropped.
    pub(crate) fn cleared(&mut self) {
        self.clear();
        self.changes.push(Change::Cleared);
    }
}
