//! The window over drivers that answer late, out of order, wrongly, or not at all.

mod chaos;
mod exact;
mod random_passes;
mod ring;
pub mod rng;
mod two_tiers;
