//! Who comes next where several tenants wait for a few places: the one that has had the least time in them.
//!
//! A tenant is counted from when it is there: who was away has saved nothing up, and who comes back has forgotten
//! nothing as long as others are there.

use crate::tenant::Tenant;

/// Places, who has one, and who waits. Knows no clock: what a turn took, it is told.
#[derive(Debug)]
pub(crate) struct Turns<W> {
    places: usize,
    /// Whether the last free place is kept for a tenant that has none.
    keeps_one: bool,
    accounts: Vec<Account>,
    /// In the order in which they came.
    waiting: Vec<(Tenant, W)>,
}

/// What a tenant has had.
#[derive(Debug)]
struct Account {
    tenant: Tenant,
    taken: usize,
    /// Microseconds, not less than those of who had the least when it came.
    had: u64,
}

impl<W> Turns<W> {
    /// With `places`, of which one is kept for whoever has none, where there are several tenants and places.
    pub(crate) fn new(places: usize, several_tenants: bool) -> Self {
        let places = places.max(1);
        Self { places, keeps_one: several_tenants && places > 1, accounts: Vec::new(), waiting: Vec::new() }
    }

    /// Queues a tenant's wait for a place.
    pub(crate) fn wait(&mut self, tenant: Tenant, wait: W) {
        let is_there = |account: &Account| account.tenant == tenant;
        if !self.accounts.iter().any(is_there) {
            let had = self.accounts.iter().map(|account| account.had).min().unwrap_or(0);
            // Before those that have had as much.
            self.accounts.insert(0, Account { tenant, taken: 0, had });
        }
        self.waiting.push((tenant, wait));
    }

    /// Gives a free place to who comes next; it is taken until [`leave`](Self::leave).
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

    /// A place is free again, which `tenant` had for so long.
    pub(crate) fn leave(&mut self, tenant: Tenant, microseconds: u64) {
        if let Some(account) = self.accounts.iter_mut().find(|account| account.tenant == tenant) {
            account.taken = account.taken.saturating_sub(1);
            account.had = account.had.saturating_add(microseconds);
        }
        self.settle();
    }

    /// Takes out who waits no longer.
    pub(crate) fn retain(&mut self, waits: impl Fn(&W) -> bool) {
        self.waiting.retain(|(_, wait)| waits(wait));
        self.settle();
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.accounts.iter().map(|account| account.taken).sum()
    }

    /// Forgets who is away, once nobody who is there has had less.
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
        // Coming and going saves nothing up.
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
        // Where nobody else can come, it is for all.
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
