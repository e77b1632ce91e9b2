//! Policies over routings: the arena that `interbed-weights` decides with, those of textbooks, and what no policy can
//! beat.

mod comparison;
mod figures;
mod foresight;
mod report;
#[cfg(test)]
mod tests;
mod textbook;

pub use comparison::{RoutingRequest, run};
