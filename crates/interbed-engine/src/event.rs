//! Events and errors that the engine sends about a request.

use interbed_grammar::GrammarError;
use interbed_kv::{Miss, TokenId};
use thiserror::Error;

/// Reason why a sequence ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token. The text of this token is not part of the answer unless
    /// [`TextOptions::include_stop`](crate::text::TextOptions::include_stop) is set.
    EndOfSequence,
    /// The model generated one of the request's `stop_token_ids`.
    StopToken(TokenId),
    /// The answer is complete, because the request's constraint allows no further token.
    Complete,
    /// The sequence reached `max_tokens` or the maximum context length.
    Length,
}

/// Reason why a sequence failed after its request was accepted. The server answers with an HTTP error, or with an error
/// event if the response is streamed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// A forward pass with the sequence failed, or the sequence's KV does not fit in memory and could not be written to
    /// disk or read back. The string says why.
    #[error("the forward pass failed: {0}")]
    Forward(String),
    /// The model computed a logit that is NaN, or an embedding's hidden state contains a number that is not finite.
    #[error(
        "the model computed numbers that are not finite; its weights may be damaged, or too large for the KV cache's \
         type: try --kv-dtype f32"
    )]
    NotFinite,
    /// The request's constraint could not determine which tokens are allowed next.
    #[error(transparent)]
    Constraint(GrammarError),
    /// The request needs more KV blocks than the engine has in total.
    #[error(
        "the request needs {need} KV blocks but there are {limit}; shorten it, lower max_tokens, or raise --memory"
    )]
    TooLarge {
        /// Number of blocks that the request needs.
        need: usize,
        /// Total number of blocks.
        limit: usize,
    },
    /// The client read its events so slowly that the unread ones would have taken more memory than the request's
    /// [`UnreadBudget`](crate::UnreadBudget) allows.
    #[error(
        "the answer was read too slowly: too many of its tokens waited to be read, so it was ended; read it as it \
         comes, or send the request without stream"
    )]
    Unread,
    /// The engine was stopped or crashed while the request was in flight.
    #[error("the engine stopped before the request was done")]
    Stopped,
}

/// A token and the natural logarithm of its probability under the model. The probability does not depend on logit
/// biases, penalties or temperature. If a constraint restricts the token's position, the probability is relative to all
/// tokens that the constraint allows there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Id of the token.
    pub token: TokenId,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Rank of the token by likelihood; 1 for the most likely token.
    pub rank: u32,
}

/// Result of searching one KV tier, on disk or in a shared store, for the KV of a prompt. Tokens whose KV was found in
/// memory, or in a tier that was searched earlier, are not included.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FoundBelow {
    /// [Name](interbed_kv::LowerTier::name) of the tier.
    pub tier: &'static str,
    /// Number of tokens whose KV was found by a look-up, before anything was read. This is 0 for a tier that must be
    /// read to find out what it holds.
    pub tokens: usize,
    /// Number of tokens whose KV was taken from the tier instead of being computed. The engine reads this KV into
    /// memory. If the KV of the whole sequence does not fit in memory, part of it stays on disk, and each forward pass
    /// reads this part again.
    pub loaded: usize,
    /// Number of tokens whose KV the tier held but the engine computed, because the rule
    /// [`TierPolicy::recompute`](crate::TierPolicy::recompute) says so. If `loaded` and `computed` add up to less than
    /// `tokens`, the KV of the other tokens was not used for another reason, for example because the read failed.
    pub computed: usize,
    /// Time from the beginning to the end of the read from the tier, in seconds; 0 if nothing was read.
    pub seconds: f64,
}

/// Information about a prompt that has been computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptDone {
    /// Number of prompt tokens whose KV was found in memory, on disk or in a shared store, and was therefore not
    /// computed.
    pub cached_tokens: usize,
    /// One entry for each KV tier, on disk or in a shared store, that was searched, in the order of the search.
    pub below: Vec<FoundBelow>,
    /// Number of leading tokens whose KV was found, and the reason why the KV of the next tokens was not found, if
    /// `explain_miss` was set. Tokens whose KV was read from disk or from a shared store are included, as they are in
    /// `cached_tokens`.
    pub miss: Option<Miss>,
    /// One entry per prompt token if `prompt_logprobs` was set; otherwise empty. The first entry is `None`, because no
    /// token precedes the first one.
    pub logprobs: Vec<Option<PositionLogprobs>>,
}

/// Log-probabilities at one position of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// Token at this position.
    pub chosen: TokenLogprob,
    /// Most likely tokens, best first, as many as were requested.
    pub top: Vec<TokenLogprob>,
}

impl PositionLogprobs {
    /// Returns a copy in which the list of most likely tokens is cut to its first `top` entries.
    #[must_use]
    pub fn best(&self, top: usize) -> Self {
        Self { chosen: self.chosen, top: self.top.iter().take(top).copied().collect() }
    }
}

/// An event in the stream of one sequence. A stream that succeeds has one `PromptDone`, then `Token`s or one
/// `Embedding`, then one `Finished`. A stream that fails ends with `Failed`. `Preempted` may come anywhere before the
/// last event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt has been computed.
    PromptDone(PromptDone),
    /// One more token was generated.
    Token {
        /// The token. A token that ends a sequence is delivered too, before `Finished`.
        id: TokenId,
        /// The log-probabilities at the token's position, if `logprobs` was set.
        logprobs: Option<PositionLogprobs>,
    },
    /// The embedding of the prompt, of shape `[hidden_size]`, neither truncated nor normalised. It is sent instead of
    /// tokens if [`Request::embed`](crate::Request::embed) was set.
    Embedding(Vec<f32>),
    /// The sequence was preempted: it gave up its KV blocks to other sequences, and continues later. In a beam search,
    /// all beams are preempted together. Each stream of the search receives one such event per preemption, but only
    /// when the search ends.
    Preempted {
        /// Whether the sequence's KV was swapped out. If not, the KV is computed again.
        swapped: bool,
    },
    /// The sequence ended without an error. This is the last event.
    Finished {
        /// The reason why the sequence ended.
        reason: FinishReason,
    },
    /// The sequence failed. This is the last event.
    Failed(RequestError),
}

impl Event {
    /// Returns whether this is the last event of its stream.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}
