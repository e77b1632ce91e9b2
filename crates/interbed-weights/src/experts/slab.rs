//! Names of slabs and of the slots in which they lie.

use serde::{Deserialize, Serialize};

/// Identifies one expert of one mixture layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlabId {
    /// Index of the mixture layer, counted from 0 in the order of the forward pass; other layers do not count.
    pub layer: u32,
    /// Index of the expert in its layer.
    pub expert: u32,
}

/// Memory for one slab. All slots of a class have the same size. A slot keeps its memory when its slab is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabSlot {
    /// Size class of the slot, an index into [`ArenaShape::class_bytes`](super::ArenaShape::class_bytes).
    pub class: u32,
    /// Index of the slot in its class. The index of a withdrawn slot is used again.
    pub index: u32,
}

/// A slab to be read, and the slot to read it into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the slot stays reserved until the read is reported"]
pub struct Placement {
    /// Slab that is to be read.
    pub slab: SlabId,
    /// Slot that the slab is to be read into.
    pub slot: SlabSlot,
    /// Slab that the slot held before, if any.
    pub evicted: Option<SlabId>,
    /// Number that identifies this read when its outcome is reported.
    pub ticket: u64,
}
