//! One line of a trace, whichever format it has: its limits, and what can be wrong with it.

use thiserror::Error;

/// Bytes of a line, at most: more ids than the longest prompt has blocks.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 20;

/// Tokens of a prompt or an answer, at most.
pub const TOKENS_MAX: usize = 1 << 24;

/// Milliseconds of a timestamp, at most: steps of a load are counted in 64 bits.
pub(super) const TIMESTAMP_MAX: f64 = 1e15;

/// Blocks that all prompts together name, at most: each has a number that fits a token.
pub(super) const REFERENCES_MAX: usize = (1 << 26) - 1;

/// Requests, at most.
pub(super) const REQUESTS_MAX: usize = 1 << 24;

/// One request, as a line has it.
#[derive(Debug, PartialEq)]
pub(super) struct TraceEntry {
    /// Seconds since whatever the trace counts from.
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
    /// Neither of the formats.
    #[error(
        "expected a JSON object, as in Mooncake's traces, or a header with TIMESTAMP, ContextTokens and \
         GeneratedTokens, as in Azure's; got {got:?}"
    )]
    Format {
        /// How the line begins.
        got: String,
    },
    /// No such object, or not these fields.
    #[error(
        "expected {{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [ids]}}: {0}"
    )]
    Json(serde_json::Error),
    /// A column that the header names and the line lacks, or that is no such value.
    #[error("expected {expected} as {column}, got {got:?}")]
    Column {
        /// The column's name.
        column: &'static str,
        /// What stands there in Azure's traces.
        expected: &'static str,
        /// What stands here.
        got: String,
    },
    /// Negative, or of another age.
    #[error("expected a timestamp from 0 to {TIMESTAMP_MAX} ms, got {got}")]
    Timestamp {
        /// What stands there.
        got: f64,
    },
    /// Longer than any model's context.
    #[error("{field} is {got} tokens; expected at most {TOKENS_MAX}")]
    Length {
        /// The field's name.
        field: &'static str,
        /// What stands there.
        got: u64,
    },
    /// A line without end.
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// Not text.
    #[error("expected UTF-8 text")]
    NotText,
    /// More than can be kept.
    #[error("the trace is too large: at most {REQUESTS_MAX} requests that name {REFERENCES_MAX} blocks are taken")]
    TooMany,
}
