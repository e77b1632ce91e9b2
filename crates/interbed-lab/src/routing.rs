//! Compares policies over routings: the arena that `interbed-weights` decides with, policies of textbooks, and bounds
//! that no policy can beat.

mod comparison;
mod figures;
mod foresight;
mod report;
#[cfg(test)]
mod tests;
mod textbook;

pub use comparison::{RoutingRequest, run};
