//! The laboratory: what nobody serves with, and everybody may ask.
//!
//! [`plan`] runs the window planners over a machine that need not be here, and says how fast a model would be on it.
//! [`replay`] runs the block manager over a trace of requests, with any policy of [`eviction`]. [`simulation`] is
//! hardware with a virtual clock: both the plans and the planners' tests run on it.

pub mod eviction;
pub mod plan;
mod progress;
mod refusal;
pub mod replay;
pub mod simulation;
pub mod words;

pub use progress::Progress;
pub use refusal::Refusal;
