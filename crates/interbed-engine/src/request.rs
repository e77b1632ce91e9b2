//! Requests to the engine, and the checks that a request must pass before it is queued. A request with a bad parameter
//! is refused here, because inside a batch it would harm the other requests.

use std::sync::Arc;

use interbed_grammar::Constraint;
use interbed_kv::TokenId;
use interbed_model::Pooling;
use thiserror::Error;

use crate::unread::UnreadBudget;

/// Largest number of entries in each of `logit_bias`, `stop_token_ids` and `allowed_token_ids`. It is also the largest
/// total number of tokens in `bad_words`.
pub const TOKEN_LIST_MAX: usize = 1024;

/// Identifies the tenant that a request belongs to, if several tenants share an engine. All tenants with requests in
/// the engine have equal shares of the KV blocks. A tenant may also use what the others leave free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u128);

/// A request to continue a prompt, or to compute its embedding. [`submit_many`](crate::EngineHandle::submit_many) can
/// produce several continuations of the prompt.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// Parameters that control sampling and the end of generation.
    pub params: SamplingParams,
    /// Salt of the prefix cache. Requests share cached KV only if they have the same tenant and the same salt. `None`
    /// counts as a salt of its own.
    pub cache_salt: Option<String>,
    /// Priority; 0 by default. Among the waiting requests of one tenant, those with lower numbers run first. Among
    /// equal numbers, preempted requests run first, and the others run in the order of arrival. A request that was
    /// preempted or overtaken many times runs before all of these, whatever its number.
    pub priority: i32,
    /// Tenant to which the request belongs. All requests without a tenant together count as one tenant.
    pub tenant: Option<TenantId>,
    /// Whether [`PromptDone::miss`](crate::PromptDone::miss) reports the point at which the prompt stopped matching the
    /// prefix cache, and the reason.
    pub explain_miss: bool,
    /// Settings of beam search; `None` for sampling.
    pub beam: Option<BeamParams>,
    /// Pooling method of an embedding request; `None` if the request asks for a continuation. For an embedding,
    /// `max_tokens` must be 0.
    pub embed: Option<Pooling>,
    /// Limit on the memory of events that the client has not read yet; `None` for no limit. All requests that hold the
    /// same budget share its limit.
    pub unread: Option<Arc<UnreadBudget>>,
    /// Grammar that each continuation must follow; `None` for no constraint. The grammar also decides where a
    /// continuation may end.
    pub constraint: Option<Constraint>,
}

/// Sampling parameters. The defaults are those of the OpenAI API.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Largest number of tokens to generate. With 0, nothing is generated, and the engine computes only the
    /// log-probabilities or the embedding of the prompt.
    pub max_tokens: usize,
    /// Number of tokens that must be generated before an end-of-sequence token or a stop token may end the sequence.
    pub min_tokens: usize,
    /// Number by which logits are divided before sampling. With 0, the most likely token is always chosen.
    pub temperature: f32,
    /// Number of most likely tokens from which sampling chooses. With `None`, sampling may choose any token.
    pub top_k: Option<usize>,
    /// Cumulative probability, in [0, 1]. Sampling keeps the smallest set of most likely tokens, at least one, whose
    /// total probability reaches this number.
    pub top_p: f32,
    /// Number in [0, 1]. Sampling drops every token whose probability is less than this number times the probability of
    /// the most likely token.
    pub min_p: f32,
    /// Penalty, above 0, on tokens that occur in the prompt or among the generated tokens. Positive logits are divided
    /// by the penalty, and negative logits are multiplied by it.
    pub repetition_penalty: f32,
    /// Penalty, in [-2, 2], that is subtracted once from the logit of each token that was generated before.
    pub presence_penalty: f32,
    /// Penalty, in [-2, 2], that is subtracted from the logit of each generated token, once per occurrence.
    pub frequency_penalty: f32,
    /// Biases, each in [-100, 100], that are added to the logits of the given tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that may be generated. If this list is empty, all tokens may be generated.
    pub allowed_token_ids: Vec<TokenId>,
    /// Sequences of tokens that must not be generated. If the generated tokens end with all tokens of such a sequence
    /// except its last, that last token cannot be generated next. None of the sequences may be empty.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Seed of the random number generator. Continuation `i` of a request, counted from 0, uses the seed plus `i`. The
    /// random number for the n-th generated token depends only on that sum and n.
    pub seed: u64,
    /// Whether generation continues after the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Tokens that end generation, in addition to the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Number of most likely tokens to report, with their log-probabilities, at the position of each generated token.
    /// The generated token itself is reported, too. `None` for no report.
    pub logprobs: Option<usize>,
    /// Number of most likely tokens to report, with their log-probabilities, at the position of each prompt token. The
    /// prompt token itself is reported, too. `None` for no report.
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

/// Settings of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamParams {
    /// Number of beams that are extended at the same time; at least 1. A search with 1 beam is greedy.
    pub width: usize,
    /// Exponent, in [-10, 10], of the length normalisation. A hypothesis is a continuation that the search considers.
    /// The score of a hypothesis is its summed log-probability, divided by its length to the power of this exponent.
    /// The length includes the prompt. Values above 0 favour longer hypotheses; 1 is usual.
    pub length_penalty: f32,
    /// Whether the search ends as soon as `width` hypotheses are finished, even if an unfinished one could still score
    /// higher.
    pub early_stopping: bool,
}

impl Default for BeamParams {
    fn default() -> Self {
        Self { width: 1, length_penalty: 1.0, early_stopping: false }
    }
}

/// Limits that requests are checked against. They are known once the model is loaded and memory has been divided.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Number of tokens in the vocabulary. All token ids must be less than this number.
    pub vocab_size: usize,
    /// Largest total number of tokens in the prompt and the answer.
    pub max_model_len: usize,
    /// Context length, in tokens, that the model itself supports.
    pub model_context: usize,
    /// Number of tokens whose KV fits in all KV blocks of the engine together.
    pub kv_capacity_tokens: usize,
    /// Number of tokens in one KV block.
    pub kv_block_tokens: usize,
    /// The number of KV blocks that take as much memory as all that layers keep of one sequence besides the KV of all
    /// its tokens.
    pub kv_blocks_beside: usize,
    /// Largest value that a request may give for `logprobs` or `prompt_logprobs`.
    pub max_logprobs: usize,
    /// Largest beam width that a request may ask for. It is at most the number of sequences that can run at the same
    /// time.
    pub max_beam_width: usize,
    /// Limit on the number of continuations that wait in the queue at the same time. A request whose continuations
    /// would exceed the limit is refused with [`SubmitError::Overloaded`], unless its tenant would then have at most an
    /// equal share of the queue.
    pub max_waiting: usize,
}

/// Error for a request with an invalid parameter. Such a request is refused before it is queued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// Name of the parameter in the OpenAI API.
    pub param: &'static str,
    /// Message that says what was expected, what was received, and how to correct the request.
    pub message: String,
    /// Length of the prompt and the limit on this length, if the request does not fit into the context.
    pub overflow: Option<ContextOverflow>,
}

/// Length of a prompt and the limit on this length, for a request that does not fit into the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    /// Number of tokens in the prompt.
    pub prompt: usize,
    /// Largest number of tokens that the prompt may have. One token of the context is reserved for the answer, unless
    /// `max_tokens` is 0.
    pub prompt_max: usize,
}

/// Reason why [`crate::EngineHandle::submit`] refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The request has an invalid parameter (HTTP 400).
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Too many continuations are waiting in the queue (HTTP 429 with `Retry-After`).
    #[error("{waiting} requests are waiting already, and no more may (--max-waiting); try again later")]
    Overloaded {
        /// Number of continuations in the waiting queue.
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
    /// Fails if a parameter is invalid. The error is for the first invalid parameter that is found. The error message
    /// says how to correct the request.
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
        } else if limits.kv_capacity_tokens <= limit + limits.kv_blocks_beside * limits.kv_block_tokens {
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
    /// Returns the largest number of tokens that each beam may generate after a prompt of `prompt_len` tokens, or 0 if
    /// there is room for none. The context length and the total number of KV blocks limit this number. Blocks that
    /// other sequences use are not subtracted. The beams share the blocks that the prompt fills. For all other tokens,
    /// each beam needs blocks of its own.
    pub fn max_tokens(&self, prompt_len: usize, limits: &Limits) -> usize {
        let block = limits.kv_block_tokens.max(1);
        let shared = prompt_len / block;
        let own = (limits.kv_capacity_tokens / block).saturating_sub(shared) / self.width.max(1);
        let own = own.saturating_sub(limits.kv_blocks_beside);
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
