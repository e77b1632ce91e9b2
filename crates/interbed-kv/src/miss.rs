//! Explains why no more of a prompt's prefix was found.

use std::fmt;

use crate::{ids::SequenceId, losses::Loss};

/// The point where a look-up stopped, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Number of leading tokens that were found.
    pub matched_tokens: usize,
    /// Reason why the look-up finds no more than these tokens.
    pub reason: MissReason,
}

/// Reason why a look-up returns no more blocks. The reason is only a hint, since it comes from hashes and a bounded
/// memory; tokens are compared only for blocks that are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// No such content was published, or it was lost too long ago to be remembered.
    NeverSeen,
    /// The content was published, and evicted later.
    Evicted {
        /// Sequence that needed the block; `None` if no sequence did, as when the pool became smaller, or if the client
        /// must not know.
        by: Option<SequenceId>,
        /// Number of look-ups between the eviction and this look-up.
        lookups_ago: u32,
    },
    /// The content was dropped with all other cached contents.
    CacheReset {
        /// Number of look-ups between the reset and this look-up.
        lookups_ago: u32,
    },
    /// A block with these tokens was published as the first of a chain, but under another salt, namespace or tenant.
    /// This reason is for logs and replay, never for clients, since it tells one tenant what another has asked;
    /// [`MissReason::for_client`] hides it.
    OtherSalt,
    /// No full block is left to look up. The block that ends with the last token is never looked up, since that token
    /// is always computed.
    PartialBlock,
    /// The next block was found, but memory lacks a tail that a sequence needs to go on behind it, in a model of which
    /// some layers keep a state.
    NoState,
    /// The next block was found, but memory lacks blocks of windows that a sequence needs to go on behind it, in a
    /// model whose layers keep no state.
    NoWindow,
    /// Prefix caching is off, or the sequence shares nothing with others.
    NotCacheable,
}

impl MissReason {
    /// Returns the reason as a client may see it, without anything about other clients.
    #[must_use]
    pub fn for_client(self) -> Self {
        match self {
            Self::OtherSalt => Self::NeverSeen,
            Self::Evicted { lookups_ago, .. } => Self::Evicted { by: None, lookups_ago },
            reason => reason,
        }
    }
}

impl fmt::Display for MissReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverSeen => f.write_str("never seen"),
            Self::Evicted { by: Some(by), lookups_ago } => write!(f, "evicted {lookups_ago} look-ups ago for {by}"),
            Self::Evicted { by: None, lookups_ago } => write!(f, "evicted {lookups_ago} look-ups ago"),
            Self::CacheReset { lookups_ago } => write!(f, "cache reset {lookups_ago} look-ups ago"),
            Self::OtherSalt => f.write_str("other salt"),
            Self::PartialBlock => f.write_str("partial block"),
            Self::NoState => f.write_str("no state to go on from"),
            Self::NoWindow => f.write_str("no window to go on from"),
            Self::NotCacheable => f.write_str("not cacheable"),
        }
    }
}

impl From<(Loss, u32)> for MissReason {
    /// Turns the loss of a content, `lookups_ago` look-ups ago, into the reason why a look-up misses it.
    fn from((loss, lookups_ago): (Loss, u32)) -> Self {
        match loss {
            Loss::Evicted(id) => Self::Evicted { by: Some(id), lookups_ago },
            Loss::Withdrawn => Self::Evicted { by: None, lookups_ago },
            Loss::Reset => Self::CacheReset { lookups_ago },
        }
    }
}
