//! A device window over a host window, with random answers and faults.

use interbed_weights::window::{
    Acquired, Credits, Phase, Policy, ResidentConfig, RingConfig, TierCommand, TierConfig, Tiers, TiersConfig, UnitId,
    UnitState, WindowCommand,
};

use super::rng::Rng;

/// Two tiers, the commands that are not yet answered, how many copies the driver has begun, and which were submitted
/// and still read host memory.
struct Driver {
    tiers: Tiers,
    pending: Vec<TierCommand>,
    copying: usize,
    reading: Vec<UnitId>,
    out: Vec<TierCommand>,
    events: u64,
}

impl Driver {
    fn check(&mut self) {
        self.events += 1;
        for command in self.out.drain(..) {
            if let TierCommand::Device(WindowCommand::Load { unit, .. }) = command {
                self.copying += 1;
                assert_eq!(self.tiers.host().state(unit), UnitState::Present, "{unit:?} is copied from nowhere");
            }
            if let TierCommand::Host(WindowCommand::Evict { unit }) = command {
                let read = |other: &TierCommand| match other {
                    TierCommand::Device(WindowCommand::Load { unit: copied, .. }) => *copied == unit,
                    _ => false,
                };
                let is_read = self.pending.iter().any(read) || self.reading.contains(&unit);
                assert!(!is_read, "{unit:?} is evicted while it is copied");
            }
            self.pending.push(command);
        }
        self.tiers.check_invariants().unwrap_or_else(|problem| panic!("{problem}\n{:?}", self.tiers));
        let reads =
            self.pending.iter().filter(|command| matches!(command, TierCommand::Host(WindowCommand::Load { .. })));
        assert_eq!(reads.count(), self.tiers.host().in_flight());
    }

    /// Reports that one of the submitted copies is done.
    fn end_copy(&mut self, index: usize) {
        let unit = self.reading.remove(index);
        self.tiers.copy_done(unit, &mut self.out);
        self.check();
    }

    /// Answers one command; the load fails if `fault`, for lack of memory if `memory`. A copy that does not fail is
    /// only submitted if `memory`.
    fn answer(&mut self, index: usize, fault: bool, memory: bool) {
        let (tiers, out) = (&mut self.tiers, &mut self.out);
        // A smaller limit takes effect as transfers end.
        let most = tiers.transfers_max().max(tiers.transfers());
        let taken = match self.pending.remove(index) {
            TierCommand::Host(WindowCommand::Evict { unit }) => tiers.host_evicted(unit, out),
            TierCommand::Device(WindowCommand::Evict { unit }) => tiers.device_evicted(unit, out),
            TierCommand::Host(WindowCommand::Load { unit, ticket, .. }) => match (fault, memory) {
                (false, _) => tiers.host_loaded(unit, ticket, out),
                (true, false) => tiers.host_load_failed(unit, ticket, out),
                (true, true) => tiers.host_allocation_failed(unit, ticket, out),
            },
            TierCommand::Device(WindowCommand::Load { unit, ticket, .. }) => {
                self.copying -= 1;
                match (fault, memory) {
                    (false, false) => tiers.device_loaded(unit, ticket, out),
                    (false, true) => {
                        self.reading.push(unit);
                        tiers.copy_submitted(unit, ticket, out)
                    }
                    (true, false) => tiers.device_load_failed(unit, ticket, out),
                    (true, true) => tiers.device_allocation_failed(unit, ticket, out),
                }
            }
        };
        assert!(taken, "an answer was not taken");
        self.check();
        assert!(
            self.copying <= self.tiers.transfers() && self.tiers.transfers() <= most,
            "{most} at most: {:?}",
            self.tiers
        );
    }

    fn acquire(&mut self, unit: UnitId) -> Acquired {
        let acquired = self.tiers.acquire(unit, &mut self.out);
        self.check();
        acquired
    }

    fn acquire_and_wait(&mut self, unit: UnitId) {
        for turn in 0..10_000 {
            if self.acquire(unit) == Acquired::Ready {
                return;
            }
            // Copies end whatever else happens.
            if !self.reading.is_empty() && (turn % 8 == 0 || self.pending.is_empty()) {
                self.end_copy(0);
            } else if !self.pending.is_empty() {
                self.answer(0, false, turn % 2 == 0);
            }
        }
        panic!("the wait for {unit:?} does not end: {:?}\n{:?}", self.pending, self.tiers);
    }
}

fn random_policy(rng: &mut Rng, slot: u64, everything: u64) -> TierConfig {
    if rng.once_in(2) {
        let mut ring = if rng.once_in(2) { RingConfig::host(Vec::new()) } else { RingConfig::device(Vec::new()) };
        ring.slots = rng.once_in(2);
        ring.layers_behind = rng.below(4);
        let least = 2 * slot;
        TierConfig { budget: rng.between(least, everything.max(least)), policy: Policy::Ring(ring) }
    } else {
        let stream_slots = rng.between(1, 5) as usize;
        let least = everything.min(slot * stream_slots as u64);
        let policy = Policy::Resident(ResidentConfig { stream_slots });
        TierConfig { budget: rng.between(least, everything), policy }
    }
}

fn live(seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let units = rng.between(1, 16) as usize;
    let unit_bytes: Vec<u64> = (0..units).map(|_| rng.between(1, 6)).collect();
    let slot = *unit_bytes.iter().max().expect("units");
    let everything: u64 = unit_bytes.iter().sum();
    let mut order: Vec<UnitId> = (0..units as u32).map(UnitId).collect();
    order.truncate(rng.between(1, units as u64) as usize);
    let host = random_policy(&mut rng, slot, everything);
    let device = random_policy(&mut rng, slot, everything);
    let credits = Credits { base: rng.between(1, 4) as usize, ..Credits::default() };
    let load_attempts = rng.between(1, 3) as u32;
    let config = TiersConfig { unit_bytes, order: order.clone(), host, device, load_attempts, credits };
    let tiers = Tiers::new(config).expect("the budgets are enough");
    let mut driver = Driver { tiers, pending: Vec::new(), copying: 0, reading: Vec::new(), out: Vec::new(), events: 0 };
    if rng.once_in(2) {
        driver.tiers.start(&mut driver.out);
        driver.check();
    }
    let faults = [0, 0, 4][rng.below(3)];
    let (mut place, mut in_use, mut waiting) = (0, None, None);
    for _ in 0..400 {
        match rng.below(100) {
            0..30 if in_use.is_none() => {
                let unit = waiting.take().unwrap_or_else(|| {
                    if rng.once_in(20) {
                        return UnitId(rng.below(units) as u32);
                    }
                    place = (place + 1) % order.len();
                    order[place]
                });
                match driver.acquire(unit) {
                    Acquired::Ready => in_use = Some(unit),
                    Acquired::Pending => waiting = Some(unit),
                    Acquired::Failed => {}
                }
            }
            30..45 => {
                if let Some(unit) = in_use.take() {
                    driver.tiers.release(unit, &mut driver.out);
                    driver.check();
                }
            }
            45..93 if !driver.pending.is_empty() => {
                let (index, memory) = (rng.below(driver.pending.len()), rng.once_in(3));
                driver.answer(index, faults > 0 && rng.once_in(faults), memory);
            }
            93 if !driver.reading.is_empty() => driver.end_copy(rng.below(driver.reading.len())),
            94 => {
                let phase = if rng.once_in(2) { Phase::Prefill } else { Phase::Decode };
                driver.tiers.set_phase(phase, &mut driver.out);
                driver.check();
            }
            95 => {
                let least = driver.tiers.host().least_budget();
                let budget = rng.between(least, everything.max(least));
                driver.tiers.set_host_budget(budget, &mut driver.out).expect("the budget is enough");
                driver.check();
            }
            96 => {
                let least = driver.tiers.device().least_budget();
                let budget = rng.between(least, everything.max(least));
                driver.tiers.set_device_budget(budget, &mut driver.out).expect("the budget is enough");
                driver.check();
            }
            _ => {}
        }
    }
    if let Some(unit) = in_use {
        driver.tiers.release(unit, &mut driver.out);
        driver.check();
    }
    for unit in waiting.into_iter().chain(order.iter().copied()).chain(order.iter().copied()) {
        driver.acquire_and_wait(unit);
        driver.tiers.release(unit, &mut driver.out);
        driver.check();
    }
    driver.events
}

#[test]
fn random_lives_of_two_tiers_break_no_promise() {
    let (mut events, mut seed) = (0, 0);
    while events < 300_000 {
        seed += 1;
        let outcome = std::panic::catch_unwind(|| live(seed));
        events += outcome.unwrap_or_else(|problem| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(problem)
        });
    }
}
