//! The content of a trace: the requests in the order of the file, and which blocks of their prompts are equal.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::entry::{REFERENCES_MAX, TOKENS_MAX};

/// The number of tokens in a block of the trace, if the trace's lengths allow this number. It is the size of a block in
/// Mooncake's traces.
const USUAL_BLOCK_TOKENS: usize = 512;

// There are no more distinct blocks than references, so the largest token is no block's number.
const _: () = assert!(REFERENCES_MAX < u32::MAX as usize);

/// A request of the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Request {
    /// Seconds since the first arrival of the trace.
    pub arrival: f64,
    /// The number of tokens in the prompt.
    pub input_tokens: usize,
    /// The number of tokens in the answer.
    pub output_tokens: usize,
    first_reference: usize,
    num_references: usize,
}

impl Request {
    /// Returns where the request's blocks lie in [`Trace::references`].
    pub fn references(&self) -> Range<usize> {
        self.first_reference..self.first_reference + self.num_references
    }
}

/// A whole trace.
#[derive(Debug, Default)]
pub(super) struct Trace {
    requests: Vec<Request>,
    references: Vec<u32>, // [request, block of its prompt]
    names: HashMap<u64, u32>,
    block_tokens: usize,
    lengths_agree: bool,
}

impl Trace {
    /// Adds a request. Equal `hash_ids` mean equal blocks. The blocks are numbered from 0 in the order of their first
    /// appearance, so that any 64-bit id fits a token. All prompts together must name at most [`REFERENCES_MAX`]
    /// blocks, which the reader ensures.
    pub fn push(&mut self, arrival: f64, input_tokens: usize, output_tokens: usize, hash_ids: &[u64]) {
        let first_reference = self.references.len();
        for &id in hash_ids {
            let next = self.names.len() as u32;
            self.references.push(*self.names.entry(id).or_insert(next));
        }
        let num_references = hash_ids.len();
        self.requests.push(Request { arrival, input_tokens, output_tokens, first_reference, num_references });
    }

    /// Makes arrivals relative to the first one, and finds out how many tokens a block has. This must be called once,
    /// after the last request was added.
    pub fn finish(&mut self) {
        let prompts = self.requests.iter().map(|request| (request.input_tokens, request.num_references));
        (self.block_tokens, self.lengths_agree) = block_tokens(prompts);
        let first = self.requests.iter().map(|request| request.arrival).fold(f64::INFINITY, f64::min);
        self.requests.iter_mut().for_each(|request| request.arrival -= first);
    }

    /// Returns the requests in the order of the file.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Returns the blocks of a prompt in order, as numbers below [`distinct`](Self::distinct).
    pub fn blocks(&self, request: &Request) -> &[u32] {
        &self.references[request.references()]
    }

    /// Returns the blocks of all requests, one request after the other.
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// Returns the number of distinct blocks.
    pub fn distinct(&self) -> usize {
        self.names.len()
    }

    /// Returns whether the trace tells which prompts begin alike.
    pub fn has_hashes(&self) -> bool {
        !self.references.is_empty()
    }

    /// Returns the number of tokens in one block of the trace, from 1 to [`TOKENS_MAX`]. It is a size that explains the
    /// number of blocks of the most prompts. Among several such sizes, it is 512 if that is one, else the smallest
    /// power of two, else the smallest.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Returns whether [`block_tokens`](Self::block_tokens) explains the number of blocks of every prompt.
    pub fn lengths_agree(&self) -> bool {
        self.lengths_agree
    }

    /// Returns the number of tokens in `blocks` blocks if all are full.
    pub fn tokens_of(&self, blocks: usize) -> usize {
        blocks.saturating_mul(self.block_tokens)
    }

    /// Returns the number of tokens in all prompts.
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.input_tokens as u64).sum()
    }

    /// Returns the number of tokens in all answers.
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.output_tokens as u64).sum()
    }

    /// Returns the seconds from the first to the last arrival.
    pub fn seconds(&self) -> f64 {
        self.requests.iter().map(|request| request.arrival).fold(0.0, f64::max)
    }

    /// Returns the number of requests that arrived before the preceding one in the file.
    pub fn out_of_order(&self) -> usize {
        self.requests.windows(2).filter(|pair| pair[1].arrival < pair[0].arrival).count()
    }

    /// Returns the most tokens of one request, counting prompt and answer together.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.input_tokens + request.output_tokens).max().unwrap_or(0)
    }
}

/// Returns how many tokens a block has, and whether that number explains all `prompts`, each given as its tokens and
/// blocks. Traces do not state how many tokens a block has.
fn block_tokens(prompts: impl Iterator<Item = (usize, usize)>) -> (usize, bool) {
    // The keys are sizes. The values first say how many more prompts agree with a size than with the size below, and
    // later how many agree.
    let mut agreeing: BTreeMap<usize, isize> = BTreeMap::new();
    let mut num_prompts = 0;
    for (tokens, blocks) in prompts.filter(|&(_, blocks)| blocks > 0) {
        num_prompts += 1;
        let least = tokens.div_ceil(blocks).max(1);
        let most = if blocks == 1 { TOKENS_MAX } else { tokens.saturating_sub(1) / (blocks - 1) };
        if least <= most {
            *agreeing.entry(least).or_default() += 1;
            *agreeing.entry(most + 1).or_default() -= 1;
        }
    }
    let mut sum = 0;
    for prompts in agreeing.values_mut() {
        sum += *prompts;
        *prompts = sum;
    }
    let agree_with = |size: usize| agreeing.range(..=size).next_back().map_or(0, |(_, &prompts)| prompts);
    let most = agreeing.values().copied().max().unwrap_or(0);
    let powers = (0..=TOKENS_MAX.ilog2()).map(|bits| 1 << bits);
    let candidates = [USUAL_BLOCK_TOKENS].into_iter().chain(powers).chain(agreeing.keys().copied());
    let size = candidates.into_iter().find(|&size| agree_with(size) == most).unwrap_or(USUAL_BLOCK_TOKENS);
    (size, most == num_prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_block_follows_from_the_lengths() {
        let check = |prompts: &[(usize, usize)], size: usize, agree: bool| {
            assert_eq!(block_tokens(prompts.iter().copied()), (size, agree), "{prompts:?}");
        };
        check(&[], 512, true);
        check(&[(6758, 14), (2290, 5)], 512, true);
        check(&[(100, 1)], 512, true);
        check(&[(33, 3), (32, 2)], 16, true);
        check(&[(30, 3), (21, 3), (20, 2)], 10, true);
        // With one block a prompt, the longest prompt is the only upper bound on sizes.
        check(&[(600, 1), (1, 1)], 1024, true);
        check(&[(TOKENS_MAX, 1)], TOKENS_MAX, true);
    }

    #[test]
    fn if_prompts_disagree_the_size_of_most_counts() {
        let check = |prompts: &[(usize, usize)], size: usize| {
            assert_eq!(block_tokens(prompts.iter().copied()), (size, false), "{prompts:?}");
        };
        check(&[(512, 1), (513, 1), (1026, 3)], 512);
        check(&[(0, 2)], 512);
        check(&[(33, 3), (48, 3), (20, 2), (4096, 2)], 16);
        check(&[(usize::MAX, 2), (30, 3), (21, 3), (20, 2)], 10);
    }

    #[test]
    fn ids_are_numbered_as_they_come() {
        let mut trace = Trace::default();
        trace.push(2.0, 1000, 5, &[u64::MAX, 7]);
        trace.push(1.5, 1025, 0, &[u64::MAX, 7, 0]);
        trace.finish();
        let [first, second] = trace.requests() else { panic!("two requests") };
        assert_eq!((trace.blocks(first), trace.blocks(second)), (&[0, 1][..], &[0, 1, 2][..]));
        assert_eq!((trace.distinct(), trace.out_of_order(), trace.seconds()), (3, 1, 0.5));
        assert_eq!((trace.longest(), trace.block_tokens()), (1025, 512));
    }
}
