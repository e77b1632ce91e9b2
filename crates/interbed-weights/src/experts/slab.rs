//! Names of slabs and of the slots in which they lie.

use serde::{Deserialize, Serialize};

/// Identifies one expert of one mixture layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlabId {
    /// Number of the mixture layer, which counts mixture layers only, from 0 in the order of the pass.
    pub layer: u32,
    /// Number of the expert in its layer.
    pub expert: u32,
}

/// Room for one slab. Slots of a class have the same size, and a slot keeps its memory when its slab changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabSlot {
    /// Size class of the slot, an index into [`ArenaShape::class_bytes`](super::ArenaShape::class_bytes).
    pub class: u32,
    /// Number of the slot in its class; numbers of withdrawn slots are used again.
    pub index: u32,
}

/// A slab that is to be read, and the slot that it is to be read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the slot stays reserved until the read is reported"]
pub struct Placement {
    /// Slab that is to be read.
    pub slab: SlabId,
    /// Slot that the slab is to be read into.
    pub slot: SlabSlot,
    /// Slab that was in the slot until now, if there was one.
    pub evicted: Option<SlabId>,
    /// Number that names this read when its end is reported.
    pub ticket: u64,
}
