//! The driver of the window: moves what the planner decides, and knows which memory holds what.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use strata_device::{AllocError, HostBuffer};
use strata_io::{DirectRead, IoError, ReadDone, ReadEngine, ReadRequest};

use super::buffer::StreamBuffer;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::partition::BandPlace;
use crate::window::{Acquired, UnitId, UnitState, Window, WindowCommand, WindowError};

/// Bytes of slots that are made at a time, at most.
const ROW_BYTES: usize = 256 << 20;

/// Reads bands into memory and gives memory back, as the window commands.
pub struct Driver {
    window: Window,
    engine: Box<dyn ReadEngine<StreamBuffer>>,
    files: Vec<Arc<dyn DirectRead>>,
    places: Vec<BandPlace>,
    /// The group of each band, for the record.
    groups: Vec<u32>,
    /// The memory of each band that is there.
    held: Vec<Option<Held>>,
    /// Slots that nobody uses.
    free: Vec<StreamBuffer>,
    /// Slots that there are, used or not.
    slots: usize,
    slot_bytes: usize,
    /// Loads in flight, by tag.
    loads: HashMap<u64, BandLoad>,
    next_tag: u64,
    /// Why the last load of a band failed.
    failures: HashMap<UnitId, WeightError>,
    commands: Vec<WindowCommand>,
    batch: Vec<WindowCommand>,
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

impl Driver {
    pub fn new(
        window: Window,
        engine: Box<dyn ReadEngine<StreamBuffer>>,
        files: Vec<Arc<dyn DirectRead>>,
        places: Vec<BandPlace>,
        groups: Vec<u32>,
        recorder: Recorder,
    ) -> Self {
        let held = places.iter().map(|_| None).collect();
        let slot_bytes = places.iter().map(BandPlace::memory).max().unwrap_or(0);
        Self {
            window,
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
            recorder,
        }
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Loads what is to stay, and the first of what streams; `progress(bytes)` is called as they come.
    ///
    /// # Errors
    /// A read that failed as often as it is tried, or memory that the system refused.
    pub fn warm_up(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), WeightError> {
        self.window.start(&mut self.commands);
        self.obey();
        while let Some(done) = self.engine.wait() {
            self.take(done);
            progress(self.recorder.stats.bytes_read);
        }
        // A band that came in the end has left no failure.
        self.failures.drain().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Waits until nothing is in flight any more.
    pub fn settle(&mut self) {
        while let Some(done) = self.engine.wait() {
            self.take(done);
        }
    }

    /// Takes what has arrived in the meantime.
    pub fn poll(&mut self) {
        while let Some(done) = self.engine.poll() {
            self.take(done);
        }
    }

    /// Whether `band` is there, so that acquiring it will not wait.
    pub fn is_ready(&self, band: u32) -> bool {
        self.window.state(UnitId(band)) == UnitState::Present
    }

    /// The memory of `band`, which stays until it is released as often as it was acquired. Waits for it.
    ///
    /// # Errors
    /// Its read failed as often as it is tried.
    pub fn acquire(&mut self, band: u32) -> Result<Arc<HostBuffer>, WeightError> {
        let unit = UnitId(band);
        loop {
            let answer = self.window.acquire(unit, &mut self.commands);
            self.obey();
            match answer {
                Acquired::Ready => {
                    let held = self.held[unit.index()].as_ref().expect("what the window calls present was read");
                    return Ok(held.buffer.clone());
                }
                Acquired::Failed => {
                    let failure = self.failures.remove(&unit);
                    return Err(failure.expect("a load that failed left its reason"));
                }
                // Memory that was refused is known at once.
                Acquired::Pending if self.window.is_answered(unit) => {}
                Acquired::Pending => self.wait(band)?,
            }
        }
    }

    /// Whether nobody else has the memory of `band`, which is there.
    pub fn is_alone_with(&self, band: u32) -> bool {
        self.held[band as usize].as_ref().is_some_and(|held| Arc::strong_count(&held.buffer) == 1)
    }

    pub fn release(&mut self, band: u32) {
        self.window.release(UnitId(band), &mut self.commands);
        self.obey();
    }

    /// See [`Window::set_budget`].
    pub fn set_budget(&mut self, bytes: u64) -> Result<(), WindowError> {
        self.window.set_budget(bytes, &mut self.commands)?;
        self.obey();
        Ok(())
    }

    /// Bytes that bands take, with the slots that are kept for those to come.
    pub fn memory(&self) -> u64 {
        // The window counts slots that are about to be used, which may be among the free ones.
        let spare = self.slots.saturating_sub(self.window.slots_used());
        self.window.bytes_held() + (spare * self.slot_bytes) as u64
    }

    pub fn check_files(&self) -> Result<(), IoError> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Waits for anything to come.
    fn wait(&mut self, band: u32) -> Result<(), WeightError> {
        let start = Instant::now();
        let Some(done) = self.engine.wait() else {
            // The window promises that what is waited for is in flight, unless more is held than it has slots for.
            self.window.stop_waiting(UnitId(band), &mut self.commands);
            self.obey();
            return Err(WeightError::Stuck { group: self.groups[band as usize] });
        };
        self.take(done);
        self.recorder.stall(self.groups[band as usize], start, Instant::now());
        self.poll();
        Ok(())
    }

    /// Carries out commands until there are none; doing so may cause new ones. The two lists change places, so that a
    /// steady state allocates nothing.
    fn obey(&mut self) {
        while !self.commands.is_empty() {
            std::mem::swap(&mut self.commands, &mut self.batch);
            let mut batch = std::mem::take(&mut self.batch);
            for command in batch.drain(..) {
                match command {
                    WindowCommand::Load { unit, ticket, resident } => self.load(BandLoad { unit, ticket, resident }),
                    WindowCommand::Evict { unit } => self.evict(unit),
                }
            }
            self.batch = batch;
        }
        self.drop_spare_slots();
        debug_assert_eq!(self.slots, self.count_slots(), "a slot was lost or made up");
    }

    /// Slots by where they are.
    fn count_slots(&self) -> usize {
        let held = self.held.iter().flatten().filter(|held| !held.resident).count();
        let loading = self.loads.values().filter(|load| !load.resident).count();
        self.free.len() + held + loading
    }

    /// Gives back slots that nobody uses as far as the budget has no room for them.
    fn drop_spare_slots(&mut self) {
        while self.memory() > self.window.budget() && self.free.pop().is_some() {
            self.slots -= 1;
        }
    }

    fn load(&mut self, load: BandLoad) {
        // A resident takes memory of its own, which the window has counted already.
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
                self.window.allocation_failed(load.unit, load.ticket, &mut self.commands);
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

    /// Makes all slots that the window may want and that are missing, and takes one of them: side by side, they lie in
    /// huge pages.
    fn new_slots(&mut self) -> Result<StreamBuffer, AllocError> {
        let wanted = self.window.slots().min(self.places.len()).min(ROW_BYTES / self.slot_bytes.max(1));
        let missing = wanted.saturating_sub(self.slots).max(1);
        // Where there is no memory for all, there may be for one.
        let row = StreamBuffer::new_row(self.slot_bytes, missing);
        let mut row = row.or_else(|_| StreamBuffer::new_row(self.slot_bytes, 1))?;
        self.slots += row.len();
        let slot = row.pop().expect("one at least");
        self.free.extend(row);
        Ok(slot)
    }

    fn evict(&mut self, unit: UnitId) {
        let held = self.held[unit.index()].take().expect("what the window evicts was there");
        // A slot is used again; a resident's memory goes back to the system.
        match StreamBuffer::reclaim(held.buffer) {
            _ if held.resident => {}
            Some(slot) => self.free.push(slot),
            // A device that failed may have it still: whoever released it was told.
            None => self.slots -= 1,
        }
        self.window.evicted(unit, &mut self.commands);
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
                self.window.loaded(unit, ticket, &mut self.commands);
            }
            Err(error) => {
                self.recorder.stats.reads_failed += 1;
                self.failures.insert(unit, error.into());
                if !resident {
                    self.free.push(done.buffer);
                }
                self.window.load_failed(unit, ticket, &mut self.commands);
            }
        }
        self.obey();
    }
}
