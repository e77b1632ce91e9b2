//! Whether an answer can go on.

/// Whether an answer can go on after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// More tokens are allowed.
    Open,
    /// The answer is complete: only an end-of-sequence token is allowed.
    Complete,
}
