//! Drives host memory: carries out a window's commands, and knows which memory holds which band.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use interbed_device::{AllocError, Device, DeviceError, HostBuffer, Queue, Token};
use interbed_io::{DirectRead, IoError, ReadDone, ReadEngine, ReadRequest};

use super::band_driver::{AcquiredBand, BandDriver};
use super::buffer::StreamBuffer;
use super::expert_driver::ExpertDriver;
use super::sight::UnitSight;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::partition::BandPlace;
use crate::source::{Band, Bands};
use crate::window::{Acquired, TierCommand, Tiers, UnitId, UnitState, Window, WindowCommand, WindowError};

/// Maximum number of bytes of slots that are allocated at a time.
const ROW_BYTES: usize = 256 << 20;

/// A planner that decides which bands are in host memory.
pub trait HostPlanner {
    /// Returns the window of host memory.
    fn window(&self) -> &Window;

    /// Reports that the read of a band has arrived, to [`Window::loaded`].
    fn loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>);

    /// Reports that the read of a band has failed, to [`Window::load_failed`].
    fn load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>);

    /// Reports that no memory could be allocated for a band, to [`Window::allocation_failed`].
    fn allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>);

    /// Reports that a band has left its memory, to [`Window::evicted`].
    fn evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>);
}

impl HostPlanner for Tiers {
    fn window(&self) -> &Window {
        self.host()
    }

    fn loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.host_loaded(unit, ticket, out);
    }

    fn load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.host_load_failed(unit, ticket, out);
    }

    fn allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.host_allocation_failed(unit, ticket, out);
    }

    fn evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.host_evicted(unit, out);
    }
}

/// A planner for host memory only, with a single window.
pub struct OneTier {
    window: Window,
    commands: Vec<WindowCommand>,
}

impl OneTier {
    pub fn new(window: Window) -> Self {
        Self { window, commands: Vec::new() }
    }

    /// Calls `act` with the window, and appends the window's commands to `out`.
    fn with<R>(
        &mut self,
        out: &mut Vec<TierCommand>,
        act: impl FnOnce(&mut Window, &mut Vec<WindowCommand>) -> R,
    ) -> R {
        let done = act(&mut self.window, &mut self.commands);
        out.extend(self.commands.drain(..).map(TierCommand::Host));
        done
    }
}

impl HostPlanner for OneTier {
    fn window(&self) -> &Window {
        &self.window
    }

    fn loaded(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.with(out, |window, commands| window.loaded(unit, ticket, commands));
    }

    fn load_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.with(out, |window, commands| window.load_failed(unit, ticket, commands));
    }

    fn allocation_failed(&mut self, unit: UnitId, ticket: u64, out: &mut Vec<TierCommand>) {
        self.with(out, |window, commands| window.allocation_failed(unit, ticket, commands));
    }

    fn evicted(&mut self, unit: UnitId, out: &mut Vec<TierCommand>) {
        self.with(out, |window, commands| window.evicted(unit, commands));
    }
}

/// Reads bands into host memory and frees their memory, as the planner commands.
pub struct Driver<P = OneTier> {
    pub planner: P,
    engine: Box<dyn ReadEngine<StreamBuffer>>,
    files: Vec<Arc<dyn DirectRead>>,
    places: Vec<BandPlace>,
    /// Group of each band, for the timeline.
    groups: Vec<u32>,
    /// Memory of each band that is present.
    held: Vec<Option<Held>>,
    /// Slots that hold no band.
    free: Vec<StreamBuffer>,
    /// Number of slots, in use or free.
    slots: usize,
    slot_bytes: usize,
    /// Loads whose read is in flight, by the tag of the read.
    loads: HashMap<u64, BandLoad>,
    next_tag: u64,
    /// Error with which the last load or copy of a band failed.
    failures: HashMap<UnitId, WeightError>,
    pub commands: Vec<TierCommand>,
    batch: Vec<TierCommand>,
    /// Commands for the device's memory that are still to be carried out, oldest first.
    pub above: VecDeque<WindowCommand>,
    pub recorder: Recorder,
}

struct Held {
    buffer: Arc<HostBuffer>,
    resident: bool,
}

struct BandLoad {
    unit: UnitId,
    ticket: u64,
    resident: bool,
}

impl<P: HostPlanner> Driver<P> {
    pub fn new(
        planner: P,
        engine: Box<dyn ReadEngine<StreamBuffer>>,
        files: Vec<Arc<dyn DirectRead>>,
        places: Vec<BandPlace>,
        groups: Vec<u32>,
        recorder: Recorder,
    ) -> Self {
        let held = places.iter().map(|_| None).collect();
        let slot_bytes = places.iter().map(BandPlace::memory).max().unwrap_or(0);
        Self {
            planner,
            engine,
            files,
            places,
            groups,
            held,
            free: Vec::new(),
            slots: 0,
            slot_bytes,
            loads: HashMap::new(),
            next_tag: 0,
            failures: HashMap::new(),
            commands: Vec::new(),
            batch: Vec::new(),
            above: VecDeque::new(),
            recorder,
        }
    }

    /// Waits for a read to end and processes the result. Returns false if no read is in flight.
    pub fn take_next(&mut self) -> bool {
        let done = self.engine.wait();
        done.map(|done| self.take(done)).is_some()
    }

    /// Clears the errors of all bands and returns one of them, or `None` if no band has an error.
    pub fn any_failure(&mut self) -> Option<WeightError> {
        // A band that arrived after a failure has removed the failure.
        self.failures.drain().next().map(|(_, error)| error)
    }

    /// Processes the reads that have ended, without waiting for others.
    pub fn poll(&mut self) {
        while let Some(done) = self.engine.poll() {
            self.take(done);
        }
    }

    /// Returns the memory that holds a band. The band must be present.
    pub fn memory_of(&self, unit: UnitId) -> &Arc<HostBuffer> {
        &self.held[unit.index()].as_ref().expect("what the window calls present was read").buffer
    }

    /// Returns the memory that holds a band, and whether this memory is a slot, which other bands reuse later. The band
    /// must be present.
    pub fn place_of(&self, unit: UnitId) -> (&Arc<HostBuffer>, bool) {
        let held = self.held[unit.index()].as_ref().expect("what the window calls present was read");
        (&held.buffer, !held.resident)
    }

    /// Returns the memory of each resident band that is present.
    pub fn residents(&self) -> impl Iterator<Item = &HostBuffer> {
        self.held.iter().flatten().filter(|held| held.resident).map(|held| &*held.buffer)
    }

    /// Removes and returns the error with which the last read or copy of a band failed.
    pub fn failure_of(&mut self, unit: UnitId) -> Option<WeightError> {
        self.failures.remove(&unit)
    }

    /// Records the error with which a band's copy to the device failed.
    pub fn failed(&mut self, unit: UnitId, error: WeightError) {
        self.failures.insert(unit, error);
    }

    /// Returns whether the driver is the only owner of the memory that holds `band`. Returns false if the band is not
    /// present.
    pub fn is_alone_with(&self, band: u32) -> bool {
        self.held[band as usize].as_ref().is_some_and(|held| Arc::strong_count(&held.buffer) == 1)
    }

    /// Returns the number of bytes of host memory that the bands take, including free slots.
    pub fn host_memory(&self) -> u64 {
        // The window also counts slots that are about to be used, which may still be free here.
        let spare = self.slots.saturating_sub(self.planner.window().slots_used());
        self.planner.window().bytes_held() + (spare * self.slot_bytes) as u64
    }

    pub fn check_files(&self) -> Result<(), IoError> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Waits until any read ends, of `band` or of another band, and records the waiting time as a stall for `band`.
    /// Returns false if no read is in flight.
    pub fn wait(&mut self, band: u32) -> bool {
        let start = Instant::now();
        let waited = self.take_next();
        if waited {
            self.stalled(band, start);
            self.poll();
        }
        waited
    }

    /// Records a stall: a forward pass has waited for `band` from `start` until now.
    pub fn stalled(&mut self, band: u32, start: Instant) {
        self.recorder.stall(self.groups[band as usize], start, Instant::now());
    }

    /// Returns the error for a wait that can never end: a pass waits for `band`, but other bands in use take all slots.
    pub fn stuck(&self, band: u32) -> WeightError {
        WeightError::Stuck { group: self.groups[band as usize] }
    }

    /// Carries out the commands in the field `commands`, and the further commands that result from them, until none is
    /// left. Commands for device memory are not carried out here, but appended to the field `above`.
    pub fn obey(&mut self) {
        while !self.commands.is_empty() {
            std::mem::swap(&mut self.commands, &mut self.batch);
            let mut batch = std::mem::take(&mut self.batch);
            for command in batch.drain(..) {
                match command {
                    TierCommand::Host(WindowCommand::Load { unit, ticket, resident }) => {
                        self.load(BandLoad { unit, ticket, resident });
                    }
                    TierCommand::Host(WindowCommand::Evict { unit }) => self.evict(unit),
                    TierCommand::Device(command) => self.above.push_back(command),
                }
            }
            self.batch = batch;
        }
        self.drop_spare_slots();
        debug_assert_eq!(self.slots, self.count_slots(), "a slot was lost or made up");
    }

    /// Counts the slots that are free, hold a band, or are read into.
    fn count_slots(&self) -> usize {
        let held = self.held.iter().flatten().filter(|held| !held.resident).count();
        let loading = self.loads.values().filter(|load| !load.resident).count();
        self.free.len() + held + loading
    }

    /// Gives free slots back to the system until the rest is within the budget.
    fn drop_spare_slots(&mut self) {
        while self.host_memory() > self.planner.window().budget() && self.free.pop().is_some() {
            self.slots -= 1;
        }
    }

    fn load(&mut self, load: BandLoad) {
        // A resident takes memory of its own, which the window already counts.
        if load.resident {
            self.drop_spare_slots();
        }
        let place = self.places[load.unit.index()];
        let buffer = match (load.resident, self.free.pop()) {
            (false, Some(slot)) => Ok(slot),
            (false, None) => self.new_slots(),
            (true, slot) => {
                self.free.extend(slot);
                StreamBuffer::new(place.memory())
            }
        };
        let buffer = match buffer {
            Ok(buffer) => buffer,
            Err(error) => {
                self.failures.insert(load.unit, error.into());
                self.planner.allocation_failed(load.unit, load.ticket, &mut self.commands);
                return;
            }
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.loads.insert(tag, load);
        self.engine.submit(ReadRequest {
            tag,
            file: Arc::clone(&self.files[place.file]),
            offset: place.offset,
            needed: place.needed(),
            len: place.memory(),
            buffer,
        });
    }

    /// Allocates the slots that the window may use and that are missing, up to [`ROW_BYTES`], and takes one of them.
    /// The slots are allocated side by side so that they lie in huge pages.
    fn new_slots(&mut self) -> Result<StreamBuffer, AllocError> {
        let wanted = self.planner.window().slots().min(self.places.len()).min(ROW_BYTES / self.slot_bytes.max(1));
        let missing = wanted.saturating_sub(self.slots).max(1);
        // If there is no memory for all of them, there may be enough for one.
        let row = StreamBuffer::new_row(self.slot_bytes, missing);
        let mut row = row.or_else(|_| StreamBuffer::new_row(self.slot_bytes, 1))?;
        self.slots += row.len();
        let slot = row.pop().expect("one at least");
        self.free.extend(row);
        Ok(slot)
    }

    fn evict(&mut self, unit: UnitId) {
        let held = self.held[unit.index()].take().expect("what the window evicts was there");
        // A slot is used again; the memory of a resident goes back to the system.
        match StreamBuffer::reclaim(held.buffer) {
            _ if held.resident => {}
            Some(slot) => self.free.push(slot),
            // A device that failed may still hold it; the caller of `release` was told so.
            None => self.slots -= 1,
        }
        self.planner.evicted(unit, &mut self.commands);
    }

    fn take(&mut self, done: ReadDone<StreamBuffer>) {
        let Some(load) = self.loads.remove(&done.tag) else { return };
        let BandLoad { unit, ticket, resident } = load;
        match done.result {
            Ok(()) => {
                let bytes = self.places[unit.index()].memory() as u64;
                self.recorder.read(self.groups[unit.index()], bytes, done.started, done.finished);
                self.failures.remove(&unit);
                self.held[unit.index()] = Some(Held { buffer: done.buffer.share(), resident });
                self.planner.loaded(unit, ticket, &mut self.commands);
            }
            Err(error) => {
                self.recorder.stats.reads_failed += 1;
                self.failures.insert(unit, error.into());
                if !resident {
                    self.free.push(done.buffer);
                }
                self.planner.load_failed(unit, ticket, &mut self.commands);
            }
        }
        self.obey();
    }
}

impl Driver {
    /// Loads the resident bands and the first streamed bands. Calls `progress` after each read, with the total number
    /// of bytes read so far.
    ///
    /// # Errors
    /// Fails if a band could not be read after all attempts, or if memory could not be allocated.
    pub fn warm_up(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), WeightError> {
        self.planner.with(&mut self.commands, Window::start);
        self.obey();
        while self.take_next() {
            progress(self.recorder.stats.bytes_read);
        }
        self.any_failure().map_or(Ok(()), Err)
    }

    /// Waits for `band` and returns its memory. The memory stays valid until every acquisition of `band` has been
    /// released.
    ///
    /// # Errors
    /// Fails if `band` could not be read after all attempts, or if the wait for `band` can never end.
    pub fn acquire(&mut self, band: u32) -> Result<Arc<HostBuffer>, WeightError> {
        let unit = UnitId(band);
        loop {
            let answer = self.planner.with(&mut self.commands, |window, out| window.acquire(unit, out));
            self.obey();
            match answer {
                Acquired::Ready => return Ok(Arc::clone(self.memory_of(unit))),
                Acquired::Failed => return Err(self.failure_of(unit).expect("a load that failed left its reason")),
                // A refused allocation is answered at once, without a read to wait for.
                Acquired::Pending if self.window().is_answered(unit) || self.wait(band) => {}
                Acquired::Pending => {
                    // The window promises that a unit that is waited for is in flight, unless more units are held than
                    // it has slots.
                    self.planner.with(&mut self.commands, |window, out| window.stop_waiting(unit, out));
                    self.obey();
                    return Err(self.stuck(band));
                }
            }
        }
    }

    pub fn release(&mut self, band: u32) {
        self.planner.with(&mut self.commands, |window, out| window.release(UnitId(band), out));
        self.obey();
    }

    fn in_memory(&self, band: u32, memory: Arc<HostBuffer>) -> AcquiredBand {
        let (place, memory) = (self.places[band as usize], memory.into());
        AcquiredBand { memory, range: place.skip..place.needed(), copied: None, queue: Queue::Compute }
    }
}

impl BandDriver for Driver {
    type Experts = ExpertDriver;

    fn poll(&mut self, _device: &mut dyn Device) {
        Driver::poll(self);
    }

    fn is_ready(&self, band: u32) -> bool {
        self.window().state(UnitId(band)) == UnitState::Present
    }

    fn is_resident(&self, band: u32) -> bool {
        self.window().is_resident(UnitId(band))
    }

    fn resident(&self, band: u32) -> Option<AcquiredBand> {
        let stays = self.is_resident(band) && self.is_ready(band);
        stays.then(|| self.in_memory(band, Arc::clone(self.memory_of(UnitId(band)))))
    }

    fn window(&self) -> &Window {
        self.planner.window()
    }

    fn memory(&self) -> u64 {
        self.host_memory()
    }

    fn set_budget(&mut self, bytes: u64, _device: &mut dyn Device) -> Result<(), WindowError> {
        self.planner.with(&mut self.commands, |window, out| window.set_budget(bytes, out))?;
        self.obey();
        Ok(())
    }

    fn settle(&mut self) {
        while self.take_next() {}
    }

    fn sight(&self, band: u32) -> UnitSight {
        UnitSight::of_host(self.window(), UnitId(band))
    }

    fn acquire(&mut self, band: u32, _device: &mut dyn Device) -> Result<AcquiredBand, WeightError> {
        let memory = Driver::acquire(self, band)?;
        Ok(self.in_memory(band, memory))
    }

    /// Waits until the device has executed `used`, and releases the bands. The driver must then be the only owner of
    /// the bands' memory, since the window may read into that memory at once.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError> {
        let completed = used.map_or(Ok(()), |token| device.complete(token));
        let mut is_alone = true;
        for Band { unit, weights, .. } in bands.drain(..) {
            drop(weights);
            is_alone &= self.is_alone_with(unit);
            Driver::release(self, unit);
        }
        completed?;
        if is_alone { Ok(()) } else { Err(DeviceError::WeightsInUse) }
    }

    fn check_files(&self) -> Result<(), IoError> {
        Driver::check_files(self)
    }

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}
