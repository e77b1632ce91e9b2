//! Says whether a sequence is admitted, and if not, why it waits.

use std::fmt;

/// The decision whether a sequence is admitted, with the reason if it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    /// The sequence is not admitted while this reason holds.
    Waits(Wait),
    /// The sequence takes more blocks than there are.
    Never {
        need: usize,
        limit: usize,
    },
}

/// The reason why a sequence has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// All seats are taken.
    Seats,
    /// Fewer seats are free than the sequence's beams take.
    BeamSeats,
    /// A sequence that many others have passed comes first.
    AgedFirst,
    /// A sequence that is swapped out comes first.
    SwappedFirst,
    /// The sequence's tenant would have more than its share, while another tenant, which has nothing, waits for that.
    Claimed,
    /// A swap hangs, and no other is begun until it ends.
    SwapHangs,
    /// Other sequences are computing blocks that the sequence could share.
    Prefix,
    /// The sequence would evict blocks that another tenant has cached within its share, while its own tenant's
    /// sequences will give blocks back.
    Kept,
    /// Too few blocks are left for the tokens that the sequence has.
    Blocks,
    /// Enough blocks are left for the tokens that the sequence has, but not for the expected growth of it and all
    /// others.
    Growth,
    /// The sequence is longer than memory, and the engine does not know yet whose KV the disk holds.
    Identity,
    /// The sequence, or a running one, must not be preempted again, and there are too few blocks for such sequences to
    /// run to their ends.
    VeryEnd,
}

impl Wait {
    /// Returns whether the reason is a lack of blocks, or of several seats at once, which sequences behind this one may
    /// not need.
    pub(super) fn is_shortage(self) -> bool {
        matches!(self, Self::BeamSeats | Self::Blocks | Self::Growth | Self::VeryEnd)
    }

    /// Returns whether sequences of the same tenant behind this one have to wait too.
    pub(super) fn stops_queue(self) -> bool {
        // Smaller sequences of the tenant would otherwise keep this one waiting for ever.
        matches!(self, Self::Seats | Self::AgedFirst | Self::SwappedFirst | Self::Kept)
    }

    /// Returns whether the reason would go away if another sequence made room.
    pub(super) fn may_claim(self) -> bool {
        self.is_shortage() || matches!(self, Self::Seats | Self::SwappedFirst)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seats => "all seats are taken (--max-num-seqs)",
            Self::BeamSeats => "its beams need more seats than are free (--max-num-seqs)",
            Self::AgedFirst => "a request that waits for longer comes first",
            Self::SwappedFirst => "a request that was swapped out comes first",
            Self::Claimed => "another tenant has a claim on its blocks",
            Self::SwapHangs => "a swap does not end",
            Self::Prefix => "another request computes the same prefix",
            Self::Kept => "what is free and its tenant's own is short, and the rest is cached for others",
            Self::Blocks => "KV blocks are short",
            Self::Growth => "KV blocks would be short soon",
            Self::Identity => "it is longer than memory, and the model is yet to be read wholly before KV goes to disk",
            Self::VeryEnd => "KV blocks would be short before its end, and it has made room too often",
        })
    }
}
