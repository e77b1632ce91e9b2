//! Names of slabs and of the slots in which they lie.

use serde::{Deserialize, Serialize};

/// Identifies one expert of one mixture layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlabId {
    /// Index of the layer among the mixture layers, counted from 0 in the order of the forward pass.
    pub layer: u32,
    /// Index of the expert in its layer.
    pub expert: u32,
}

/// Identifies a slot: memory for one slab. All slots of a class have the same size. When another slab replaces the slab
/// in a slot, the slot keeps its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabSlot {
    /// Size class of the slot, an index into [`ArenaShape::class_bytes`](super::ArenaShape::class_bytes).
    pub class: u32,
    /// Index of the slot in its class. After the arena has removed a slot, a new slot may get its index.
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
    /// Number of this read. The driver passes it to [`Arena::loaded`](super::Arena::loaded) or
    /// [`Arena::failed`](super::Arena::failed) when the read ends.
    pub ticket: u64,
}
