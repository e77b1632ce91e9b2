//! Keeps experts of mixture layers within a budget: says which slabs are in memory, and which gives way to the next.
//!
//! A *slab* is all weights of one expert in one layer. A pass comes to a layer, learns from the router which experts
//! the layer needs, and computes with their slabs. Most slabs of a large mixture stay on disk. [`Arena`] decides in
//! which slot a slab goes and which slab leaves that slot. The arena is a pure state machine: it reads nothing, waits
//! for nothing and asks for no time. The arena runs under the driver and, with the same code, in `interbed-lab replay`,
//! which compares it with textbook policies and with a lower bound.
//!
//! **Score.** The score of a slab is its share of its layer's uses, aged by how much the layer has been used since:
//! `uses / uses of the layer / (1 + uses of the layer since the slab's last use / 8)`. The slab with the lowest score
//! is evicted first. Ages are counted within a layer, not over the whole pass. Layers come in turn, so a clock of the
//! whole pass would call the slabs of the layer just computed young, although they are needed last. Shares make layers
//! comparable while a chunk of a prompt passes through the layers, when some layers have counted the chunk's tokens and
//! others have not. A visit adds as many uses as it has distinct slabs, whatever the number of its tokens: a chunk
//! ranks slabs by its tokens and still does not outweigh the answer that follows.
//!
//! **No admission by recency.** There is no separate rule for prompts. A slab that a chunk only streamed through has a
//! low share, so it is the next victim once it is released. A chunk therefore takes no more room from other slabs than
//! the [`UNDER_WAY_MAX`] slabs that are placed at a time.
//!
//! **Who owns memory.** From [`Placement`] until [`Arena::loaded`] or [`Arena::failed`] is accepted for its ticket,
//! the slot belongs to the read with that ticket. Answers with another ticket, and second answers, change nothing.

mod arena;
mod check;
mod error;
mod figures;
mod foresight;
mod scores;
mod shape;
mod slab;
mod slots;
mod victims;

pub use arena::Arena;
pub use error::ArenaError;
pub use figures::{ArenaFigures, PrefetchFigures, ShadowHits, VisitFigures};
pub use foresight::Foresight;
pub use scores::SlabCounts;
pub use shape::ArenaShape;
pub use slab::{Placement, SlabId, SlabSlot};
pub use slots::SlotChanges;

/// Maximum number of slabs that may be in progress at once during a visit of an [`Arena`]. A slab is the weights of one
/// expert in one layer. A slab is in progress from the call of [`Arena::place`] to the call of [`Arena::release`]. With
/// several slabs in progress, reads overlap with computation. The limit keeps a long chunk of a prompt from evicting
/// too many other slabs.
pub const UNDER_WAY_MAX: usize = 8;

#[cfg(test)]
mod tests;
