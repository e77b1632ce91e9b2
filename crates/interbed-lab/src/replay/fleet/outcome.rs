//! The outcome of a trace in a fleet.

use super::route::Route;
use crate::replay::hits::share;
use crate::replay::trace::Trace;

/// The figures of one run through a fleet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub servers: usize,
    pub route: Route,
    /// The number of blocks of the remote tier, if there is one.
    pub remote_blocks: Option<usize>,
    /// The number of prompt blocks that were in the memory of the server that got the prompt.
    pub memory_blocks: u64,
    /// The number of prompt blocks that came from the remote tier.
    pub fetched_blocks: u64,
    /// The number of blocks that were sent to the remote tier.
    pub written_blocks: u64,
    pub memory_tokens: u64,
    pub fetched_tokens: u64,
    /// The number of prompt tokens that no cache had.
    pub computed_tokens: u64,
    /// The number of contents that servers evicted.
    pub evictions: u64,
    /// The number of requests that needed more blocks than a server has; they count as misses.
    pub refused: usize,
    /// The most tokens that one server computed, divided by the mean over all servers.
    pub skew_computed: f64,
    /// The most time that one server's requests were in flight in sum, divided by the mean over all servers.
    pub skew_in_flight: f64,
    /// Seconds from a request's arrival to the first token of its answer, in ascending order.
    pub first_tokens: Vec<f64>,
}

impl Outcome {
    /// Returns the share of the prompts' blocks that were found, in memory or in the remote tier.
    pub fn hit_rate(&self, trace: &Trace) -> f64 {
        share(self.memory_blocks + self.fetched_blocks, trace.references().len() as u64)
    }

    /// Returns the share of the prompts' tokens that were found.
    pub fn token_rate(&self, trace: &Trace) -> f64 {
        share(self.memory_tokens + self.fetched_tokens, trace.input_tokens())
    }

    /// Returns the share of the prompts' blocks that were in the server's own memory.
    pub fn memory_rate(&self, trace: &Trace) -> f64 {
        share(self.memory_blocks, trace.references().len() as u64)
    }

    /// Returns the mean number of seconds to the first token.
    pub fn first_token_mean(&self) -> f64 {
        self.first_tokens.iter().sum::<f64>() / self.first_tokens.len().max(1) as f64
    }

    /// Returns the number of seconds within which 99 in 100 requests had their first token.
    pub fn first_token_p99(&self) -> f64 {
        let rank = (self.first_tokens.len() * 99).div_ceil(100);
        rank.checked_sub(1).map_or(0.0, |index| self.first_tokens[index])
    }
}

/// Returns the greatest of `values` divided by their mean, which is 1 if all are alike.
pub(super) fn skew(values: impl Iterator<Item = u64> + Clone) -> f64 {
    let (count, sum) = values.clone().fold((0u64, 0.0), |(count, sum), value| (count + 1, sum + value as f64));
    if sum == 0.0 { 1.0 } else { values.max().unwrap_or(0) as f64 * count as f64 / sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_the_most_over_the_mean() {
        assert_eq!(skew([3, 3, 3].into_iter()), 1.0);
        assert_eq!(skew([0, 0, 6].into_iter()), 3.0);
        assert_eq!(skew([0, 0].into_iter()), 1.0);
        assert_eq!(skew([u64::MAX; 2].into_iter()), 1.0);
    }
}
