//! Whose work is done next, where only so much is done at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::tenant::Tenant;

/// Time after its last work for which a tenant may come again and find its share.
const RECENT: Duration = Duration::from_secs(10);

/// A number of permits that tenants share: each of those that have come lately may have an equal part of them, at least
/// one, and one that is alone all. While several wait, the next goes to the one that has the fewest, and among equals
/// to the one that has waited for longest since its last. Within a tenant, they go in the order of coming.
pub(crate) struct Permits {
    line: Mutex<Line>,
}

struct Line {
    all: usize,
    free: usize,
    /// When each tenant that has come lately did so.
    recent: HashMap<Tenant, Instant>,
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

/// A permit, which goes to the next tenant in line when it is dropped.
pub(crate) struct Permit {
    /// `None` once it has been given back.
    permits: Option<Arc<Permits>>,
    tenant: Tenant,
}

impl Permits {
    /// So many at a time, at least one.
    pub(crate) fn new(count: usize) -> Arc<Self> {
        let all = count.max(1);
        let line = Line { all, free: all, recent: HashMap::new(), tenants: HashMap::new(), given: 0 };
        Arc::new(Self { line: Mutex::new(line) })
    }

    /// Waits for one.
    pub(crate) async fn take(self: &Arc<Self>, tenant: Tenant) -> Permit {
        let permit = || Permit { permits: Some(self.clone()), tenant };
        let coming = {
            let mut line = self.line();
            line.note(tenant, Instant::now());
            if line.free > 0 && line.may_have_more(tenant) {
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

    /// A permit of `tenant` has been given up: those that still wait and may have it get it.
    fn give_back(self: &Arc<Self>, tenant: Tenant) {
        self.line().uncount(tenant);
        loop {
            let mut line = self.line();
            let Some((next, sender)) = line.next() else { return };
            line.free -= 1;
            line.count(next);
            drop(line);
            // Dropping what it sends may give it back in turn, so nothing is locked here.
            if let Err(mut unwanted) = sender.send(Permit { permits: Some(self.clone()), tenant: next }) {
                // Nobody waits there any more.
                unwanted.permits = None;
                self.line().uncount(next);
            }
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

    /// `tenant` has one less, which is free.
    fn uncount(&mut self, tenant: Tenant) {
        self.free += 1;
        let place = self.place(tenant);
        place.permits -= 1;
        if place.permits == 0 && place.waiting.is_empty() {
            self.tenants.remove(&tenant);
        }
    }

    /// Notes that `tenant` has come.
    fn note(&mut self, tenant: Tenant, now: Instant) {
        self.recent.retain(|_, came| now.saturating_duration_since(*came) < RECENT);
        self.recent.insert(tenant, now);
    }

    /// Whether one more is within its share.
    fn may_have_more(&self, tenant: Tenant) -> bool {
        let share = self.all / self.recent.len().max(1);
        self.tenants.get(&tenant).is_none_or(|place| place.permits < share.max(1))
    }

    /// The tenant whose turn it is, if a permit is free, and who waits there.
    fn next(&mut self) -> Option<(Tenant, oneshot::Sender<Permit>)> {
        let waiting =
            self.tenants.iter().filter(|(tenant, place)| !place.waiting.is_empty() && self.may_have_more(**tenant));
        let (&tenant, _) = waiting.min_by_key(|(_, place)| (place.permits, place.last)).filter(|_| self.free > 0)?;
        Some((tenant, self.place(tenant).waiting.pop_front()?))
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
    async fn who_has_come_lately_finds_a_permit() {
        let [a, b, _] = tenants();
        let permits = Permits::new(2);
        let alone = [permits.take(b).await, permits.take(b).await];
        drop(alone);
        let is_given = async |tenant| timeout(Duration::from_millis(20), permits.take(tenant)).await.ok();
        drop(is_given(a).await.expect("one is free"));
        // The other keeps to its half from now on, though nobody has the rest.
        let of_b = is_given(b).await.expect("its share");
        assert!(is_given(b).await.is_none());
        let of_a = is_given(a).await.expect("its share");
        assert!(is_given(a).await.is_none());
        drop((of_a, of_b));
        // Once the first has not come for a while, the other may have all.
        permits.line().recent.remove(&a);
        let all = [is_given(b).await, is_given(b).await];
        assert!(all.iter().all(Option::is_some));
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
