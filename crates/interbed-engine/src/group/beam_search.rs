//! Beam search: which continuations of a prompt go on, and which are done. A planner: it sees log-probabilities,
//! and decides; sequences, blocks and passes are the engine's.
//!
//! In each step every live beam offers its `2 x width` most likely tokens. Those that end a sequence finish a
//! hypothesis each; of the others, from all beams together, the `width` most likely live on. A hypothesis is worth the
//! sum of its tokens' log-probabilities, divided by its length to the power of the length penalty. As in vLLM, the
//! length is that of prompt and answer together, without the token that ends it. Ties go to the lower beam, then to the
//! lower token.
//!
//! **Invariant:** the search ends early only when nothing that lives could still be among the hypotheses wanted.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::{BeamParams, FinishReason, PositionLogprobs, SamplingParams, TokenId, TokenLogprob};

/// What may follow a beam.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The most likely tokens, best first; among equals, the lowest token first.
    pub(crate) next: Vec<TokenLogprob>,
    /// The entries of `next` that are to be reported, if any are.
    pub(crate) top: Option<Arc<[TokenLogprob]>>,
}

/// A finished continuation.
#[derive(Debug, Clone)]
pub(crate) struct Hypothesis {
    tokens: Vec<Choice>,
    score: f64,
    pub(crate) reason: FinishReason,
}

/// A beam of the next step: its parent, a beam of this step, and the token that it adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) parent: usize,
    pub(crate) token: TokenId,
}

/// A search in flight. It begins with one beam, which has no token yet.
#[derive(Debug)]
pub(crate) struct BeamSearch {
    params: BeamParams,
    /// Hypotheses that are asked for; at most the width.
    wanted: usize,
    prompt_len: usize,
    min_tokens: usize,
    max_tokens: usize,
    /// Tokens that end a sequence, and the reason that is given for it.
    ends: Vec<(TokenId, FinishReason)>,
    live: Vec<Beam>,
    /// The best finished hypotheses, best first; among equals, those that finished first. At most the width.
    finished: Vec<Hypothesis>,
    finished_in_all: usize,
}

#[derive(Debug, Clone, Default)]
struct Beam {
    tokens: Vec<Choice>,
    logprob: f64,
}

/// One token of a beam: all that is kept of a step's results.
#[derive(Debug, Clone)]
struct Choice {
    chosen: TokenLogprob,
    top: Option<Arc<[TokenLogprob]>>,
}

/// A token that may continue a beam.
struct Candidate {
    parent: usize,
    next: TokenLogprob,
    /// Of the beam with this token added.
    logprob: f64,
}

impl Candidate {
    /// Its place among equals.
    fn place(&self) -> (usize, TokenId) {
        (self.parent, self.next.token)
    }

    fn choice(&self, rows: &[Row]) -> Choice {
        Choice { chosen: self.next, top: rows[self.parent].top.clone() }
    }
}

impl BeamSearch {
    /// A search for the best `wanted` continuations of a prompt of `prompt_len` tokens. Of `sampling`, only the length
    /// limits and the tokens that end a sequence matter.
    pub(crate) fn new(
        params: BeamParams,
        wanted: usize,
        prompt_len: usize,
        sampling: &SamplingParams,
        eos: &[TokenId],
    ) -> Self {
        let eos = if sampling.ignore_eos { &[] } else { eos };
        let eos = eos.iter().map(|&token| (token, FinishReason::EndOfSequence));
        let stops = sampling.stop_token_ids.iter().map(|&token| (token, FinishReason::StopToken(token)));
        Self {
            params,
            wanted: wanted.clamp(1, params.width),
            prompt_len,
            min_tokens: sampling.min_tokens,
            max_tokens: sampling.max_tokens,
            ends: eos.chain(stops).collect(),
            live: vec![Beam::default()],
            finished: Vec::new(),
            finished_in_all: 0,
        }
    }

    /// Entries that each row of the next step needs, or all tokens if there are fewer.
    pub(crate) fn row_len(&self) -> usize {
        let ruled_out = if self.may_end() { 0 } else { self.ends.len() };
        2 * self.params.width + ruled_out
    }

    /// Generated tokens of live beam number `beam`.
    pub(crate) fn tokens(&self, beam: usize) -> impl ExactSizeIterator<Item = TokenId> {
        self.live[beam].tokens.iter().map(|choice| choice.chosen.token)
    }

    /// Most beams that live at a time.
    pub(crate) fn width(&self) -> usize {
        self.params.width
    }

    /// Beams that live.
    pub(crate) fn num_live(&self) -> usize {
        self.live.len()
    }

    /// Takes what follows each live beam, and returns the beams of the next step, in order of their parents' numbers;
    /// none when the search is over.
    pub(crate) fn advance(&mut self, rows: &[Row]) -> Vec<Branch> {
        assert_eq!(rows.len(), self.live.len(), "every live beam has a row");
        let mut going_on: Vec<Candidate> = Vec::new();
        for candidate in self.candidates(rows) {
            match self.ends.iter().find(|(token, _)| *token == candidate.next.token) {
                Some(&(_, reason)) => self.finish(&candidate, rows, reason),
                None => going_on.push(candidate),
            }
        }
        going_on.sort_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.place().cmp(&b.place())));
        going_on.truncate(self.params.width);
        if self.length() + 1 >= self.max_tokens {
            going_on.iter().for_each(|candidate| self.finish(candidate, rows, FinishReason::Length));
            going_on.clear();
        }
        going_on.sort_by_key(|candidate| candidate.parent);
        self.live = self.extended(&going_on, rows);
        if self.is_decided() {
            self.live.clear();
            going_on.clear();
        }
        going_on.iter().map(|&Candidate { parent, next, .. }| Branch { parent, token: next.token }).collect()
    }

    /// The best hypotheses, best first: as many as are wanted, or fewer if there are not that many.
    pub(crate) fn take_best(&mut self) -> Vec<Hypothesis> {
        self.finished.truncate(self.wanted);
        std::mem::take(&mut self.finished)
    }

    /// Tokens that have been generated for each beam.
    fn length(&self) -> usize {
        self.live.first().map_or(0, |beam| beam.tokens.len())
    }

    /// Whether the next token may end a sequence.
    fn may_end(&self) -> bool {
        self.length() >= self.min_tokens
    }

    fn candidates(&self, rows: &[Row]) -> Vec<Candidate> {
        let may_end = self.may_end();
        let allowed = |token| may_end || self.ends.iter().all(|&(end, _)| end != token);
        let mut candidates = Vec::with_capacity(rows.len() * 2 * self.params.width);
        for (parent, (beam, row)) in self.live.iter().zip(rows).enumerate() {
            let possible = row.next.iter().filter(|next| next.logprob.is_finite() && allowed(next.token));
            candidates.extend(possible.take(2 * self.params.width).map(|&next| Candidate {
                parent,
                next,
                logprob: beam.logprob + f64::from(next.logprob),
            }));
        }
        candidates
    }

    /// The beams of the next step: `going_on`, in order of parents, applied to the live beams. The last child of a
    /// parent takes over its tokens; the others copy them.
    fn extended(&mut self, going_on: &[Candidate], rows: &[Row]) -> Vec<Beam> {
        let (length, longest) = (self.length(), self.max_tokens);
        let extend = |(index, candidate): (usize, &Candidate)| {
            let parent = &mut self.live[candidate.parent].tokens;
            let is_last = going_on.get(index + 1).is_none_or(|next| next.parent != candidate.parent);
            let mut tokens = if is_last { std::mem::take(parent) } else { parent.clone() };
            if tokens.capacity() == length {
                // Doubles the capacity, up to the longest that a beam can become.
                tokens.reserve_exact((length + 1).min(longest - length));
            }
            tokens.push(candidate.choice(rows));
            Beam { tokens, logprob: candidate.logprob }
        };
        going_on.iter().enumerate().map(extend).collect()
    }

    fn finish(&mut self, candidate: &Candidate, rows: &[Row], reason: FinishReason) {
        let before = &self.live[candidate.parent].tokens;
        let counted = if reason == FinishReason::Length { before.len() + 1 } else { before.len() };
        let score = self.score(candidate.logprob, counted);
        self.finished_in_all += 1;
        let place = self.finished.partition_point(|other| score.total_cmp(&other.score) != Ordering::Greater);
        if place < self.params.width {
            let mut tokens = Vec::with_capacity(before.len() + 1);
            tokens.extend_from_slice(before);
            tokens.push(candidate.choice(rows));
            self.finished.insert(place, Hypothesis { tokens, score, reason });
            self.finished.truncate(self.params.width);
        }
    }

    /// The score of a hypothesis of `generated` tokens, not counting the token that ends it.
    fn score(&self, logprob: f64, generated: usize) -> f64 {
        logprob / ((self.prompt_len + generated) as f64).powf(f64::from(self.params.length_penalty))
    }

    /// Whether no live beam can change the result any more.
    fn is_decided(&self) -> bool {
        if self.params.early_stopping && self.finished_in_all >= self.params.width {
            return true;
        }
        let Some(last) = self.finished.get(self.wanted - 1) else { return false };
        // No token makes a beam more likely, and of the lengths that it may reach, the shortest or the longest scores
        // highest. A tie is won by the hypothesis that finished first.
        let best =
            |beam: &Beam| self.score(beam.logprob, beam.tokens.len()).max(self.score(beam.logprob, self.max_tokens));
        self.live.iter().all(|beam| best(beam) <= last.score)
    }
}

impl Hypothesis {
    /// The tokens, including the one that ends the sequence, each with the log-probabilities to report for it.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (TokenId, Option<PositionLogprobs>)> {
        self.tokens.iter().map(|Choice { chosen, top }| {
            let logprobs = top.as_ref().map(|top| PositionLogprobs { chosen: *chosen, top: top.to_vec() });
            (chosen.token, logprobs)
        })
    }
}

#[cfg(test)]
mod tests;
