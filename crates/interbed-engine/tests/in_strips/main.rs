//! The tests of `tests/it`, with blocks that are mapped side by side.

#[path = "../it/beams.rs"]
mod beams;
#[path = "../it/compaction.rs"]
mod compaction;
#[path = "../it/company.rs"]
mod company;
#[path = "../it/constraints.rs"]
mod constraints;
#[path = "../it/disk.rs"]
mod disk;
#[path = "../it/drafts.rs"]
mod drafts;
#[path = "../it/endings.rs"]
mod endings;
#[path = "../it/forks.rs"]
mod forks;
#[path = "../it/long.rs"]
mod long;
#[path = "../it/model.rs"]
mod model;
#[path = "../it/passes_on.rs"]
mod passes_on;
#[path = "../it/pressure.rs"]
mod pressure;
#[path = "../it/real.rs"]
mod real;
#[path = "../it/sim.rs"]
mod sim;
#[path = "../it/streamed.rs"]
mod streamed;
#[path = "../it/tails.rs"]
mod tails;
#[path = "../it/trade.rs"]
mod trade;

/// Whether blocks are mapped side by side.
pub const IN_STRIPS: bool = true;
