//! Progress reports of a long computation.

/// Is told how far a computation is. Stages follow each other; each ends before the next one begins.
pub trait Progress {
    /// A stage of `total` steps begins.
    fn begin_steps(&mut self, what: &'static str, total: u64);

    /// A stage that goes through `total` bytes begins.
    fn begin_bytes(&mut self, what: &'static str, total: u64);

    /// `by` more steps or bytes are done.
    fn advance(&mut self, by: u64);

    /// The stage has ended.
    fn end(&mut self);
}
