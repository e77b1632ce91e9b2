//! What a router is asked and told. A router decides; it reads no clock and sends nothing.

use super::chains::ContentNumber;

/// A prompt that arrives at the router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt<'p> {
    /// The request's number in the trace.
    pub request: usize,
    /// When it arrives, in microseconds.
    pub now: u64,
    pub tokens: usize,
    pub contents: &'p [ContentNumber],
}

/// Contents that a server's memory has lost and got, in this order: what servers publish as KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KvChanges {
    pub removed: Vec<ContentNumber>,
    pub stored: Vec<ContentNumber>,
}

/// Chooses a server for each prompt.
pub(super) trait Router {
    /// Returns the server that gets the prompt.
    fn route(&mut self, prompt: &Prompt<'_>) -> usize;

    /// The first token of a request's answer has come: its prompt is computed.
    fn began(&mut self, _request: usize) {}

    /// A request's answer is complete.
    fn ended(&mut self, _request: usize) {}

    /// What changed in a server's memory, and when.
    fn changed(&mut self, _server: usize, _now: u64, _changes: KvChanges) {}

    /// Returns whether it wants to be told of [changes](Self::changed).
    fn follows_changes(&self) -> bool {
        false
    }
}
