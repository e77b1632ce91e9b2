//! What a request must satisfy before it is queued. A bad parameter is refused at the door: inside a batch it would
//! harm its neighbours.

use crate::{BeamParams, InvalidRequest, Limits, Request, SamplingParams};

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
        self.params.check(limits)?;
        match &self.beam {
            Some(beam) => beam.check(self.prompt.len(), &self.params, limits),
            None => Ok(()),
        }
    }

    /// Whether so many continuations can be given at a time.
    pub(crate) fn check_count(&self, count: usize, limits: &Limits) -> Result<(), InvalidRequest> {
        let (most, why) = match &self.beam {
            Some(beam) => (beam.width, "is the width of the beam search (best_of)"),
            None => (limits.max_waiting.max(1), "is how many may wait (--max-waiting)"),
        };
        if count == 0 || count > most {
            return refuse("n", format!("n is {count}, but must be at least 1 and at most {most}, which {why}"));
        }
        Ok(())
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

impl BeamParams {
    /// Most tokens that each beam may generate after a prompt of so many, for which the KV blocks suffice when the search
    /// is alone: the beams share the prompt's full blocks, and may share nothing else. 0 where there is room for none.
    pub fn max_tokens(&self, prompt_len: usize, limits: &Limits) -> usize {
        let block = limits.kv_block_tokens.max(1);
        let shared = prompt_len / block;
        let own = (limits.kv_capacity_tokens / block).saturating_sub(shared) / self.width.max(1);
        // The last token of a beam has no KV.
        let room = ((shared + own) * block + 1).saturating_sub(prompt_len);
        room.min(limits.max_model_len.saturating_sub(prompt_len))
    }

    /// A beam search goes by the model's own log-probabilities: what would change or narrow them is refused.
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
                    "max_tokens is {}, but after the prompt's {prompt_len} tokens KV memory has room for {most} of each of \
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
        for (param, given) in [
            ("top_k", params.top_k.is_some()),
            ("logit_bias", !params.logit_bias.is_empty()),
            ("prompt_logprobs", params.prompt_logprobs.is_some()),
        ] {
            if given {
                return refuse(param, format!("{param} is not supported with beam search; leave it out"));
            }
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
            kv_block_tokens: 16,
            max_logprobs: 20,
            max_beam_width: 4,
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

    #[test]
    fn beam_search_refuses_what_it_cannot_honour() {
        let beam = |change: fn(&mut Request, &mut BeamParams)| {
            check(|request| {
                let mut beam = BeamParams { width: 4, ..BeamParams::default() };
                request.params.temperature = 0.0;
                change(request, &mut beam);
                request.beam = Some(beam);
            })
        };
        assert_eq!(beam(|_, _| ()), None);
        assert_eq!(beam(|r, _| r.params.min_tokens = 3), None);
        assert_eq!(beam(|_, beam| beam.width = 0), Some("best_of"));
        assert_eq!(beam(|_, beam| beam.width = 5), Some("best_of"));
        assert_eq!(beam(|_, beam| beam.length_penalty = f32::NAN), Some("length_penalty"));
        assert_eq!(beam(|r, _| r.params.temperature = 0.5), Some("temperature"));
        assert_eq!(beam(|r, _| r.params.top_p = 0.5), Some("top_p"));
        assert_eq!(beam(|r, _| r.params.min_p = 0.5), Some("min_p"));
        assert_eq!(beam(|r, _| r.params.top_k = Some(5)), Some("top_k"));
        assert_eq!(beam(|r, _| r.params.repetition_penalty = 1.5), Some("repetition_penalty"));
        assert_eq!(beam(|r, _| r.params.presence_penalty = 0.5), Some("presence_penalty"));
        assert_eq!(beam(|r, _| r.params.frequency_penalty = 0.5), Some("frequency_penalty"));
        assert_eq!(beam(|r, _| r.params.logit_bias = vec![(1, 1.0)]), Some("logit_bias"));
        assert_eq!(beam(|r, _| r.params.prompt_logprobs = Some(1)), Some("prompt_logprobs"));
    }

    #[test]
    fn beams_may_grow_as_far_as_all_of_them_have_blocks() {
        for (blocks, block, width, prompt_len) in [
            (16, 4, 7, 8),
            (16, 4, 1, 9),
            (16, 4, 4, 0),
            (16, 4, 8, 63),
            (5, 4, 8, 16),
            (100, 16, 4, 1000),
            (64, 1, 3, 7),
        ] {
            let limits = Limits {
                max_model_len: blocks * block,
                kv_capacity_tokens: blocks * block,
                kv_block_tokens: block,
                ..limits()
            };
            let fits = |max_tokens: usize| {
                let tokens: usize = prompt_len + max_tokens - 1;
                let shared = prompt_len / block;
                tokens < limits.max_model_len && shared + width * (tokens.div_ceil(block) - shared) <= blocks
            };
            let most = (1..=limits.max_model_len).take_while(|&max_tokens| fits(max_tokens)).last().unwrap_or(0);
            let beam = BeamParams { width, ..BeamParams::default() };
            assert_eq!(beam.max_tokens(prompt_len, &limits), most, "{width} beams after {prompt_len} in {blocks}");
        }
    }

    #[test]
    fn more_continuations_than_can_be_are_refused() {
        let request = Request { prompt: vec![1], ..Request::default() };
        let beam = Request { beam: Some(BeamParams { width: 3, ..BeamParams::default() }), ..request.clone() };
        let allowed = |request: &Request| {
            (0..20).filter(|&count| request.check_count(count, &limits()).is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&request), (1..=8).collect::<Vec<_>>());
        assert_eq!(allowed(&beam), [1, 2, 3]);
    }
}
