//! Decides which of several models is in memory, and which requests wait. One model is in memory at a time, and
//! requests are served in the order of their arrival.
//!
//! The switch is a state machine without clocks, threads and I/O. Its caller tells it what has happened, and then
//! carries out the actions that [`Switch::next`] returns until there are no more. A model that a request uses never
//! leaves. Once a request waits for another model, later requests for the model in memory queue behind it, so that no
//! request waits for as long as others keep coming.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::keep_alive::KeepAlive;

/// The number of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// An action that the caller of a switch must carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// The request may use the model in memory, until [`Switch::returned`] is called.
    Lease(Ticket),
    /// The request has waited for too long, and must be refused.
    Refuse(Ticket),
    /// The request must fail, because its model could not be loaded.
    Fail(Ticket),
    /// The caller must load the model with this name, and then report the outcome by [`Switch::loaded`].
    Load(String),
    /// The caller must remove the model from memory, and then call [`Switch::left`].
    Unload,
}

/// The state of the memory for a model.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// No model is in memory. The next state is `Loading`.
    Empty,
    /// A model is being loaded. The next state is `Held`, or `Empty` if the model cannot be loaded.
    Loading(String),
    /// A model is in memory and can be used. The next state is `Leaving`.
    Held(Holding),
    /// A model is being removed. The next state is `Empty`.
    Leaving(String),
}

/// A model in memory.
#[derive(Debug, PartialEq, Eq)]
struct Holding {
    name: String,
    /// The number of requests that use the model.
    leases: usize,
    /// The time for which the model stays in memory after the last request that uses it.
    keep: KeepAlive,
    /// The time at which the model was loaded, or at which the last request that used it ended.
    used: Instant,
}

impl Holding {
    /// Returns when the model leaves if no request asks for it before.
    fn ends_at(&self) -> Option<Instant> {
        self.keep.ends_at(self.used).filter(|_| self.leases == 0)
    }
}

struct Waiter {
    ticket: Ticket,
    name: String,
    until: Instant,
}

/// Records which model is in memory, and which requests wait.
pub(crate) struct Switch {
    place: Place,
    queue: VecDeque<Waiter>,
    /// The requests whose model could not be loaded, until they are told.
    failed: VecDeque<Ticket>,
    tickets: u64,
    /// The time for which a model stays in memory if no request sets another time.
    keep: KeepAlive,
    /// The time for which a request waits while other models are in memory. The time in which its own model is loaded
    /// does not count.
    wait_max: Duration,
}

impl Switch {
    /// Creates a switch without a model in memory. A model stays for `keep` after its last request, unless a request
    /// sets another time. A request waits for at most `wait_max`.
    pub(crate) fn new(keep: KeepAlive, wait_max: Duration) -> Self {
        let (queue, failed) = (VecDeque::new(), VecDeque::new());
        Self { place: Place::Empty, queue, failed, tickets: 0, keep, wait_max }
    }

    /// Queues a request for the model `name`. An action later leases the model to the request, refuses the request or
    /// fails it, unless the request gives up.
    pub(crate) fn want(&mut self, name: &str, now: Instant) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.queue.push_back(Waiter { ticket, name: name.to_owned(), until: now + self.wait_max });
        ticket
    }

    /// Removes a request that waits no longer. A request that does not wait is ignored.
    pub(crate) fn give_up(&mut self, ticket: Ticket) {
        self.queue.retain(|waiter| waiter.ticket != ticket);
        self.failed.retain(|failed| *failed != ticket);
    }

    /// Records that the model of [`Action::Load`] is in memory, or could not be loaded. In the second case, all
    /// requests that wait for it fail.
    pub(crate) fn loaded(&mut self, is_there: bool, now: Instant) {
        let Place::Loading(name) = std::mem::replace(&mut self.place, Place::Empty) else { return };
        if is_there {
            self.place = Place::Held(Holding { name, leases: 0, keep: self.keep, used: now });
        } else {
            self.failed.extend(self.queue.iter().filter(|waiter| waiter.name == name).map(|waiter| waiter.ticket));
            self.queue.retain(|waiter| waiter.name != name);
        }
    }

    /// Records that a lease has ended. If the request has set `keep`, the model stays for that time from now on.
    pub(crate) fn returned(&mut self, keep: Option<KeepAlive>, now: Instant) {
        if let Place::Held(held) = &mut self.place {
            held.leases -= 1;
            held.keep = keep.unwrap_or(held.keep);
            held.used = now;
        }
    }

    /// Lets the model `name`, if it is in memory, leave once no request uses it.
    pub(crate) fn dismiss(&mut self, name: &str) {
        if let Place::Held(held) = &mut self.place
            && held.name == name
        {
            held.keep = KeepAlive::NONE;
        }
    }

    /// Records that the model of [`Action::Unload`] has left memory.
    pub(crate) fn left(&mut self) {
        if matches!(self.place, Place::Leaving(_)) {
            self.place = Place::Empty;
        }
    }

    /// Returns the next action to carry out, or `None` if nothing is to be done at the time `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Action> {
        if let Some(ticket) = self.failed.pop_front() {
            return Some(Action::Fail(ticket));
        }
        if let Place::Held(held) = &mut self.place
            && let Some(first) = self.queue.pop_front_if(|first| first.name == held.name)
        {
            held.leases += 1;
            return Some(Action::Lease(first.ticket));
        }
        let late = self.queue.iter().position(|waiter| waiter.until <= now && !self.is_loading(&waiter.name));
        if let Some(late) = late.and_then(|index| self.queue.remove(index)) {
            return Some(Action::Refuse(late.ticket));
        }
        let first = self.queue.front().map(|first| first.name.clone());
        match (&self.place, first) {
            (Place::Empty, Some(name)) => {
                self.place = Place::Loading(name.clone());
                Some(Action::Load(name))
            }
            (Place::Held(held), first)
                if held.leases == 0 && (first.is_some() || held.ends_at().is_some_and(|end| end <= now)) =>
            {
                self.place = Place::Leaving(held.name.clone());
                Some(Action::Unload)
            }
            _ => None,
        }
    }

    /// Returns when [`Switch::next`] will return an action even if nothing happens until then.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let waiting = self.queue.iter().filter(|waiter| !self.is_loading(&waiter.name)).map(|waiter| waiter.until);
        let leaving = match &self.place {
            Place::Held(held) => held.ends_at(),
            _ => None,
        };
        waiting.chain(leaving).min()
    }

    /// Returns the name of the model that can be used, and when it leaves if no request asks for it again. The time is
    /// `None` if the model never leaves.
    pub(crate) fn held(&self, now: Instant) -> Option<(&str, Option<Instant>)> {
        match &self.place {
            Place::Held(held) if held.leases > 0 => Some((&held.name, held.keep.ends_at(now))),
            Place::Held(held) => Some((&held.name, held.ends_at())),
            _ => None,
        }
    }

    /// Returns the name of the model that is being loaded.
    pub(crate) fn loading(&self) -> Option<&str> {
        if let Place::Loading(name) = &self.place { Some(name) } else { None }
    }

    /// Returns the name of the model that must leave before another one can be loaded.
    pub(crate) fn in_the_way(&self) -> Option<&str> {
        match &self.place {
            Place::Empty => None,
            Place::Loading(name) | Place::Leaving(name) => Some(name),
            Place::Held(held) => Some(&held.name),
        }
    }

    fn is_loading(&self, name: &str) -> bool {
        self.loading() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WAIT_MAX: Duration = Duration::from_secs(60);
    const KEEP: KeepAlive = KeepAlive::For(Duration::from_secs(300));

    /// Returns all actions that are to be carried out now.
    fn all(switch: &mut Switch, now: Instant) -> Vec<Action> {
        std::iter::from_fn(|| switch.next(now)).collect()
    }

    fn load(name: &str) -> Action {
        Action::Load(name.to_owned())
    }

    #[test]
    fn models_take_turns_in_the_order_in_which_they_were_asked_for() {
        let (mut switch, now) = (Switch::new(KEEP, WAIT_MAX), Instant::now());
        let first = switch.want("a", now);
        assert_eq!(all(&mut switch, now), [load("a")]);
        let second = switch.want("a", now);
        assert_eq!(all(&mut switch, now), []);
        switch.loaded(true, now);
        assert_eq!(all(&mut switch, now), [Action::Lease(first), Action::Lease(second)]);
        let other = switch.want("b", now);
        // Who comes behind waits, though the model is there.
        let late = switch.want("a", now);
        switch.returned(None, now);
        assert_eq!((all(&mut switch, now), switch.in_the_way()), (vec![], Some("a")));
        switch.returned(None, now);
        assert_eq!(all(&mut switch, now), [Action::Unload]);
        switch.left();
        assert_eq!((all(&mut switch, now), switch.loading()), (vec![load("b")], Some("b")));
        switch.loaded(true, now);
        assert_eq!(all(&mut switch, now), [Action::Lease(other)]);
        switch.give_up(late);
        switch.returned(None, now);
        assert_eq!(all(&mut switch, now), []);
    }

    #[test]
    fn requests_wait_for_others_but_not_for_ever() {
        let (mut switch, now) = (Switch::new(KEEP, WAIT_MAX), Instant::now());
        let first = switch.want("a", now);
        assert_eq!(all(&mut switch, now), [load("a")]);
        let [other, behind] = ["b", "a"].map(|name| switch.want(name, now + SECOND));
        assert_eq!(switch.wake_at(), Some(now + SECOND + WAIT_MAX));
        // The time in which its own model is loaded counts for nobody.
        let later = now + 2 * WAIT_MAX;
        assert_eq!(all(&mut switch, later), [Action::Refuse(other)]);
        assert_eq!(switch.wake_at(), None);
        switch.loaded(true, later);
        assert_eq!(all(&mut switch, later), [Action::Lease(first), Action::Lease(behind)]);
    }

    #[test]
    fn a_load_that_fails_fails_all_who_wait_for_it() {
        let (mut switch, now) = (Switch::new(KEEP, WAIT_MAX), Instant::now());
        let [first, other, second] = ["a", "b", "a"].map(|name| switch.want(name, now));
        assert_eq!(all(&mut switch, now), [load("a")]);
        switch.loaded(false, now);
        assert_eq!(all(&mut switch, now), [Action::Fail(first), Action::Fail(second), load("b")]);
        switch.loaded(true, now);
        assert_eq!(all(&mut switch, now), [Action::Lease(other)]);
    }

    #[test]
    fn a_model_stays_as_long_as_the_last_request_said() {
        let (mut switch, now) = (Switch::new(KEEP, WAIT_MAX), Instant::now());
        let ask = |switch: &mut Switch, now: Instant| {
            switch.want("a", now);
            if all(switch, now) == [load("a")] {
                switch.loaded(true, now);
                all(switch, now);
            }
        };
        ask(&mut switch, now);
        assert_eq!((switch.wake_at(), switch.held(now)), (None, Some(("a", Some(now + 300 * SECOND)))));
        switch.returned(None, now);
        assert_eq!(switch.wake_at(), Some(now + 300 * SECOND));
        for (keep, end) in [
            (Some(KeepAlive::For(SECOND)), Some(now + 2 * SECOND)),
            // It is what was said before.
            (None, Some(now + 2 * SECOND)),
            (Some(KeepAlive::Always), None),
        ] {
            ask(&mut switch, now);
            switch.returned(keep, now + SECOND);
            assert_eq!((all(&mut switch, now + SECOND), switch.held(now)), (vec![], Some(("a", end))), "{keep:?}");
        }
        assert_eq!(all(&mut switch, now + 1_000_000 * SECOND), []);
        // While it is used it stays.
        ask(&mut switch, now);
        switch.dismiss("b");
        switch.dismiss("a");
        assert_eq!(all(&mut switch, now), []);
        switch.returned(None, now);
        assert_eq!(all(&mut switch, now), [Action::Unload]);
        switch.left();
        // Loaded again, it has the time that models have.
        ask(&mut switch, now);
        switch.returned(None, now);
        assert_eq!(switch.wake_at(), Some(now + 300 * SECOND));
    }

    /// The facts about one request of the random operations.
    struct Asked {
        name: &'static str,
        until: Instant,
    }

    /// The surroundings of a switch, which random operations change.
    struct World {
        switch: Switch,
        now: Instant,
        waiting: BTreeMap<Ticket, Asked>,
        /// The leases by their models, which never differ.
        leases: Vec<&'static str>,
        /// The last request that got a lease.
        last: Option<Ticket>,
        loading: Option<String>,
        held: Option<String>,
        is_leaving: bool,
        random: fastrand::Rng,
    }

    impl World {
        fn below(&mut self, bound: u64) -> u64 {
            self.random.u64(..bound)
        }

        fn step(&mut self) {
            match self.below(8) {
                0..=2 => {
                    let name = ["a", "b", "c"][self.below(3) as usize];
                    let ticket = self.switch.want(name, self.now);
                    self.waiting.insert(ticket, Asked { name, until: self.now + WAIT_MAX });
                }
                3 if !self.waiting.is_empty() => {
                    let index = self.below(self.waiting.len() as u64) as usize;
                    let ticket = *self.waiting.keys().nth(index).expect("one of them");
                    self.waiting.remove(&ticket);
                    self.switch.give_up(ticket);
                }
                4 if self.loading.is_some() => {
                    let is_there = self.below(4) > 0;
                    let name = self.loading.take();
                    self.held = name.filter(|_| is_there);
                    self.switch.loaded(is_there, self.now);
                }
                5 if !self.leases.is_empty() => {
                    self.leases.pop();
                    let keep = [None, Some(KeepAlive::NONE), Some(KeepAlive::Always), Some(KEEP)];
                    let index = self.below(4) as usize;
                    self.switch.returned(keep[index], self.now);
                }
                6 if self.is_leaving => {
                    (self.is_leaving, self.held) = (false, None);
                    self.switch.left();
                }
                7 => {
                    let seconds = self.below(40) as u32;
                    self.now += SECOND * seconds;
                }
                _ => self.switch.dismiss("b"),
            }
            self.act();
        }

        /// Carries out all actions, and checks that each is allowed.
        fn act(&mut self) {
            while let Some(action) = self.switch.next(self.now) {
                match action {
                    Action::Lease(ticket) => {
                        let asked = self.waiting.remove(&ticket).expect("somebody who waits");
                        assert_eq!(self.held.as_deref(), Some(asked.name), "another model is in memory");
                        assert!(!self.is_leaving, "the model leaves");
                        assert!(self.last < Some(ticket), "who came later was first");
                        self.last = Some(ticket);
                        self.leases.push(asked.name);
                    }
                    Action::Refuse(ticket) => {
                        let asked = self.waiting.remove(&ticket).expect("somebody who waits");
                        assert!(self.now >= asked.until, "its time is not over");
                        assert_ne!(self.loading.as_deref(), Some(asked.name), "its own model is on its way");
                    }
                    Action::Fail(ticket) => {
                        self.waiting.remove(&ticket).expect("somebody who waits");
                        assert_eq!(self.held, None);
                    }
                    Action::Load(name) => {
                        assert!(self.loading.is_none() && self.held.is_none(), "two models at a time");
                        assert!(self.waiting.values().any(|asked| asked.name == name), "nobody asked for it");
                        self.loading = Some(name);
                    }
                    Action::Unload => {
                        assert!(self.held.is_some() && !self.is_leaving && self.leases.is_empty(), "it is used");
                        self.is_leaving = true;
                    }
                }
            }
            self.check();
        }

        fn check(&self) {
            let late = |asked: &Asked| self.now >= asked.until && self.loading.as_deref() != Some(asked.name);
            assert!(!self.waiting.values().any(late), "somebody waits for too long");
            let idle = self.loading.is_none() && self.held.is_none();
            assert!(!idle || self.waiting.is_empty(), "nothing happens, and somebody waits");
            let first = self.waiting.values().next().map(|asked| asked.name);
            let is_served = self.held.is_some() && !self.is_leaving && first == self.held.as_deref();
            assert!(!is_served, "the first of those who wait could be served");
            assert!(self.switch.wake_at().is_none_or(|at| at > self.now), "something is to be done");
            let held = self.held.as_deref().filter(|_| !self.is_leaving);
            assert_eq!(self.switch.held(self.now).map(|(name, _)| name), held);
            assert_eq!(self.switch.loading(), self.loading.as_deref());
        }
    }

    #[test]
    fn whatever_happens_everybody_is_answered_and_one_model_is_in_memory() {
        for seed in 0..300 {
            let (now, waiting, leases) = (Instant::now(), BTreeMap::new(), Vec::new());
            let (switch, last, loading, held) = (Switch::new(KEEP, WAIT_MAX), None, None, None);
            let mut world = World {
                switch,
                now,
                waiting,
                leases,
                last,
                loading,
                held,
                is_leaving: false,
                random: fastrand::Rng::with_seed(seed),
            };
            for _ in 0..400 {
                world.step();
            }
            // Once loads end, leases are returned and nobody new comes, nobody is left.
            for _ in 0..1000 {
                if let Some(name) = world.loading.take() {
                    world.held = Some(name);
                    world.switch.loaded(true, world.now);
                } else if world.leases.pop().is_some() {
                    world.switch.returned(None, world.now);
                } else if std::mem::take(&mut world.is_leaving) {
                    world.held = None;
                    world.switch.left();
                }
                world.act();
            }
            assert!(world.waiting.is_empty() && world.leases.is_empty(), "seed {seed}");
        }
    }
}
