//! Counts the open connections, in total and by address.
//!
//! A connection with a place has its requests served, and the number of places is limited. If all places are taken, a
//! new connection gets the place of an idle one. From the address with the most connections, the server closes the
//! connection that has been idle for longest.
//!
//! If all connections are busy, a few more are admitted without a place, so that requests for the server's health are
//! answered. Other requests on these connections wait for a place, and are refused if too many wait. No address may
//! have more than three quarters of all places, except proxies, which pass on requests of many clients.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The maximum number of connections without a place that have not sent a request yet.
const KEPT: usize = 8;
/// The maximum number of connections without a place whose requests wait for a place.
const WAITING_MAX: usize = 56;
/// The maximum number of connections that may be open without a place.
pub(crate) const BESIDE: usize = KEPT + WAITING_MAX;
/// The time for which a connection must be idle before the server may close it, because its request may be on its way.
const PATIENCE: Duration = Duration::from_millis(250);
/// The value of `Signs::since` while a request is served.
const BUSY: u64 = u64::MAX;

/// All open connections.
pub(crate) struct Guests {
    open: Mutex<Open>,
    proxies: Vec<Network>,
    patience: Duration,
    begun: Instant,
    /// Is notified when a place may have become free, for requests that wait.
    room: Notify,
    /// Is notified when a place may have become free, for the loop that accepts connections.
    door: Notify,
}

struct Open {
    most: usize,
    /// The number of connections with a place, by address.
    placed: HashMap<IpAddr, usize>,
    num_placed: usize,
    num_kept: usize,
    num_waiting: usize,
    guests: HashMap<u64, Entry>,
    next: u64,
}

struct Entry {
    address: IpAddr,
    standing: Standing,
    signs: Arc<Signs>,
}

/// The kind of admission that a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Place,
    /// The connection has no place among the served connections, because none was free for it when it was admitted. It
    /// has not yet sent a request that needs a place.
    Kept,
    /// The connection has no place among the served connections, and its request waits for one.
    Waiting,
    /// The connection is being closed, and counts towards no limit.
    Leaving,
}

/// The state that a connection shares with the code that chooses which connection to close.
struct Signs {
    /// The time at which the connection opened or its last request ended, in nanoseconds, or [`BUSY`] during a request.
    since: AtomicU64,
    has_asked: AtomicBool,
    /// Whether a part of an answer waits for the client to read.
    has_unsent: AtomicBool,
    leave: Notify,
}

/// An open connection. Dropping the value frees the connection's place.
pub(crate) struct Guest {
    guests: Arc<Guests>,
    number: u64,
    signs: Arc<Signs>,
}

/// A request that is served, until the last part of its answer is on its way to the client.
pub(crate) struct Busy(Arc<Guest>);

impl Guests {
    /// Creates the list of open connections, of which `most` may have a place at a time. The limit for one address does
    /// not apply to addresses in `proxies`.
    pub(crate) fn new(most: usize, proxies: Vec<Network>) -> Arc<Self> {
        Self::with_patience(most, proxies, PATIENCE)
    }

    fn with_patience(most: usize, proxies: Vec<Network>, patience: Duration) -> Arc<Self> {
        let open = Open {
            most,
            placed: HashMap::new(),
            num_placed: 0,
            num_kept: 0,
            num_waiting: 0,
            guests: HashMap::new(),
            next: 0,
        };
        let (begun, room, door) = (Instant::now(), Notify::new(), Notify::new());
        Arc::new(Self { open: Mutex::new(open), proxies, patience, begun, room, door })
    }

    /// Sets the maximum number of connections with a place.
    pub(crate) fn set_most(&self, most: usize) {
        self.open().most = most;
        self.stir();
    }

    /// Admits a connection from `address`. Returns `None` if the connection can have no place now, and cannot be
    /// admitted without one.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Guest> {
        let address = household(address);
        let mut open = self.open();
        let standing = match self.make_place(&mut open, address) {
            true => Standing::Place,
            false if open.num_kept < KEPT || self.push_out(&mut open, |entry| entry.standing == Standing::Kept) => {
                Standing::Kept
            }
            false => return None,
        };
        let since = AtomicU64::new(self.now());
        let signs = Arc::new(Signs {
            since,
            has_asked: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            leave: Notify::new(),
        });
        let number = open.next;
        open.next += 1;
        open.count(address, standing, 1);
        open.guests.insert(number, Entry { address, standing, signs: signs.clone() });
        drop(open);
        Some(Guest { guests: self.clone(), number, signs })
    }

    /// Returns whether a connection from `address` can have a place. If necessary, the function closes an idle
    /// connection.
    fn make_place(&self, open: &mut Open, address: IpAddr) -> bool {
        let is_placed = |entry: &Entry| entry.standing == Standing::Place;
        let own = open.placed.get(&address).copied().unwrap_or(0);
        if own >= open.most - open.most / 4 && !self.proxies.iter().any(|proxies| proxies.has(address)) {
            return self.push_out(open, |entry| is_placed(entry) && entry.address == address);
        }
        open.num_placed < open.most || self.push_out(open, is_placed)
    }

    /// Closes an idle connection for which `may` is true. From the address with the most places, the function takes the
    /// connection that has been idle for longest. Returns whether there was one.
    fn push_out(&self, open: &mut Open, may: impl Fn(&Entry) -> bool) -> bool {
        let patience = u64::try_from(self.patience.as_nanos()).unwrap_or(BUSY);
        let Some(latest) = self.now().checked_sub(patience) else { return false };
        let idle = open.guests.iter().filter_map(|(&number, entry)| {
            let since = entry.signs.since.load(Ordering::Acquire);
            let others = open.placed.get(&entry.address).copied().unwrap_or(0);
            let is_idle = since <= latest && !entry.signs.has_unsent.load(Ordering::Acquire);
            (is_idle && may(entry)).then_some((usize::MAX - others, since, number))
        });
        let Some((.., number)) = idle.min() else { return false };
        open.set(number, Standing::Leaving).leave.notify_one();
        true
    }

    /// Closes an idle connection, if there is one, because the system can open no more files.
    pub(crate) fn make_room(&self) {
        let mut open = self.open();
        self.push_out(&mut open, |entry| entry.standing != Standing::Leaving);
    }

    /// Completes when a place may have become free, for connections that could not be admitted.
    pub(crate) async fn stirred(&self) {
        self.door.notified().await;
    }

    fn stir(&self) {
        self.room.notify_waiters();
        self.door.notify_one();
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(BUSY - 1)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Changes what the connection `number` may use, and returns its signs.
    fn set(&mut self, number: u64, standing: Standing) -> Arc<Signs> {
        let entry = self.guests.get_mut(&number).expect("a guest is known as long as it is open");
        let before = std::mem::replace(&mut entry.standing, standing);
        let (address, signs) = (entry.address, entry.signs.clone());
        self.count(address, before, -1);
        self.count(address, standing, 1);
        signs
    }

    fn count(&mut self, address: IpAddr, standing: Standing, change: isize) {
        let number = match standing {
            Standing::Place => &mut self.num_placed,
            Standing::Kept => &mut self.num_kept,
            Standing::Waiting => &mut self.num_waiting,
            Standing::Leaving => return,
        };
        *number = number.saturating_add_signed(change);
        if standing == Standing::Place {
            let own = self.placed.entry(address).or_default();
            *own = own.saturating_add_signed(change);
            if *own == 0 {
                self.placed.remove(&address);
            }
        }
    }
}

impl Guest {
    /// Returns whether the connection was admitted without a place and does not wait for one.
    pub(crate) fn is_kept(&self) -> bool {
        self.guests.open().guests[&self.number].standing == Standing::Kept
    }

    /// Marks the connection as busy until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.signs.has_asked.store(true, Ordering::Relaxed);
        self.signs.since.store(BUSY, Ordering::Release);
        Busy(self.clone())
    }

    /// Completes when the server has chosen this connection to be closed.
    pub(crate) async fn sent_away(&self) {
        self.signs.leave.notified().await;
    }

    /// Returns whether a request is being served, or its answer waits for the client to read.
    pub(crate) fn is_busy(&self) -> bool {
        self.signs.since.load(Ordering::Acquire) == BUSY || self.signs.has_unsent.load(Ordering::Acquire)
    }

    /// Records whether a part of an answer waits for the client to read.
    pub(crate) fn has_unsent(&self, has_unsent: bool) {
        if self.signs.has_unsent.load(Ordering::Relaxed) == has_unsent {
            return;
        }
        let signs = &self.signs;
        let (before, now) = (signs.since.load(Ordering::Acquire), self.guests.now());
        if before != BUSY {
            // `since` stays `BUSY` during a request, and a request may begin at this moment, so it is replaced only if
            // unchanged.
            let _ = signs.since.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire);
        }
        signs.has_unsent.store(has_unsent, Ordering::Release);
        if !has_unsent {
            self.guests.stir();
        }
    }

    /// Returns whether the connection has ever sent a request.
    pub(crate) fn has_asked(&self) -> bool {
        self.signs.has_asked.load(Ordering::Relaxed)
    }

    /// Waits until the connection has a place. Returns false at once if too many connections wait.
    pub(crate) async fn wait_for_place(&self) -> bool {
        loop {
            let room = self.guests.room.notified();
            let mut room = std::pin::pin!(room);
            // Notifications sent from here on are received, even before the wait begins.
            room.as_mut().enable();
            {
                let mut open = self.guests.open();
                let Entry { address, standing, .. } = open.guests[&self.number];
                if standing == Standing::Place || standing == Standing::Leaving {
                    return true;
                }
                if self.guests.make_place(&mut open, address) {
                    open.set(self.number, Standing::Place);
                    return true;
                }
                if standing == Standing::Kept {
                    if open.num_waiting >= WAITING_MAX {
                        return false;
                    }
                    open.set(self.number, Standing::Waiting);
                    self.guests.door.notify_one();
                }
            }
            room.await;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut open = self.guests.open();
        if let Some(Entry { address, standing, .. }) = open.guests.remove(&self.number) {
            open.count(address, standing, -1);
        }
        drop(open);
        self.guests.stir();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Self(guest) = self;
        guest.signs.since.store(guest.guests.now(), Ordering::Release);
        guest.guests.stir();
    }
}

/// The address at the other end of a request's connection.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Returns the address under which a client is counted. IPv6 addresses count by their first 64 bits, because a site
/// may use any number of addresses below them.
pub(crate) fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

/// A network address such as `10.0.0.0/8`, or a single address such as `10.0.0.7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    begin: IpAddr,
    bits: u32,
}

impl Network {
    /// Parses an IP address, or a network in CIDR notation.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the text.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no address: give one such as 10.0.0.7 or fd00::7, or a network such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let begin = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let most = if begin.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        Ok(Self { begin, bits })
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let begins_alike = |a: u128, b: u128, width: u32| (a ^ b).checked_shr(width - self.bits).unwrap_or(0) == 0;
        match (self.begin, address) {
            (IpAddr::V4(begin), IpAddr::V4(address)) => {
                begins_alike(begin.to_bits().into(), address.to_bits().into(), 32)
            }
            // IPv6 addresses are compared by their first 64 bits, like those from [`household`].
            (IpAddr::V6(begin), IpAddr::V6(address)) => {
                begins_alike(begin.to_bits() >> 64 << 64, address.to_bits() >> 64 << 64, 128)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 4] = [127, 0, 0, 1];

    fn admit(guests: &Arc<Guests>, address: impl Into<IpAddr>) -> Option<Arc<Guest>> {
        guests.admit(address.into()).map(Arc::new)
    }

    fn is_leaving(guest: &Guest) -> bool {
        guest.guests.open().guests[&guest.number].standing == Standing::Leaving
    }

    #[test]
    fn idle_ones_make_room_the_longest_first() {
        let guests = Guests::with_patience(4, Vec::new(), Duration::ZERO);
        let mut open: Vec<_> = (0..4_u8).filter_map(|host| admit(&guests, [10, 0, 0, host])).collect();
        // The first connection has sent a request, so it has been idle for a shorter time than the others.
        drop(open[0].begin());
        open.extend(admit(&guests, [10, 0, 0, 9]));
        assert_eq!(open.iter().map(|guest| is_leaving(guest)).collect::<Vec<_>>(), [false, true, false, false, false]);
        // The address with the most connections loses one first.
        open.extend(admit(&guests, [10, 0, 0, 9]));
        open.extend(admit(&guests, [10, 0, 0, 7]));
        let leaving: Vec<_> = (0..).zip(&open).filter(|(_, guest)| is_leaving(guest)).map(|(at, _)| at).collect();
        assert_eq!(leaving, [1, 2, 4]);
        assert_eq!(guests.open().num_placed, 4);
        drop(open);
        let open = guests.open();
        assert!(open.num_placed == 0 && open.guests.is_empty() && open.placed.is_empty());
    }

    #[test]
    fn one_whose_answer_is_still_read_is_not_idle() {
        let guests = Guests::with_patience(1, Vec::new(), Duration::ZERO);
        let reading = admit(&guests, HERE).expect("room");
        drop(reading.begin());
        reading.has_unsent(true);
        assert!(admit(&guests, [10, 0, 0, 1]).expect("room").is_kept() && !is_leaving(&reading));
        assert!(reading.is_busy());
        reading.has_unsent(false);
        assert!(!admit(&guests, [10, 0, 0, 1]).expect("room").is_kept() && is_leaving(&reading));
    }

    #[test]
    fn no_address_has_all_places_but_a_proxy() {
        let guests = Guests::with_patience(8, vec![Network::read("10.1.0.0/16").unwrap()], Duration::ZERO);
        let busy = |address: [u8; 4], count: usize| -> Vec<_> {
            (0..count).filter_map(|_| admit(&guests, address)).map(|guest| (guest.begin(), guest)).collect()
        };
        let mut of_one = busy(HERE, 8);
        assert_eq!(of_one.iter().map(|(_, guest)| guest.is_kept()).filter(|kept| *kept).count(), 2);
        let of_another = busy([10, 0, 0, 1], 2);
        assert!(of_another.iter().all(|(_, guest)| !guest.is_kept()));
        of_one.clear();
        drop(of_another);
        assert!(busy([10, 1, 2, 3], 8).iter().all(|(_, guest)| !guest.is_kept()));
        // An address at its limit gets a new place if one of its own connections is idle.
        let mut open = busy(HERE, 6);
        drop(open.swap_remove(3).0);
        let idle = admit(&guests, HERE).expect("room");
        assert!(!idle.is_kept());
        let next = admit(&guests, HERE).expect("room");
        assert!(is_leaving(&idle) && !next.is_kept());
    }

    #[tokio::test]
    async fn where_all_are_busy_a_few_may_still_ask_and_wait() {
        let guests = Guests::with_patience(2, Vec::new(), Duration::ZERO);
        let busy: Vec<_> = (1..3_u8).map(|host| admit(&guests, [10, 0, 0, host]).expect("room").begin()).collect();
        let kept: Vec<_> = (0..KEPT + 2).filter_map(|_| admit(&guests, HERE)).collect();
        assert_eq!(kept.len(), KEPT + 2);
        // Connections that have sent no request are closed to admit others.
        assert!(kept[..2].iter().all(|guest| is_leaving(guest)) && kept[2..].iter().all(|guest| guest.is_kept()));
        // All connections have requests, so none can be closed for another.
        let asking: Vec<_> = kept[2..].iter().map(Guest::begin).collect();
        assert!(admit(&guests, HERE).is_none());
        drop(asking);
        // Requests on the connections without a place wait for one, up to the maximum.
        let mut waiting = tokio::task::JoinSet::new();
        for count in 0..WAITING_MAX + 1 {
            let guest = admit(&guests, [10, 1, 0, 0]).expect("a place kept");
            let asking = guest.begin();
            if count == WAITING_MAX {
                assert!(!guest.wait_for_place().await);
                break;
            }
            waiting.spawn(async move {
                assert!(guest.wait_for_place().await && !guest.is_kept());
                drop(asking);
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(guests.open().num_waiting, WAITING_MAX);
        drop(busy);
        assert_eq!(waiting.join_all().await.len(), WAITING_MAX);
        assert_eq!(guests.open().num_waiting, 0);
    }

    #[test]
    fn networks_are_read_and_have_what_begins_alike() {
        let has = |network: &str, address: &str| {
            Network::read(network).expect(network).has(household(address.parse().expect(address)))
        };
        assert!(has("10.0.0.0/8", "10.255.1.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.7", "10.0.0.7") && !has("10.0.0.7", "10.0.0.8"));
        assert!(has("10.0.0.7", "::ffff:10.0.0.7") && has("::ffff:10.0.0.7", "10.0.0.7"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::7", "fd00::7") && has("fd00::/32", "fd00:0:9::1") && !has("fd00::/32", "fd00:1::1"));
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "host", "10.0.0.1/", "10.0.0.1:80"] {
            Network::read(bad).expect_err(bad);
        }
    }
}
