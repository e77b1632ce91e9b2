//! Tests what a subscriber that speaks ZMTP by hand is told.

mod client;
mod events;
