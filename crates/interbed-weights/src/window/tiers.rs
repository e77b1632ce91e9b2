//! Two windows, one above the other: disk → host → device.
//!
//! A device load is a copy from host memory, so it acquires the unit in the host's window first and releases it once
//! the copy has been done, or has failed. The host's passes are thus the device's loads, in the order in which the
//! device streams.
//! What stays in the device is read through the host once and not kept there.
//!
//! What stays in the host may be computed with there, instead of being copied in each pass: the device's order then
//! leaves it out ([`Tiers::set_host_computes`]).

use std::collections::VecDeque;

use super::{
    Acquired, Credits, Phase, Policy, RingConfig, UnitId, UnitState, Window, WindowCommand, WindowConfig, WindowError,
};

/// What one of the two tiers may hold, and by which policy.
#[derive(Debug, Clone)]
pub struct TierConfig {
    /// Bytes for all units of the tier.
    pub budget: u64,
    /// Which units stay and which are evicted.
    pub policy: Policy,
}

/// Two tiers for the same units.
#[derive(Debug, Clone)]
pub struct TiersConfig {
    /// How many bytes each unit takes, by unit.
    pub unit_bytes: Vec<u64>,
    /// The cyclic order in which a pass acquires units in the device.
    pub order: Vec<UnitId>,
    /// The lower tier, filled from disk.
    pub host: TierConfig,
    /// The upper tier, filled from the host.
    pub device: TierConfig,
    /// How often a read or a copy is tried before the callers that wait for it are told that it failed.
    pub load_attempts: u32,
    /// How many copies may be in flight.
    pub credits: Credits,
}

/// What the driver is to do, in which tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierCommand {
    /// A load is a read from disk into host memory.
    Host(WindowCommand),
    /// A load is a copy from host memory, where the unit stays until the load has been answered.
    Device(WindowCommand),
}

/// A device load that has not been answered.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    unit: UnitId,
    ticket: u64,
    resident: bool,
}

/// The windows of two tiers. Compute acquires units in the device.
#[derive(Debug)]
pub struct Tiers {
    host: Window,
    device: Window,
    order: Vec<UnitId>,
    credits: Credits,
    phase: Phase,
    /// Device loads without a credit, in the order of their commands.
    queue: VecDeque<Transfer>,
    /// Device loads with a credit that wait for the host.
    asking: Vec<Transfer>,
    /// Copies that were commanded and not answered.
    copying: usize,
    /// Copies that were submitted and still read host memory.
    reading: usize,
    /// The host slides (`ring`) and keeps what the device holds. If false, its order leaves out the device's residents.
    host_slides: bool,
    /// The host computes with what stays there.
    host_computes: bool,
    host_out: Vec<WindowCommand>,
    device_out: Vec<WindowCommand>,
}

impl Tiers {
    /// Two windows in which nothing is loaded yet.
    ///
    /// # Errors
    /// As [`Window::new`], for either tier.
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

    /// Says whether the passes that follow have the host compute with what stays there. The device then copies only
    /// what stays nowhere.
    pub fn set_host_computes(&mut self, computes: bool, out: &mut Vec<TierCommand>) {
        if self.host_computes != computes {
            self.host_computes = computes;
            self.order_device();
            self.advance(out);
        }
    }

    /// Whether the host computes with what stays there.
    pub fn host_computes(&self) -> bool {
        self.host_computes
    }

    /// Whether `unit` is in the host for good, not in the device, and the host computes with it now. It needs no
    /// acquisition: what stays is not moved.
    pub fn is_computed_by_host(&self, unit: UnitId) -> bool {
        self.host_computes && self.stays_in_host(unit) && self.host.state(unit) == UnitState::Present
    }

    /// Asks for the right to read `unit` in the device; as [`Window::acquire`].
    pub fn acquire(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> Acquired {
        let acquired = self.device.acquire(unit, &mut self.device_out);
        self.advance(out);
        acquired
    }

    /// One user of `unit` is done with it; as [`Window::release`].
    pub fn release(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.release(unit, &mut self.device_out);
        self.advance(out);
    }

    /// The caller that waited for `unit` will not ask again; as [`Window::stop_waiting`].
    pub fn stop_waiting(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.stop_waiting(unit, &mut self.device_out);
        self.advance(out);
    }

    /// Announces that `unit` will be acquired next; as [`Window::expect`].
    pub fn expect(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.device.expect(unit, &mut self.device_out);
        self.advance(out);
    }

    /// A read has arrived; as [`Window::loaded`].
    pub fn host_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.loaded(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// A read has failed; as [`Window::load_failed`]. If it fails for good, the copies that wait for it fail too.
    pub fn host_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.load_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// No host memory could be allocated for a read; as [`Window::allocation_failed`].
    pub fn host_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.allocation_failed(unit, ticket, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// Host memory was given back; as [`Window::evicted`].
    pub fn host_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.host.evicted(unit, &mut self.host_out);
        self.advance(out);
        taken
    }

    /// A copy has arrived; as [`Window::loaded`].
    pub fn device_loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.take_copy(unit, ticket);
        if taken {
            self.host.release(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// A copy was submitted: whoever acquires the unit has the device wait for it. The unit's host memory is read until
    /// [`copy_done`](Self::copy_done). False if the report is stale.
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

    /// A copy of `unit` that was submitted reads its host memory no longer.
    pub fn copy_done(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.reading -= 1;
        self.host.release(unit, &mut self.host_out);
        self.advance(out);
    }

    /// A copy has failed; as [`Window::load_failed`].
    pub fn device_load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.load_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
        }
        self.advance(out);
        taken
    }

    /// No device memory could be allocated for a copy; as [`Window::allocation_failed`].
    pub fn device_allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.allocation_failed(unit, ticket, &mut self.device_out);
        if taken {
            self.end_copy(unit);
            self.follow_device();
        }
        self.advance(out);
        taken
    }

    /// Device memory was given back, after the computation that used it; as [`Window::evicted`].
    pub fn device_evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) -> bool {
        let taken = self.device.evicted(unit, &mut self.device_out);
        if taken && self.host_slides {
            self.host.unpin(unit, &mut self.host_out);
        }
        self.advance(out);
        taken
    }

    /// Changes the host's budget; as [`Window::set_budget`].
    ///
    /// # Errors
    /// [`WindowError::BudgetTooSmall`].
    pub fn set_host_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.host.set_budget(bytes, &mut self.host_out)?;
        self.advance(out);
        Ok(())
    }

    /// Changes the device's budget, and with it what streams through the host.
    ///
    /// # Errors
    /// [`WindowError::BudgetTooSmall`].
    pub fn set_device_budget(&mut self, bytes: u64, out: &mut Vec<TierCommand>) -> Result<(), WindowError> {
        self.device.set_budget(bytes, &mut self.device_out)?;
        self.follow_device();
        self.advance(out);
        Ok(())
    }

    /// Where `unit` is, seen from the device; `Absent` means that it is in the host, or only on disk.
    pub fn state(&self, unit: UnitId) -> UnitState {
        self.device.state(unit)
    }

    /// The lower tier's window.
    pub fn host(&self) -> &Window {
        &self.host
    }

    /// The upper tier's window.
    pub fn device(&self) -> &Window {
        &self.device
    }

    /// Copies that are to be submitted, and those that have a credit and wait for the host.
    pub fn transfers(&self) -> usize {
        self.copying + self.asking.len()
    }

    /// How many transfers there may be now: the credits of the phase, but no more than the host can serve beside what
    /// submitted copies still read.
    pub fn transfers_max(&self) -> usize {
        self.credits.of(self.phase).min(self.host.concurrent_max().saturating_sub(self.reading))
    }

    /// As [`Window::check_invariants`], for both tiers and what connects them.
    ///
    /// # Errors
    /// What does not agree.
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

    /// Starts whatever can be started, and hands out the commands.
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

    /// Makes the device's order that of the units that passes acquire there.
    fn order_device(&mut self) {
        let is_acquired = |unit: &UnitId| !(self.host_computes && self.stays_in_host(*unit));
        let order = self.order.iter().copied().filter(is_acquired).collect();
        // The units were all checked when the windows were created.
        let ordered = self.device.set_order(order, &mut self.device_out);
        debug_assert!(ordered.is_ok(), "{ordered:?}");
    }

    /// Makes the host's order that of the units that the device streams.
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
