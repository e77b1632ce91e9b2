//! Names of slabs and of their places.

use serde::{Deserialize, Serialize};

/// One expert of one mixture layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlabId {
    /// Counts mixture layers only, from 0 in the order of the pass.
    pub layer: u32,
    /// The expert's number in its layer.
    pub expert: u32,
}

/// Room for one slab. Slots of a class have the same size, and a slot keeps its memory when its slab changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabSlot {
    /// The size class, an index into [`ArenaShape::class_bytes`](super::ArenaShape::class_bytes).
    pub class: u32,
    /// The slot's number in its class; numbers of withdrawn slots are used again.
    pub index: u32,
}

/// Where a slab is to be read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the slot stays reserved until the read is reported"]
pub struct Placement {
    /// What to read.
    pub slab: SlabId,
    /// Where to.
    pub slot: SlabSlot,
    /// What was there until now.
    pub evicted: Option<SlabId>,
    /// Names this read when it has ended.
    pub ticket: u64,
}
