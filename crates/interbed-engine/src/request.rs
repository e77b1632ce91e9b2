//! Requests to the engine, and the checks that a request must pass before it is queued. A request with a bad parameter
//! is refused here, because inside a batch it would harm the other requests.

use std::sync::Arc;

use interbed_grammar::Constraint;
use interbed_kv::TokenId;
use interbed_model::Pooling;
use thiserror::Error;

use crate::unread::UnreadBudget;

/// The most entries of each of `logit_bias`, `stop_token_ids` and `allowed_token_ids`, and the most tokens of all
/// `bad_words` together.
pub const TOKEN_LIST_MAX: usize = 1024;

/// Identifies the tenant that a request belongs to, if several tenants share an engine. Each tenant has a share of the
/// KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u128);

/// A request for one continuation of a prompt, or for several ([`crate::EngineHandle::submit_many`]).
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// The parameters that say how tokens are chosen, and when generation ends.
    pub params: SamplingParams,
    /// The salt of cached KV. Requests with different salts never share cached KV. `None` is the common namespace.
    pub cache_salt: Option<String>,
    /// The priority; 0 by default. Requests with a lower number run first, and those with equal numbers run in the
    /// order of arrival.
    pub priority: i32,
    /// The tenant that the request belongs to. All requests without a tenant together count as one tenant.
    pub tenant: Option<TenantId>,
    /// Whether [`PromptDone`](crate::PromptDone) is to say why its prefix was not cached.
    pub explain_miss: bool,
    /// Settings of beam search, if the best continuations are wanted instead of sampled ones.
    pub beam: Option<BeamParams>,
    /// How to pool the prompt's embedding, if an embedding is wanted instead of a continuation. `max_tokens` must then
    /// be 0.
    pub embed: Option<Pooling>,
    /// The bound on the events that the streams of all requests with this budget may leave unread; `None` is no bound.
    pub unread: Option<Arc<UnreadBudget>>,
    /// The grammar that each continuation has to follow, which also decides where the continuation ends.
    pub constraint: Option<Constraint>,
}

/// The parameters of sampling. The defaults are those of the OpenAI API.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// The most tokens to generate. With 0, the engine only computes the prompt, for prompt log-probabilities.
    pub max_tokens: usize,
    /// The number of tokens before which neither an end-of-sequence token nor a stop token may end the sequence.
    pub min_tokens: usize,
    /// The number that logits are divided by before sampling; 0 always takes the most likely token.
    pub temperature: f32,
    /// Sampling keeps the `k` most likely tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Sampling keeps the smallest set of most likely tokens, at least one, whose probability reaches this number in
    /// [0, 1].
    pub top_p: f32,
    /// Sampling drops tokens that are less likely than this share of the most likely token; in [0, 1].
    pub min_p: f32,
    /// The number that divides positive logits, and multiplies negative ones, of tokens seen in prompt or output; above
    /// 0.
    pub repetition_penalty: f32,
    /// The number that is subtracted once from the logits of generated tokens; in [-2, 2].
    pub presence_penalty: f32,
    /// The number that is subtracted per occurrence from the logits of generated tokens; in [-2, 2].
    pub frequency_penalty: f32,
    /// The numbers that are added to the logits of tokens; each in [-100, 100].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The tokens that may be generated; empty means all.
    pub allowed_token_ids: Vec<TokenId>,
    /// Sequences of tokens that must not be generated. After all tokens of a sequence but its last, the last is
    /// forbidden. No sequence is empty.
    pub bad_words: Vec<Vec<TokenId>>,
    /// The seed. The n-th sample of a request depends on the seed, n and the logits alone.
    pub seed: u64,
    /// Whether generation goes on past the end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Tokens that end generation besides the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// If set, log-probabilities of each chosen token and of this many of the most likely tokens are reported.
    pub logprobs: Option<usize>,
    /// If set, log-probabilities of the prompt's tokens and of this many of the most likely tokens are reported.
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
            allowed_token_ids: Vec::new(),
            bad_words: Vec::new(),
            seed: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// The settings of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamParams {
    /// The number of beams that are extended at a time; at least 1. A search with 1 beam is greedy.
    pub width: usize,
    /// A hypothesis' summed log-probability is divided by its length to the power of this exponent; in [-10, 10]. Above
    /// 0, longer hypotheses gain; 1 is usual.
    pub length_penalty: f32,
    /// Whether the search ends as soon as `width` hypotheses are finished, even if a live beam could still beat them.
    pub early_stopping: bool,
}

impl Default for BeamParams {
    fn default() -> Self {
        Self { width: 1, length_penalty: 1.0, early_stopping: false }
    }
}

/// The limits that requests are checked against. They are known once the model is loaded and memory is divided.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The size of the vocabulary. All token ids are smaller.
    pub vocab_size: usize,
    /// The most tokens of prompt and answer together. This is the model's context or what KV memory can hold, whichever
    /// is less.
    pub max_model_len: usize,
    /// The number of tokens of context that the model itself supports.
    pub model_context: usize,
    /// The number of tokens that the KV blocks can hold in all.
    pub kv_capacity_tokens: usize,
    /// The number of tokens in a KV block.
    pub kv_block_tokens: usize,
    /// The most `logprobs` that a request may ask for.
    pub max_logprobs: usize,
    /// The width of the widest beam search, which is at most the number of sequences that can run at a time.
    pub max_beam_width: usize,
    /// The number of requests that may wait at a time. One more is refused as overload, unless its tenant has less than
    /// an equal share.
    pub max_waiting: usize,
}

/// The error for a request with a parameter that cannot be served. Such a request is refused before anything is queued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// The parameter's name as the OpenAI API spells it.
    pub param: &'static str,
    /// A message that says what was expected, what was got, and what to do.
    pub message: String,
    /// The prompt's length and its limit, if the context is too short for the request.
    pub overflow: Option<ContextOverflow>,
}

/// The lengths in a request for which the context is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    /// The number of tokens of the prompt.
    pub prompt: usize,
    /// The most tokens that a prompt may have and still leave room for an answer of one token, if an answer is asked
    /// for.
    pub prompt_max: usize,
}

/// The reason why [`crate::EngineHandle::submit`] refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The request has an invalid parameter (HTTP 400).
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Too many requests are waiting (HTTP 429 with `Retry-After`).
    #[error("{waiting} requests are waiting already, and no more may (--max-waiting); try again later")]
    Overloaded {
        /// The number of requests in the waiting queue.
        waiting: usize,
    },
    /// The engine has shut down, or is shutting down (HTTP 503).
    #[error("the engine has stopped and takes no more requests")]
    Stopped,
}

impl Request {
    /// Checks every parameter against `limits`.
    ///
    /// # Errors
    /// Fails for the first parameter that cannot be served, and names its limit.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        if self.prompt.is_empty() {
            return refuse("prompt", "the prompt has no tokens; send at least one".into());
        }
        check_tokens("prompt", self.prompt.iter().copied(), limits)?;
        self.check_length(limits)?;
        if self.embed.is_some() {
            return self.check_embedding();
        }
        self.params.check(limits)?;
        self.check_constraint()?;
        match &self.beam {
            Some(beam) => beam.check(self.prompt.len(), &self.params, limits),
            None => Ok(()),
        }
    }

    /// Refuses parameters of sampling in a request for an embedding, because nothing is sampled for an embedding.
    fn check_embedding(&self) -> Result<(), InvalidRequest> {
        let given = [
            ("max_tokens", self.params.max_tokens > 0),
            ("prompt_logprobs", self.params.prompt_logprobs.is_some()),
            ("use_beam_search", self.beam.is_some()),
        ];
        refuse_given(&given, "is for texts, not for embeddings")
    }

    /// Checks that `count` continuations can be asked for at a time.
    pub(crate) fn check_count(&self, count: usize, limits: &Limits) -> Result<(), InvalidRequest> {
        let (most, why) = match &self.beam {
            _ if self.embed.is_some() => (1, "is how many embeddings a prompt has"),
            Some(beam) => (beam.width, "is the width of the beam search (best_of)"),
            None => (limits.max_waiting.max(1), "is how many may wait (--max-waiting)"),
        };
        if count == 0 || count > most {
            return refuse("n", format!("n is {count}, but must be at least 1 and at most {most}, which {why}"));
        }
        Ok(())
    }

    /// Refuses parameters that would end an answer elsewhere than its constraint does.
    fn check_constraint(&self) -> Result<(), InvalidRequest> {
        if self.constraint.is_none() {
            return Ok(());
        }
        let given = [("ignore_eos", self.params.ignore_eos), ("min_tokens", self.params.min_tokens > 0)];
        refuse_given(&given, "cannot go with a schema, a grammar or tools, which say where the answer ends")
    }

    fn check_length(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        let (prompt, limit) = (self.prompt.len(), limits.max_model_len);
        // If KV memory limits the context, the remedy differs from that for a limit that was chosen or that the model
        // sets.
        let more = if limit >= limits.model_context {
            String::new()
        } else if limits.kv_capacity_tokens <= limit {
            format!("; the model supports {}, for which KV needs more --memory", limits.model_context)
        } else {
            format!("; the model supports {}, and --max-model-len may be raised", limits.model_context)
        };
        let max_tokens = self.params.max_tokens;
        let prompt_max = limit.saturating_sub(usize::from(max_tokens > 0));
        // Agents recognise these messages by their beginning, and shorten their conversation.
        let (param, message) = if prompt > prompt_max {
            let message = format!(
                "this model's maximum context length is {limit} tokens, prompt and answer together, but the prompt has \
                 {prompt}; shorten the prompt{more}"
            );
            ("prompt", message)
        } else if max_tokens > limit - prompt {
            let message = format!(
                "this model's maximum context length is {limit} tokens, of which the prompt's {prompt} leave {}, but \
                 max_tokens is {max_tokens}; lower max_tokens or shorten the prompt{more}",
                limit - prompt
            );
            ("max_tokens", message)
        } else {
            return Ok(());
        };
        Err(InvalidRequest { param, message, overflow: Some(ContextOverflow { prompt, prompt_max }) })
    }
}

impl BeamParams {
    /// Returns the most tokens that each beam may generate after a prompt of `prompt_len` tokens, so that the KV blocks
    /// suffice when the search runs alone. The beams share the prompt's full blocks, and may share nothing else.
    /// Returns 0 if there is room for no token.
    pub fn max_tokens(&self, prompt_len: usize, limits: &Limits) -> usize {
        let block = limits.kv_block_tokens.max(1);
        let shared = prompt_len / block;
        let own = (limits.kv_capacity_tokens / block).saturating_sub(shared) / self.width.max(1);
        // The last token of a beam has no KV.
        let room = ((shared + own) * block + 1).saturating_sub(prompt_len);
        room.min(limits.max_model_len.saturating_sub(prompt_len))
    }

    /// Checks the width and the lengths, and refuses parameters that would change the log-probabilities that a beam
    /// search compares.
    fn check(&self, prompt_len: usize, params: &SamplingParams, limits: &Limits) -> Result<(), InvalidRequest> {
        if self.width == 0 || self.width > limits.max_beam_width {
            return refuse(
                "best_of",
                format!(
                    "the beam search is {} wide, but must be at least 1 and at most {} wide; lower best_of or n",
                    self.width, limits.max_beam_width
                ),
            );
        }
        let most = self.max_tokens(prompt_len, limits);
        if params.max_tokens > most {
            return refuse(
                "max_tokens",
                format!(
                    "max_tokens is {}, but after the prompt's {prompt_len} tokens KV memory has room for {most} of \
                     each of \
                     {} beams; lower max_tokens or best_of, or raise --memory",
                    params.max_tokens, self.width
                ),
            );
        }
        in_range("length_penalty", self.length_penalty, -10.0, 10.0)?;
        let neutral = [
            ("temperature", params.temperature, 0.0),
            ("top_p", params.top_p, 1.0),
            ("min_p", params.min_p, 0.0),
            ("repetition_penalty", params.repetition_penalty, 1.0),
            ("presence_penalty", params.presence_penalty, 0.0),
            ("frequency_penalty", params.frequency_penalty, 0.0),
        ];
        if let Some((param, value, neutral)) = neutral.into_iter().find(|(_, value, neutral)| value != neutral) {
            let message = format!("{param} is {value}, but a beam search has it at {neutral}; leave it out");
            return refuse(param, message);
        }
        let given = [
            ("top_k", params.top_k.is_some()),
            ("logit_bias", !params.logit_bias.is_empty()),
            ("allowed_token_ids", !params.allowed_token_ids.is_empty()),
            ("bad_words", !params.bad_words.is_empty()),
            ("prompt_logprobs", params.prompt_logprobs.is_some()),
        ];
        refuse_given(&given, "is not supported with beam search")
    }
}

impl SamplingParams {
    fn check(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        in_range("temperature", self.temperature, 0.0, 100.0)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("repetition_penalty", self.repetition_penalty, f32::MIN_POSITIVE, 100.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if self.top_k == Some(0) {
            return refuse("top_k", "top_k is 0; send at least 1, or leave it out to keep all tokens".into());
        }
        if self.max_tokens == 0 && self.prompt_logprobs.is_none() {
            return refuse("max_tokens", "max_tokens is 0, so nothing would be generated; send at least 1".into());
        }
        if self.min_tokens > self.max_tokens {
            return refuse(
                "min_tokens",
                format!(
                    "min_tokens is {}, above max_tokens, which is {}; lower the one or raise the other",
                    self.min_tokens, self.max_tokens
                ),
            );
        }
        for (param, wanted) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(wanted) = wanted.filter(|&wanted| wanted > limits.max_logprobs) {
                return refuse(param, format!("{param} is {wanted}, but at most {} are reported", limits.max_logprobs));
            }
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return refuse("bad_words", "bad_words has a word without tokens, which nothing could follow".into());
        }
        let bad_tokens = self.bad_words.iter().map(Vec::len).sum();
        for (param, length) in [
            ("logit_bias", self.logit_bias.len()),
            ("stop_token_ids", self.stop_token_ids.len()),
            ("allowed_token_ids", self.allowed_token_ids.len()),
            ("bad_words", bad_tokens),
        ] {
            if length > TOKEN_LIST_MAX {
                return refuse(param, format!("{param} has {length} tokens, but at most {TOKEN_LIST_MAX} are allowed"));
            }
        }
        check_tokens("stop_token_ids", self.stop_token_ids.iter().copied(), limits)?;
        check_tokens("allowed_token_ids", self.allowed_token_ids.iter().copied(), limits)?;
        check_tokens("bad_words", self.bad_words.iter().flatten().copied(), limits)?;
        check_tokens("logit_bias", self.logit_bias.iter().map(|&(token, _)| token), limits)?;
        self.logit_bias.iter().try_for_each(|&(_, bias)| in_range("logit_bias", bias, -100.0, 100.0))
    }
}

fn check_tokens(
    param: &'static str,
    mut tokens: impl Iterator<Item = u32>,
    limits: &Limits,
) -> Result<(), InvalidRequest> {
    match tokens.find(|&token| token as usize >= limits.vocab_size) {
        None => Ok(()),
        Some(token) => refuse(
            param,
            format!("token id {token} in {param} is not in the vocabulary, whose ids end at {}", limits.vocab_size - 1),
        ),
    }
}

/// Checks that a parameter is at least `low` and at most `high`. NaN is refused.
fn in_range(param: &'static str, value: f32, low: f32, high: f32) -> Result<(), InvalidRequest> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let low = if low == f32::MIN_POSITIVE { "above 0".to_owned() } else { format!("at least {low}") };
    refuse(param, format!("{param} is {value}, but must be {low} and at most {high}"))
}

/// Refuses the first of these parameters that is given, and says why.
fn refuse_given(params: &[(&'static str, bool)], why: &str) -> Result<(), InvalidRequest> {
    match params.iter().find(|(_, is_given)| *is_given) {
        Some(&(param, _)) => refuse(param, format!("{param} {why}; leave it out")),
        None => Ok(()),
    }
}

fn refuse(param: &'static str, message: String) -> Result<(), InvalidRequest> {
    Err(InvalidRequest { param, message, overflow: None })
}

#[cfg(test)]
mod tests;
