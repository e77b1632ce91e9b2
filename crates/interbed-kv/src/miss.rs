//! The reasons why no more of a prompt's prefix was found.

use std::fmt;

use crate::{ids::SequenceId, losses::Loss};

/// Where a look-up stopped, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// The number of leading tokens that were found.
    pub matched_tokens: usize,
    /// The reason why the next block was not found.
    pub reason: MissReason,
}

/// The reason why a block was not found. It is only a hint, since it comes from hashes and a bounded memory. Tokens are
/// compared only for blocks that are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// No such content was published, or it was lost too long ago to be remembered.
    NeverSeen,
    /// The content was published, and evicted later.
    Evicted {
        /// The sequence that needed the block; `None` if the pool became smaller.
        by: Option<SequenceId>,
        /// The number of allocations between the eviction and this look-up.
        lookups_ago: u32,
    },
    /// The content was dropped with all other cached contents.
    CacheReset {
        /// The number of allocations between the reset and this look-up.
        lookups_ago: u32,
    },
    /// A block with these tokens was published as the first of a chain, but under another salt or namespace. This is
    /// for logs and replay, never for clients, because it tells one tenant what another has asked.
    /// [`MissReason::for_client`] hides it.
    OtherSalt,
    /// Every full block was found. The remaining tokens are fewer than a block, or end with the last token, which is
    /// always computed.
    PartialBlock,
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
