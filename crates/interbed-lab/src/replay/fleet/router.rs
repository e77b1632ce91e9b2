//! What a router is asked and told. A router only decides; it reads no clock and sends nothing.

use super::chains::ContentNumber;

/// A prompt that arrives at the router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt<'p> {
    /// The request's number in the trace.
    pub request: usize,
    /// The time of the prompt's arrival in microseconds.
    pub now: u64,
    pub tokens: usize,
    pub contents: &'p [ContentNumber],
}

/// The contents that a server's memory has first lost and then got, as servers publish them in KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KvChanges {
    pub removed: Vec<ContentNumber>,
    pub stored: Vec<ContentNumber>,
}

/// Chooses a server for each prompt.
pub(super) trait Router {
    /// Returns the server that gets the prompt.
    fn route(&mut self, prompt: &Prompt<'_>) -> usize;

    /// Notes that the first token of a request's answer has come, so that its prompt is computed.
    fn began(&mut self, _request: usize) {}

    /// Notes that a request's answer is complete.
    fn ended(&mut self, _request: usize) {}

    /// Notes what changed in a server's memory at the time `now`, in microseconds.
    fn changed(&mut self, _server: usize, _now: u64, _changes: KvChanges) {}

    /// Returns whether the router must be told of [changes](Self::changed).
    fn follows_changes(&self) -> bool {
        false
    }
}
