//! A driver that answers commands when and how a test says, and keeps records of its own of what must hold.

use interbed_weights::window::{Acquired, UnitId, UnitState, Window, WindowCommand, WindowConfig};

/// Place of a unit, as the driver knows it from the commands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Coming { ticket: u64, cost: u64 },
    Here { cost: u64 },
    Going { cost: u64 },
}

/// A window, its driver, and the driver's records. Every method that reports to the window checks the commands it gets.
#[derive(Debug)]
pub struct Chaos {
    pub window: Window,
    bytes: Vec<u64>,
    slot_bytes: u64,
    load_attempts: u32,
    places: Vec<Place>,
    users: Vec<u32>,
    failures: Vec<u32>,
    last_ticket: u64,
    /// Loads in flight, in the order in which they were commanded.
    pub loads: Vec<(UnitId, u64)>,
    /// Evictions in flight.
    pub evictions: Vec<UnitId>,
    pub bytes_loaded: u64,
    pub events: u64,
    out: Vec<WindowCommand>,
}

impl Chaos {
    pub fn new(config: WindowConfig) -> Self {
        let units = config.unit_bytes.len();
        Self {
            bytes: config.unit_bytes.clone(),
            slot_bytes: *config.unit_bytes.iter().max().expect("units"),
            load_attempts: config.load_attempts,
            places: vec![Place::Nowhere; units],
            users: vec![0; units],
            failures: vec![0; units],
            last_ticket: 0,
            loads: Vec::new(),
            evictions: Vec::new(),
            bytes_loaded: 0,
            events: 0,
            out: Vec::new(),
            window: Window::new(config).expect("the budget is enough"),
        }
    }

    pub fn start(&mut self) {
        self.window.start(&mut self.out);
        self.check();
    }

    pub fn acquire(&mut self, unit: UnitId) -> Acquired {
        let acquired = self.window.acquire(unit, &mut self.out);
        match acquired {
            Acquired::Ready => {
                assert!(matches!(self.places[unit.index()], Place::Here { .. }), "{unit:?} is ready but not here");
                self.users[unit.index()] += 1;
            }
            Acquired::Failed => {
                assert!(self.failures[unit.index()] >= self.load_attempts, "{unit:?} was given up early");
                assert_eq!(self.window.state(unit), UnitState::Absent);
                self.failures[unit.index()] = 0;
            }
            Acquired::Pending => {}
        }
        self.check();
        acquired
    }

    pub fn release(&mut self, unit: UnitId) {
        self.users[unit.index()] -= 1;
        self.window.release(unit, &mut self.out);
        self.check();
    }

    pub fn stop_waiting(&mut self, unit: UnitId) {
        self.window.stop_waiting(unit, &mut self.out);
        self.check();
    }

    pub fn expect(&mut self, unit: UnitId) {
        self.window.expect(unit, &mut self.out);
        self.check();
    }

    pub fn pin(&mut self, unit: UnitId) {
        self.window.pin(unit);
        self.check();
    }

    pub fn unpin(&mut self, unit: UnitId) {
        self.window.unpin(unit, &mut self.out);
        self.check();
    }

    pub fn set_budget(&mut self, bytes: u64) {
        self.window.set_budget(bytes, &mut self.out).expect("the budget is enough");
        self.check();
    }

    /// Reports that the load at `index` of `loads` has arrived.
    pub fn arrive(&mut self, index: usize) {
        let (unit, ticket) = self.loads.remove(index);
        let Place::Coming { cost, .. } = self.places[unit.index()] else { panic!("{unit:?} does not come") };
        self.places[unit.index()] = Place::Here { cost };
        self.failures[unit.index()] = 0;
        self.bytes_loaded += self.bytes[unit.index()];
        assert!(self.window.loaded(unit, ticket, &mut self.out), "a load was not taken");
        self.check();
        // The same answer again is stale.
        assert!(!self.window.loaded(unit, ticket, &mut self.out));
        assert!(!self.window.load_failed(unit, ticket, &mut self.out));
        assert!(self.out.is_empty());
    }

    /// Reports that the load at `index` of `loads` has failed, for lack of memory if `memory` is set.
    pub fn fail(&mut self, index: usize, memory: bool) {
        let (unit, ticket) = self.loads.remove(index);
        self.places[unit.index()] = Place::Nowhere;
        self.failures[unit.index()] += 1;
        let taken = if memory {
            self.window.allocation_failed(unit, ticket, &mut self.out)
        } else {
            self.window.load_failed(unit, ticket, &mut self.out)
        };
        assert!(taken, "a failure was not taken");
        self.check();
        assert!(!self.window.allocation_failed(unit, ticket, &mut self.out), "the same failure was taken twice");
        assert!(self.out.is_empty());
    }

    /// Reports that the eviction at `index` of `evictions` has ended.
    pub fn gone(&mut self, index: usize) {
        let unit = self.evictions.remove(index);
        self.places[unit.index()] = Place::Nowhere;
        assert!(self.window.evicted(unit, &mut self.out), "an eviction was not taken");
        self.check();
    }

    /// Answers all commands in order, and those that follow from the answers, like a driver that never fails.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.evictions.is_empty() {
                self.gone(0);
            } else if !self.loads.is_empty() {
                self.arrive(0);
            } else {
                return;
            }
        }
        panic!("loads and evictions go on for ever");
    }

    /// Acquires a unit and answers all commands meanwhile; every wait must end.
    pub fn acquire_and_wait(&mut self, unit: UnitId) {
        for _ in 0..10_000 {
            match self.acquire(unit) {
                Acquired::Ready => return,
                Acquired::Failed => {}
                Acquired::Pending => {
                    if !self.evictions.is_empty() {
                        self.gone(0);
                    } else {
                        assert!(!self.loads.is_empty(), "{unit:?} is waited for, and nothing is in flight");
                        self.arrive(0);
                    }
                }
            }
        }
        panic!("the wait for {unit:?} does not end");
    }

    pub fn pass(&mut self, order: &[UnitId]) {
        for &unit in order {
            self.acquire_and_wait(unit);
            self.release(unit);
        }
    }

    fn held(&self) -> u64 {
        let cost = |place: &Place| match *place {
            Place::Nowhere => 0,
            Place::Coming { cost, .. } | Place::Here { cost } | Place::Going { cost } => cost,
        };
        self.places.iter().map(cost).sum()
    }

    fn check(&mut self) {
        self.events += 1;
        for command in std::mem::take(&mut self.out) {
            match command {
                WindowCommand::Load { unit, ticket, resident } => {
                    assert_eq!(self.places[unit.index()], Place::Nowhere, "{unit:?} is loaded twice");
                    assert!(ticket > self.last_ticket, "ticket {ticket} again");
                    self.last_ticket = ticket;
                    let cost = if resident { self.bytes[unit.index()] } else { self.slot_bytes };
                    self.places[unit.index()] = Place::Coming { ticket, cost };
                    let (held, budget) = (self.held(), self.window.budget());
                    assert!(held <= budget, "loading {unit:?} makes {held} bytes of {budget}");
                    self.loads.push((unit, ticket));
                }
                WindowCommand::Evict { unit } => {
                    let Place::Here { cost } = self.places[unit.index()] else { panic!("{unit:?} is not here") };
                    assert_eq!(self.users[unit.index()], 0, "{unit:?} is evicted while in use");
                    self.places[unit.index()] = Place::Going { cost };
                    self.evictions.push(unit);
                }
            }
        }
        self.window.check_invariants().unwrap_or_else(|problem| panic!("{problem}\n{self:?}"));
        assert_eq!(self.window.bytes_held(), self.held());
        assert_eq!(self.window.in_flight(), self.loads.len());
        let slots = self.window.slots() as u64 * self.slot_bytes;
        assert!(self.window.resident_bytes() + slots <= self.window.budget(), "what is planned exceeds the budget");
        for (index, place) in self.places.iter().enumerate() {
            let expected = match place {
                Place::Nowhere => UnitState::Absent,
                Place::Coming { .. } => UnitState::Inflight,
                Place::Here { .. } => UnitState::Present,
                Place::Going { .. } => UnitState::Evicting,
            };
            assert_eq!(self.window.state(UnitId(index as u32)), expected, "unit {index}");
        }
    }
}
