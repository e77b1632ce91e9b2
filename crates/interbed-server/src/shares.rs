//! Divides a limited amount among tenants, and decides who gets some next.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::tenant::Tenant;

/// The time after its last request for which a tenant keeps its share.
const RECENT: Duration = Duration::from_secs(10);

/// Divides an amount among tenants.
///
/// Each tenant that has sent a request recently, holds some or waits may have an equal part of all, or one request of
/// any size. A tenant that is alone may have all. Of the waiting tenants whose request fits, the one that holds the
/// least comes first, and among equals the one whose last grant is the longest ago. Within a tenant, requests go in
/// order of arrival, except that requests which already hold some and need more come first, since others wait for what
/// they hold. A request that does not fit keeps no other tenant waiting. The type has no clock: the caller passes the
/// time.
#[derive(Debug)]
pub(crate) struct Shares<W> {
    all: usize,
    free: usize,
    /// The time of the last request of each recent tenant.
    recent: HashMap<Tenant, Instant>,
    /// The state of each tenant that holds something or waits.
    tenants: HashMap<Tenant, Place<W>>,
    /// The number of grants so far.
    given: u64,
}

/// The state of one tenant.
#[derive(Debug)]
struct Place<W> {
    has: usize,
    /// The value of `given` at the tenant's last grant, or at its arrival.
    last: u64,
    waiting: VecDeque<(Ask, W)>,
}

/// The amount that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) amount: usize,
    /// The amount that the request already holds.
    pub(crate) has: usize,
    /// The maximum amount that all requests of a tenant may hold together, whoever else is there.
    pub(crate) most: usize,
}

impl<W> Shares<W> {
    /// Starts with the amount `all` free.
    pub(crate) fn new(all: usize) -> Self {
        Self { all, free: all, recent: HashMap::new(), tenants: HashMap::new(), given: 0 }
    }

    /// Queues a tenant's request, which arrives at `now`.
    pub(crate) fn wait(&mut self, tenant: Tenant, ask: Ask, wait: W, now: Instant) {
        self.recent.retain(|_, came| now.saturating_duration_since(*came) < RECENT);
        self.recent.insert(tenant, now);
        let place = self.place(tenant);
        match ask.has {
            0 => place.waiting.push_back((ask, wait)),
            _ => place.waiting.push_front((ask, wait)),
        }
    }

    /// Grants the next request that fits, and returns the tenant, the amount, and the waiting handle.
    pub(crate) fn next(&mut self) -> Option<(Tenant, usize, W)> {
        let share = self.share();
        let may = |place: &Place<W>| {
            place.waiting.front().is_some_and(|(ask, _)| {
                let then = place.has.saturating_add(ask.amount);
                ask.amount <= self.free && then <= ask.most && (then <= share || place.has == ask.has)
            })
        };
        let waiting = self.tenants.iter().filter(|(_, place)| may(place));
        let (&tenant, _) = waiting.min_by_key(|(_, place)| (place.has, place.last))?;
        self.given += 1;
        let given = self.given;
        let place = self.place(tenant);
        let (ask, wait) = place.waiting.pop_front()?;
        (place.has, place.last) = (place.has + ask.amount, given);
        self.free -= ask.amount;
        Some((tenant, ask.amount, wait))
    }

    /// Returns `amount` from `tenant`.
    pub(crate) fn give_back(&mut self, tenant: Tenant, amount: usize) {
        self.free += amount;
        self.place(tenant).has -= amount;
        self.forget_idle();
    }

    /// Removes requests that no longer wait.
    pub(crate) fn retain(&mut self, mut waits: impl FnMut(&W) -> bool) {
        self.tenants.values_mut().for_each(|place| place.waiting.retain(|(_, wait)| waits(wait)));
        self.forget_idle();
    }

    /// Returns whether any request waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.tenants.values().any(|place| !place.waiting.is_empty())
    }

    /// Returns the amount that a tenant may hold while others want some: an equal part.
    fn share(&self) -> usize {
        let here_only = self.tenants.keys().filter(|tenant| !self.recent.contains_key(tenant)).count();
        (self.all / (self.recent.len() + here_only).max(1)).max(1)
    }

    fn place(&mut self, tenant: Tenant) -> &mut Place<W> {
        let last = self.given;
        self.tenants.entry(tenant).or_insert_with(|| Place { has: 0, last, waiting: VecDeque::new() })
    }

    fn forget_idle(&mut self) {
        self.tenants.retain(|_, place| place.has > 0 || !place.waiting.is_empty());
    }
}

#[cfg(test)]
impl<W> Shares<W> {
    /// Returns the amount that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Returns the number of tenants that hold something or wait.
    pub(crate) fn num_tenants(&self) -> usize {
        self.tenants.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::digest;

    /// Shares of twelve, with a clock for tests.
    struct Table {
        shares: Shares<usize>,
        begun: Instant,
    }

    impl Table {
        fn new() -> Self {
            Self { shares: Shares::new(12), begun: Instant::now() }
        }

        /// Lets `tenant` ask after this many seconds, and returns the numbers of all requests that are granted.
        fn ask(&mut self, seconds: u64, tenant: Tenant, number: usize, amount: usize, has: usize) -> Vec<usize> {
            let ask = Ask { amount, has, most: 12 };
            self.shares.wait(tenant, ask, number, self.begun + Duration::from_secs(seconds));
            self.given()
        }

        fn back(&mut self, tenant: Tenant, amount: usize) -> Vec<usize> {
            self.shares.give_back(tenant, amount);
            self.given()
        }

        fn given(&mut self) -> Vec<usize> {
            std::iter::from_fn(|| self.shares.next()).map(|(_, _, number)| number).collect()
        }
    }

    fn tenants() -> [Tenant; 3] {
        ["a", "b", "c"].map(|key| Tenant::of_digest(&digest(key)))
    }

    #[test]
    fn each_may_have_an_equal_part_and_one_alone_all() {
        let [a, b, _] = tenants();
        let mut table = Table::new();
        assert_eq!((0..4).flat_map(|number| table.ask(0, b, number, 3, 0)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(table.ask(1, a, 10, 3, 0).is_empty() && table.ask(1, b, 4, 3, 0).is_empty());
        // What a tenant gives back beyond its part goes to the other one.
        assert_eq!(table.back(b, 3), [10]);
        assert!(table.ask(1, a, 11, 3, 0).is_empty());
        assert_eq!(table.back(b, 3), [11]);
        assert_eq!(table.back(b, 3), [4]);
        // A tenant that holds something counts, however long ago it sent a request.
        assert!(table.ask(60, b, 5, 1, 0).is_empty());
        // A tenant's part becomes available to all once it holds nothing and has sent no request for a while.
        assert_eq!(table.back(a, 6), [5]);
        assert_eq!(table.ask(60, b, 6, 1, 0), [6]);
    }

    #[test]
    fn a_large_request_keeps_no_other_tenant_waiting() {
        let [a, b, c] = tenants();
        let mut table = Table::new();
        assert_eq!(table.ask(0, c, 0, 4, 0), [0]);
        assert!(table.ask(0, b, 1, 9, 0).is_empty());
        assert_eq!(table.ask(0, a, 2, 1, 0), [2]);
        // Within a tenant, a small request does not overtake a large one.
        assert!(table.ask(0, b, 3, 1, 0).is_empty());
        assert_eq!(table.back(c, 4), [1]);
        assert_eq!(table.back(b, 9), [3]);
    }

    #[test]
    fn a_newcomer_waits_behind_its_own_tenant() {
        let [a, b, _] = tenants();
        let mut table = Table::new();
        assert_eq!(table.ask(0, a, 0, 1, 0), [0]);
        table.back(a, 1);
        assert_eq!(table.ask(9, b, 1, 6, 0), [1]);
        assert!(table.ask(9, b, 2, 6, 0).is_empty());
        // The other tenant has sent no request for ten seconds: there is room for one request, and this one has waited
        // longer.
        assert_eq!(table.ask(11, b, 3, 6, 0), [2]);
        assert_eq!(table.back(b, 6), [3]);
    }

    #[test]
    fn what_grows_comes_first_and_one_request_may_have_any_size() {
        let [a, b, _] = tenants();
        let mut table = Table::new();
        assert_eq!((table.ask(0, a, 0, 1, 0), table.ask(0, b, 1, 6, 0)), (vec![0], vec![1]));
        assert!(table.ask(0, b, 2, 1, 0).is_empty());
        assert_eq!(table.ask(0, b, 3, 5, 6), [3], "it is alone of its tenant");
        assert_eq!(table.back(b, 11), [2]);
        assert!(table.ask(0, b, 4, 6, 0).is_empty());
        // Both together would exceed the tenant's part.
        assert_eq!(table.ask(0, b, 5, 6, 1), [5], "it has all that its tenant has");
        table.shares.retain(|&number| number != 4);
        assert!(!table.shares.is_wanted());
        table.back(b, 7);
        table.back(a, 1);
        assert_eq!((table.shares.free(), table.shares.num_tenants()), (12, 0));
    }

    #[test]
    fn nobody_has_more_than_the_most() {
        let [a, ..] = tenants();
        let mut table = Table::new();
        let ask = |amount| Ask { amount, has: 0, most: 9 };
        table.shares.wait(a, ask(6), 0, table.begun);
        table.shares.wait(a, ask(4), 1, table.begun);
        assert_eq!(table.given(), [0]);
        assert_eq!(table.back(a, 1), [1]);
    }
}
