//! What a trace says: requests in the order of the file, and which blocks of their prompts are equal.

use std::collections::HashMap;

/// Tokens of a block of the trace, where its lengths allow them: Mooncake's traces are cut so.
pub const USUAL_BLOCK_TOKENS: usize = 512;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Seconds since the first arrival of the trace.
    pub arrival: f64,
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// Tokens of the answer.
    pub output_tokens: usize,
    first_reference: usize,
    num_references: usize,
}

/// A whole trace.
#[derive(Debug, Default)]
pub struct Trace {
    requests: Vec<Request>,
    references: Vec<u32>, // [request, block of its prompt]
    names: HashMap<u64, u32>,
    block_tokens: BlockTokens,
}

impl Trace {
    /// Adds a request. Equal `hash_ids` are equal blocks; they are numbered from 0 in the order of their coming, so that any
    /// id of 64 bits fits a token.
    ///
    /// # Errors
    /// More different blocks than tokens can name.
    pub fn push(
        &mut self,
        arrival: f64,
        input_tokens: usize,
        output_tokens: usize,
        hash_ids: &[u64],
    ) -> Result<(), TooManyBlocks> {
        let first_reference = self.references.len();
        for &id in hash_ids {
            let next = u32::try_from(self.names.len()).ok().filter(|&next| next < u32::MAX).ok_or(TooManyBlocks)?;
            self.references.push(*self.names.entry(id).or_insert(next));
        }
        self.block_tokens.narrow(input_tokens, hash_ids.len());
        let num_references = hash_ids.len();
        self.requests.push(Request { arrival, input_tokens, output_tokens, first_reference, num_references });
        Ok(())
    }

    /// Counts arrivals from the first one on. Called once, after the last request.
    pub fn start_at_zero(&mut self) {
        let first = self.requests.iter().map(|request| request.arrival).fold(f64::INFINITY, f64::min);
        self.requests.iter_mut().for_each(|request| request.arrival -= first);
    }

    /// In the order of the file.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The blocks of a prompt, in order: numbers below [`distinct`](Self::distinct).
    pub fn blocks(&self, request: &Request) -> &[u32] {
        &self.references[request.first_reference..][..request.num_references]
    }

    /// All requests' blocks, one after the other.
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// Different blocks.
    pub fn distinct(&self) -> usize {
        self.names.len()
    }

    /// Whether it can be told which prompts begin alike.
    pub fn has_hashes(&self) -> bool {
        !self.references.is_empty()
    }

    /// Tokens of one block of the trace.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens.get().unwrap_or(USUAL_BLOCK_TOKENS)
    }

    /// Whether some size of a block explains the number of blocks of every prompt.
    pub fn lengths_agree(&self) -> bool {
        self.block_tokens.get().is_some()
    }

    /// Tokens of all prompts.
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.input_tokens as u64).sum()
    }

    /// Tokens of all answers.
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.output_tokens as u64).sum()
    }

    /// Seconds from the first to the last arrival.
    pub fn seconds(&self) -> f64 {
        self.requests.iter().map(|request| request.arrival).fold(0.0, f64::max)
    }

    /// Requests that arrived before the one above them in the file.
    pub fn out_of_order(&self) -> usize {
        self.requests.windows(2).filter(|pair| pair[1].arrival < pair[0].arrival).count()
    }

    /// Most tokens of one request, prompt and answer together.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.input_tokens + request.output_tokens).max().unwrap_or(0)
    }
}

/// More than 2³² − 1 different blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyBlocks;

/// The sizes of a block for which every prompt has as many blocks as the trace says: traces do not name theirs.
#[derive(Debug, Clone, Copy)]
struct BlockTokens {
    least: usize,
    most: usize,
}

impl Default for BlockTokens {
    fn default() -> Self {
        Self { least: 1, most: usize::MAX }
    }
}

impl BlockTokens {
    fn narrow(&mut self, tokens: usize, blocks: usize) {
        if blocks > 0 {
            self.least = self.least.max(tokens.div_ceil(blocks));
        }
        if blocks > 1 {
            self.most = self.most.min((tokens.saturating_sub(1)) / (blocks - 1));
        }
    }

    fn get(self) -> Option<usize> {
        let fits = |size: &usize| (self.least..=self.most).contains(size);
        let powers = (0..usize::BITS - 1).rev().map(|bits| 1 << bits);
        [USUAL_BLOCK_TOKENS].into_iter().chain(powers).chain([self.least]).find(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(prompts: &[(usize, usize)]) -> Option<usize> {
        let mut sizes = BlockTokens::default();
        prompts.iter().for_each(|&(tokens, blocks)| sizes.narrow(tokens, blocks));
        sizes.get()
    }

    #[test]
    fn the_size_of_a_block_follows_from_the_lengths() {
        assert_eq!(size(&[(6758, 14), (2290, 5)]), Some(512));
        assert_eq!(size(&[(100, 1)]), Some(512));
        assert_eq!(size(&[(33, 3), (32, 2)]), Some(16));
        assert_eq!(size(&[(30, 3), (21, 3), (20, 2)]), Some(10));
        assert_eq!(size(&[(512, 1), (513, 1), (1026, 3)]), None);
        assert_eq!(size(&[(0, 2)]), None);
    }

    #[test]
    fn ids_are_numbered_as_they_come() {
        let mut trace = Trace::default();
        trace.push(2.0, 1000, 5, &[u64::MAX, 7]).unwrap();
        trace.push(1.5, 1025, 0, &[u64::MAX, 7, 0]).unwrap();
        trace.start_at_zero();
        let [first, second] = trace.requests() else { panic!("two requests") };
        assert_eq!((trace.blocks(first), trace.blocks(second)), (&[0, 1][..], &[0, 1, 2][..]));
        assert_eq!((trace.distinct(), trace.out_of_order(), trace.seconds()), (3, 1, 0.5));
        assert_eq!((trace.longest(), trace.block_tokens()), (1025, 512));
    }
}
