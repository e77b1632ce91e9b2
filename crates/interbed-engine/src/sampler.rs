//! The sampler chooses one token from one row of logits.
//!
//! **Invariant:** the result depends only on the row, the parameters, the sequence's own history and the number of its
//! tokens. It does not depend on the batch or on what was sampled before. A preempted sequence that is computed again
//! draws the same tokens. Sums are taken in f64, in an order that the row fixes.

use std::collections::HashMap;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use interbed_device::BEST_MAX;

use crate::{PositionLogprobs, SamplingParams, TokenId, TokenLogprob};

/// Temperatures below this are greedy: dividing by them would leave one token anyway, or overflow.
const GREEDY_BELOW: f32 = 1e-5;

/// The largest `top_k` for which a row's greatest logits are taken instead of all logits.
const BEST_TOP_K_MAX: usize = BEST_MAX - 1;

/// Returns how many of a row's largest logits [`Sampler::sample_best`] needs to choose a token. Returns `None` if the
/// largest logits are not enough; [`Sampler::sample`] must then choose the token from all logits. `generated` is the
/// number of tokens that the sequence has generated so far.
pub fn best_wanted(params: &SamplingParams, generated: usize) -> Option<usize> {
    let repeats = params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
    let rules_out = !params.allowed_token_ids.is_empty() || !params.bad_words.is_empty();
    let changes = repeats || rules_out || !params.logit_bias.is_empty() || generated < params.min_tokens;
    if changes || params.logprobs.is_some() {
        return None;
    }
    if params.temperature < GREEDY_BELOW {
        return Some(1);
    }
    // One more logit shows whether `top_k` leaves any token out.
    params.top_k.filter(|&k| k <= BEST_TOP_K_MAX).map(|k| k.max(1) + 1)
}

/// The token that the sampler chose at one position, with log-probabilities if they were requested.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Chosen token. It is 0 if every token is impossible because its logit is NaN or minus infinity.
    pub token: TokenId,
    /// Log-probabilities at the position, if [`SamplingParams::logprobs`] is set.
    pub logprobs: Option<PositionLogprobs>,
}

/// What the sampler has to remember about one sequence: how often each token occurs, the most recent tokens, and the
/// seed. A preempted sequence keeps its state.
#[derive(Debug, Clone)]
pub struct SamplerState {
    /// The number of occurrences of each token among generated tokens; 0 for tokens that are only in the prompt. Empty
    /// if no penalty needs occurrences. Each entry changes one logit, so the order of entries does not matter.
    occurrences: HashMap<TokenId, u32>,
    vocab_size: usize,
    tracked: bool,
    /// The last tokens generated: one less than the longest bad word has.
    recent: Vec<TokenId>,
    recent_max: usize,
    seed: u64,
}

impl SamplerState {
    /// Creates the state of a sequence that has the tokens of `prompt` and has generated none. Tokens whose ids are not
    /// below `vocab_size` are ignored.
    pub fn new(prompt: &[TokenId], vocab_size: usize, params: &SamplingParams) -> Self {
        let repeats = params.repetition_penalty != 1.0;
        let tracked = repeats || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let known = prompt.iter().filter(|&&token| repeats && (token as usize) < vocab_size);
        let occurrences = known.map(|&token| (token, 0)).collect();
        let recent_max = params.bad_words.iter().map(|word| word.len().saturating_sub(1)).max().unwrap_or(0);
        Self { occurrences, vocab_size, tracked, recent: Vec::new(), recent_max, seed: params.seed }
    }

    /// Returns a copy of this state for one of several answers that continue the same prompt. `number` is the number of
    /// that answer, and is added to the copy's seed. Answers with different numbers thus draw their tokens
    /// independently.
    #[must_use]
    pub fn continuation(&self, number: u64) -> Self {
        Self { seed: self.seed.wrapping_add(number), ..self.clone() }
    }

    /// Records that `token` was generated.
    pub fn record(&mut self, token: TokenId) {
        if self.recent_max > 0 {
            if self.recent.len() == self.recent_max {
                self.recent.remove(0);
            }
            self.recent.push(token);
        }
        if self.tracked && (token as usize) < self.vocab_size {
            *self.occurrences.entry(token).or_insert(0) += 1;
        }
    }
}

/// Chooses tokens. A sampler holds only scratch memory and no state of any sequence, so one sampler can serve all
/// sequences. The scratch memory is reused: once it has grown to the size of the vocabulary, a call allocates memory
/// only for the log-probabilities that it returns.
#[derive(Debug, Default)]
pub struct Sampler {
    raw: Vec<f32>,              // [vocabulary]
    candidates: Vec<Candidate>, // at most [vocabulary]
    allowed: Vec<(usize, f32)>, // the logits of the tokens that are allowed
    best: Vec<(TokenId, f32)>,
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// The place among all tokens: the most likely comes first, and among equally likely tokens the lowest. The upper
    /// 32 bits hold the logit, mapped to an integer that falls as the logit rises, and the lower 32 bits hold the
    /// token. One comparison thus decides the order.
    place: u64,
    /// The probability, relative to that of the most likely token.
    weight: f32,
}

impl Candidate {
    /// Creates a candidate. `logit` must not be NaN.
    fn new(token: TokenId, logit: f32, weight: f32) -> Self {
        // Adding 0 turns -0 into 0. The bits of negative floats, read as an integer, lie above those of all others and
        // rise as the float falls.
        let bits = (logit + 0.0).to_bits();
        let falling = if bits >> 31 == 0 { !bits & (u32::MAX >> 1) } else { bits };
        Self { place: u64::from(falling) << 32 | u64::from(token), weight }
    }

    fn token(&self) -> TokenId {
        self.place as TokenId
    }
}

impl Sampler {
    /// Chooses the next token of a sequence that has generated `generated` tokens so far. `logits` has one entry per
    /// token of the vocabulary, and `eos` lists the end-of-sequence tokens. If `params` request log-probabilities, they
    /// are computed from the unmodified logits.
    ///
    /// The sampler first rules out tokens that would end the sequence before `min_tokens`, tokens that are not allowed,
    /// and tokens that would complete a bad word. It then applies `logit_bias`, penalties, temperature, `min_p`,
    /// `top_k` and `top_p`, in this order, each to the result of the previous one. After the call, `logits` holds the
    /// values after the penalties and before the temperature. A logit that is NaN is treated as minus infinity.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        state: &SamplerState,
        generated: usize,
        eos: &[TokenId],
    ) -> Sampled {
        if params.logprobs.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        logits.iter_mut().filter(|logit| logit.is_nan()).for_each(|logit| *logit = f32::NEG_INFINITY);
        rule_out_early_end(logits, params, generated, eos);
        self.keep_allowed(logits, params);
        rule_out_bad_words(logits, params, state);
        for &(token, bias) in &params.logit_bias {
            change(logits, token, |logit| logit + bias);
        }
        penalize(logits, params, state);
        let row = logits.iter().zip(0..).map(|(&logit, token)| (token, logit));
        let token = self.choose(row, params, state, generated);
        let logprobs = params.logprobs.map(|top| {
            let raw = std::mem::take(&mut self.raw);
            let logprobs = self.position_logprobs(&raw, token, top);
            self.raw = raw;
            logprobs
        });
        Sampled { token, logprobs }
    }

    /// Chooses the same token as [`sample`](Self::sample), but needs only the largest logits of a row. `best` yields
    /// these logits with their tokens, in any order. It yields as many as [`best_wanted`] returns, or all logits of the
    /// row if the row has fewer. No logit may be NaN.
    pub fn sample_best(
        &mut self,
        best: impl Iterator<Item = (TokenId, f32)>,
        params: &SamplingParams,
        state: &SamplerState,
        generated: usize,
    ) -> Sampled {
        let mut row = std::mem::take(&mut self.best);
        row.clear();
        row.extend(best);
        // The tokens are sorted as in a row, so that everything that follows happens in the same order.
        row.sort_unstable_by_key(|(token, _)| *token);
        let token = self.choose(row.iter().copied(), params, state, generated);
        self.best = row;
        Sampled { token, logprobs: None }
    }

    /// Applies a softmax to `logits`, and returns the natural logarithms of the probabilities of `chosen` and of the
    /// `top` most likely tokens. The most likely token comes first and has rank 1. If tokens are equally likely, the
    /// one with the lower id comes first.
    pub fn position_logprobs(&mut self, logits: &[f32], chosen: TokenId, top: usize) -> PositionLogprobs {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(below_best(logit, best)).exp()).sum();
        let log_sum = sum.ln();
        let logprob = |logit: f32| (f64::from(below_best(logit, best)) - log_sum) as f32;
        let chosen_logit = logits.get(chosen as usize).copied().map_or(f32::NEG_INFINITY, nan_to_worst);
        let before = |(token, &logit): (usize, &f32)| {
            let logit = nan_to_worst(logit);
            logit > chosen_logit || (logit == chosen_logit && token < chosen as usize)
        };
        let rank = 1 + logits.iter().enumerate().filter(|&entry| before(entry)).count() as u32;

        self.candidates.clear();
        if top > 0 {
            let all = logits.iter().zip(0..).map(|(&logit, token)| Candidate::new(token, nan_to_worst(logit), 0.0));
            self.candidates.extend(all);
            keep_best(&mut self.candidates, top);
        }
        let ranked = self.candidates.iter().map(Candidate::token).zip(1..);
        let logprob_of = |token: TokenId| logprob(nan_to_worst(logits[token as usize]));
        PositionLogprobs {
            chosen: TokenLogprob { token: chosen, logprob: logprob(chosen_logit), rank },
            top: ranked.map(|(token, rank)| TokenLogprob { token, logprob: logprob_of(token), rank }).collect(),
        }
    }

    /// Rules out all tokens that are not allowed.
    fn keep_allowed(&mut self, logits: &mut [f32], params: &SamplingParams) {
        if params.allowed_token_ids.is_empty() {
            return;
        }
        let id_of = |&token: &TokenId| token as usize;
        let known = || params.allowed_token_ids.iter().map(id_of).filter(|&id| id < logits.len());
        self.allowed.clear();
        self.allowed.extend(known().map(|id| (id, logits[id])));
        logits.fill(f32::NEG_INFINITY);
        self.allowed.iter().for_each(|&(id, logit)| logits[id] = logit);
    }

    /// Chooses a token from what temperature, `min_p`, `top_k` and `top_p` leave of `logits`. `logits` hold no NaN and
    /// are in the order of their tokens.
    fn choose(
        &mut self,
        logits: impl Iterator<Item = (TokenId, f32)> + Clone,
        params: &SamplingParams,
        state: &SamplerState,
        generated: usize,
    ) -> TokenId {
        if params.temperature < GREEDY_BELOW {
            return argmax(logits);
        }
        let best = logits.clone().map(|(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            // No token is possible.
            return 0;
        }
        self.candidates.clear();
        let weighed = logits.map(|(token, logit)| {
            let below = below_best(logit, best) / params.temperature;
            // The weights of most tokens underflow to 0, and need not be computed.
            Candidate::new(token, logit, if below < -104.0 { 0.0 } else { below.exp() })
        });
        // The best token has weight 1, so it stays. Tokens of weight 0 are never drawn.
        self.candidates.extend(weighed.filter(|token| token.weight > 0.0 && token.weight >= params.min_p));
        if let Some(k) = params.top_k.filter(|&k| k < self.candidates.len()) {
            keep_best(&mut self.candidates, k.max(1));
        }
        if params.top_p < 1.0 {
            keep_nucleus(&mut self.candidates, params.top_p);
        }
        pick(&self.candidates, uniform(state.seed, generated))
    }
}

/// Returns the random number in [0, 1) for a request's token number `position`. It depends on seed and position alone.
fn uniform(seed: u64, position: usize) -> f64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut stream = ChaCha8Rng::from_seed(key);
    stream.set_stream(position as u64);
    // An f64 holds 53 bits of precision.
    (stream.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn rule_out_early_end(logits: &mut [f32], params: &SamplingParams, generated: usize, eos: &[TokenId]) {
    if generated >= params.min_tokens {
        return;
    }
    // With `ignore_eos`, an end-of-sequence token ends nothing, so it need not be ruled out.
    let eos = if params.ignore_eos { &[] } else { eos };
    for &token in eos.iter().chain(&params.stop_token_ids) {
        change(logits, token, |_| f32::NEG_INFINITY);
    }
}

fn rule_out_bad_words(logits: &mut [f32], params: &SamplingParams, state: &SamplerState) {
    for word in &params.bad_words {
        if let Some((&last, before)) = word.split_last()
            && state.recent.ends_with(before)
        {
            change(logits, last, |_| f32::NEG_INFINITY);
        }
    }
}

fn penalize(logits: &mut [f32], params: &SamplingParams, state: &SamplerState) {
    let repetition = params.repetition_penalty;
    for (&token, &count) in &state.occurrences {
        change(logits, token, |logit| {
            // The penalty makes the token less likely, whether its logit is above or below 0.
            let logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
            let presence = if count > 0 { params.presence_penalty } else { 0.0 };
            logit - params.frequency_penalty * count as f32 - presence
        });
    }
}

/// Changes the logit of `token`, if the row has one. An impossible token stays impossible, because no bias or penalty
/// is infinite.
fn change(logits: &mut [f32], token: TokenId, new: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = new(*logit);
    }
}

/// Returns the most likely token, and among equally likely tokens the lowest; 0 if there is none.
fn argmax(logits: impl Iterator<Item = (TokenId, f32)>) -> TokenId {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in logits {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

/// Returns `logit` minus the best logit. A logit that equals the best gives 0, also if both are infinite.
fn below_best(logit: f32, best: f32) -> f32 {
    let logit = nan_to_worst(logit);
    if logit == best { 0.0 } else { logit - best }
}

fn nan_to_worst(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Keeps the `count` most likely candidates, in order. `count` is at least 1.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by_key(count - 1, |candidate| candidate.place);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by_key(|candidate| candidate.place);
}

/// Keeps the smallest set of most likely candidates, at least one, whose share of all candidates reaches `top_p`, in
/// order.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f32) {
    let reach = f64::from(top_p) * sum(candidates);
    let mut reached = 0.0;
    // The set is mostly small and the vocabulary large, so the candidates are sorted piece by piece.
    let (mut start, mut piece) = (0, 64);
    while start < candidates.len() {
        let end = candidates.len().min(start + piece);
        if end < candidates.len() {
            candidates[start..].select_nth_unstable_by_key(end - start, |candidate| candidate.place);
        }
        candidates[start..end].sort_unstable_by_key(|candidate| candidate.place);
        for index in start..end {
            reached += f64::from(candidates[index].weight);
            if reached >= reach {
                return candidates.truncate(index + 1);
            }
        }
        (start, piece) = (end, 4 * piece);
    }
}

/// Returns the candidate at share `uniform` of the summed weights.
fn pick(candidates: &[Candidate], uniform: f64) -> TokenId {
    let target = uniform * sum(candidates);
    let mut passed = 0.0;
    for candidate in candidates {
        passed += f64::from(candidate.weight);
        if passed > target {
            return candidate.token();
        }
    }
    candidates.last().map_or(0, Candidate::token)
}

fn sum(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

#[cfg(test)]
mod tests;
