//! Permits for work that is limited in number at a time, and for limited memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::shares::{Ask, Shares};
use crate::tenant::Tenant;

/// A number of permits that tenants [share](Shares).
#[derive(Debug)]
pub(crate) struct Permits {
    shares: Mutex<Shares<oneshot::Sender<Permit>>>,
}

/// Some permits of a tenant. Dropping the value passes the permits on to the next waiting request.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    tenant: Tenant,
    amount: usize,
}

/// A waiting request. Dropping the value ends the wait.
struct Waiting<'a> {
    permits: &'a Arc<Permits>,
    coming: oneshot::Receiver<Permit>,
}

impl Permits {
    /// Creates `count` permits, or one if `count` is 0.
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { shares: Mutex::new(Shares::new(count.max(1))) })
    }

    /// Waits for one permit.
    pub(crate) async fn take(self: &Arc<Self>, tenant: Tenant) -> Permit {
        self.take_many(tenant, Ask { amount: 1, has: 0, most: usize::MAX }).await
    }

    /// Waits for the requested number of permits.
    pub(crate) async fn take_many(self: &Arc<Self>, tenant: Tenant, ask: Ask) -> Permit {
        let none = Permit { permits: self.clone(), tenant, amount: 0 };
        if ask.amount == 0 {
            return none;
        }
        let (sender, coming) = oneshot::channel();
        self.shares().wait(tenant, ask, sender, Instant::now());
        let mut waiting = Waiting { permits: self, coming };
        self.give();
        // A sender is dropped only when its permit has been sent, or nobody waits for it.
        (&mut waiting.coming).await.unwrap_or(none)
    }

    /// Returns whether any request waits.
    pub(crate) fn are_wanted(&self) -> bool {
        self.shares().is_wanted()
    }

    /// Gives free permits to waiting requests that may have them.
    fn give(self: &Arc<Self>) {
        loop {
            let next = {
                let mut shares = self.shares();
                shares.retain(|sender| !sender.is_closed());
                shares.next()
            };
            let Some((tenant, amount, sender)) = next else { return };
            // Dropping what is sent may give it back, so no lock is held here.
            if let Err(mut unwanted) = sender.send(Permit { permits: self.clone(), tenant, amount }) {
                // The receiver no longer waits.
                unwanted.amount = 0;
                self.shares().give_back(tenant, amount);
            }
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<oneshot::Sender<Permit>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant
    }

    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Adds the permits of `other`, which has the same tenant.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Gives back all permits but `amount`.
    pub(crate) fn keep(&mut self, amount: usize) {
        let surplus = self.amount.saturating_sub(amount);
        if surplus > 0 {
            self.amount = amount;
            self.permits.shares().give_back(self.tenant, surplus);
            self.permits.give();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.keep(0);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Requests behind it may be next now.
        self.coming.close();
        self.permits.give();
    }
}

#[cfg(test)]
impl Permits {
    /// Returns the number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.shares().free()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::tenant::digest;

    const WAIT: Duration = Duration::from_secs(10);

    fn tenants() -> [Tenant; 3] {
        ["a", "b", "c"].map(|key| Tenant::of_digest(&digest(key)))
    }

    /// Lets each tenant of `line` wait in order for one of two permits, where each holder ends as soon as the next one
    /// comes. Returns the order in which the tenants get their permits.
    async fn served(line: &[Tenant], held: Tenant) -> Vec<Tenant> {
        let permits = Permits::new(2);
        let held = [permits.take(held).await, permits.take(held).await];
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for &tenant in line {
            let (permits, sender) = (permits.clone(), sender.clone());
            tokio::spawn(async move {
                let permit = permits.take(tenant).await;
                sender.send((tenant, permit)).expect("somebody looks");
            });
            tokio::task::yield_now().await;
        }
        drop((held, sender));
        let mut served = Vec::new();
        while let Some((tenant, permit)) = order.recv().await {
            served.push(tenant);
            drop(permit);
        }
        let shares = permits.shares();
        assert_eq!((shares.free(), shares.num_tenants()), (2, 0));
        served
    }

    #[tokio::test]
    async fn who_has_the_fewest_comes_next() {
        let [a, b, c] = tenants();
        // The number of waiting requests of one tenant does not matter.
        assert_eq!(served(&[b, b, b, b, b, a, c], b).await[..3].iter().filter(|&&next| next != b).count(), 2);
        assert_eq!(served(&[a, a, b, b, c, c], a).await.len(), 6);
        assert_eq!(served(&[b, b, b], b).await, [b, b, b]);
    }

    #[tokio::test]
    async fn who_has_come_lately_finds_a_permit() {
        let [a, b, _] = tenants();
        let permits = Permits::new(2);
        let alone = [permits.take(b).await, permits.take(b).await];
        drop(alone);
        let is_given = async |tenant| timeout(Duration::from_millis(20), permits.take(tenant)).await.ok();
        drop(is_given(a).await.expect("one is free"));
        // From now on the other tenant is limited to its half, though nobody has the rest.
        let of_b = is_given(b).await.expect("its share");
        assert!(is_given(b).await.is_none());
        let of_a = is_given(a).await.expect("its share");
        assert!(is_given(a).await.is_none());
        drop((of_a, of_b));
    }

    #[tokio::test]
    async fn a_large_one_that_waits_no_more_lets_those_behind_it_go_on() {
        let [_, b, _] = tenants();
        let permits = Permits::new(4);
        let first = permits.take(b).await;
        let large = permits.take_many(b, Ask { amount: 4, has: 0, most: 4 });
        let behind = permits.take(b);
        let (given_up, given) = tokio::join!(timeout(Duration::from_millis(20), large), timeout(WAIT, behind));
        assert!(given_up.is_err() && given.is_ok());
        drop((first, given));
        assert_eq!(permits.free(), 4);
    }

    #[tokio::test]
    async fn one_that_waits_no_more_costs_nothing() {
        let [a, b, _] = tenants();
        let permits = Permits::new(1);
        let first = permits.take(b).await;
        // Each request is polled once, and dropped.
        for tenant in [a, b, b, a] {
            let mut waiting = Box::pin(permits.take(tenant));
            std::future::poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        // A request that was given its permit but did not take it passes it on.
        let mut given = Box::pin(permits.take(a));
        std::future::poll_fn(|context| Poll::Ready(given.as_mut().poll(context).is_pending())).await;
        drop(first);
        drop(given);
        drop(timeout(Duration::from_secs(10), permits.take(b)).await.expect("it is free"));
        let shares = permits.shares();
        assert_eq!((shares.free(), shares.num_tenants()), (1, 0));
    }
}
