//! Progress reports of a long computation.

/// Receives how far a computation is. Stages follow each other; each ends before the next one begins.
pub trait Progress {
    /// Begins a stage of `total` steps.
    fn begin_steps(&mut self, what: &'static str, total: u64);

    /// Begins a stage that goes through `total` bytes.
    fn begin_bytes(&mut self, what: &'static str, total: u64);

    /// Notes that `by` more steps or bytes are done.
    fn advance(&mut self, by: u64);

    /// Ends the stage.
    fn end(&mut self);
}
