//! The answer to whether a constrained text can go on.

/// Whether a constrained answer can go on after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// More tokens are allowed.
    Open,
    /// The answer is complete, so only an end-of-sequence token is allowed.
    Complete,
}
