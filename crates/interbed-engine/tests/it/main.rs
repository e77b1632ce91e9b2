//! The engine over a simulated model, whose tokens show any wrong KV at once.

mod beams;
mod compaction;
mod company;
mod constraints;
mod device_trade;
mod devices;
mod disk;
mod drafting;
mod drafts;
mod embeddings;
mod endings;
mod episodes;
mod forks;
mod group_trade;
mod live;
mod long;
mod made_up;
mod model;
mod passes_on;
mod pressure;
mod real;
mod remote;
mod sim;
mod streamed;
mod tails;
mod tails_below;
mod trade;
mod watched;

/// Whether blocks are mapped side by side. The tests run both ways: see `tests/in_strips`.
pub const IN_STRIPS: bool = false;
