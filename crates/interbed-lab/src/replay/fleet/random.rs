//! Chooses a server at random, as a balancer does that knows nothing.

use super::router::{Prompt, Router};

/// The seed of the random numbers, which is the same in every run.
const SEED: u64 = 1;

/// A router that sends each prompt to a random server; all are equally likely.
#[derive(Debug)]
pub(super) struct RandomRouter {
    num_servers: u64,
    state: u64,
}

impl RandomRouter {
    pub fn new(num_servers: usize) -> Self {
        Self { num_servers: num_servers as u64, state: SEED }
    }
}

impl Router for RandomRouter {
    fn route(&mut self, _: &Prompt<'_>) -> usize {
        // This is Splitmix64, whose upper half is scaled to the number of servers.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (((bits >> 32) * self.num_servers) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_are_equally_likely_and_runs_are_equal() {
        let prompt = Prompt { request: 0, now: 0, tokens: 1, contents: &[] };
        let (mut one, mut other) = (RandomRouter::new(7), RandomRouter::new(7));
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            let server = one.route(&prompt);
            assert_eq!(server, other.route(&prompt));
            counts[server] += 1;
        }
        // Three standard deviations are 278.
        assert!(counts.iter().all(|count| (9_700..=10_300).contains(count)), "{counts:?}");
    }
}
