//! Beam search decides which continuations of a prompt go on, and which are done. This module is a planner: it sees
//! log-probabilities and decides. The sequences, blocks and passes belong to the engine.
//!
//! In each step every live beam offers its `2 x width` most likely tokens. Each of these that ends a sequence finishes
//! a hypothesis. Of the others, from all beams together, the `width` most likely live on. The score of a hypothesis is
//! the sum of its tokens' log-probabilities, divided by its length to the power of the length penalty. The length
//! counts the tokens of prompt and answer together, without the token that ends the answer. Ties go to the lower beam,
//! then to the lower token.
//!
//! **Invariant:** the search ends before the length limit only when no live beam could still become one of the wanted
//! hypotheses, or when `early_stopping` is set and `width` hypotheses have finished.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::{BeamParams, FinishReason, PositionLogprobs, SamplingParams, TokenId, TokenLogprob};

/// The tokens that may follow a beam.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The most likely tokens, best first. Among equally likely tokens, the lowest comes first.
    pub(crate) next: Vec<TokenLogprob>,
    /// The entries of `next` that are to be reported, if any are.
    pub(crate) top: Option<Arc<[TokenLogprob]>>,
}

/// A hypothesis: a finished continuation of the prompt.
#[derive(Debug, Clone)]
pub(crate) struct Hypothesis {
    tokens: Vec<Choice>,
    score: f64,
    pub(crate) reason: FinishReason,
}

/// A beam of the next step, given by its parent, which is a beam of this step, and the token that it adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) parent: usize,
    pub(crate) token: TokenId,
}

/// A search in flight. A search begins with one beam that has no token yet.
#[derive(Debug)]
pub(crate) struct BeamSearch {
    params: BeamParams,
    /// The number of hypotheses that are asked for, which is at most the width.
    wanted: usize,
    prompt_len: usize,
    min_tokens: usize,
    max_tokens: usize,
    /// The tokens that end a sequence, each with the finish reason that is reported for it.
    ends: Vec<(TokenId, FinishReason)>,
    live: Vec<Beam>,
    /// The best finished hypotheses, at most `width` of them, best first. Among equal ones, the one that finished first
    /// comes first.
    finished: Vec<Hypothesis>,
    finished_in_all: usize,
}

#[derive(Debug, Clone, Default)]
struct Beam {
    tokens: Vec<Choice>,
    logprob: f64,
}

/// One token of a beam, with the log-probabilities to report for it.
#[derive(Debug, Clone)]
struct Choice {
    chosen: TokenLogprob,
    top: Option<Arc<[TokenLogprob]>>,
}

/// A token that may continue a beam.
struct Candidate {
    parent: usize,
    next: TokenLogprob,
    /// The log-probability of the beam with this token added.
    logprob: f64,
}

impl Candidate {
    /// Returns the order among candidates that are equally likely.
    fn place(&self) -> (usize, TokenId) {
        (self.parent, self.next.token)
    }

    fn choice(&self, rows: &[Row]) -> Choice {
        Choice { chosen: self.next, top: rows[self.parent].top.clone() }
    }
}

impl BeamSearch {
    /// Creates a search for the best `wanted` continuations of a prompt of `prompt_len` tokens. Of `sampling`, only the
    /// length limits and the tokens that end a sequence matter.
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

    /// Returns the number of entries that each row of the next step needs. A row has fewer if the vocabulary has fewer
    /// tokens.
    pub(crate) fn row_len(&self) -> usize {
        let ruled_out = if self.may_end() { 0 } else { self.ends.len() };
        2 * self.params.width + ruled_out
    }

    /// Returns the generated tokens of live beam number `beam`.
    pub(crate) fn tokens(&self, beam: usize) -> impl ExactSizeIterator<Item = TokenId> {
        self.live[beam].tokens.iter().map(|choice| choice.chosen.token)
    }

    /// Returns the most beams that live at a time.
    pub(crate) fn width(&self) -> usize {
        self.params.width
    }

    /// Returns the number of beams that live.
    pub(crate) fn num_live(&self) -> usize {
        self.live.len()
    }

    /// Takes the row that follows each live beam, and returns the beams of the next step in the order of their parents'
    /// numbers. Returns no beams if the search is over.
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

    /// Takes the best hypotheses, best first. There are as many as are wanted, or fewer if fewer have finished.
    pub(crate) fn take_best(&mut self) -> Vec<Hypothesis> {
        self.finished.truncate(self.wanted);
        std::mem::take(&mut self.finished)
    }

    /// Returns the number of tokens that have been generated for each beam.
    fn length(&self) -> usize {
        self.live.first().map_or(0, |beam| beam.tokens.len())
    }

    /// Returns whether the next token may end a sequence.
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

    /// Returns the beams of the next step, which extend the live beams by `going_on`, in the order of parents. The last
    /// child of a parent takes over the parent's tokens; the other children copy them.
    fn extended(&mut self, going_on: &[Candidate], rows: &[Row]) -> Vec<Beam> {
        let (length, longest) = (self.length(), self.max_tokens);
        let extend = |(index, candidate): (usize, &Candidate)| {
            let parent = &mut self.live[candidate.parent].tokens;
            let is_last = going_on.get(index + 1).is_none_or(|next| next.parent != candidate.parent);
            let mut tokens = if is_last { std::mem::take(parent) } else { parent.clone() };
            if tokens.capacity() == length {
                // This doubles the capacity, up to the longest that a beam can become.
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

    /// Returns the score of a hypothesis with `generated` tokens, not counting the token that ends it.
    fn score(&self, logprob: f64, generated: usize) -> f64 {
        logprob / ((self.prompt_len + generated) as f64).powf(f64::from(self.params.length_penalty))
    }

    /// Returns whether no live beam can change the result any more.
    fn is_decided(&self) -> bool {
        if self.params.early_stopping && self.finished_in_all >= self.params.width {
            return true;
        }
        let Some(last) = self.finished.get(self.wanted - 1) else { return false };
        // No token makes a beam more likely. Of all lengths that a beam may still reach, the shortest or the longest
        // scores highest. The hypothesis that finished first wins a tie.
        let best =
            |beam: &Beam| self.score(beam.logprob, beam.tokens.len()).max(self.score(beam.logprob, self.max_tokens));
        self.live.iter().all(|beam| best(beam) <= last.score)
    }
}

impl Hypothesis {
    /// Returns the tokens, including the one that ends the sequence, each with the log-probabilities to report for it.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (TokenId, Option<PositionLogprobs>)> {
        self.tokens.iter().map(|Choice { chosen, top }| {
            let logprobs = top.as_ref().map(|top| PositionLogprobs { chosen: *chosen, top: top.to_vec() });
            (chosen.token, logprobs)
        })
    }
}

#[cfg(test)]
mod tests;
