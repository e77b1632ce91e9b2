//! One answer to a prompt: its client, its sampling, and the tokens that the current pass gave it.

use interbed_grammar::{Constraint, Standing};
use interbed_model::Logits;

use crate::handle::Client;
use crate::masks::{Bound, MaskWorkers, Masked};
use crate::sampler::{Sampled, Sampler, SamplerState};
use crate::{Event, FinishReason, RequestError, SamplingParams, TokenId};

/// One answer to a prompt, with its client and its sampling.
#[derive(Debug)]
pub(crate) struct Continuation {
    pub(crate) client: Client,
    sampler: SamplerState,
    /// The number of tokens that the client was told of.
    generated: usize,
    /// The tokens sampled in the current pass: one, and one more for each draft that turned out to be right.
    run: Vec<Sampled>,
    /// The reason why the last token of `run` ends the continuation, if it does.
    end: Option<FinishReason>,
    /// The constraint that the continuation has to follow, if it has one.
    bound: Option<Bound>,
    /// The logits of the next token, if it is not known yet which tokens may come.
    late: Option<Vec<f32>>,
    /// The reason why the continuation cannot go on, if it cannot: its logits were NaN, or the constraint could not say
    /// what may follow.
    pub(crate) fault: Option<RequestError>,
}

/// Largest number of sequences whose sampling may be postponed at the same time. If the mask of a sequence's allowed
/// tokens is not ready when the logits have been computed, the engine keeps a copy of the logits and samples the next
/// token when the mask is ready.
pub const LATE_MAX: usize = 32;

/// The conditions that end a continuation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// The model's end-of-sequence tokens.
    pub(crate) eos: &'a [TokenId],
    /// The most tokens of prompt and answer together.
    pub(crate) length_max: usize,
}

impl Continuation {
    pub(crate) fn new(client: Client, sampler: SamplerState, constraint: Option<Constraint>) -> Self {
        let bound = constraint.map(Bound::new);
        Self { client, sampler, generated: 0, run: Vec::new(), end: None, bound, late: None, fault: None }
    }

    /// Begins to compute the masks for the next token, and for the token behind each of `drafts`.
    pub(crate) fn begin_masks(&mut self, workers: &mut MaskWorkers, drafts: &[TokenId]) {
        self.bound.iter_mut().for_each(|bound| bound.begin(workers, drafts));
    }

    /// Returns whether a constraint restricts the next token.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Takes over the masks of `other`. Both continuations must have no tokens yet.
    pub(crate) fn share_masks(&mut self, other: &mut Self) {
        if let (Some(bound), Some(other)) = (&mut self.bound, &mut other.bound) {
            bound.share_masks(other);
        }
    }

    /// Returns whether the row after the first `count` of `drafts` is valid, because all of these drafts equal the
    /// tokens that were sampled in their places.
    pub(crate) fn follows(&self, drafts: &[TokenId], count: usize) -> bool {
        // Earlier drafts were compared when the tokens after them were sampled.
        self.run.len() == count && self.run.last().is_none_or(|last| last.token == drafts[count - 1])
    }

    /// Chooses the next token from `logits`. If the mask is not known in time and fewer than [`LATE_MAX`] sequences are
    /// `late` already, the token is chosen later.
    pub(crate) fn sample(
        &mut self,
        sampler: &mut Sampler,
        params: &SamplingParams,
        logits: &mut Logits<'_>,
        eos: &[TokenId],
        late: Option<&mut usize>,
    ) {
        self.late = None;
        let late = late.filter(|late| **late < LATE_MAX);
        if params.max_tokens == 0 || self.fault.is_some() {
            return;
        }
        let (drafts, generated) = (self.run.len(), self.generated + self.run.len());
        let sampled = match logits {
            Logits::All(row) => {
                let bound = self.bound.as_mut();
                match bound.map_or(Ok(Masked::Yes), |bound| bound.apply(drafts, row, late.is_some())) {
                    Err(error) => {
                        self.fault = Some(RequestError::Constraint(error));
                        return;
                    }
                    Ok(Masked::Unknown) => return,
                    Ok(Masked::Late) => {
                        self.late = Some(row.to_vec());
                        late.into_iter().for_each(|late| *late += 1);
                        return;
                    }
                    Ok(Masked::Yes) => sampler.sample(row, params, &self.sampler, generated, eos),
                }
            }
            Logits::Best(best) => {
                let best = best.iter().map(|&[token, logit]| (token as TokenId, logit));
                sampler.sample_best(best, params, &self.sampler, generated)
            }
        };
        self.sampler.record(sampled.token);
        self.run.push(sampled);
    }

    /// Returns whether the next token is to be chosen later.
    pub(crate) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Returns whether the token that was to be chosen later can be chosen now.
    pub(crate) fn can_resume(&mut self) -> bool {
        self.late.is_some() && self.bound.as_mut().is_none_or(Bound::is_settled)
    }

    /// Chooses the token that was to be chosen later.
    pub(crate) fn resume(&mut self, sampler: &mut Sampler, params: &SamplingParams, eos: &[TokenId]) {
        if let Some(mut row) = self.late.take() {
            self.sample(sampler, params, &mut Logits::All(&mut row), eos, None);
        }
    }

    /// Goes through the tokens that the pass gave, after a prompt of `prompt_len` tokens, up to the first that ends the
    /// continuation, and drops those behind it. Returns how many are left. Returns 0 if no token was wanted, or if
    /// there is a [fault](Self::fault).
    pub(crate) fn accept(&mut self, params: &SamplingParams, prompt_len: usize, ends: Ends<'_>) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        for index in 0..self.run.len() {
            let (token, generated) = (self.run[index].token, self.generated + index + 1);
            let may_stop = generated > params.min_tokens;
            let progress = self.bound.as_mut().map_or(Ok(Standing::Open), |bound| bound.advance(token));
            let is_complete = match progress {
                Ok(progress) => progress == Standing::Complete,
                Err(error) => {
                    self.fault = Some(RequestError::Constraint(error));
                    return 0;
                }
            };
            self.end = if may_stop && !params.ignore_eos && ends.eos.contains(&token) {
                Some(FinishReason::EndOfSequence)
            } else if may_stop && params.stop_token_ids.contains(&token) {
                Some(FinishReason::StopToken(token))
            } else if is_complete {
                Some(FinishReason::Complete)
            } else if generated >= params.max_tokens || prompt_len + generated >= ends.length_max {
                Some(FinishReason::Length)
            } else {
                None
            };
            if self.end.is_some() {
                self.run.truncate(index + 1);
                break;
            }
        }
        self.run.len()
    }

    /// Tells the client of the tokens that were accepted. Returns how many there were, and the last one or the reason
    /// why nothing follows it.
    pub(crate) fn deliver(&mut self) -> (usize, Result<TokenId, FinishReason>) {
        let (count, last) = (self.run.len(), self.run.last().map(|sampled| sampled.token));
        for Sampled { token, logprobs } in self.run.drain(..) {
            self.client.send(Event::Token { id: token, logprobs });
        }
        self.generated += count;
        let outcome = match (self.end, last) {
            (Some(reason), _) => Err(reason),
            (None, Some(last)) => Ok(last),
            // The request asked for no token.
            (None, None) => Err(FinishReason::Length),
        };
        (count, outcome)
    }

    /// Returns the number of tokens that the client was told of.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }
}
