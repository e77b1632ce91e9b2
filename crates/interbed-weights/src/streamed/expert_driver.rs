//! Drives experts: carries out what the arena decides, and knows which memory holds which slab.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use interbed_device::{Device, DeviceError, HostBuffer, PlacedBytes, Token, Weights};
use interbed_io::{DirectRead, ReadDone, ReadEngine, ReadRequest};

use super::buffer::StreamBuffer;
use super::slab_driver::SlabDriver;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::experts::{Arena, Foresight, Placement, SlabId, SlabSlot, UNDER_WAY_MAX};
use crate::partition::{ExpertBank, ExpertClasses, Pieces, SlabMatrix};
use crate::source::{EXPERT_MATRICES_MAX, Expert};

/// Maximum number of times that a slab's reads are tried before the pass fails.
const LOAD_ATTEMPTS: u32 = 3;

/// Maximum number of bytes of slots that are allocated at a time.
const ROW_BYTES: usize = 256 << 20;

/// Number of reads in flight below which slabs are read ahead (a slab takes up to three reads). At this number, reads
/// ahead delay a visit's own reads little, and the disk does not run idle.
const READS_BEFORE_AHEAD: usize = 4;

/// Reads slabs into slots, and hands out each slab once it is in memory. A slab is the weights of one expert of one
/// layer.
pub struct ExpertDriver {
    arena: Arena,
    foresight: Foresight,
    /// Whether guesses are read ahead.
    reads_ahead: bool,
    engine: Box<dyn ReadEngine<StreamBuffer>>,
    files: Vec<Arc<dyn DirectRead>>,
    banks: Vec<ExpertBank>, // one for each mixture layer
    /// Sizes of a slot's buffers in bytes, for each class of slots.
    pieces: Vec<Pieces>,
    /// Memory of the slots of each class.
    slots: Vec<Vec<Slot>>,
    /// Loads whose reads are in flight, by ticket.
    loads: HashMap<u64, Load>,
    /// Mixture layer that the visit is for; `None` if there is no visit.
    layer: Option<u32>,
    /// Experts of the visit that are in memory and have not been handed out.
    ready: VecDeque<u32>,
    /// Experts of the visit that have no slot yet.
    unplaced: VecDeque<u32>,
    /// Experts of the visit that were placed and have not been released.
    under_way: ArrayVec<u32, UNDER_WAY_MAX>,
    /// Number of experts of the visit that are being read.
    coming: usize,
    /// Error of an expert of the visit that could not be read.
    failure: Option<WeightError>,
}

/// Memory of a slot. A buffer is `None` while it is read into.
#[derive(Default)]
struct Slot(ArrayVec<Option<Arc<HostBuffer>>, EXPERT_MATRICES_MAX>);

struct Load {
    placement: Placement,
    /// Number of reads of the load that have not ended.
    reading: usize,
    attempts: u32,
    failure: Option<WeightError>,
}

impl ExpertDriver {
    /// Creates a driver with no slab in memory. `classes` are the size classes of the slabs.
    pub fn new(
        arena: Arena,
        engine: Box<dyn ReadEngine<StreamBuffer>>,
        files: Vec<Arc<dyn DirectRead>>,
        banks: Vec<ExpertBank>,
        classes: &ExpertClasses,
    ) -> Self {
        let pieces = arena.shape().class_bytes().iter().map(|&bytes| classes.pieces_of(bytes)).collect::<Vec<_>>();
        let slots = pieces.iter().map(|_| Vec::new()).collect();
        // A pass allocates nothing once slots have memory.
        let experts = arena.shape().experts();
        Self {
            foresight: Foresight::new(arena.shape()),
            reads_ahead: true,
            arena,
            engine,
            files,
            banks,
            pieces,
            slots,
            loads: HashMap::with_capacity(2 * experts),
            layer: None,
            ready: VecDeque::with_capacity(experts),
            unplaced: VecDeque::with_capacity(experts),
            under_way: ArrayVec::new(),
            coming: 0,
            failure: None,
        }
    }

    /// Returns whether experts of the visit wait for slots while none of the visit's experts is ready or being read. A
    /// release ends that, or the end of a read for an earlier visit.
    pub fn lacks_room(&self) -> bool {
        self.ready.is_empty() && self.coming == 0 && !self.unplaced.is_empty()
    }

    /// Returns whether an expert is of the visit and in memory.
    pub fn is_visited(&self, expert: u32) -> bool {
        let in_memory = |layer| self.arena.slot_of(SlabId { layer, expert }).is_some();
        self.arena.is_wanted(expert) && self.layer.is_some_and(in_memory)
    }

    fn end_visit(&mut self) {
        if self.layer.take().is_some() {
            self.arena.end_visit();
        }
        self.ready.clear();
        self.unplaced.clear();
        self.under_way.clear();
        (self.coming, self.failure) = (0, None);
    }

    /// Takes in the reads that have ended.
    fn take_all(&mut self, recorder: &mut Recorder) {
        while let Some(done) = self.engine.poll() {
            self.take(done, recorder);
        }
    }

    /// Finds slots for the experts of the visit that have none, while there are slots, and begins to read these
    /// experts.
    fn place(&mut self, recorder: &mut Recorder) {
        while !self.under_way.is_full()
            && let Some(&expert) = self.unplaced.front()
        {
            let Some(placement) = self.arena.place(expert) else { break };
            self.unplaced.pop_front();
            self.under_way.push(expert);
            self.coming += 1;
            recorder.stats.experts_read += 1;
            self.load(placement, 1, recorder);
        }
        self.read_ahead(recorder);
    }

    /// Begins to read what the next visit may want, if the present visit has begun all its reads and few reads are in
    /// flight.
    fn read_ahead(&mut self, recorder: &mut Recorder) {
        while self.unplaced.is_empty()
            && self.engine.in_flight() < READS_BEFORE_AHEAD
            && let Some((slab, likelihood)) = self.foresight.take()
        {
            if let Some(placement) = self.arena.may_prefetch(slab, likelihood) {
                recorder.stats.experts_ahead += 1;
                self.load(placement, 1, recorder);
            }
        }
    }

    /// Begins to read a slab into its slot.
    fn load(&mut self, placement: Placement, attempts: u32, recorder: &mut Recorder) {
        let Placement { slab, slot, ticket, .. } = placement;
        let mut load = Load { placement, reading: 0, attempts, failure: None };
        match self.buffers(slot) {
            Ok(buffers) => {
                let reads = &self.banks[slab.layer as usize].slabs[slab.expert as usize].reads;
                for (piece, (buffer, read)) in buffers.into_iter().zip(reads).enumerate() {
                    load.reading += 1;
                    self.engine.submit(ReadRequest {
                        tag: ticket * EXPERT_MATRICES_MAX as u64 + piece as u64,
                        file: Arc::clone(&self.files[read.file]),
                        offset: read.offset,
                        needed: read.needed,
                        len: read.memory(),
                        buffer,
                    });
                }
                self.loads.insert(ticket, load);
            }
            Err(error) => {
                load.failure = Some(error);
                load.attempts = LOAD_ATTEMPTS;
                self.ended(load, recorder);
            }
        }
    }

    /// Takes the memory of a slot, to be read into, and allocates it if the slot has none.
    fn buffers(&mut self, slot: SlabSlot) -> Result<ArrayVec<StreamBuffer, EXPERT_MATRICES_MAX>, WeightError> {
        if self.slots[slot.class as usize].get(slot.index as usize).is_none_or(|slot| slot.0.is_empty()) {
            self.allocate(slot)?;
        }
        let Slot(buffers) = &mut self.slots[slot.class as usize][slot.index as usize];
        let mut taken = ArrayVec::new();
        for (buffer, &bytes) in buffers.iter_mut().zip(&self.pieces[slot.class as usize]) {
            let own = buffer.take().and_then(StreamBuffer::reclaim);
            // A device that failed may still hold it; whoever released it was told so.
            taken.push(own.map_or_else(|| StreamBuffer::new(bytes), Ok)?);
        }
        Ok(taken)
    }

    /// Allocates memory for a slot, and for the slots behind it that have none. All of this memory lies side by side,
    /// and therefore in huge pages.
    fn allocate(&mut self, SlabSlot { class, index }: SlabSlot) -> Result<(), WeightError> {
        let (pieces, slots) = (&self.pieces[class as usize], &mut self.slots[class as usize]);
        let all = (self.arena.slot_count(class) as usize).max(index as usize + 1);
        slots.resize_with(slots.len().max(all), Slot::default);
        let bytes = pieces.iter().sum::<usize>().max(1);
        let is_bare =
            |&slot: &usize| slots[slot].0.is_empty() && self.arena.is_live(SlabSlot { class, index: slot as u32 });
        let row: Vec<usize> = (index as usize..all).take_while(is_bare).take((ROW_BYTES / bytes).max(1)).collect();
        // All of it, or none: a slot has all of its buffers.
        let of_pieces = pieces.iter().map(|&piece| StreamBuffer::new_row(piece, row.len()));
        for of_piece in of_pieces.collect::<Result<Vec<_>, _>>()? {
            for (&slot, buffer) in row.iter().zip(of_piece) {
                slots[slot].0.push(Some(buffer.share()));
            }
        }
        Ok(())
    }

    /// Takes in a read that has ended.
    fn take(&mut self, done: ReadDone<StreamBuffer>, recorder: &mut Recorder) {
        let (ticket, piece) = (done.tag / EXPERT_MATRICES_MAX as u64, done.tag as usize % EXPERT_MATRICES_MAX);
        let Some(load) = self.loads.get_mut(&ticket) else { return };
        let SlabSlot { class, index } = load.placement.slot;
        self.slots[class as usize][index as usize].0[piece] = Some(done.buffer.share());
        let SlabId { layer, expert } = load.placement.slab;
        let bank = &self.banks[layer as usize];
        match done.result {
            Ok(()) => {
                let bytes = bank.slabs[expert as usize].reads[piece].memory() as u64;
                recorder.read(bank.group as u32, bytes, done.started, done.finished);
                recorder.stats.expert_bytes_read += bytes;
            }
            Err(error) => {
                recorder.stats.reads_failed += 1;
                load.failure = Some(error.into());
            }
        }
        load.reading -= 1;
        if load.reading == 0 {
            let load = self.loads.remove(&ticket).expect("it was just there");
            self.ended(load, recorder);
        }
    }

    /// Ends a load of which all reads have ended: its slab is in memory, or is read once more, or cannot be read.
    fn ended(&mut self, load: Load, recorder: &mut Recorder) {
        let Load { placement, attempts, failure, .. } = load;
        let Placement { slab, ticket, .. } = placement;
        let is_wanted = self.layer == Some(slab.layer) && self.arena.is_wanted(slab.expert);
        match failure {
            None => {
                self.arena.loaded(slab, ticket);
                if is_wanted {
                    self.coming -= 1;
                    self.ready.push_back(slab.expert);
                }
            }
            Some(_) if attempts < LOAD_ATTEMPTS => self.load(placement, attempts + 1, recorder),
            Some(error) => {
                self.arena.failed(slab, ticket);
                if is_wanted {
                    self.coming -= 1;
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Returns the number of the mixture layer that a group is; `None` if the group has no experts.
    fn layer_of(&self, group: usize) -> Option<u32> {
        self.banks.binary_search_by_key(&group, |bank| bank.group).ok().map(|layer| layer as u32)
    }

    fn slot(&self, slot: SlabSlot) -> &Slot {
        &self.slots[slot.class as usize][slot.index as usize]
    }

    /// Returns a slab that is in memory as an expert to compute with.
    fn hand_out(&self, slab: SlabId) -> Expert {
        let slot = self.slot(self.arena.slot_of(slab).expect("what is ready is in memory"));
        let matrix = |matrix: &SlabMatrix| {
            let SlabMatrix { dtype, rows, cols, read, ref range } = *matrix;
            let memory = slot.0[read].as_ref().expect("what is in memory is not read into");
            Weights::new(dtype, rows, cols, PlacedBytes::from(Arc::clone(memory)), range.clone())
        };
        let slab_place = &self.banks[slab.layer as usize].slabs[slab.expert as usize];
        let matrices = slab_place.matrices.iter().map(matrix).collect();
        Expert { number: slab.expert, matrices, copied: None }
    }
}

impl SlabDriver for ExpertDriver {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn holds(&self, group: usize, expert: u32) -> bool {
        self.layer_of(group).is_some_and(|layer| self.arena.slot_of(SlabId { layer, expert }).is_some())
    }

    fn group(&self) -> Option<u32> {
        self.layer.map(|layer| self.banks[layer as usize].group as u32)
    }

    fn visit(
        &mut self,
        group: usize,
        wanted: &[(u32, u32)],
        _device: &mut dyn Device,
        recorder: &mut Recorder,
    ) -> Result<(), DeviceError> {
        self.end_visit();
        let layer = self.layer_of(group).expect("a group with experts");
        self.take_all(recorder);
        self.arena.begin_visit(layer, wanted);
        if self.reads_ahead {
            self.foresight.came(layer, wanted, self.arena.lacking());
        }
        self.layer = Some(layer);
        recorder.stats.experts_wanted += wanted.len() as u64;
        recorder.stats.experts_arriving += self.arena.arriving().len() as u64;
        self.ready.extend(self.arena.hits());
        self.unplaced.extend(self.arena.misses());
        self.coming = self.arena.arriving().len();
        self.place(recorder);
        Ok(())
    }

    fn next_expert(
        &mut self,
        _device: &mut dyn Device,
        recorder: &mut Recorder,
    ) -> Result<Option<Expert>, WeightError> {
        let Some(layer) = self.layer else { return Ok(None) };
        let group = self.banks[layer as usize].group as u32;
        loop {
            self.take_all(recorder);
            // Reads for an earlier visit may have held the slots until now.
            self.place(recorder);
            if let Some(error) = self.failure.take() {
                self.abandon();
                return Err(error);
            }
            if let Some(number) = self.ready.pop_front() {
                return Ok(Some(self.hand_out(SlabId { layer, expert: number })));
            }
            if self.coming == 0 && self.unplaced.is_empty() {
                self.end_visit();
                return Ok(None);
            }
            let start = Instant::now();
            let Some(done) = self.engine.wait() else {
                // All slots are held by someone, and nothing is coming.
                self.abandon();
                return Err(WeightError::Stuck { group });
            };
            self.take(done, recorder);
            recorder.stall(group, start, Instant::now());
        }
    }

    fn release(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
        recorder: &mut Recorder,
    ) -> Result<(), DeviceError> {
        let completed = used.map_or(Ok(()), |token| device.complete(token));
        let number = expert.number;
        drop(expert);
        // A failed pass has abandoned the visit, and with it what it held.
        let Some(layer) = self.layer else { return completed };
        let slot = self.arena.slot_of(SlabId { layer, expert: number }).expect("what was handed out is in memory");
        let is_alone = self.slot(slot).0.iter().flatten().all(|buffer| Arc::strong_count(buffer) == 1);
        self.arena.release(number);
        self.under_way.retain(|&mut placed| placed != number);
        completed?;
        self.place(recorder);
        if is_alone { Ok(()) } else { Err(DeviceError::WeightsInUse) }
    }

    fn abandon(&mut self) {
        self.end_visit();
        self.foresight.forget();
    }

    fn poll(&mut self, _device: &mut dyn Device, recorder: &mut Recorder) {
        self.take_all(recorder);
        self.read_ahead(recorder);
    }

    fn is_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    fn set_budget(&mut self, bytes: u64, _device: &mut dyn Device) -> Result<(), WeightError> {
        self.abandon();
        let changes = self.arena.set_budget(bytes)?;
        for (slot, _) in changes.withdrawn {
            if let Some(slot) = self.slots[slot.class as usize].get_mut(slot.index as usize) {
                slot.0.clear();
            }
        }
        Ok(())
    }

    fn settle(&mut self, recorder: &mut Recorder) {
        while let Some(done) = self.engine.wait() {
            self.take(done, recorder);
        }
    }

    fn set_reads_ahead(&mut self, reads_ahead: bool) {
        self.reads_ahead = reads_ahead;
        self.foresight.forget();
    }

    fn looks_ahead(&mut self, group: usize) -> bool {
        self.reads_ahead && self.layer_of(group).is_some_and(|layer| self.foresight.should_guess(layer))
    }

    fn guess(&mut self, group: usize, guesses: &[(u32, u32)], recorder: &mut Recorder) {
        let of_later = |layer: &u32| self.reads_ahead && self.layer != Some(*layer);
        let Some(layer) = self.layer_of(group).filter(of_later) else { return };
        self.foresight.guess(layer, guesses);
        self.read_ahead(recorder);
    }

    fn forget_guesses(&mut self) {
        self.foresight.forget();
    }
}
