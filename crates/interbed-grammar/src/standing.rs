//! Where an answer stands.

/// Where an answer stands after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// More may come.
    Open,
    /// The answer is complete, and nothing may come but an end-of-sequence token.
    Complete,
}
