//! Routings: which experts tokens were sent to, and what a memory for experts would have had to read for them.
//!
//! A [`Routing`] is read from a trace ([`read_routing`]), made up ([`Routing::zipf`]), or recorded: [`RoutingWriter`]
//! writes the columns that the reader takes. [`Player`] drives the arena with which `interbed-weights` decides, as an
//! engine drives it. [`read_bytes_per_token`] returns what the player reads, as one number for a plan, and
//! [`lower_bound`] returns what no policy can beat.

mod bounds;
mod expected;
mod head;
mod player;
mod policy;
mod random;
mod reader;
mod synthetic;
mod trace;
mod writer;

pub use bounds::lower_bound;
pub use expected::{least_bytes_per_token, read_bytes_per_token};
pub use head::{LayerBytes, RoutingHead};
pub use player::Player;
pub use policy::{SlabPolicy, demand, play, read_bytes};
pub use random::Random;
pub use reader::{is_routing, read_routing};
pub use trace::{LayerVisit, Routing, RoutingPass};
pub use writer::{RoutingRow, RoutingWriter};

#[cfg(test)]
mod tests;
