//! Why a prompt's prefix was found no further than it was.

use std::fmt;

use crate::{ids::SequenceId, losses::Loss};

/// Where a look-up stopped, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Leading tokens that were found.
    pub matched_tokens: usize,
    /// Why not the next block too.
    pub reason: MissReason,
}

/// Why a block was not found. Told from hashes and a memory of bounded size, so a hint: only what is found is ever
/// compared token by token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// No such content was published, or it was lost longer ago than is remembered.
    NeverSeen,
    /// It was published, and gave way.
    Evicted {
        /// To blocks of this sequence; none if the pool became smaller.
        by: Option<SequenceId>,
        /// So many allocations before this look-up.
        lookups_ago: u32,
    },
    /// It was dropped with all other cached content.
    CacheReset {
        /// So many allocations before this look-up.
        lookups_ago: u32,
    },
    /// The same first block was published under another salt or namespace. For logs and replay, never for clients: it
    /// tells one tenant what another has asked. See [`MissReason::for_client`].
    OtherSalt,
    /// Nothing is missing: what follows is shorter than a block, or ends with the last token, which is always computed.
    PartialBlock,
    /// Prefix caching is off, or the sequence shares nothing.
    NotCacheable,
}

impl MissReason {
    /// What a client may know: nothing of others.
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
    /// Of content that was lost so many look-ups ago.
    fn from((loss, lookups_ago): (Loss, u32)) -> Self {
        match loss {
            Loss::Evicted(id) => Self::Evicted { by: Some(id), lookups_ago },
            Loss::Withdrawn => Self::Evicted { by: None, lookups_ago },
            Loss::Reset => Self::CacheReset { lookups_ago },
        }
    }
}
