//! What the engine tells of a request.

use interbed_grammar::GrammarError;
use interbed_kv::{Miss, TokenId};
use thiserror::Error;

/// Why a sequence ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, which is not part of the text.
    EndOfSequence,
    /// One of the request's `stop_token_ids`.
    StopToken(TokenId),
    /// The request's constraint allows nothing more: the answer is complete.
    Complete,
    /// `max_tokens` or the context's end was reached.
    Length,
}

/// Why a sequence failed after it was accepted. HTTP 500, or an error event in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The pass that this request took part in failed.
    #[error("the forward pass failed: {0}")]
    Forward(String),
    /// The model's logits were NaN.
    #[error(
        "the model computed numbers that are not finite; its weights may be damaged, or too large for the KV cache's \
         type: try --kv-dtype f32"
    )]
    NotFinite,
    /// The request's constraint could not determine which tokens are allowed next.
    #[error(transparent)]
    Constraint(GrammarError),
    /// The request would not fit even if it had all KV blocks.
    #[error(
        "the request needs {need} KV blocks but there are {limit}; shorten it, lower max_tokens, or raise --memory"
    )]
    TooLarge {
        /// Blocks needed.
        need: usize,
        /// Blocks in all.
        limit: usize,
    },
    /// The client read the answer more slowly than its tokens came.
    #[error(
        "the answer was read too slowly: too many of its tokens waited to be read, so it was ended; read it as it \
         comes, or send the request without stream"
    )]
    Unread,
    /// The engine was stopped, or died, while the request was in flight.
    #[error("the engine stopped before the request was done")]
    Stopped,
}

/// A token with its natural-log probability under the model (before temperature and penalties).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Position of the token in the order of likelihood, which is 1 for the most likely token.
    pub rank: u32,
}

/// Tokens of a prompt whose KV was found on disk or in a shared store, beyond those that were in memory.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FoundBelow {
    /// Tokens that were on disk.
    pub tokens: usize,
    /// Tokens whose KV was read from disk.
    pub loaded: usize,
    /// Tokens that came from the store that servers share.
    pub remote: usize,
    /// Seconds that the store took.
    pub remote_seconds: f64,
    /// Tokens that were found on disk and computed anyway, because that was expected to be faster. The remaining ones
    /// could not be read.
    pub computed: usize,
    /// Seconds that reading from disk took.
    pub seconds: f64,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// The token that stands there.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
}

impl PositionLogprobs {
    /// Returns these log-probabilities with at most `top` of the most likely tokens.
    #[must_use]
    pub fn best(&self, top: usize) -> Self {
        Self { chosen: self.chosen, top: self.top.iter().take(top).copied().collect() }
    }
}

/// What a request's stream carries. Order: `PromptDone`, then `Token`s, then exactly one `Finished` or `Failed`;
/// `Preempted` anywhere before that.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt has been computed.
    PromptDone {
        /// Prompt tokens whose KV came from the prefix cache.
        cached_tokens: usize,
        /// Tokens whose KV came from disk or from a shared store; `None` without either.
        below: Option<FoundBelow>,
        /// Where the prefix stopped matching and why, when `explain_miss` was set. What came from below memory has
        /// matched, so that this agrees with `cached_tokens`.
        miss: Option<Miss>,
        /// One entry per prompt token when `prompt_logprobs` was set (the first is `None`), else empty.
        logprobs: Vec<Option<PositionLogprobs>>,
    },
    /// One more token was generated.
    Token {
        /// The token. The end-of-sequence or stop token that ends a sequence is delivered too, before `Finished`.
        id: TokenId,
        /// Present when `logprobs` was set.
        logprobs: Option<PositionLogprobs>,
    },
    /// The embedding of a prompt, `[hidden_size]`, neither cut nor normalised: the one result where
    /// [`Request::embed`](crate::Request::embed) was set.
    Embedding(Vec<f32>),
    /// The sequence was preempted. For a beam search, the whole search was.
    Preempted {
        /// Whether its KV was swapped out; if not, it is computed again.
        swapped: bool,
    },
    /// The last event of a sequence that ended well.
    Finished {
        /// Why.
        reason: FinishReason,
    },
    /// The last event of a sequence that did not.
    Failed(RequestError),
}

impl Event {
    /// Whether nothing comes after it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}
