//! Experts of mixture layers under a budget: which slabs are in memory, and which gives way to the next.
//!
//! A *slab* is all weights of one expert in one layer. A pass comes to a layer, learns from the router which experts it
//! needs, and computes with their slabs; most of a large mixture stays on disk. [`Arena`] decides where a slab goes and
//! what it replaces. It is a pure state machine: it reads nothing, waits for nothing and asks for no time. The same
//! code runs under the driver and in `interbed-lab replay`, which compares it with textbook policies and with a lower
//! bound.
//!
//! **Score.** A slab's worth is its share of its layer's uses, aged by how much its layer has been used since:
//! `uses / uses of the layer / (1 + uses of the layer since its last use / 8)`. The lowest goes. Ages are counted
//! within a layer, not over the pass: layers come in turn, so a clock of the whole pass would call the slabs of the
//! layer just computed young, and these are the ones that are needed last. Shares make layers comparable while a
//! chunk of a prompt passes through them and some have counted its tokens and others have not. A visit adds as many
//! uses as it has distinct slabs, whatever the number of its tokens: a chunk ranks slabs by its tokens and still does
//! not outweigh the answer that follows.
//!
//! **No admission by recency.** There is no separate rule for prompts. A slab that a chunk only streamed through has a
//! low share, so once it is released it is itself the next victim, and a chunk takes no more room from others than the
//! [`UNDER_WAY_MAX`] slabs that are placed at a time.
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

/// Slabs of a visit that are placed and not yet released: enough for the disk to have work while one is computed with,
/// few enough for a long chunk to leave in memory what answers need.
pub const UNDER_WAY_MAX: usize = 8;

#[cfg(test)]
mod tests;
