//! What a router remembers of the requests that it has sent, which is all that it knows of load.

use std::collections::HashMap;

/// The record of what one server has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Account {
    /// The number of requests whose answers are not complete.
    pub in_flight: usize,
    /// The number of prompt tokens that the server was to compute, as far as the router knew, for requests whose first
    /// token has not come yet.
    pub queued_tokens: u64,
    /// The number of requests so far.
    pub sent: u64,
}

/// The accounts of all servers.
#[derive(Debug)]
pub(super) struct Books {
    accounts: Vec<Account>,             // [server]
    open: HashMap<usize, (usize, u64)>, // by request in flight: its server, and its part of the queued tokens
}

impl Books {
    pub fn new(num_servers: usize) -> Self {
        Self { accounts: vec![Account::default(); num_servers], open: HashMap::new() }
    }

    /// Returns the server for which `cost` is least. Among several, it is the one with the fewest requests in flight,
    /// and then the one that has had the fewest requests, so that equally good servers take turns.
    pub fn least(&self, mut cost: impl FnMut(usize, &Account) -> u64) -> usize {
        let rank = |(server, account): &(usize, &Account)| (cost(*server, account), account.in_flight, account.sent);
        self.accounts.iter().enumerate().min_by_key(rank).map_or(0, |(server, _)| server)
    }

    /// Notes that `request` goes to `server`, which is to compute `tokens` of its prompt.
    pub fn sent(&mut self, request: usize, server: usize, tokens: u64) {
        let account = &mut self.accounts[server];
        account.in_flight += 1;
        account.queued_tokens += tokens;
        account.sent += 1;
        self.open.insert(request, (server, tokens));
    }

    /// Notes that the prompt of `request` is computed.
    pub fn began(&mut self, request: usize) {
        if let Some((server, tokens)) = self.open.get_mut(&request) {
            self.accounts[*server].queued_tokens -= std::mem::take(tokens);
        }
    }

    /// Notes that the answer to `request` is complete.
    pub fn ended(&mut self, request: usize) {
        self.began(request);
        if let Some((server, _)) = self.open.remove(&request) {
            self.accounts[server].in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_the_sums_of_what_is_in_flight() {
        let mut books = Books::new(2);
        books.sent(7, 1, 100);
        books.sent(8, 1, 20);
        assert_eq!(books.accounts[1], Account { in_flight: 2, queued_tokens: 120, sent: 2 });
        books.began(7);
        books.began(7);
        assert_eq!(books.accounts[1], Account { in_flight: 2, queued_tokens: 20, sent: 2 });
        // An answer may be cut off before its first token.
        books.ended(8);
        books.ended(8);
        books.ended(7);
        assert_eq!(books.accounts, [Account::default(), Account { in_flight: 0, queued_tokens: 0, sent: 2 }]);
    }

    #[test]
    fn equals_take_turns() {
        let mut books = Books::new(3);
        let mut turn = |request| {
            let server = books.least(|_, _| 0);
            books.sent(request, server, 5);
            books.ended(request);
            server
        };
        assert_eq!([0, 1, 2, 3, 4].map(&mut turn), [0, 1, 2, 0, 1]);
        books.sent(9, 2, 5);
        assert_eq!(books.least(|_, _| 0), 0, "who is idle, though it had more");
        assert_eq!(
            books.least(|server, account| account.queued_tokens + 7 * u64::from(server < 2)),
            2,
            "costs come first"
        );
    }
}
