//! States of a sequence, which tell where its KV is.

use crate::ids::{FetchId, SwapId};

/// The state of a sequence, which tells where its KV is.
///
/// | state | leaves it by |
/// |---|---|
/// | resident | `swap_out` → leaving, `begin_fetch` → fetching |
/// | leaving | `finish_swap`: done → swapped, failed → freed |
/// | swapped | `swap_in` → arriving |
/// | arriving | `finish_swap`: done → resident, failed → freed |
/// | fetching | `finish_fetch` → resident |
///
/// `allocate`, `fork` and `begin_below` create a sequence as resident, `begin_fetch_below` as fetching; `free` ends it
/// in any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// The KV is in blocks, except that the beginning of a [long](crate::BlockManager::begin_below) sequence is below
    /// memory. The sequence may be computed, appended to and, unless part of it is below memory, forked.
    Resident,
    /// The KV is in blocks from which this swap copies; the blocks are not reused before the swap has finished.
    Leaving(SwapId),
    /// The KV is in slots of the swap pool, and the sequence holds no block.
    Swapped,
    /// The KV is in slots from which this swap copies into blocks. The blocks must not be read before the swap has
    /// finished.
    Arriving(SwapId),
    /// The KV is in blocks, some of which this fetch fills; the blocks must not be read before the fetch has finished.
    Fetching(FetchId),
}
