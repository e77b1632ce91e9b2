//! The window over drivers that answer late, out of order, wrongly, or not at all.

mod chaos;
mod random_passes;
mod rng;
