//! The window over drivers that answer late, out of order, wrongly, or never.

mod chaos;
mod exact;
mod random_passes;
mod ring;
pub mod rng;
mod two_tiers;
