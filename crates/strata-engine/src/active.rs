//! A continuation that the engine has taken on: what was asked for, and how far it has come.

use strata_kv::Miss;
use strata_model::{LogitRow, LogitRows};

use crate::handle::Client;
use crate::sampler::{Sampler, SamplerState};
use crate::scheduler::Entry;
use crate::{Event, FinishReason, PositionLogprobs, SamplingParams, TokenId};

/// The engine's side of one continuation.
pub(crate) struct Active {
    pub(crate) client: Client,
    pub(crate) params: SamplingParams,
    pub(crate) prompt_len: usize,
    pub(crate) cached_tokens: usize,
    /// Why not more of them, if the client asked.
    pub(crate) miss: Option<Miss>,
    pub(crate) generated: usize,
    /// Whether it has been admitted before, so that it has left the queue, and what the cache spares it after a preemption is
    /// not counted again.
    pub(crate) started: bool,
    /// Other continuations of the prompt, which wait until this one's sequence has computed it (K11).
    pub(crate) siblings: Vec<Active>,
    sampler_state: SamplerState,
    prompt_logprobs: Vec<Option<PositionLogprobs>>,
    prompt_done: bool,
    sampled: Option<(TokenId, Option<PositionLogprobs>)>,
    not_finite: bool,
}

/// What a retired pass meant for a continuation.
pub(crate) enum Outcome {
    /// It goes on, with this token appended.
    Token(TokenId),
    /// It goes on with its prompt.
    Prompt,
    /// It is done.
    Finished(FinishReason),
    /// Its logits were not numbers.
    NotFinite,
}

impl Active {
    /// One for each of `clients`, of which there is at least one: the first, with the others as its siblings.
    pub(crate) fn new(prompt: &[TokenId], params: SamplingParams, vocab_size: usize, clients: Vec<Client>) -> Self {
        let sampler_state = SamplerState::new(prompt, vocab_size, &params);
        let seeds = (0..).map(|index| params.seed.wrapping_add(index));
        let each = clients.into_iter().zip(seeds).map(|(client, seed)| {
            let params = SamplingParams { seed, ..params.clone() };
            Self::alone(prompt.len(), params, sampler_state.clone(), client)
        });
        let mut all: Vec<_> = each.collect();
        let mut first = all.remove(0);
        first.siblings = all;
        first
    }

    fn alone(prompt_len: usize, params: SamplingParams, sampler_state: SamplerState, client: Client) -> Self {
        Self {
            sampler_state,
            client,
            params,
            prompt_len,
            cached_tokens: 0,
            miss: None,
            generated: 0,
            started: false,
            siblings: Vec::new(),
            prompt_logprobs: Vec::new(),
            prompt_done: false,
            sampled: None,
            not_finite: false,
        }
    }

    /// The rows that a pass is to give for `entry`, its part in it.
    pub(crate) fn wanted_rows(&self, entry: &Entry) -> LogitRows {
        match (self.wants_prompt_rows(), entry.samples) {
            (true, _) => LogitRows::All,
            (false, true) => LogitRows::Last,
            (false, false) => LogitRows::None,
        }
    }

    /// Takes a row of logits of this request: `entry` is its part of the pass, `tokens` all its tokens.
    pub(crate) fn take_row(
        &mut self,
        sampler: &mut Sampler,
        entry: &Entry,
        row: LogitRow,
        tokens: &[TokenId],
        logits: &mut [f32],
        eos: &[TokenId],
    ) {
        // A model that overflows must fail, not answer plausibly.
        self.not_finite |= logits.iter().any(|logit| logit.is_nan());
        let next = entry.start + row.token + 1;
        if let Some(top) = self.params.prompt_logprobs.filter(|_| self.wants_prompt_rows() && next < self.prompt_len) {
            // A row computed again after a preemption has been reported already.
            self.prompt_logprobs.resize(self.prompt_logprobs.len().max(1), None);
            if self.prompt_logprobs.len() == next {
                self.prompt_logprobs.push(Some(sampler.position_logprobs(logits, tokens[next], top)));
            }
        }
        if entry.samples && next == tokens.len() {
            if !self.siblings.is_empty() {
                // Sampling changes the row.
                let row = logits.to_vec();
                for sibling in &mut self.siblings {
                    sibling.sample(sampler, logits, eos);
                    logits.copy_from_slice(&row);
                }
            }
            self.sample(sampler, logits, eos);
        }
    }

    /// The others, who from now on go their own ways, told what is known of the prompt.
    pub(crate) fn take_siblings(&mut self) -> Vec<Active> {
        let mut siblings = std::mem::take(&mut self.siblings);
        for sibling in &mut siblings {
            sibling.prompt_logprobs.clone_from(&self.prompt_logprobs);
            (sibling.cached_tokens, sibling.miss) = (self.cached_tokens, self.miss);
            sibling.not_finite = self.not_finite;
        }
        siblings
    }

    /// Drops whose clients have gone, and returns their number. The continuation itself lives on as the first of its
    /// siblings that is left; `false` with it if there is none.
    pub(crate) fn drop_cancelled(&mut self) -> (usize, bool) {
        let before = self.siblings.len() + 1;
        self.siblings.retain(|sibling| !sibling.client.is_closed());
        if !self.client.is_closed() {
            return (before - 1 - self.siblings.len(), true);
        }
        if self.siblings.is_empty() {
            return (before, false);
        }
        let mut heir = self.siblings.remove(0);
        heir.siblings = std::mem::take(&mut self.siblings);
        heir.prompt_logprobs = std::mem::take(&mut self.prompt_logprobs);
        (heir.cached_tokens, heir.miss, heir.started) = (self.cached_tokens, self.miss, self.started);
        if self.started {
            heir.client.leave_queue();
        }
        *self = heir;
        (before - 1 - self.siblings.len(), true)
    }

    fn sample(&mut self, sampler: &mut Sampler, logits: &mut [f32], eos: &[TokenId]) {
        if self.params.max_tokens > 0 {
            let sampled = sampler.sample(logits, &self.params, &self.sampler_state, self.generated, eos);
            self.sampled = Some((sampled.token, sampled.logprobs));
        }
    }

    /// The pass has retired; tells the client, and decides whether the request is done. `room` is how many more tokens
    /// the context has room for.
    pub(crate) fn advance(&mut self, entry: &Entry, room: usize, eos: &[TokenId]) -> Outcome {
        if self.not_finite {
            return Outcome::NotFinite;
        }
        if !entry.samples {
            return Outcome::Prompt;
        }
        if !self.prompt_done {
            self.prompt_done = true;
            let mut logprobs = std::mem::take(&mut self.prompt_logprobs);
            if self.params.prompt_logprobs.is_some() {
                // A prompt of one token has no row of its own.
                logprobs.resize(logprobs.len().max(1), None);
            }
            let miss = self.miss.take();
            self.send(Event::PromptDone { cached_tokens: self.cached_tokens, miss, logprobs });
        }
        let Some((token, logprobs)) = self.sampled.take() else { return Outcome::Finished(FinishReason::Length) };
        self.generated += 1;
        self.sampler_state.record(token);
        self.send(Event::Token { id: token, logprobs });
        let may_stop = self.generated > self.params.min_tokens;
        if may_stop && !self.params.ignore_eos && eos.contains(&token) {
            Outcome::Finished(FinishReason::EndOfSequence)
        } else if may_stop && self.params.stop_token_ids.contains(&token) {
            Outcome::Finished(FinishReason::StopToken(token))
        } else if self.generated == self.params.max_tokens || room <= 1 {
            Outcome::Finished(FinishReason::Length)
        } else {
            Outcome::Token(token)
        }
    }

    /// Whether log-probabilities of prompt tokens are still to be computed.
    fn wants_prompt_rows(&self) -> bool {
        self.params.prompt_logprobs.is_some() && !self.prompt_done
    }

    pub(crate) fn send(&self, event: Event) {
        self.client.send(event);
    }
}
