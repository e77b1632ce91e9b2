//! What a request must satisfy before it is queued. A bad parameter is refused at the door: inside a batch it would
//! harm its neighbours.

use crate::{InvalidRequest, Limits, Request, SamplingParams};

/// Most entries of `logit_bias` and of `stop_token_ids` (OpenAI's limit on the former is 300; vLLM has none).
const MAX_TOKEN_LIST: usize = 1024;

impl Request {
    /// Checks every parameter against `limits`.
    ///
    /// # Errors
    /// The first parameter that cannot be served, with its limit.
    pub fn check(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        if self.prompt.is_empty() {
            return refuse("prompt", "the prompt has no tokens; send at least one".into());
        }
        check_tokens("prompt", self.prompt.iter().copied(), limits)?;
        self.check_length(limits)?;
        self.params.check(limits)
    }

    fn check_length(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        let (prompt, limit) = (self.prompt.len(), limits.max_model_len);
        // A context that KV memory cuts short has another remedy than one that was chosen, or that the model ends.
        let more = if limit >= limits.model_context {
            String::new()
        } else if limits.kv_capacity_tokens <= limit {
            format!("; the model supports {}, for which KV needs more --memory", limits.model_context)
        } else {
            format!("; the model supports {}, and --max-model-len may be raised", limits.model_context)
        };
        if prompt > limit || (prompt == limit && self.params.max_tokens > 0) {
            return refuse(
                "prompt",
                format!(
                    "the prompt has {prompt} tokens, but the context, prompt and answer together, is {limit}; shorten \
                     the prompt{more}"
                ),
            );
        }
        if self.params.max_tokens > limit - prompt {
            return refuse(
                "max_tokens",
                format!(
                    "max_tokens is {}, but the prompt's {prompt} tokens leave {} of the context of {limit}; lower \
                     max_tokens or shorten the prompt{more}",
                    self.params.max_tokens,
                    limit - prompt
                ),
            );
        }
        Ok(())
    }
}

impl SamplingParams {
    fn check(&self, limits: &Limits) -> Result<(), InvalidRequest> {
        in_range("temperature", self.temperature, 0.0, 100.0)?;
        in_range("top_p", self.top_p, f32::MIN_POSITIVE, 1.0)?;
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
                format!("min_tokens is {}, above max_tokens, which is {}", self.min_tokens, self.max_tokens),
            );
        }
        for (param, wanted) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(wanted) = wanted.filter(|&wanted| wanted > limits.max_logprobs) {
                return refuse(param, format!("{param} is {wanted}, but at most {} are reported", limits.max_logprobs));
            }
        }
        for (param, length) in [("logit_bias", self.logit_bias.len()), ("stop_token_ids", self.stop_token_ids.len())] {
            if length > MAX_TOKEN_LIST {
                return refuse(
                    param,
                    format!("{param} has {length} entries, but at most {MAX_TOKEN_LIST} are allowed"),
                );
            }
        }
        check_tokens("stop_token_ids", self.stop_token_ids.iter().copied(), limits)?;
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

/// Also refuses NaN, which compares with nothing.
fn in_range(param: &'static str, value: f32, low: f32, high: f32) -> Result<(), InvalidRequest> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let low = if low == f32::MIN_POSITIVE { "above 0".to_owned() } else { format!("at least {low}") };
    refuse(param, format!("{param} is {value}, but must be {low} and at most {high}"))
}

fn refuse(param: &'static str, message: String) -> Result<(), InvalidRequest> {
    Err(InvalidRequest { param, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            vocab_size: 100,
            max_model_len: 64,
            model_context: 64,
            kv_capacity_tokens: 1024,
            max_logprobs: 20,
            max_waiting: 8,
        }
    }

    fn check(change: impl FnOnce(&mut Request)) -> Option<&'static str> {
        let mut request = Request { prompt: vec![1, 2, 3], ..Request::default() };
        change(&mut request);
        request.check(&limits()).err().map(|refused| refused.param)
    }

    #[test]
    fn each_bad_parameter_is_refused_by_name() {
        assert_eq!(check(|_| ()), None);
        assert_eq!(check(|r| r.prompt.clear()), Some("prompt"));
        assert_eq!(check(|r| r.prompt = vec![100]), Some("prompt"));
        assert_eq!(check(|r| r.prompt = vec![1; 64]), Some("prompt"));
        assert_eq!(check(|r| r.prompt = vec![1; 65]), Some("prompt"));
        assert_eq!(check(|r| r.params.max_tokens = 61), None);
        assert_eq!(check(|r| r.params.max_tokens = 62), Some("max_tokens"));
        assert_eq!(check(|r| r.params.max_tokens = usize::MAX), Some("max_tokens"));
        assert_eq!(check(|r| r.params.max_tokens = 0), Some("max_tokens"));
        assert_eq!(check(|r| r.params.temperature = f32::NAN), Some("temperature"));
        assert_eq!(check(|r| r.params.temperature = -0.1), Some("temperature"));
        assert_eq!(check(|r| r.params.temperature = f32::INFINITY), Some("temperature"));
        assert_eq!(check(|r| r.params.top_p = 0.0), Some("top_p"));
        assert_eq!(check(|r| r.params.min_p = 1.5), Some("min_p"));
        assert_eq!(check(|r| r.params.repetition_penalty = 0.0), Some("repetition_penalty"));
        assert_eq!(check(|r| r.params.presence_penalty = 3.0), Some("presence_penalty"));
        assert_eq!(check(|r| r.params.frequency_penalty = -3.0), Some("frequency_penalty"));
        assert_eq!(check(|r| r.params.top_k = Some(0)), Some("top_k"));
        assert_eq!(check(|r| r.params.min_tokens = 17), Some("min_tokens"));
        assert_eq!(check(|r| r.params.logprobs = Some(21)), Some("logprobs"));
        assert_eq!(check(|r| r.params.stop_token_ids = vec![100]), Some("stop_token_ids"));
        assert_eq!(check(|r| r.params.stop_token_ids = vec![1; 1025]), Some("stop_token_ids"));
        assert_eq!(check(|r| r.params.logit_bias = vec![(4_000_000_000, 1.0)]), Some("logit_bias"));
        assert_eq!(check(|r| r.params.logit_bias = vec![(1, f32::NAN)]), Some("logit_bias"));
    }
}
