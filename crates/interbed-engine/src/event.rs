//! Events and errors that the engine sends about a request.

use interbed_grammar::GrammarError;
use interbed_kv::{Miss, TokenId};
use thiserror::Error;

/// Reason why a sequence ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token. This token is not part of the answer's text.
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
    /// The forward pass that computed the sequence failed. The string says why.
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

/// A token and the natural logarithm of its probability under the model, before temperature and penalties are applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Id of the token.
    pub token: TokenId,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Rank of the token by likelihood; 1 for the most likely token.
    pub rank: u32,
}

/// What one KV tier on disk or in a shared store contributed to a prompt. Tokens whose KV was in memory or in a nearer
/// tier do not count.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FoundBelow {
    /// [Name](interbed_kv::LowerTier::name) of the tier.
    pub tier: &'static str,
    /// Number of tokens whose KV the tier held, according to a look-up before the read. This is 0 for a tier that can
    /// find out only by reading.
    pub tokens: usize,
    /// Number of tokens whose KV was read from the tier.
    pub loaded: usize,
    /// Number of tokens whose KV the engine computed instead of reading it from the tier, because of the rule
    /// [`TierPolicy::recompute`](crate::TierPolicy::recompute). If `loaded` and `computed` add up to less than
    /// `tokens`, the other tokens were not read, for example because the read failed.
    pub computed: usize,
    /// Duration of the read from the tier, in seconds.
    pub seconds: f64,
}

/// Information about a prompt that has been computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptDone {
    /// Number of prompt tokens whose KV was found in memory, on disk or in a shared store, and was therefore not
    /// computed.
    pub cached_tokens: usize,
    /// What each KV tier on disk or in a shared store contributed, nearest tier first.
    pub below: Vec<FoundBelow>,
    /// If `explain_miss` was set, the point at which the prompt stopped matching the prefix cache, and the reason.
    /// Tokens whose KV was read from disk or from a shared store count as matched. They also count in `cached_tokens`.
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
    /// Returns a copy that keeps at most `top` entries of the list of most likely tokens.
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
    /// The sequence was preempted. In a beam search, a preemption affects the whole search: every stream receives one
    /// such event for each preemption, but only when the search ends.
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
