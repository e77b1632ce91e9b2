//! Presents one window or two behind one interface.

use interbed_weights::window::{Acquired, TierCommand, Tiers, UnitId, Window, WindowCommand};

/// Outcome of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Arrived,
    Failed,
    NoMemory,
}

/// A report of the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Read { unit: UnitId, ticket: u64, outcome: Outcome },
    Copied { unit: UnitId, ticket: u64, outcome: Outcome },
    HostEvicted { unit: UnitId },
    DeviceEvicted { unit: UnitId },
}

/// The windows that are simulated.
#[derive(Debug)]
pub(super) enum Planned {
    One { window: Box<Window>, scratch: Vec<WindowCommand> },
    Two(Box<Tiers>),
}

impl Planned {
    pub fn host(&self) -> &Window {
        match self {
            Self::One { window, .. } => window,
            Self::Two(tiers) => tiers.host(),
        }
    }

    pub fn device(&self) -> Option<&Window> {
        match self {
            Self::One { .. } => None,
            Self::Two(tiers) => Some(tiers.device()),
        }
    }

    pub fn start(&mut self, out: &mut Vec<TierCommand>) {
        match self {
            Self::One { window, scratch } => {
                window.start(scratch);
                out.extend(scratch.drain(..).map(TierCommand::Host));
            }
            Self::Two(tiers) => tiers.start(out),
        }
    }

    /// Returns whether the host computes with `unit`, as [`Tiers::is_computed_by_host`] says.
    pub fn is_computed_by_host(&self, unit: UnitId) -> bool {
        match self {
            Self::One { .. } => false,
            Self::Two(tiers) => tiers.is_computed_by_host(unit),
        }
    }

    pub fn acquire(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> Acquired {
        match self {
            Self::One { window, scratch } => {
                let acquired = window.acquire(unit, scratch);
                out.extend(scratch.drain(..).map(TierCommand::Host));
                acquired
            }
            Self::Two(tiers) => tiers.acquire(unit, out),
        }
    }

    pub fn release(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        match self {
            Self::One { window, scratch } => {
                window.release(unit, scratch);
                out.extend(scratch.drain(..).map(TierCommand::Host));
            }
            Self::Two(tiers) => tiers.release(unit, out),
        }
    }

    pub fn report(&mut self, event: Event, out: &mut Vec<TierCommand>) {
        match self {
            Self::One { window, scratch } => {
                match event {
                    Event::Read { unit, ticket, outcome: Outcome::Arrived } => window.loaded(unit, ticket, scratch),
                    Event::Read { unit, ticket, outcome: Outcome::Failed } => window.load_failed(unit, ticket, scratch),
                    Event::Read { unit, ticket, outcome: Outcome::NoMemory } => {
                        window.allocation_failed(unit, ticket, scratch)
                    }
                    Event::HostEvicted { unit } => window.evicted(unit, scratch),
                    // One tier copies nothing.
                    Event::Copied { .. } | Event::DeviceEvicted { .. } => false,
                };
                out.extend(scratch.drain(..).map(TierCommand::Host));
            }
            Self::Two(tiers) => {
                match event {
                    Event::Read { unit, ticket, outcome } => match outcome {
                        Outcome::Arrived => tiers.host_loaded(unit, ticket, out),
                        Outcome::Failed => tiers.host_load_failed(unit, ticket, out),
                        Outcome::NoMemory => tiers.host_allocation_failed(unit, ticket, out),
                    },
                    Event::Copied { unit, ticket, outcome } => match outcome {
                        Outcome::Arrived => tiers.device_loaded(unit, ticket, out),
                        Outcome::Failed => tiers.device_load_failed(unit, ticket, out),
                        Outcome::NoMemory => tiers.device_allocation_failed(unit, ticket, out),
                    },
                    Event::HostEvicted { unit } => tiers.host_evicted(unit, out),
                    Event::DeviceEvicted { unit } => tiers.device_evicted(unit, out),
                };
            }
        }
    }
}
