//! The laboratory: answers questions, and serves no requests.
//!
//! [`plan`] runs the window planners for a machine that may be elsewhere, and predicts how fast a model would run on
//! it. [`replay`] runs the block manager over a trace of requests, with any policy of [`eviction`]. [`routing`] runs
//! the arena of experts over what routers chose, beside policies of textbooks and a bound. [`simulation`] is simulated
//! hardware with a virtual clock: both the plans and the planners' tests run on it. [`mapping`] tells what passes would
//! wait for where KV is mapped side by side.

pub mod eviction;
pub mod mapping;
pub mod plan;
mod progress;
mod refusal;
pub mod replay;
pub mod routing;
pub mod simulation;
pub mod words;

pub use progress::Progress;
pub use refusal::Refusal;
