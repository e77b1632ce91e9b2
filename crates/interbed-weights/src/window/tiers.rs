//! Two windows, one above the other: units go from disk to the host, and from the host to the device.
//!
//! A device load is a copy from host memory, so it acquires the unit in the host's window first and releases it once
//! the copy has been done, or has failed. The device's loads thus act as the passes over the host's window, in the
//! order in which the device streams. A unit that stays in the device is read through the host once and not kept there.
//!
//! The host may compute with the units that stay in it, instead of having them copied in each pass. The device's order
//! then leaves these units out ([`Tiers::set_host_computes`]).

use std::collections::VecDeque;

use super::{
    Acquired, Credits, Phase, Policy, RingConfig, UnitId, UnitState, Window, WindowCommand, WindowConfig, WindowError,
};

/// Budget and policy of one of the two tiers.
#[derive(Debug, Clone)]
pub struct TierConfig {
    /// Number of bytes for all units of the tier.
    pub budget: u64,
    /// Policy that decides which units stay and which are evicted.
    pub policy: Policy,
}

/// Configuration of two tiers for the same units.
#[derive(Debug, Clone)]
pub struct TiersConfig {
    /// Number of bytes that each unit takes, by the unit's number.
    pub unit_bytes: Vec<u64>,
    /// Cyclic order in which a pass acquires units in the device.
    pub order: Vec<UnitId>,
    /// Lower tier, which is filled from disk.
    pub host: TierConfig,
    /// Upper tier, which is filled from the host.
    pub device: TierConfig,
    /// Maximum number of times that a read or a copy is tried before the callers that wait for it are told that it
    /// failed.
    pub load_attempts: u32,
    /// Limits on how many copies may be in flight.
    pub credits: Credits,
}

/// A command to the driver, for one of the two tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierCommand {
    /// A command for host memory; a load is a read from disk.
    Host(WindowCommand),
    /// A command for the device; a load is a copy from host memory, where the unit stays until the load has been
    /// answered.
    Device(WindowCommand),
}

/// A device load that has not been answered.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    unit: UnitId,
    ticket: u64,
    resident: bool,
}

/// The windows of two tiers. Passes acquire units in the device.
#[derive(Debug)]
pub struct Tiers {
    host: Window,
    device: Window,
    order: Vec<UnitId>,
    credits: Credits,
    phase: Phase,
    /// Device loads that have no credit yet, in the order of their commands.
    queue: VecDeque<Transfer>,
    /// Device loads that have a credit and wait for the host.
    asking: Vec<Transfer>,
    /// Number of copies that were commanded and not answered.
    copying: usize,
    /// Number of copies that were submitted and still read host memory.
    reading: usize,
    /// Whether the host follows policy `ring` and keeps what the device holds. If not, the host's order leaves out the
    /// device's residents.
    host_slides: bool,
    /// Whether the host computes with the units that stay in it.
    host_computes: bool,
    host_out: Vec<WindowCommand>,
    device_out: Vec<WindowCommand>,
}

impl Tiers {
    /// Creates two windows in which nothing is loaded yet.
    ///
    /// # Errors
    /// Fails for either tier in the cases that [`Window::new`] names.
    pub fn new(config: TiersConfig) -> Result<Self, WindowError> {
        let TiersConfig { unit_bytes, order, host, device, load_attempts, credits } = config;
        let window = |tier: TierConfig, order: Vec<UnitId>| {
            let unit_bytes = unit_bytes.clone();
            Window::new(WindowConfig { unit_bytes, order, budget: tier.budget, policy: tier.policy, load_attempts })
        };
        let host_slides = matches!(host.policy, Policy::Ring(RingConfig { .. }));
        let device = window(device, order.clone())?;
        let host = window(host, host_order(&order, &device, host_slides))?;
        Ok(Self {
            host,
            device,
            order,
            credits,
            phase: Phase::Prefill,
            queue: VecDeque::new(),
            asking: Vec::new(),
            copying: 0,
            reading: 0,
            host_slides,
            host_computes: false,
            host_out: Vec::new(),
            device_out: Vec::new(),
        })
    }

    /// Begins to load both tiers, in the order of access.
    pub fn start(&mut self, out: &mut Vec<TierCommand>) {
        self.device.start(&mut self.device_out);
        self.advance(out);
        self.host.start(&mut self.host_out);
        self.advance(out);
    }

    /// Says what kind of pass follows, which changes how many copies may be in flight.
    pub fn set_phase(&mut self, phase: Phase, out: &mut Vec<TierCommand>) {
        self.phase = phase;
        self.advance(out);
    }

    /// Says whether the host computes, in the passes that follow, with the units that stay in it. The device then
    /// copies only units that stay in neither tier.
    pub fn set_host_computes(&mut self, computes: bool, out: &mut Vec<TierCommand>) {
        if self.host_computes != computes {
            self.host_computes = computes;
            self.order_device();
            self.advance(out);
        }
    }

    /// Returns whether the host computes with the units that stay in it.
    pub fn host_computes(&self) -> bool {
        self.host_computes
    }

    /// Returns whether `unit` stays in the host, is not a resident of the device, and is present, while the host
    /// computes. Such a unit needs no acquisition, since it is not moved.
    pub fn is_computed_by_host(&self, unit: UnitId) -> bool {
        self.host_computes && self.stays_in_host(unit) && self.host.state(unit) == UnitState::Present
    }

    /// Asks for the right to read `unit` in the device, by [`Window::acquire`].
    pub fn acquire(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> Acquired {
        let acquired = self.device.acquire(unit, &mut self.device_out);
        self.advance(out);
        acquired
    }

    /// Tells the tiers that one user of `unit` is done with it, by [`Window::release`].
    pub fn release(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.release(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Tells the tiers that the caller that waited for `unit` will not ask again, by [`Window::stop_waiting`].
    pub fn stop_waiting(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.stop_waiting(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Announces that `unit` will be acquired next, by [`Window::expect`].
    pub fn expect(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.expect(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Tells the tiers that a read has arrived, by [`Window::loaded`] of the host.
    pub fn host_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.loaded(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Tells the tiers that a read has failed, by [`Window::load_failed`] of the host. If the read fails for good, the
    /// copies that wait for it fail too.
    pub fn host_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.load_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Tells the tiers that no host memory could be allocated for a read, by [`Window::allocation_failed`] of the host.
    pub fn host_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.allocation_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Tells the tiers that host memory was given back, by [`Window::evicted`] of the host.
    pub fn host_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.evicted(unit, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Tells the tiers that a copy has arrived, by [`Window::loaded`] of the device.
    pub fn device_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.take_copy(unit, ticket);
        if taken {
            self.host.release(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// Tells the tiers that a copy was submitted: whoever acquires the unit has the device wait for the copy. The copy
    /// reads the unit's host memory until [`copy_done`](Self::copy_done). Returns false if the report is stale.
    pub fn copy_submitted(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.take_copy(unit, ticket);
        self.reading += usize::from(taken);
        self.advance(out);
        taken
    }

    fn take_copy(&mut self, unit: UnitId, ticket: u64) -> bool {
        let taken = self.device.loaded(unit, ticket, &mut self.device_out);
        if taken {
            if self.host_slides {
                self.host.pin(unit);
            }
            self.copying -= 1;
        }
        taken
    }

    /// Tells the tiers that a submitted copy of `unit` reads host memory no longer.
    pub fn copy_done(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.reading -= 1;
        self.host.release(unit, &mut self.host_out);
        self.advance(out);
    }

    /// Tells the tiers that a copy has failed, by [`Window::load_failed`] of the device.
    pub fn device_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.load_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
        }
        self.advance(out);
        taken
    }

    /// Tells the tiers that no device memory could be allocated for a copy, by [`Window::allocation_failed`] of the
    /// device.
    pub fn device_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.allocation_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
            self.follow_device();
        }
        self.advance(out);
        taken
    }

    /// Tells the tiers that device memory was given back, after the computation that used it, by [`Window::evicted`] of
    /// the device.
    pub fn device_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.evicted(unit, &mut self.device_out);
        if taken && self.host_slides {
            self.host.unpin(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// Changes the host's budget to `bytes` bytes, by [`Window::set_budget`].
    ///
    /// # Errors
    /// Fails with [`WindowError::BudgetTooSmall`] if the budget is below the least that works.
    pub fn set_host_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.host.set_budget(bytes, &mut self.host_out)?;
        self.advance(out);
        Ok(())
    }

    /// Changes the device's budget to `bytes` bytes, and with it which units stream through the host.
    ///
    /// # Errors
    /// Fails with [`WindowError::BudgetTooSmall`] if the budget is below the least that works.
    pub fn set_device_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.device.set_budget(bytes, &mut self.device_out)?;
        self.follow_device();
        self.advance(out);
        Ok(())
    }

    /// Returns where `unit` is, seen from the device; `Absent` means that it is in the host, or only on disk.
    pub fn state(&self, unit: UnitId) -> UnitState {
        self.device.state(unit)
    }

    /// Returns the window of the lower tier.
    pub fn host(&self) -> &Window {
        &self.host
    }

    /// Returns the window of the upper tier.
    pub fn device(&self) -> &Window {
        &self.device
    }

    /// Returns the number of copies that are commanded, or have a credit and wait for the host.
    pub fn transfers(&self) -> usize {
        self.copying + self.asking.len()
    }

    /// Returns how many copies may be commanded or wait for the host now: the credits of the phase, but no more than
    /// the host can serve beside the units that submitted copies still read.
    pub fn transfers_max(&self) -> usize {
        self.credits.of(self.phase).min(self.host.concurrent_max().saturating_sub(self.reading))
    }

    /// Checks both windows by [`Window::check_invariants`], and what connects them.
    ///
    /// # Errors
    /// Fails with a description of what does not agree.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.host.check_invariants().map_err(|problem| format!("host: {problem}"))?;
        self.device.check_invariants().map_err(|problem| format!("device: {problem}"))?;
        let known = self.queue.len() + self.transfers();
        if known != self.device.in_flight() {
            return Err(format!("{known} transfers are known, {} are in flight", self.device.in_flight()));
        }
        if let Some(forgotten) = self.asking.iter().find(|transfer| self.host.is_answered(transfer.unit)) {
            return Err(format!("{:?} is in the host and not copied", forgotten.unit));
        }
        if !self.queue.is_empty() && self.transfers() + self.reading == 0 {
            return Err(format!("{} transfers queue, and none is in flight", self.queue.len()));
        }
        Ok(())
    }

    fn end_copy(&mut self, unit: UnitId) {
        self.copying -= 1;
        self.host.release(unit, &mut self.host_out);
    }

    /// Starts all transfers that can be started, and hands out the commands.
    fn advance(&mut self, out: &mut Vec<TierCommand>) {
        loop {
            for command in self.device_out.drain(..) {
                match command {
                    WindowCommand::Load { unit, ticket, resident } => {
                        self.queue.push_back(Transfer { unit, ticket, resident });
                    }
                    WindowCommand::Evict { .. } => out.push(TierCommand::Device(command)),
                }
            }
            if let Some(index) = self.asking.iter().position(|transfer| self.host.is_answered(transfer.unit)) {
                let transfer = self.asking.remove(index);
                self.ask_host(transfer, out);
            } else if self.transfers() < self.transfers_max()
                && let Some(transfer) = self.queue.pop_front()
            {
                self.ask_host(transfer, out);
            } else {
                break;
            }
        }
        out.extend(self.host_out.drain(..).map(TierCommand::Host));
    }

    fn ask_host(&mut self, transfer: Transfer, out: &mut Vec<TierCommand>) {
        let Transfer { unit, ticket, resident } = transfer;
        match self.host.acquire(unit, &mut self.host_out) {
            Acquired::Ready => {
                self.copying += 1;
                out.push(TierCommand::Device(WindowCommand::Load { unit, ticket, resident }));
            }
            Acquired::Pending => self.asking.push(transfer),
            Acquired::Failed => {
                self.device.load_failed(unit, ticket, &mut self.device_out);
            }
        }
    }

    fn stays_in_host(&self, unit: UnitId) -> bool {
        self.host.is_resident(unit) && !self.device.is_resident(unit)
    }

    /// Makes the device's order the units that passes acquire in the device.
    fn order_device(&mut self) {
        let is_acquired = |unit: &UnitId| !(self.host_computes && self.stays_in_host(*unit));
        let order = self.order.iter().copied().filter(is_acquired).collect();
        // The units were all checked when the windows were created.
        let ordered = self.device.set_order(order, &mut self.device_out);
        debug_assert!(ordered.is_ok(), "{ordered:?}");
    }

    /// Makes the host's order the units that the device streams.
    fn follow_device(&mut self) {
        if !self.host_slides {
            let order = host_order(&self.order, &self.device, false);
            // The units were all checked when the windows were created.
            let followed = self.host.set_order(order, &mut self.host_out);
            debug_assert!(followed.is_ok(), "{followed:?}");
        }
        if self.host_computes {
            self.order_device();
        }
    }
}

fn host_order(order: &[UnitId], device: &Window, slides: bool) -> Vec<UnitId> {
    order.iter().copied().filter(|&unit| slides || !device.is_resident(unit)).collect()
}
