//! Chooses the server that gives the first token soonest, by what each server has cached and what it has yet to
//! compute.

use super::books::Books;
use super::router::{KvChanges, Prompt, Router};
use super::view::View;

/// Weighs the longest match against load. Both are counted in tokens that a server has to compute before the prompt's
/// first token: the tokens in its queue, and those of the prompt that it lacks. The prompt goes to the server for which
/// the sum is least; of equal servers, to the one with the fewest requests in flight.
///
/// The number of running sequences only decides between equal sums, so there is no weight to tune. A match that is a
/// small part of the prompt counts for nothing. Otherwise every new conversation would go to the few servers that hold
/// the beginning that all have in common, and push out what is cached there, while other servers stand idle.
#[derive(Debug)]
pub(super) struct PrefixRouter {
    books: Books,
    view: View,
    block_tokens: usize,
}

/// A match is not followed if it is less than one in `WORTH` of the prompt's blocks. On Mooncake's trace of
/// conversations 4 finds about as many blocks as 10, and more than 2.
const WORTH: usize = 4;

impl PrefixRouter {
    /// Creates a router for prompts in blocks of `block_tokens` tokens; KV events come `lag` microseconds late.
    pub fn new(num_servers: usize, block_tokens: usize, lag: u64) -> Self {
        Self { books: Books::new(num_servers), view: View::new(num_servers, lag), block_tokens }
    }
}

impl Router for PrefixRouter {
    fn route(&mut self, prompt: &Prompt<'_>) -> usize {
        let matched = self.view.matched(prompt.contents, prompt.now);
        let missing = |server: usize| {
            let found = matched[server].saturating_mul(self.block_tokens).min(prompt.tokens);
            (prompt.tokens - found) as u64
        };
        let followed = |server: usize| {
            let worth = WORTH * matched[server] >= prompt.contents.len();
            if worth { missing(server) } else { prompt.tokens as u64 }
        };
        let server = self.books.least(|server, account| account.queued_tokens + followed(server));
        self.books.sent(prompt.request, server, missing(server));
        server
    }

    fn began(&mut self, request: usize) {
        self.books.began(request);
    }

    fn ended(&mut self, request: usize) {
        self.books.ended(request);
    }

    fn changed(&mut self, server: usize, now: u64, changes: KvChanges) {
        self.view.changed(server, now, changes);
    }

    fn follows_changes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 100;

    struct Bench {
        router: PrefixRouter,
        requests: usize,
    }

    impl Bench {
        fn new(num_servers: usize) -> Self {
            Self { router: PrefixRouter::new(num_servers, BLOCK, 0), requests: 0 }
        }

        /// Routes a prompt with these contents. The calls are numbered from 0, and the number is that of the request.
        fn route(&mut self, contents: &[u32]) -> usize {
            let prompt = Prompt { request: self.requests, now: 0, tokens: BLOCK * contents.len(), contents };
            self.requests += 1;
            self.router.route(&prompt)
        }

        fn stored(&mut self, server: usize, stored: &[u32]) {
            self.router.changed(server, 0, KvChanges { removed: Vec::new(), stored: stored.to_vec() });
        }
    }

    #[test]
    fn an_idle_fleet_goes_by_the_longest_match() {
        let mut bench = Bench::new(3);
        bench.stored(1, &[1, 2]);
        bench.stored(2, &[1, 2, 3]);
        assert_eq!(bench.route(&[1, 2, 3, 4]), 2);
        bench.router.ended(0);
        assert_eq!((bench.route(&[9, 8]), bench.route(&[7, 8])), (0, 1), "new ones take turns");
        // What is gone is not followed.
        bench.router.changed(2, 0, KvChanges { removed: vec![3, 2, 1], stored: Vec::new() });
        bench.router.ended(1);
        bench.router.ended(2);
        assert_eq!(bench.route(&[1, 2, 3, 4]), 1);
    }

    #[test]
    fn a_queue_longer_than_the_match_is_passed_by() {
        let mut bench = Bench::new(2);
        bench.stored(0, &[1, 2, 3, 4]);
        // Request 0 leaves 100 tokens to compute there, which is less than the 400 that a match saves.
        assert_eq!((bench.route(&[1, 2, 3, 4, 5]), bench.route(&[1, 2, 3, 4, 6, 7])), (0, 0));
        // 300 tokens are queued there now, then 600: the fourth prompt would wait for more than it saves.
        assert_eq!((bench.route(&[1, 2, 3, 4, 8, 9, 10]), bench.route(&[1, 2, 3, 4])), (0, 1));
        bench.router.began(2);
        assert_eq!(bench.route(&[1, 2, 3, 4]), 0, "what has its first token waits no longer");
    }

    #[test]
    fn a_common_beginning_alone_is_not_followed() {
        let mut bench = Bench::new(2);
        bench.stored(0, &[1]);
        let mut servers = [0; 2];
        for request in 0..10 {
            servers[bench.route(&[1, 10 + request, 20 + request, 30 + request, 40 + request])] += 1;
            bench.router.ended(request as usize);
        }
        assert_eq!(servers, [5, 5]);
    }
}
