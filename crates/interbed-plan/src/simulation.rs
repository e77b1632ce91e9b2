//! A driver with a virtual clock, which runs windows over disks and links that need not exist.
//!
//! Tests run the planners over this driver with faults on demand. `interbed plan` runs them with a machine's figures to
//! predict its tokens per second. Time is in nanoseconds and passes only here. Compute is one queue: a unit is
//! acquired, computed with, and released before the next unit is acquired.

mod channel;
mod machine;
mod planned;
mod report;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use interbed_weights::window::{Acquired, TierCommand, Tiers, UnitId, Window, WindowCommand};
use thiserror::Error;

use channel::{Channel, ChannelJob};
pub use machine::{ChannelSpec, Faults, SimulatedMachine};
use planned::{Event, Outcome, Planned};
use report::Tally;
pub use report::{Activity, PassReport, TimelineEvent};

/// Tells why a pass cannot continue, or why a machine is impossible.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The unit could not be loaded, although its load was tried as often as it may be.
    #[error("unit {} could not be loaded, as often as it was tried", unit.0)]
    Failed {
        /// Unit that could not be loaded.
        unit: UnitId,
    },
    /// A pass waits for a unit, but no event in flight can bring it.
    #[error("unit {} is waited for, and nothing is in flight that could bring it", unit.0)]
    Stuck {
        /// Unit that the pass waits for.
        unit: UnitId,
    },
    /// A figure of the machine is not a number above 0.
    #[error("{setting} is {value}: it must be a number above 0")]
    Machine {
        /// Name of the figure.
        setting: &'static str,
        /// Value of the figure.
        value: f64,
    },
    /// There is a device tier, but the machine has no link to it.
    #[error("there is a device tier, but the machine has no link to it")]
    NoLink,
}

/// Runs one window or two over simulated hardware. A window decides which units of weights are in a memory.
#[derive(Debug)]
pub struct Simulation {
    planned: Planned,
    bytes: Vec<u64>,
    machine: SimulatedMachine,
    disk: Channel,
    link: Option<Channel>,
    random: u64,
    now_ns: u64,
    /// Future events; events of the same time are in the order in which they were planned.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    num_events: u64,
    out: Vec<TierCommand>,
    /// Sums that were reached at the end of the last pass.
    reported: Tally,
    timeline: Option<Vec<TimelineEvent>>,
}

impl Simulation {
    /// Simulates one tier: units are read from disk into host memory, where they are computed with. `unit_bytes` must
    /// be the sizes that the window has.
    ///
    /// # Errors
    /// Fails with [`SimulationError::Machine`] if a figure of the machine is not a number above 0.
    pub fn one_tier(window: Window, unit_bytes: Vec<u64>, machine: SimulatedMachine) -> Result<Self, SimulationError> {
        Self::new(Planned::One { window: Box::new(window), scratch: Vec::new() }, unit_bytes, machine)
    }

    /// Simulates two tiers: units are computed with in device memory.
    ///
    /// # Errors
    /// Fails with [`SimulationError::Machine`] if a figure of the machine is not a number above 0, and with
    /// [`SimulationError::NoLink`] if the machine has no link.
    pub fn two_tiers(tiers: Tiers, unit_bytes: Vec<u64>, machine: SimulatedMachine) -> Result<Self, SimulationError> {
        if machine.link.is_none() {
            return Err(SimulationError::NoLink);
        }
        Self::new(Planned::Two(Box::new(tiers)), unit_bytes, machine)
    }

    fn new(planned: Planned, bytes: Vec<u64>, machine: SimulatedMachine) -> Result<Self, SimulationError> {
        machine.check()?;
        Ok(Self {
            planned,
            bytes,
            disk: Channel::new(machine.disk),
            link: machine.link.map(Channel::new),
            random: machine.seed,
            machine,
            now_ns: 0,
            events: BinaryHeap::new(),
            num_events: 0,
            out: Vec::new(),
            reported: Tally::default(),
            timeline: None,
        })
    }

    /// Begins to record what happens when; [`take_timeline`](Self::take_timeline) returns the record.
    pub fn record_timeline(&mut self) {
        self.timeline.get_or_insert_default();
    }

    /// Returns the events that were recorded since the last call.
    pub fn take_timeline(&mut self) -> Vec<TimelineEvent> {
        self.timeline.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Loads what can be loaded before any pass. Returns the time that loading took, in seconds.
    pub fn warm_up(&mut self) -> f64 {
        let began = self.now_ns;
        self.planned.start(&mut self.out);
        self.carry_out();
        while self.step() {}
        self.reported = self.tally();
        seconds(self.now_ns - began)
    }

    /// Runs one pass over `units`; computing takes `compute_ns` for each.
    ///
    /// # Errors
    /// Fails with [`SimulationError::Failed`] if all attempts to load a unit failed; the simulation can go on. Fails
    /// with [`SimulationError::Stuck`] if no event in flight can bring a unit that the pass waits for.
    pub fn run_pass(
        &mut self,
        units: &[UnitId],
        mut compute_ns: impl FnMut(UnitId) -> u64,
    ) -> Result<PassReport, SimulationError> {
        let began_ns = self.now_ns;
        let (mut stall_ns, mut busy_ns) = (0, 0);
        for &unit in units {
            let asked_ns = self.now_ns;
            // What the host computes with stays where it is.
            let by_host = self.planned.is_computed_by_host(unit);
            if !by_host {
                self.wait_for(unit)?;
            }
            let from_ns = self.now_ns;
            if from_ns > asked_ns {
                stall_ns += from_ns - asked_ns;
                self.note(unit, Activity::Stall, asked_ns, from_ns);
            }
            let compute_ns = compute_ns(unit);
            busy_ns += compute_ns;
            self.run_until(from_ns + compute_ns);
            self.note(unit, Activity::Compute, from_ns, self.now_ns);
            if !by_host {
                self.planned.release(unit, &mut self.out);
            }
            self.carry_out();
        }
        let (before, now) = (self.reported, self.tally());
        self.reported = now;
        let compute_seconds = seconds(busy_ns);
        Ok(PassReport {
            seconds: seconds(self.now_ns - began_ns),
            stall_seconds: seconds(stall_ns),
            compute_seconds,
            read_seconds: seconds(now.disk_busy_ns - before.disk_busy_ns),
            copy_seconds: seconds(now.link_busy_ns - before.link_busy_ns),
            host_bytes_loaded: now.host_bytes - before.host_bytes,
            device_bytes_loaded: now.device_bytes - before.device_bytes,
            bound_seconds: self.transfer_bound_seconds(units).max(compute_seconds),
        })
    }

    /// Returns the virtual time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns how many completions have been planned so far.
    pub fn num_events(&self) -> u64 {
        self.num_events
    }

    /// Returns the window that reads from disk.
    pub fn host(&self) -> &Window {
        self.planned.host()
    }

    /// Returns the window that copies from the host, if there is one.
    pub fn device(&self) -> Option<&Window> {
        self.planned.device()
    }

    /// Returns whether the host computes with `unit`, as [`Tiers::is_computed_by_host`] says.
    pub fn is_computed_by_host(&self, unit: UnitId) -> bool {
        self.planned.is_computed_by_host(unit)
    }

    /// Calls `change` with both tiers between passes, for instance to set a phase or budgets. Returns `None`, and does
    /// nothing, if there is one tier.
    pub fn with_tiers<T>(&mut self, change: impl FnOnce(&mut Tiers, &mut Vec<TierCommand>) -> T) -> Option<T> {
        let Planned::Two(tiers) = &mut self.planned else { return None };
        let answer = change(tiers, &mut self.out);
        self.carry_out();
        Some(answer)
    }

    fn wait_for(&mut self, unit: UnitId) -> Result<(), SimulationError> {
        loop {
            let acquired = self.planned.acquire(unit, &mut self.out);
            self.carry_out();
            match acquired {
                Acquired::Ready => return Ok(()),
                Acquired::Failed => return Err(SimulationError::Failed { unit }),
                Acquired::Pending if self.step() => {}
                Acquired::Pending => return Err(SimulationError::Stuck { unit }),
            }
        }
    }

    /// Processes all events up to the time `until_ns`.
    fn run_until(&mut self, until_ns: u64) {
        while self.events.peek().is_some_and(|Reverse((at_ns, ..))| *at_ns <= until_ns) {
            self.step();
        }
        self.now_ns = until_ns;
    }

    /// Processes the next event. Returns false if there is none.
    fn step(&mut self) -> bool {
        let Some(Reverse((at_ns, _, event))) = self.events.pop() else { return false };
        self.now_ns = at_ns;
        match event {
            Event::Read { .. } => self.disk.end_one(),
            Event::Copied { .. } => self.link.iter_mut().for_each(Channel::end_one),
            Event::HostEvicted { .. } | Event::DeviceEvicted { .. } => {}
        }
        self.planned.report(event, &mut self.out);
        self.carry_out();
        true
    }

    /// Hands commands to the hardware, and lets the hardware begin what it has room for.
    fn carry_out(&mut self) {
        for index in 0..self.out.len() {
            match self.out[index] {
                TierCommand::Host(WindowCommand::Load { unit, ticket, .. }) => {
                    self.disk.push(ChannelJob { unit, ticket })
                }
                TierCommand::Device(WindowCommand::Load { unit, ticket, .. }) => {
                    self.link.iter_mut().for_each(|link| link.push(ChannelJob { unit, ticket }));
                }
                TierCommand::Host(WindowCommand::Evict { unit }) => {
                    let delay_ns = self.up_to(self.machine.faults.eviction_ns);
                    self.plan(self.now_ns + delay_ns, Event::HostEvicted { unit });
                }
                TierCommand::Device(WindowCommand::Evict { unit }) => {
                    let delay_ns = self.up_to(self.machine.faults.eviction_ns);
                    self.plan(self.now_ns + delay_ns, Event::DeviceEvicted { unit });
                }
            }
        }
        self.out.clear();
        while let Some((ChannelJob { unit, ticket }, timing)) = self.disk.begin_one(self.now_ns, &self.bytes) {
            let done_ns = timing.done_ns + self.up_to(self.machine.faults.jitter_ns);
            let outcome = self.outcome();
            self.note(unit, Activity::Read, timing.begin_ns, done_ns);
            self.plan(done_ns, Event::Read { unit, ticket, outcome });
        }
        while let Some((ChannelJob { unit, ticket }, timing)) =
            self.link.as_mut().and_then(|link| link.begin_one(self.now_ns, &self.bytes))
        {
            let done_ns = timing.done_ns + self.up_to(self.machine.faults.jitter_ns);
            let outcome = self.outcome();
            self.note(unit, Activity::Copy, timing.begin_ns, done_ns);
            self.plan(done_ns, Event::Copied { unit, ticket, outcome });
        }
    }

    fn plan(&mut self, at_ns: u64, event: Event) {
        self.num_events += 1;
        self.events.push(Reverse((at_ns, self.num_events, event)));
    }

    fn note(&mut self, unit: UnitId, activity: Activity, start_ns: u64, end_ns: u64) {
        if let Some(timeline) = &mut self.timeline {
            timeline.push(TimelineEvent { unit, activity, start_ns, end_ns });
        }
    }

    fn tally(&self) -> Tally {
        Tally {
            host_bytes: self.planned.host().counters().bytes_loaded,
            device_bytes: self.planned.device().map_or(0, |device| device.counters().bytes_loaded),
            disk_busy_ns: self.disk.busy_ns,
            link_busy_ns: self.link.as_ref().map_or(0, |link| link.busy_ns),
        }
    }

    /// Returns the time that no policy can avoid: moving the bytes that the budgets cannot hold, over disk and link.
    fn transfer_bound_seconds(&self, units: &[UnitId]) -> f64 {
        let touched: u64 = units.iter().map(|unit| self.bytes[unit.index()]).sum();
        let beyond_device = touched.saturating_sub(self.planned.device().map_or(0, Window::budget));
        let beyond_host = beyond_device.saturating_sub(self.planned.host().budget());
        let disk = beyond_host as f64 / self.machine.disk.bytes_per_s;
        let link = self.machine.link.filter(|_| self.planned.device().is_some());
        link.map_or(disk, |link| disk.max(beyond_device as f64 / link.bytes_per_s))
    }

    fn outcome(&mut self) -> Outcome {
        let faults = self.machine.faults;
        let draw = (self.next_random() >> 11) as f64 / (1_u64 << 53) as f64;
        if draw < faults.failed_loads {
            Outcome::Failed
        } else if draw < faults.failed_loads + faults.failed_allocations {
            Outcome::NoMemory
        } else {
            Outcome::Arrived
        }
    }

    fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.next_random() % (most + 1) }
    }

    /// Returns the next random number, by splitmix64: one addition and a mix, and any seed will do.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
