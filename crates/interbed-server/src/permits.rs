//! Whose work is done next, where only so much is done at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::tenant::Tenant;

/// A number of permits that tenants share: while several wait, the next goes to the one that has the fewest, and among
/// equals to the one that has waited for longest since its last. Within a tenant, they go in the order of coming.
pub(crate) struct Permits {
    line: Mutex<Line>,
}

struct Line {
    free: usize,
    /// Of all that have a permit or wait for one.
    tenants: HashMap<Tenant, Place>,
    /// Permits given so far.
    given: u64,
}

/// Where one tenant stands.
struct Place {
    permits: usize,
    /// What `given` was when it got its last permit, or when it came.
    last: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// One of them, until it is dropped.
pub(crate) struct Permit {
    /// `None` once it has been given back.
    permits: Option<Arc<Permits>>,
    tenant: Tenant,
}

impl Permits {
    /// So many at a time, at least one.
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { line: Mutex::new(Line { free: count.max(1), tenants: HashMap::new(), given: 0 }) })
    }

    /// Waits for one.
    pub(crate) async fn take(self: &Arc<Self>, tenant: Tenant) -> Permit {
        let permit = || Permit { permits: Some(self.clone()), tenant };
        let coming = {
            let mut line = self.line();
            if line.free > 0 {
                line.free -= 1;
                line.count(tenant);
                return permit();
            }
            let (sender, coming) = oneshot::channel();
            line.place(tenant).waiting.push_back(sender);
            coming
        };
        // A sender is dropped only when its permit has been sent.
        coming.await.unwrap_or_else(|_| Permit { permits: None, tenant })
    }

    /// A permit of `tenant` has been given up: it goes to the next that still waits.
    fn give_back(self: &Arc<Self>, mut tenant: Tenant) {
        loop {
            let mut line = self.line();
            let place = line.place(tenant);
            place.permits -= 1;
            if place.permits == 0 && place.waiting.is_empty() {
                line.tenants.remove(&tenant);
            }
            let Some((next, sender)) = line.next() else {
                line.free += 1;
                return;
            };
            line.count(next);
            drop(line);
            // Dropping what it sends may give it back in turn, so nothing is locked here.
            match sender.send(Permit { permits: Some(self.clone()), tenant: next }) {
                Ok(()) => return,
                // Nobody waits there any more.
                Err(mut permit) => permit.permits = None,
            }
            tenant = next;
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn place(&mut self, tenant: Tenant) -> &mut Place {
        let last = self.given;
        self.tenants.entry(tenant).or_insert_with(|| Place { permits: 0, last, waiting: VecDeque::new() })
    }

    /// `tenant` gets one more.
    fn count(&mut self, tenant: Tenant) {
        self.given += 1;
        let given = self.given;
        let place = self.place(tenant);
        (place.permits, place.last) = (place.permits + 1, given);
    }

    /// The tenant whose turn it is, and who waits there.
    fn next(&mut self) -> Option<(Tenant, oneshot::Sender<Permit>)> {
        let waiting = self.tenants.iter_mut().filter(|(_, place)| !place.waiting.is_empty());
        let (&tenant, place) = waiting.min_by_key(|(_, place)| (place.permits, place.last))?;
        Some((tenant, place.waiting.pop_front()?))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.give_back(self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::tenant::digest;

    fn tenants() -> [Tenant; 3] {
        ["a", "b", "c"].map(|key| Tenant::of_digest(&digest(key)))
    }

    /// Has each of `line` wait in order, with two permits to have; returns the order in which they get them, each of
    /// which ends as soon as the next comes.
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
        let line = permits.line();
        assert_eq!((line.free, line.tenants.len()), (2, 0));
        served
    }

    #[tokio::test]
    async fn who_has_the_fewest_comes_next() {
        let [a, b, c] = tenants();
        // However many of one stand before the others.
        assert_eq!(served(&[b, b, b, b, b, a, c], b).await[..3].iter().filter(|&&next| next != b).count(), 2);
        assert_eq!(served(&[a, a, b, b, c, c], a).await.len(), 6);
        assert_eq!(served(&[b, b, b], b).await, [b, b, b]);
    }

    #[tokio::test]
    async fn one_that_waits_no_more_costs_nothing() {
        let [a, b, _] = tenants();
        let permits = Permits::new(1);
        let first = permits.take(b).await;
        // Each is asked once, and given up.
        for tenant in [a, b, b, a] {
            let mut waiting = Box::pin(permits.take(tenant));
            std::future::poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        // One that was given its permit and did not take it passes it on.
        let mut given = Box::pin(permits.take(a));
        std::future::poll_fn(|context| Poll::Ready(given.as_mut().poll(context).is_pending())).await;
        drop(first);
        drop(given);
        drop(timeout(Duration::from_secs(10), permits.take(b)).await.expect("it is free"));
        let line = permits.line();
        assert_eq!((line.free, line.tenants.len()), (1, 0));
    }
}
