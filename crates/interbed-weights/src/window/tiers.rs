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
    /// Maximum number of bytes that all units in the tier may take together.
    pub budget: u64,
    /// Policy that decides which units stay and which are evicted.
    pub policy: Policy,
}

/// Configuration of [`Tiers`].
#[derive(Debug, Clone)]
pub struct TiersConfig {
    /// Size of each unit in bytes, indexed by unit number.
    pub unit_bytes: Vec<u64>,
    /// Cyclic order in which a pass acquires units on the device.
    pub order: Vec<UnitId>,
    /// Lower tier: host memory, which is filled from disk.
    pub host: TierConfig,
    /// Upper tier: device memory, which is filled from host memory.
    pub device: TierConfig,
    /// Maximum number of attempts to read or copy a unit before callers that wait for it get [`Acquired::Failed`].
    pub load_attempts: u32,
    /// Limits on the number of copies in flight.
    pub credits: Credits,
}

/// A command to the driver, for one of the two tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierCommand {
    /// A command for host memory. [`WindowCommand::Load`] is a read from disk.
    Host(WindowCommand),
    /// A command for device memory. [`WindowCommand::Load`] is a copy from host memory, where the unit stays at least
    /// until the driver has answered the command.
    Device(WindowCommand),
}

/// A device load that has not been answered.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    unit: UnitId,
    ticket: u64,
    resident: bool,
}

/// Decides which units are in host memory and which are on the device. Passes acquire units on the device.
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
    /// Creates the windows of both tiers, in which nothing is loaded yet.
    ///
    /// # Errors
    /// Fails if [`Window::new`] fails for either tier.
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

    /// Begins to load units into both tiers, in the order in which a pass uses them.
    pub fn start(&mut self, out: &mut Vec<TierCommand>) {
        self.device.start(&mut self.device_out);
        self.advance(out);
        self.host.start(&mut self.host_out);
        self.advance(out);
    }

    /// Sets the kind of the next pass, which decides how many copies may be in flight.
    pub fn set_phase(&mut self, phase: Phase, out: &mut Vec<TierCommand>) {
        self.phase = phase;
        self.advance(out);
    }

    /// Sets whether the host computes with the units that stay in host memory. If it does, passes copy to the device
    /// only units that stay in neither tier.
    pub fn set_host_computes(&mut self, computes: bool, out: &mut Vec<TierCommand>) {
        if self.host_computes != computes {
            self.host_computes = computes;
            self.order_device();
            self.advance(out);
        }
    }

    /// Returns whether the host computes with the units that stay in host memory.
    pub fn host_computes(&self) -> bool {
        self.host_computes
    }

    /// Returns whether the host computes with `unit`. This requires that [`host_computes`](Self::host_computes) is
    /// true, and that `unit` is a resident of the host, is present there, and is not a resident of the device. Such a
    /// unit is not moved, so a pass uses it without acquiring it.
    pub fn is_computed_by_host(&self, unit: UnitId) -> bool {
        self.host_computes && self.stays_in_host(unit) && self.host.state(unit) == UnitState::Present
    }

    /// Asks to use `unit` on the device, as [`Window::acquire`] describes.
    pub fn acquire(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> Acquired {
        let acquired = self.device.acquire(unit, &mut self.device_out);
        self.advance(out);
        acquired
    }

    /// Ends one acquisition of `unit` on the device, as [`Window::release`] describes.
    pub fn release(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.release(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Ends the wait for `unit` on the device, as [`Window::stop_waiting`] describes.
    pub fn stop_waiting(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.stop_waiting(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Announces that `unit` will be acquired on the device next, as [`Window::expect`] describes.
    pub fn expect(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.expect(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Reports that a read of `unit` into host memory has succeeded, as [`Window::loaded`] describes.
    pub fn host_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.loaded(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Reports that a read of `unit` into host memory has failed, as [`Window::load_failed`] describes. If the last
    /// attempt fails, the copies that wait for the read fail too.
    pub fn host_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.load_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Reports that no host memory could be allocated for a read of `unit`, as [`Window::allocation_failed`] describes.
    pub fn host_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.allocation_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Reports that the host memory of `unit` was freed, as [`Window::evicted`] describes.
    pub fn host_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.evicted(unit, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Reports that a copy of `unit` to the device has succeeded and no longer reads host memory, as [`Window::loaded`]
    /// describes.
    pub fn device_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.take_copy(unit, ticket);
        if taken {
            self.host.release(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// Reports that a copy of `unit` to the device was submitted. The unit counts as present from now on, but
    /// computations with it must wait for the copy. The copy reads the unit's host memory until
    /// [`copy_done`](Self::copy_done) is called. Returns false if the report is stale: the load with this ticket is no
    /// longer in flight.
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

    /// Reports that a submitted copy of `unit` no longer reads host memory.
    pub fn copy_done(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.reading -= 1;
        self.host.release(unit, &mut self.host_out);
        self.advance(out);
    }

    /// Reports that a copy of `unit` to the device has failed, as [`Window::load_failed`] describes.
    pub fn device_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.load_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
        }
        self.advance(out);
        taken
    }

    /// Reports that no device memory could be allocated for a copy of `unit`, as [`Window::allocation_failed`]
    /// describes.
    pub fn device_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.allocation_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
            self.follow_device();
        }
        self.advance(out);
        taken
    }

    /// Reports that the device memory of `unit` was freed, as [`Window::evicted`] describes.
    pub fn device_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.evicted(unit, &mut self.device_out);
        if taken && self.host_slides {
            self.host.unpin(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// Changes the host's budget to `bytes` bytes, as [`Window::set_budget`] describes.
    ///
    /// # Errors
    /// Fails with [`WindowError::BudgetTooSmall`] if the budget is below the least that works.
    pub fn set_host_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.host.set_budget(bytes, &mut self.host_out)?;
        self.advance(out);
        Ok(())
    }

    /// Changes the device's budget to `bytes` bytes, as [`Window::set_budget`] describes. This may change which units
    /// stay on the device. If the host follows [`Policy::Resident`], its new order consists of the other units.
    ///
    /// # Errors
    /// Fails with [`WindowError::BudgetTooSmall`] if the budget is below the least that works.
    pub fn set_device_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.device.set_budget(bytes, &mut self.device_out)?;
        self.follow_device();
        self.advance(out);
        Ok(())
    }

    /// Returns the state of `unit` on the device. A unit that is absent there may be in host memory, or only on disk.
    pub fn state(&self, unit: UnitId) -> UnitState {
        self.device.state(unit)
    }

    /// Returns the window of host memory.
    pub fn host(&self) -> &Window {
        &self.host
    }

    /// Returns the window of device memory.
    pub fn device(&self) -> &Window {
        &self.device
    }

    /// Returns the number of copies to the device that count against [`transfers_max`](Self::transfers_max). A copy
    /// counts while it waits for its unit to be read into host memory, and from its command until the driver's answer.
    /// It does not count while it is queued because the limit is reached.
    pub fn transfers(&self) -> usize {
        self.copying + self.asking.len()
    }

    /// Returns the current limit on [`transfers`](Self::transfers), which is the lesser of two numbers. One is the
    /// number of copies that the phase allows, as [`Credits::of`] returns it. The other is [`Window::concurrent_max`]
    /// of the host, minus the number of submitted copies that still read host memory.
    pub fn transfers_max(&self) -> usize {
        self.credits.of(self.phase).min(self.host.concurrent_max().saturating_sub(self.reading))
    }

    /// Checks both windows with [`Window::check_invariants`], and checks that they agree with each other.
    ///
    /// # Errors
    /// Fails with a description of the inconsistency.
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
