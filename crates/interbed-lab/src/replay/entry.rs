//! One line of a trace in either format: its limits, and what can be wrong with it.

use thiserror::Error;

/// The most bytes of a line: enough for more ids than the longest prompt has blocks.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 20;

/// The most tokens of a prompt or an answer.
pub const TOKENS_MAX: usize = 1 << 24;

/// The greatest timestamp in milliseconds: steps of a load are counted in 64 bits.
pub(super) const TIMESTAMP_MAX: f64 = 1e15;

/// The most blocks that all prompts together name: each gets a number that fits a token.
pub(super) const REFERENCES_MAX: usize = (1 << 26) - 1;

/// The most requests.
pub(super) const REQUESTS_MAX: usize = 1 << 24;

/// One request, as given in a line.
#[derive(Debug, PartialEq)]
pub(super) struct TraceEntry {
    /// Seconds since the trace's own time zero.
    pub arrival: f64,
    pub input_tokens: usize,
    pub output_tokens: usize,
    pub hash_ids: Vec<u64>,
}

/// A number of tokens that some model could have been given.
pub(super) fn tokens(field: &'static str, got: u64) -> Result<usize, LineProblem> {
    usize::try_from(got).ok().filter(|&tokens| tokens <= TOKENS_MAX).ok_or(LineProblem::Length { field, got })
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub(super) enum LineProblem {
    /// The line is in neither of the formats.
    #[error(
        "expected a JSON object, as in Mooncake's traces, or a header with TIMESTAMP, ContextTokens and \
         GeneratedTokens, as in Azure's; got {got:?}"
    )]
    Format {
        /// How the line begins.
        got: String,
    },
    /// The line is not such an object, or lacks these fields.
    #[error(
        "expected {{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [ids]}}: {0}"
    )]
    Json(serde_json::Error),
    /// A column that the header names is missing in the line, or has no such value.
    #[error("expected {expected} as {column}, got {got:?}")]
    Column {
        /// The column's name.
        column: &'static str,
        /// What Azure's traces have in this column.
        expected: &'static str,
        /// What this line has.
        got: String,
    },
    /// The timestamp is negative or out of range.
    #[error("expected a timestamp from 0 to {TIMESTAMP_MAX} ms, got {got}")]
    Timestamp {
        /// The timestamp.
        got: f64,
    },
    /// The length exceeds any model's context.
    #[error("{field} is {got} tokens; expected at most {TOKENS_MAX}")]
    Length {
        /// The field's name.
        field: &'static str,
        /// The length.
        got: u64,
    },
    /// The line is too long.
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The line is not text.
    #[error("expected UTF-8 text")]
    NotText,
    /// The trace is too large.
    #[error("the trace is too large: at most {REQUESTS_MAX} requests that name {REFERENCES_MAX} blocks are taken")]
    TooMany,
}
