//! Routings: which experts tokens were sent to, and what a memory for experts would have had to read for them.
//!
//! A [`Routing`] is read from a trace ([`read_routing`]), made up ([`Routing::zipf`]), or recorded: [`RoutingWriter`]
//! writes the columns that the reader takes. [`run`] compares policies over it: the arena that `interbed-weights`
//! decides with, driven as an engine drives it, those of textbooks, and what no policy can beat.
//! [`read_bytes_per_token`] is the same as one number, for a plan.

mod bounds;
mod comparison;
mod expected;
mod figures;
mod head;
mod player;
mod policy;
mod random;
mod reader;
mod report;
mod synthetic;
mod textbook;
mod trace;
mod writer;

#[cfg(test)]
mod tests;

pub use comparison::{RoutingRequest, is_routing, read_routing, run};
pub use expected::{least_bytes_per_token, read_bytes_per_token};
pub use head::{LayerBytes, RoutingHead};
pub use trace::{LayerVisit, Routing, RoutingPass};
pub use writer::{RoutingRow, RoutingWriter};
