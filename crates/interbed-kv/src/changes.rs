//! What has become findable, and what no longer is: for whoever keeps an index of this cache elsewhere.

use crate::{hash::BlockHash, ids::TokenId};

/// A change of what look-ups can find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange<'t> {
    /// A block can be found from now on.
    Stored {
        /// Names the block by its tokens and all before them.
        hash: BlockHash,
        /// The block that it continues; `None` for the first one of a chain. It could be found already.
        parent: Option<BlockHash>,
        /// As many as a block has.
        tokens: &'t [TokenId],
    },
    /// A block can no longer be found. None that could be found continues it.
    Removed {
        /// As when it was stored.
        hash: BlockHash,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// Changes, in their order.
///
/// A hash identifies a block as long as no two of 64 bits collide. Look-ups compare tokens as well; an index elsewhere
/// may route a request to a server that turns out to have less, and nothing worse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheChanges {
    changes: Vec<Change>,
    /// Of the stored blocks, side by side.
    tokens: Vec<TokenId>,
}

/// Is told of the changes of a cache, by the thread that owns it.
pub trait CacheWatcher: Send {
    /// Changes since the last call, of which there are some. Must not wait.
    fn changed(&mut self, changes: &CacheChanges);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stored { hash: BlockHash, parent: Option<BlockHash>, tokens: u32 },
    Removed { hash: BlockHash },
    Cleared,
}

impl CacheChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes, first to last.
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

    /// Forgets all of them, and keeps their memory.
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

    /// What came before no longer matters.
    pub(crate) fn cleared(&mut self) {
        self.clear();
        self.changes.push(Change::Cleared);
    }
}
