//! Chooses the server with the fewest requests in flight, as a balancer does that knows the load and not the content.

use super::books::Books;
use super::router::{Prompt, Router};

/// A router that sends each prompt to the server with the fewest requests in flight.
#[derive(Debug)]
pub(super) struct LeastLoaded {
    books: Books,
}

impl LeastLoaded {
    pub fn new(num_servers: usize) -> Self {
        Self { books: Books::new(num_servers) }
    }
}

impl Router for LeastLoaded {
    fn route(&mut self, prompt: &Prompt<'_>) -> usize {
        let server = self.books.least(|_, _| 0);
        self.books.sent(prompt.request, server, prompt.tokens as u64);
        server
    }

    fn ended(&mut self, request: usize) {
        self.books.ended(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_fewest_in_flight_is_next() {
        let mut router = LeastLoaded::new(3);
        let mut route = |ended: &[usize], request| {
            ended.iter().for_each(|&ended| router.ended(ended));
            router.route(&Prompt { request, now: 0, tokens: 9, contents: &[] })
        };
        assert_eq!([0, 1, 2, 3].map(|request| route(&[], request)), [0, 1, 2, 0]);
        assert_eq!((route(&[1], 4), route(&[2, 3], 5), route(&[], 6)), (1, 2, 0));
    }
}
