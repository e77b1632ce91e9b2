//! Plans how fast a model would run on a machine that may be elsewhere, and what would limit it.
//!
//! [`plan`] runs the window planners and the arena of experts for a machine, and predicts the speed of a model on it.
//! [`simulation`] is simulated hardware with a virtual clock: plans run on it, and so do the planners' tests.
//! [`routing`] reads, writes and makes up traces of what routers chose, and says what a memory for experts would have
//! read for these choices.

pub mod plan;
mod progress;
mod refusal;
pub mod routing;
pub mod simulation;
pub mod words;

pub use progress::Progress;
pub use refusal::Refusal;
