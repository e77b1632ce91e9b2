//! One line of a trace in either format, with its limits and what can be wrong with it.

use thiserror::Error;

/// The most bytes of a line, which suffice for more ids than the longest prompt has blocks.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 20;

/// The most tokens of a prompt or an answer.
pub const TOKENS_MAX: usize = 1 << 24;

/// The greatest timestamp in milliseconds. The limit exists because the steps of a load are counted in 64 bits.
pub(super) const TIMESTAMP_MAX: f64 = 1e15;

/// The most blocks that all prompts together name. The limit exists because each block gets a number that must fit a
/// token.
pub(super) const REFERENCES_MAX: usize = (1 << 26) - 1;

/// The most requests of a trace.
pub(super) const REQUESTS_MAX: usize = 1 << 24;

/// One request, as a line of the trace gives it.
#[derive(Debug, PartialEq)]
pub(super) struct TraceEntry {
    /// Seconds since the trace's own time zero.
    pub arrival: f64,
    pub input_tokens: usize,
    pub output_tokens: usize,
    pub hash_ids: Vec<u64>,
}

/// Checks that `got` is a number of tokens that some model could have been given, and returns it.
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
        /// The beginning of the line.
        got: String,
    },
    /// The line is not a JSON object, or lacks required fields.
    #[error(
        "expected {{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [ids]}}: {0}"
    )]
    Json(serde_json::Error),
    /// The line has no value in a column that the header names, or an invalid one.
    #[error("expected {expected} as {column}, got {got:?}")]
    Column {
        /// The column's name.
        column: &'static str,
        /// What the column must contain.
        expected: &'static str,
        /// What the line has in the column.
        got: String,
    },
    /// The timestamp is negative or out of range.
    #[error("expected a timestamp from 0 to {TIMESTAMP_MAX} ms, got {got}")]
    Timestamp {
        /// The timestamp in milliseconds.
        got: f64,
    },
    /// A length exceeds every model's context.
    #[error("{field} is {got} tokens; expected at most {TOKENS_MAX}")]
    Length {
        /// The name of the field.
        field: &'static str,
        /// The length in tokens.
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
