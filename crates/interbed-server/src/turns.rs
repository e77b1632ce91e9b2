//! Decides which of several waiting tenants gets the next of a few places. The tenant that has used the places for the
//! least time is next.
//!
//! A tenant's time counts while it is present. Absence earns no credit, and a tenant that comes back is still charged
//! for its earlier time as long as others are present.

use crate::tenant::Tenant;

/// Divides a number of places among tenants, and keeps the waiting tenants. The type has no clock: the caller reports
/// how long a turn took.
#[derive(Debug)]
pub(crate) struct Turns<W> {
    places: usize,
    /// Whether the last free place is reserved for a tenant that has none.
    keeps_one: bool,
    accounts: Vec<Account>,
    /// The waiting tenants, in order of arrival.
    waiting: Vec<(Tenant, W)>,
}

/// The time that a tenant has used.
#[derive(Debug)]
struct Account {
    tenant: Tenant,
    taken: usize,
    /// The used time in microseconds. It starts at the smallest value of the tenants that are present when the tenant
    /// arrives.
    had: u64,
}

impl<W> Turns<W> {
    /// Creates `places`, of which one is reserved for tenants that have none, if there are several tenants and places.
    pub(crate) fn new(places: usize, several_tenants: bool) -> Self {
        let places = places.max(1);
        Self { places, keeps_one: several_tenants && places > 1, accounts: Vec::new(), waiting: Vec::new() }
    }

    /// Queues a tenant's wait for a place.
    pub(crate) fn wait(&mut self, tenant: Tenant, wait: W) {
        let is_there = |account: &Account| account.tenant == tenant;
        if !self.accounts.iter().any(is_there) {
            let had = self.accounts.iter().map(|account| account.had).min().unwrap_or(0);
            // The new tenant comes before those that have used as much time.
            self.accounts.insert(0, Account { tenant, taken: 0, had });
        }
        self.waiting.push((tenant, wait));
    }

    /// Gives a free place to the next tenant. The place is taken until [`leave`](Self::leave) is called.
    pub(crate) fn next(&mut self) -> Option<(Tenant, W)> {
        let free = self.places - self.taken();
        let may = |account: &&mut Account| free > usize::from(self.keeps_one && account.taken > 0);
        let waits = |account: &&mut Account| self.waiting.iter().any(|(tenant, _)| *tenant == account.tenant);
        let candidates = self.accounts.iter_mut().filter(waits).filter(may);
        let account = candidates.min_by_key(|account| (account.taken, account.had))?;
        account.taken += 1;
        let index = self.waiting.iter().position(|(tenant, _)| *tenant == account.tenant)?;
        Some(self.waiting.remove(index))
    }

    /// Frees a place that `tenant` had for this time.
    pub(crate) fn leave(&mut self, tenant: Tenant, microseconds: u64) {
        if let Some(account) = self.accounts.iter_mut().find(|account| account.tenant == tenant) {
            account.taken = account.taken.saturating_sub(1);
            account.had = account.had.saturating_add(microseconds);
        }
        self.settle();
    }

    /// Removes waits that were given up.
    pub(crate) fn retain(&mut self, waits: impl Fn(&W) -> bool) {
        self.waiting.retain(|(_, wait)| waits(wait));
        self.settle();
    }

    /// Returns the number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.accounts.iter().map(|account| account.taken).sum()
    }

    /// Forgets absent tenants that have used no more time than every present one.
    fn settle(&mut self) {
        let is_there =
            |account: &Account| account.taken > 0 || self.waiting.iter().any(|(tenant, _)| *tenant == account.tenant);
        let least = self.accounts.iter().filter(|account| is_there(account)).map(|account| account.had).min();
        let least = least.unwrap_or(u64::MAX);
        let waiting = &self.waiting;
        self.accounts.retain(|account| {
            account.taken > 0 || account.had > least || waiting.iter().any(|(tenant, _)| *tenant == account.tenant)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::digest;

    fn tenants<const N: usize>() -> [Tenant; N] {
        std::array::from_fn(|number| Tenant::of_digest(&digest(&number.to_string())))
    }

    #[test]
    fn who_has_had_less_comes_first() {
        let [a, b] = tenants();
        let mut turns = Turns::new(1, true);
        (0..5).for_each(|number| turns.wait(b, number));
        assert_eq!(turns.next(), Some((b, 0)));
        turns.wait(a, 10);
        turns.wait(a, 11);
        assert_eq!(turns.next(), None, "the place is taken");
        turns.leave(b, 1_000_000);
        assert_eq!(turns.next(), Some((a, 10)));
        turns.leave(a, 5_000);
        assert_eq!(turns.next(), Some((a, 11)), "it has still had less");
        turns.leave(a, 5_000);
        assert_eq!(turns.next(), Some((b, 1)));
        // A tenant that leaves and comes back gains no credit.
        turns.leave(b, 1_000);
        turns.wait(a, 12);
        assert_eq!(turns.next(), Some((a, 12)));
        turns.leave(a, 3_000_000);
        turns.wait(a, 13);
        assert_eq!((turns.next(), turns.taken()), (Some((b, 2)), 1));
    }

    #[test]
    fn nobody_takes_the_last_place_but_who_has_none() {
        let [a, b] = tenants();
        let mut turns = Turns::new(2, true);
        (0..3).for_each(|number| turns.wait(b, number));
        assert_eq!((turns.next(), turns.next()), (Some((b, 0)), None));
        turns.wait(a, 10);
        assert_eq!((turns.next(), turns.next()), (Some((a, 10)), None));
        turns.leave(b, 1);
        turns.leave(a, 1);
        turns.retain(|&number| number != 1);
        assert_eq!(turns.next(), Some((b, 2)));
        // With a single tenant, all places may be used.
        let mut turns = Turns::new(2, false);
        (0..3).for_each(|number| turns.wait(b, number));
        assert_eq!((turns.next(), turns.next(), turns.next()), (Some((b, 0)), Some((b, 1)), None));
    }

    #[test]
    fn accounts_of_who_is_away_are_forgotten() {
        let all: [Tenant; 50] = tenants();
        let mut turns = Turns::new(2, true);
        for &tenant in &all {
            turns.wait(tenant, ());
            assert_eq!(turns.next(), Some((tenant, ())));
            turns.leave(tenant, 7);
        }
        assert!(turns.accounts.is_empty(), "{} are kept", turns.accounts.len());
    }
}
