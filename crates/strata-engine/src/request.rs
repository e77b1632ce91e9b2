//! What a caller asks of the engine, and what the engine answers.

use strata_kv::Miss;
use thiserror::Error;

use crate::BeamParams;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// Whose requests they are, where several share an engine: each has a share of the KV blocks (S5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u128);

/// What to generate: one continuation of a prompt, or several ([`crate::EngineHandle::submit_many`]).
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// How the next token is chosen, and when generation ends.
    pub params: SamplingParams,
    /// Requests with different salts never share cached KV (K15). `None` is the common namespace.
    pub cache_salt: Option<String>,
    /// Lower runs first; ties by arrival. 0 by default.
    pub priority: i32,
    /// Whose it is. Requests without one share as if they were one tenant's.
    pub tenant: Option<TenantId>,
    /// Whether [`Event::PromptDone`] is to say why its prefix was not cached.
    pub explain_miss: bool,
    /// The best continuations by beam search instead of sampled ones (K11).
    pub beam: Option<BeamParams>,
}

/// How tokens are chosen (L4). The defaults are those of the OpenAI API and vLLM.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Most tokens to generate. 0 only computes the prompt (for prompt log-probabilities).
    pub max_tokens: usize,
    /// Tokens before which neither EOS nor a stop token may end the sequence.
    pub min_tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `k` most likely tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens whose probability reaches this; in (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely; in [0, 1].
    pub min_p: f32,
    /// Divides (or multiplies, when negative) logits of tokens seen in prompt or output; above 0.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of generated tokens; in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted per occurrence from logits of generated tokens; in [-2, 2].
    pub frequency_penalty: f32,
    /// Added to logits, per token; each in [-100, 100].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The n-th sample of a request depends on the seed, n and the logits alone.
    pub seed: u64,
    /// Generate past the end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Tokens that end generation besides the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Report log-probabilities of each chosen token and this many of the most likely.
    pub logprobs: Option<usize>,
    /// Report log-probabilities of the prompt's tokens, with this many of the most likely.
    pub prompt_logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: 16,
            min_tokens: 0,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// What requests are checked against; known once the model is loaded and memory divided.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Prompt plus generated tokens of one request: the model's context or what KV memory can hold, whichever is
    /// less.
    pub max_model_len: usize,
    /// Tokens of context that the model itself supports.
    pub model_context: usize,
    /// Tokens that the KV blocks can hold in all.
    pub kv_capacity_tokens: usize,
    /// Tokens of a KV block.
    pub kv_block_tokens: usize,
    /// Most `logprobs` a request may ask for.
    pub max_logprobs: usize,
    /// Widest beam search; no more than sequences can run at a time.
    pub max_beam_width: usize,
    /// Requests that may wait at a time; one more is refused as overload.
    pub max_waiting: usize,
}

/// A parameter of a request that cannot be served, refused before anything is queued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// The parameter's name as the OpenAI API spells it.
    pub param: &'static str,
    /// What was expected, what was got, and what to do.
    pub message: String,
}

/// Why [`crate::EngineHandle::submit`] took nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// HTTP 400.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// HTTP 503 with `Retry-After`.
    #[error("{waiting} requests are waiting already, which is the limit (--max-waiting); try again later")]
    Overloaded {
        /// Requests in the waiting queue.
        waiting: usize,
    },
    /// HTTP 503: the engine has shut down, or is draining.
    #[error("the engine has stopped and takes no more requests")]
    Stopped,
}

/// Why a sequence ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, which is not part of the text.
    EndOfSequence,
    /// One of the request's `stop_token_ids`.
    StopToken(TokenId),
    /// `max_tokens` or the context's end was reached.
    Length,
}

/// Why a sequence failed after it was accepted. HTTP 500, or an error event in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The pass that this request took part in failed.
    #[error("the forward pass failed: {0}")]
    Forward(String),
    /// The model's answer was not a number.
    #[error(
        "the model computed numbers that are not finite; its weights may be damaged, or too large for the KV cache's \
         type: try --kv-dtype f32"
    )]
    NotFinite,
    /// It could not fit even in an empty KV pool (S3).
    #[error(
        "the request needs {need} KV blocks but there are {limit}; shorten it, lower max_tokens, or raise --memory"
    )]
    TooLarge {
        /// Blocks needed.
        need: usize,
        /// Blocks in all.
        limit: usize,
    },
    /// The engine was stopped, or died, while the request was under way.
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
    /// 1 for the most likely token.
    pub rank: u32,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// The token that stands there.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
}

/// What a request's stream carries. Order: `PromptDone`, then `Token`s, then exactly one `Finished` or `Failed`;
/// `Preempted` anywhere before that.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt has been computed.
    PromptDone {
        /// Prompt tokens whose KV came from the prefix cache.
        cached_tokens: usize,
        /// Where the prefix stopped matching and why, when `explain_miss` was set: before the first pass, whatever
        /// happened later.
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
    /// The sequence had to make room for others, since it was on its own (S2); of a beam search, the search.
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
