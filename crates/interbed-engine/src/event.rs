//! Events and errors that the engine sends about a request.

use interbed_grammar::GrammarError;
use interbed_kv::{Miss, TokenId};
use thiserror::Error;

/// Why a sequence ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token, which is not part of the text.
    EndOfSequence,
    /// The model generated one of the request's `stop_token_ids`.
    StopToken(TokenId),
    /// The request's constraint allows nothing more: the answer is complete.
    Complete,
    /// The sequence reached `max_tokens` or the end of the context.
    Length,
}

/// The reason why a sequence failed after it was accepted. The server answers with HTTP 500, or with an error event in
/// a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The pass that this request took part in failed; the string says why.
    #[error("the forward pass failed: {0}")]
    Forward(String),
    /// The model computed logits, or hidden states of an embedding, that are not finite.
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

/// A token with its natural-log probability under the model, before temperature and penalties.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// The natural logarithm of the token's probability.
    pub logprob: f32,
    /// The position of the token in the order of likelihood, which is 1 for the most likely token.
    pub rank: u32,
}

/// The tokens of a prompt whose KV a tier below memory had, beyond those that nearer tiers had.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FoundBelow {
    /// The [name](interbed_kv::LowerTier::name) of the tier.
    pub tier: &'static str,
    /// The number of tokens that were known to be in the tier. Of a tier that has to be asked, none are known.
    pub tokens: usize,
    /// The number of tokens whose KV was read from the tier.
    pub loaded: usize,
    /// The number of tokens that the tier could have brought and that were computed anyway, because that was expected
    /// to be faster. Known tokens that were neither loaded nor computed could not be read.
    pub computed: usize,
    /// The seconds that reading from the tier took.
    pub seconds: f64,
}

/// The facts that are known once a prompt has been computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptDone {
    /// The number of prompt tokens whose KV was not computed, because the engine had it.
    pub cached_tokens: usize,
    /// The tokens whose KV came from tiers below memory, nearest tier first.
    pub below: Vec<FoundBelow>,
    /// Where the prefix stopped matching and why, if `explain_miss` was set. Blocks that came from below memory count
    /// as matched, so this agrees with `cached_tokens`.
    pub miss: Option<Miss>,
    /// One entry per prompt token if `prompt_logprobs` was set, and none otherwise. The first entry is `None`.
    pub logprobs: Vec<Option<PositionLogprobs>>,
}

/// The log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// The token that stands at this position.
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

/// An event in a request's stream. A `PromptDone` comes first, then `Token`s or one `Embedding`, then exactly one
/// `Finished` or `Failed`. `Preempted` may come anywhere before the last event.
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
    /// The embedding of a prompt, `[hidden_size]`, neither cut nor normalised. It is the only result if
    /// [`Request::embed`](crate::Request::embed) was set.
    Embedding(Vec<f32>),
    /// The sequence was preempted. Each client of a beam search gets this event for every preemption of the whole
    /// search.
    Preempted {
        /// Whether the sequence's KV was swapped out. If not, the KV is computed again.
        swapped: bool,
    },
    /// The last event of a sequence that ended well.
    Finished {
        /// The reason why the sequence ended.
        reason: FinishReason,
    },
    /// The last event of a sequence that failed.
    Failed(RequestError),
}

impl Event {
    /// Returns whether no event comes after this one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}
