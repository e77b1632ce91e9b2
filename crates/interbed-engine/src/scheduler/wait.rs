//! Says whether a sequence is admitted, and if not, why it waits.

use std::fmt;

/// The decision whether a sequence is admitted, with the reason if it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    /// The sequence is not admitted now, for this reason.
    Waits(Wait),
    /// The sequence needs more KV blocks than the engine has in total.
    Never {
        need: usize,
        limit: usize,
    },
}

/// The reason why a sequence has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No more sequences may run, because `max_num_seqs` is reached.
    Seats,
    /// The sequence belongs to a beam search, whose beams must all run at the same time. With them, more than
    /// `max_num_seqs` sequences would run.
    BeamSeats,
    /// Another sequence must be admitted first, because it was passed over or preempted too often.
    AgedFirst,
    /// A sequence that is swapped out must return first.
    SwappedFirst,
    /// The sequence is swapped out. If it returned, its tenant would hold more than its fair share of blocks or of
    /// running sequences. It waits because another tenant, which holds nothing, waits to have a sequence admitted.
    Claimed,
    /// The sequence is swapped out, and an earlier swap has hung. No other swap begins until the hanging swap ends.
    SwapHangs,
    /// Other sequences are computing or fetching KV blocks that the sequence can share once they are complete.
    Prefix,
    /// To be admitted, the sequence would have to evict cached blocks that lie within another tenant's fair share of
    /// blocks. It waits instead until other sequences of its own tenant release blocks.
    Kept,
    /// Too few KV blocks are available for the tokens that the sequence already has.
    Blocks,
    /// Enough KV blocks are available for the tokens that the sequence already has, but not for the expected growth of
    /// this sequence and of those that hold blocks.
    Growth,
    /// The KV of the sequence does not fit in memory, so the sequence needs a KV tier on disk. This tier is attached
    /// once the model's identity, which is a hash of the weights, is known.
    Identity,
    /// The sequence is longer than memory, and what it needs to go on is still being written to disk.
    Tails,
    /// The sequence was preempted so often that it must not be preempted again. Too few KV blocks exist for it and all
    /// other such sequences to reach their maximum lengths, so it is not admitted yet.
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
            Self::Tails => "what it goes on from is still being written to disk",
            Self::VeryEnd => "KV blocks would be short before its end, and it has made room too often",
        })
    }
}
