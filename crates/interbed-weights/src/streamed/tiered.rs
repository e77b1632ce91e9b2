//! Drives two tiers: bands are read from disk into host memory, and copied from there into a device's own memory.
//!
//! If a pass has few tokens, the host may compute with the bands that stay in its memory, instead of having them
//! copied.
//!
//! The host waits for reads. It waits for copies only if they read all the host memory that reads could go into. A copy
//! is submitted once the read of its band has ended. The device makes a computation with the band wait for the copy,
//! and makes the copy that replaces the band wait for the computation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use interbed_device::{Command, Device, DeviceError, PlacedBytes, Queue, Token};
use interbed_io::IoError;

use super::band_driver::{AcquiredBand, BandDriver};
use super::device_experts::DeviceExperts;
use super::driver::Driver;
use super::sight::UnitSight;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::partition::BandPlace;
use crate::source::Bands;
use crate::window::{Acquired, Phase, Tiers, UnitId, UnitState, Window, WindowCommand, WindowError};

/// Maximum number of tokens of a pass that counts as decoding: a few tokens for each of a few sequences.
const DECODE_TOKENS: usize = 64;

/// Reads bands from disk into host memory, and copies bands from there to a device's own memory.
pub struct TieredDriver {
    host: Driver<Tiers>,
    places: Vec<BandPlace>,
    /// Each band's memory on the device; `None` if the band is not there.
    held: Vec<Option<OnDevice>>,
    /// Slots on the device that hold no band.
    free: VecDeque<Slot>,
    /// Number of slots on the device, in use or free.
    slots: usize,
    /// Copies that may still read slots of host memory, in the order of their submission.
    reading: VecDeque<(UnitId, Token)>,
    slot_bytes: usize,
    /// Maximum number of tokens of a pass for which the host computes with the bands that stay in its memory.
    host_tokens_max: usize,
}

struct OnDevice {
    memory: PlacedBytes,
    resident: bool,
    copied: Token,
    /// Last submission that computes with the band, if there is one.
    used: Option<Token>,
}

/// Memory of the device, and the submission that must be executed before the memory is written again.
struct Slot {
    memory: PlacedBytes,
    used: Option<Token>,
}

impl TieredDriver {
    pub fn new(host: Driver<Tiers>, places: Vec<BandPlace>, host_tokens_max: usize) -> Self {
        let held = places.iter().map(|_| None).collect();
        let slot_bytes = places.iter().map(|place| place.bytes).max().unwrap_or(0);
        Self {
            host,
            places,
            held,
            free: VecDeque::new(),
            slots: 0,
            reading: VecDeque::new(),
            slot_bytes,
            host_tokens_max,
        }
    }

    /// Loads the residents of both tiers and the first streamed bands. Calls `progress` as bands arrive, with the total
    /// number of bytes read so far.
    ///
    /// # Errors
    /// Fails if a band could not be read or copied after all attempts, if host or device memory could not be allocated,
    /// or if the device failed.
    pub fn warm_up(&mut self, device: &mut dyn Device, progress: &mut dyn FnMut(u64)) -> Result<(), WeightError> {
        self.host.planner.start(&mut self.host.commands);
        self.obey(device);
        while self.host.take_next() || self.end_oldest_copy(device)? {
            self.obey(device);
            progress(self.host.recorder.stats.bytes_read);
        }
        // Before the first pass, since it takes time.
        self.host.residents().all(|memory| device.share(memory));
        self.host.any_failure().map_or(Ok(()), Err)
    }

    /// Returns the planner of both tiers.
    pub fn tiers(&self) -> &Tiers {
        &self.host.planner
    }

    /// Carries out commands for both tiers until there are none.
    fn obey(&mut self, device: &mut dyn Device) {
        loop {
            self.host.obey();
            match self.host.above.pop_front() {
                None => return self.drop_spare_slots(),
                Some(WindowCommand::Load { unit, ticket, resident }) => self.copy(unit, ticket, resident, device),
                Some(WindowCommand::Evict { unit }) => {
                    let OnDevice { memory, resident, used, .. } =
                        self.held[unit.index()].take().expect("what the window evicts was there");
                    // The memory of a resident goes back to the device; its last users keep it until they are done.
                    if !resident {
                        self.free.push_back(Slot { memory, used });
                    }
                    self.host.planner.device_evicted(unit, &mut self.host.commands);
                }
            }
        }
    }

    /// Gives free slots back to the device until the rest is within the budget.
    fn drop_spare_slots(&mut self) {
        while self.memory() > self.window().budget() && self.free.pop_front().is_some() {
            self.slots -= 1;
        }
    }

    /// Submits the copy of a band that is in host memory. If the submission fails, the copy is tried as often as a
    /// read; after the last try, the error goes to the caller that wants the band.
    fn copy(&mut self, unit: UnitId, ticket: u64, resident: bool, device: &mut dyn Device) {
        let place = self.places[unit.index()];
        // A resident takes memory of its own, which the window already counts.
        if resident {
            self.drop_spare_slots();
        }
        let free = if resident { None } else { self.free.pop_front() };
        let is_new_slot = !resident && free.is_none();
        let len = if resident { place.bytes } else { self.slot_bytes };
        let slot = free.map_or_else(|| device.allocate(len).map(|memory| Slot { memory, used: None }), Ok);
        let Slot { memory, used } = match slot {
            Ok(slot) => {
                self.slots += usize::from(is_new_slot);
                slot
            }
            Err(error) => {
                self.host.failed(unit, error.into());
                self.host.planner.device_allocation_failed(unit, ticket, &mut self.host.commands);
                return;
            }
        };
        let (from, is_slot) = self.host.place_of(unit);
        let in_place = device.share(from);
        let copy = Command::CopyWeights { from, range: place.skip..place.needed(), to: &memory, at: 0 };
        match device.submit(Queue::Upload, &[copy], used.as_slice()) {
            Ok(token) => {
                self.host.recorder.stats.bytes_copied += place.bytes as u64;
                self.held[unit.index()] = Some(OnDevice { memory, resident, copied: token, used: None });
                if in_place && is_slot {
                    self.reading.push_back((unit, token));
                    self.host.planner.copy_submitted(unit, ticket, &mut self.host.commands);
                } else {
                    // Everything was read, or lies where nothing else is ever read into.
                    self.host.planner.device_loaded(unit, ticket, &mut self.host.commands);
                }
            }
            Err(error) => {
                if !resident {
                    self.free.push_back(Slot { memory, used });
                }
                self.host.failed(unit, error.into());
                self.host.planner.device_load_failed(unit, ticket, &mut self.host.commands);
            }
        }
    }
}

impl TieredDriver {
    /// Takes in the copies that are known to be done.
    fn end_copies(&mut self, device: &mut dyn Device) {
        // Of a copy that failed, whoever computes with the band is told.
        while let Some(&(_, token)) = self.reading.front()
            && !matches!(device.is_complete(token), Ok(false))
        {
            self.end_copy();
        }
    }

    /// Waits for the copy that was submitted first. Returns false if no copy is known to be under way.
    fn end_oldest_copy(&mut self, device: &mut dyn Device) -> Result<bool, WeightError> {
        let Some(&(unit, token)) = self.reading.front() else { return Ok(false) };
        let completed = device.complete(token);
        self.end_copy();
        completed?;
        let is_read_again = self.reading.iter().any(|&(other, _)| other == unit);
        let is_read = is_read_again || self.host.is_alone_with(unit.0);
        if is_read { Ok(true) } else { Err(DeviceError::WeightsInUse.into()) }
    }

    /// Tells the planner that the oldest copy does not read host memory any more.
    fn end_copy(&mut self) {
        if let Some((unit, _)) = self.reading.pop_front() {
            self.host.planner.copy_done(unit, &mut self.host.commands);
        }
    }

    /// Waits for a read, or for a copy without which nothing can be read, because a pass wants `band`. Returns false if
    /// there is neither a read nor a copy to wait for.
    fn wait(&mut self, band: u32, device: &mut dyn Device) -> Result<bool, WeightError> {
        self.end_copies(device);
        if !self.host.commands.is_empty() || self.host.wait(band) {
            return Ok(true);
        }
        let start = Instant::now();
        let waited = self.end_oldest_copy(device)?;
        if waited {
            self.host.recorder.stats.waits_for_copies += 1;
            self.host.stalled(band, start);
        }
        Ok(waited)
    }
}

impl BandDriver for TieredDriver {
    type Experts = DeviceExperts;

    fn begin_pass(&mut self, tokens: usize) {
        let phase = if tokens <= DECODE_TOKENS { Phase::Decode } else { Phase::Prefill };
        self.host.planner.set_phase(phase, &mut self.host.commands);
        self.host.planner.set_host_computes(tokens <= self.host_tokens_max, &mut self.host.commands);
    }

    fn computes_on_host(&self) -> bool {
        self.tiers().host_computes()
    }

    fn poll(&mut self, device: &mut dyn Device) {
        self.host.poll();
        self.end_copies(device);
        self.obey(device);
    }

    fn is_ready(&self, band: u32) -> bool {
        let unit = UnitId(band);
        self.tiers().is_computed_by_host(unit) || self.tiers().state(unit) == UnitState::Present
    }

    fn is_resident(&self, band: u32) -> bool {
        let unit = UnitId(band);
        self.tiers().is_computed_by_host(unit) || self.tiers().device().is_resident(unit)
    }

    fn window(&self) -> &Window {
        self.tiers().device()
    }

    fn memory(&self) -> u64 {
        // The window also counts slots that are about to be used, which may still be free here.
        let spare = self.slots.saturating_sub(self.window().slots_used());
        self.window().bytes_held() + (spare * self.slot_bytes) as u64
    }

    fn beside(&self) -> u64 {
        self.host.host_memory()
    }

    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WindowError> {
        self.host.planner.set_device_budget(bytes, &mut self.host.commands)?;
        self.obey(device);
        Ok(())
    }

    fn settle(&mut self) {
        while self.host.take_next() {}
    }

    fn sight(&self, band: u32) -> UnitSight {
        UnitSight::of_tiers(self.tiers(), UnitId(band))
    }

    fn acquire(&mut self, band: u32, device: &mut dyn Device) -> Result<AcquiredBand, WeightError> {
        let unit = UnitId(band);
        if self.tiers().is_computed_by_host(unit) {
            let (place, memory) = (self.places[unit.index()], self.host.memory_of(unit));
            let (memory, range) = (PlacedBytes::from(Arc::clone(memory)), place.skip..place.needed());
            self.host.recorder.stats.bytes_on_host += place.bytes as u64;
            return Ok(AcquiredBand { memory, range, copied: None, queue: Queue::Host });
        }
        loop {
            let answer = self.host.planner.acquire(unit, &mut self.host.commands);
            self.obey(device);
            match answer {
                Acquired::Ready => break,
                Acquired::Failed => {
                    let failure = self.host.failure_of(unit);
                    return Err(failure.expect("a read or a copy that failed left its reason"));
                }
                Acquired::Pending if self.tiers().device().is_answered(unit) => {}
                Acquired::Pending => {
                    let waited = self.wait(band, device);
                    self.obey(device);
                    if !matches!(waited, Ok(true)) {
                        self.host.planner.stop_waiting(unit, &mut self.host.commands);
                        self.obey(device);
                        return Err(waited.err().unwrap_or_else(|| self.host.stuck(band)));
                    }
                }
            }
        }
        let held = self.held[unit.index()].as_ref().expect("what the window calls present was copied");
        let range = 0..self.places[unit.index()].bytes;
        Ok(AcquiredBand { memory: held.memory.clone(), range, copied: Some(held.copied), queue: Queue::Compute })
    }

    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError> {
        // What the host computes with stays where it is.
        for band in bands.drain(..).filter(|band| band.queue != Queue::Host) {
            let unit = UnitId(band.unit);
            if let (Some(held), Some(_)) = (&mut self.held[unit.index()], used) {
                held.used = used;
            }
            self.host.planner.release(unit, &mut self.host.commands);
            self.obey(device);
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), IoError> {
        self.host.check_files()
    }

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.host.recorder
    }
}
