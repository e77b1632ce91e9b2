//! Drives experts of a device that has its own memory: reads slabs into host memory, and copies them to the device.
//!
//! Two arenas decide. The device's arena sees what passes want, and decides which slabs stay on the device. What it
//! lacks is wanted of the driver of host memory, whose arena sees only that, and so keeps what the device does not.
//!
//! A copy is submitted once its slab is in host memory. The device makes a computation with the slab wait for the copy,
//! and makes the copy that replaces the slab wait for the computation. The slab stays in host memory until the copy has
//! read it there; the host waits for that only if reads have no other room.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use arrayvec::ArrayVec;
use interbed_device::{Command, Device, DeviceError, PlacedBytes, Queue, Token, Weights};

use super::expert_driver::ExpertDriver;
use super::slab_driver::SlabDriver;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::experts::{Arena, ArenaShape, SlabId, SlabSlot, SlotChanges};
use crate::partition::{ExpertBank, Partition};
use crate::source::{EXPERT_MATRICES_MAX, Expert};

/// Maximum number of bytes of one copy: about as many as a band has. Devices that cannot read host memory in place have
/// little room for bytes on their way.
const COPY_BYTES: usize = 4 << 20;

/// Maximum number of times that a copy is tried before the pass fails, as often as a read.
const COPY_ATTEMPTS: u32 = 3;

/// Copies slabs into slots on the device, and hands them out: first those that are there already.
pub struct DeviceExperts {
    host: ExpertDriver,
    /// Arena that decides what stays on the device.
    arena: Arena,
    banks: Vec<ExpertBank>, // one for each mixture layer
    /// Slots on the device, by class and number.
    slots: Vec<Vec<Slot>>,
    /// Mixture layer that the visit is for; `None` if there is no visit.
    layer: Option<u32>,
    /// Experts of the visit that were on the device when it began, and have not been handed out.
    ready: VecDeque<u32>,
    /// Experts of the visit that were not on the device when it began, with the numbers of their tokens.
    lacking: Vec<(u32, u32)>,
    /// Number of lacking experts that have not been copied.
    missing: usize,
    /// Experts of the host's visit whose memory copies may still read, each with its last copy, in the order of copies.
    /// The host's visit lasts until the next one begins, so that the slabs stay where they are.
    reading: VecDeque<(Expert, Token)>,
}

/// Memory of the device for one slab.
#[derive(Default)]
struct Slot {
    /// The memory; `None` if the arena has withdrawn the slot.
    memory: Option<PlacedBytes>,
    /// Matrices of the slab that is in the slot.
    matrices: ArrayVec<Weights, EXPERT_MATRICES_MAX>,
    /// Last copy into the slot, if there is one.
    copied: Option<Token>,
    /// Last submission that computes with what is in the slot, if there is one.
    used: Option<Token>,
}

impl DeviceExperts {
    /// Creates a driver with slots of `budget` bytes on `device`, or fewer if the device has less memory. `host` drives
    /// host memory.
    ///
    /// # Errors
    /// Fails if the device has no memory for two slots of each size.
    pub fn new(
        mut host: ExpertDriver,
        partition: &Partition,
        device: &mut dyn Device,
        budget: u64,
    ) -> Result<Self, WeightError> {
        // To guess, the host would have to wait for the device once more in each layer.
        host.set_reads_ahead(false);
        let (classes, in_host) = partition.experts().expect("a model with experts");
        let packed = classes.packed_bytes(partition.banks());
        let shape = ArenaShape::new(packed, in_host.experts(), in_host.top_k())?;
        let (classes, experts) = (shape.class_bytes().len(), in_host.experts());
        let arena = Arena::new(shape, budget)?;
        let count = |class| arena.slot_count(class) as u32;
        let added: Vec<_> = (0..classes as u32)
            .flat_map(|class| (0..count(class)).map(move |index| SlabSlot { class, index }))
            .collect();
        let mut driver = Self {
            host,
            arena,
            banks: partition.banks().to_vec(),
            slots: (0..classes).map(|_| Vec::new()).collect(),
            layer: None,
            ready: VecDeque::with_capacity(experts),
            lacking: Vec::with_capacity(experts),
            missing: 0,
            reading: VecDeque::with_capacity(experts),
        };
        driver.take_memory(&added, device)?;
        Ok(driver)
    }

    /// Takes the memory of slots that were added. Slots for which the device has no memory are taken away again.
    fn take_memory(&mut self, added: &[SlabSlot], device: &mut dyn Device) -> Result<(), DeviceError> {
        let mut failed = Ok(());
        for &slot in added {
            let SlabSlot { class, index } = slot;
            let (slots, index) = (&mut self.slots[class as usize], index as usize);
            slots.resize_with(slots.len().max(index + 1), Slot::default);
            match device.allocate(self.arena.shape().class_bytes()[class as usize] as usize) {
                Ok(memory) => slots[index] = Slot { memory: Some(memory), ..Slot::default() },
                Err(error) => {
                    let suffices = self.arena.refuse(slot);
                    if !(error.is_full() && suffices) {
                        failed = Err(error);
                    }
                }
            }
        }
        failed
    }

    /// Returns the arena of host memory, which decides what stays there of the slabs that the device lacks.
    pub fn host_arena(&self) -> &Arena {
        self.host.arena()
    }

    /// Checks both arenas by [`Arena::check_invariants`], and what connects them with the memory.
    ///
    /// # Errors
    /// Fails with a description of what does not agree.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.host.arena().check_invariants().map_err(|problem| format!("experts in host memory: {problem}"))?;
        self.arena.check_invariants().map_err(|problem| format!("experts on the device: {problem}"))?;
        for (class, slots) in self.slots.iter().enumerate() {
            let (class, counted) = (class as u32, self.arena.slot_count(class as u32));
            let is_live = |index: usize| self.arena.is_live(SlabSlot { class, index: index as u32 });
            let have_memory = slots.iter().filter(|slot| slot.memory.is_some()).count();
            if have_memory as u64 != counted
                || (0..slots.len()).any(|slot| is_live(slot) != slots[slot].memory.is_some())
            {
                return Err(format!("{have_memory} slots of class {class} have memory, {counted} are counted"));
            }
        }
        match self.reading.iter().find(|(expert, _)| !self.host.is_visited(expert.number)) {
            Some((expert, _)) => Err(format!("expert {} may leave host memory while it is copied", expert.number)),
            None => Ok(()),
        }
    }

    fn end_visit(&mut self) {
        if self.layer.take().is_some() {
            self.arena.end_visit();
        }
        self.ready.clear();
        self.missing = 0;
    }

    fn slot(&mut self, slab: SlabId) -> &mut Slot {
        let SlabSlot { class, index } = self.arena.slot_of(slab).expect("what is ready is on the device");
        &mut self.slots[class as usize][index as usize]
    }

    fn hand_out(&mut self, slab: SlabId) -> Expert {
        let Slot { matrices, copied, .. } = self.slot(slab);
        Expert { number: slab.expert, matrices: matrices.clone(), copied: *copied }
    }

    /// Releases the slabs whose copies are known to be done.
    fn end_copies(&mut self, device: &mut dyn Device, recorder: &mut Recorder) -> Result<(), DeviceError> {
        while let Some(&(_, token)) = self.reading.front()
            && device.is_complete(token)?
        {
            self.end_oldest_copy(device, recorder)?;
        }
        Ok(())
    }

    /// Waits for the copy that was submitted first, and releases its slab in host memory. Returns false if no copy is
    /// known to be under way.
    fn end_oldest_copy(&mut self, device: &mut dyn Device, recorder: &mut Recorder) -> Result<bool, DeviceError> {
        let Some((expert, token)) = self.reading.pop_front() else { return Ok(false) };
        self.host.release(expert, device, Some(token), recorder)?;
        Ok(true)
    }

    /// Brings the next lacking expert to host memory. If copies read all the memory that it could be read into, the
    /// oldest copies are waited for.
    fn next_on_host(&mut self, device: &mut dyn Device, recorder: &mut Recorder) -> Result<Expert, WeightError> {
        self.end_copies(device, recorder)?;
        while self.host.lacks_room() {
            let start = Instant::now();
            if !self.end_oldest_copy(device, recorder)? {
                break;
            }
            recorder.stats.waits_for_copies += 1;
            recorder.stall(self.group().unwrap_or_default(), start, Instant::now());
        }
        let next = self.host.next_expert(device, recorder)?;
        Ok(next.expect("the driver of host memory brings each expert once"))
    }

    /// Copies an expert of the visit that is in host memory to the device.
    fn bring(
        &mut self,
        layer: u32,
        expert: Expert,
        device: &mut dyn Device,
        recorder: &mut Recorder,
    ) -> Result<Expert, WeightError> {
        let slab = SlabId { layer, expert: expert.number };
        let Some(placement) = self.arena.place(slab.expert) else {
            // More experts are held than there are slots.
            self.host.release(expert, device, None, recorder)?;
            return Err(WeightError::Stuck { group: self.banks[layer as usize].group as u32 });
        };
        let SlabSlot { class, index } = placement.slot;
        let slot = &mut self.slots[class as usize][index as usize];
        let place = &self.banks[layer as usize].slabs[slab.expert as usize];
        let (mut in_place, mut submitted) = slot.copy(&expert, &place.packed().0, device);
        for _ in 1..COPY_ATTEMPTS {
            if submitted.is_err() {
                let again = slot.copy(&expert, &place.packed().0, device);
                (in_place, submitted) = (in_place | again.0, again.1);
            }
        }
        let reading = slot.copied.filter(|_| in_place);
        match &submitted {
            Ok(()) => self.arena.loaded(slab, placement.ticket),
            Err(_) => self.arena.failed(slab, placement.ticket),
        };
        match reading {
            Some(token) if submitted.is_ok() => self.reading.push_back((expert, token)),
            // All of it was read, or the rest will not be.
            reading => self.host.release(expert, device, reading, recorder)?,
        }
        submitted?;
        recorder.stats.bytes_copied += place.bytes;
        Ok(self.hand_out(slab))
    }
}

impl SlabDriver for DeviceExperts {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn holds(&self, group: usize, expert: u32) -> bool {
        let on_device = |layer| self.arena.slot_of(SlabId { layer, expert }).is_some();
        layer_of(&self.banks, group).is_some_and(on_device) || self.host.holds(group, expert)
    }

    fn group(&self) -> Option<u32> {
        self.layer.map(|layer| self.banks[layer as usize].group as u32)
    }

    fn visit(
        &mut self,
        group: usize,
        wanted: &[(u32, u32)],
        device: &mut dyn Device,
        recorder: &mut Recorder,
    ) -> Result<(), DeviceError> {
        self.end_visit();
        // The device has computed the last visit, or this one's router could not have chosen.
        while self.end_oldest_copy(device, recorder)? {}
        let layer = layer_of(&self.banks, group).expect("a group with experts");
        self.arena.begin_visit(layer, wanted);
        self.layer = Some(layer);
        self.ready.extend(self.arena.hits());
        let misses = self.arena.misses();
        self.lacking.clear();
        self.lacking.extend(wanted.iter().filter(|(expert, _)| misses.binary_search(expert).is_ok()));
        self.missing = self.lacking.len();
        recorder.stats.experts_wanted += self.ready.len() as u64;
        self.host.visit(group, &self.lacking, device, recorder)
    }

    fn next_expert(&mut self, device: &mut dyn Device, recorder: &mut Recorder) -> Result<Option<Expert>, WeightError> {
        let Some(layer) = self.layer else { return Ok(None) };
        if let Some(expert) = self.ready.pop_front() {
            return Ok(Some(self.hand_out(SlabId { layer, expert })));
        }
        if self.missing == 0 {
            // The visit to host memory goes on, since copies may still read what it holds.
            self.end_visit();
            return Ok(None);
        }
        self.missing -= 1;
        let next = self.next_on_host(device, recorder);
        let next = next.and_then(|expert| self.bring(layer, expert, device, recorder));
        if next.is_err() {
            self.abandon();
        }
        next.map(Some)
    }

    fn release(
        &mut self,
        expert: Expert,
        _device: &mut dyn Device,
        used: Option<Token>,
        _recorder: &mut Recorder,
    ) -> Result<(), DeviceError> {
        // A failed pass has abandoned the visit, and with it what it held.
        if let Some(layer) = self.layer {
            let slot = self.slot(SlabId { layer, expert: expert.number });
            slot.used = used.or(slot.used);
            self.arena.release(expert.number);
        }
        Ok(())
    }

    fn abandon(&mut self) {
        // A visit that came to its end may have left copies, which the next visit ends.
        if self.layer.is_some() {
            self.end_visit();
            // The device keeps the memory that copies still read, and other memory takes its place.
            self.reading.clear();
            self.host.abandon();
        }
    }

    fn poll(&mut self, device: &mut dyn Device, recorder: &mut Recorder) {
        self.host.poll(device, recorder);
        // Of a copy that failed, whoever computes with the expert is told.
        let _ = self.end_copies(device, recorder);
    }

    fn beside(&self) -> u64 {
        self.host.arena().bytes()
    }

    fn is_loading(&self) -> bool {
        self.host.is_loading()
    }

    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WeightError> {
        self.abandon();
        let SlotChanges { added, withdrawn } = self.arena.set_budget(bytes)?;
        for (SlabSlot { class, index }, _) in withdrawn {
            // Whatever still copies to it or computes with it keeps the memory until that is done.
            self.slots[class as usize][index as usize] = Slot::default();
        }
        Ok(self.take_memory(&added, device)?)
    }

    fn settle(&mut self, recorder: &mut Recorder) {
        self.host.settle(recorder);
    }
}

impl Slot {
    /// Submits copies of an expert that is in host memory, each of whose matrices gets one of `ranges` of the slot's
    /// memory. Also returns whether copies read host memory in place.
    fn copy(
        &mut self,
        expert: &Expert,
        ranges: &[Range<usize>],
        device: &mut dyn Device,
    ) -> (bool, Result<(), DeviceError>) {
        let mut in_place = false;
        self.matrices.clear();
        let memory = self.memory.as_ref().expect("the arena places slabs in slots that have memory");
        for (matrix, to) in expert.matrices.iter().zip(ranges) {
            let (PlacedBytes::Host(from), range) = matrix.place() else {
                unreachable!("the driver of host memory brings experts there")
            };
            in_place |= device.share(from);
            for at in (0..range.len()).step_by(COPY_BYTES) {
                let len = COPY_BYTES.min(range.len() - at);
                let piece = range.start + at..range.start + at + len;
                let copy = Command::CopyWeights { from, range: piece, to: memory, at: to.start + at };
                match device.submit(Queue::Upload, &[copy], self.used.as_slice()) {
                    Ok(token) => self.copied = Some(token),
                    Err(error) => return (in_place, Err(error)),
                }
            }
            let (dtype, memory) = (matrix.dtype(), memory.clone());
            self.matrices.push(Weights::new(dtype, matrix.rows(), matrix.cols(), memory, to.clone()));
        }
        (in_place, Ok(()))
    }
}

/// Returns the number of the mixture layer that a group is; `None` if the group has no experts.
fn layer_of(banks: &[ExpertBank], group: usize) -> Option<u32> {
    banks.binary_search_by_key(&group, |bank| bank.group).ok().map(|layer| layer as u32)
}
