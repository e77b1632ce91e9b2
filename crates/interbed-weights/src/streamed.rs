//! Streams weights that are larger than memory: reads them band by band while the forward pass computes.
//!
//! `partition.rs` cuts matrices into bands (runs of rows). The window decides which bands stay in memory and which only
//! pass through, and `driver.rs` moves the bands. No band's results depend on another band, so results equal those of
//! resident weights bit for bit.

mod band_driver;
mod buffer;
mod device_experts;
mod driver;
mod elastic;
mod expert_driver;
mod monitor;
mod pace;
mod plan;
mod rows;
mod sight;
mod slab_driver;
mod start;
mod telemetry;
mod tiered;
mod valued;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use interbed_device::{Device, DeviceError, PlacedBytes, Token, Weights};
use interbed_io::DirectRead;

use crate::error::WeightError;
use crate::experts::Arena;
use crate::partition::{Group, Partition, StoredAt, TensorPlace};
use crate::source::{BANDS_MAX, Band, Bands, ElasticWeights, Expert, Rows, Sweep, TensorId, WeightSource};
use band_driver::{AcquiredBand, BandDriver};
use driver::Driver;
use plan::BANDS_STREAMED;
use rows::{RowMatrix, RowReader};
use slab_driver::SlabDriver;
use tiered::TieredDriver;
use valued::Valued;

pub use monitor::StreamMonitor;
pub use pace::WatchPace;
pub use plan::{StreamConfig, StreamPlan, StreamPolicy};
pub use sight::{GroupShape, Presence, UnitSight, WindowSight};
pub use start::open_direct;
pub use telemetry::{EVENTS_MAX, EventKind, StreamEvent, StreamStats};

/// Weights that are partly kept in host memory. Forward passes read the rest from disk.
pub type StreamedWeights = BandwiseWeights<Driver>;

/// Weights in three tiers. One part stays in device memory. One part stays in host memory: forward passes copy it to
/// the device, or let the host compute with it. The rest is read from disk in every forward pass.
pub type TieredWeights = BandwiseWeights<TieredDriver>;

/// Weights that a driver of type `D` brings band by band.
pub struct BandwiseWeights<D: BandDriver> {
    partition: Partition,
    /// All vectors: first the memory in which the device reads them, then the memory in which the host reads them.
    vectors: [PlacedBytes; 2],
    rows: Option<RowReader>,
    files: Vec<Arc<dyn DirectRead>>,
    driver: D,
    /// Driver that brings experts; `None` if the model has no experts.
    experts: Option<D::Experts>,
    /// Group of the bands that were handed out last, and when they were handed out; `None` once they are released.
    computing_since: Option<(usize, Instant)>,
    /// When the last expert was handed out; `None` once it is released.
    expert_since: Option<Instant>,
    /// The most streamed bands that one call of `bands` takes.
    bands_streamed: usize,
    monitor: Arc<StreamMonitor>,
    /// Memory into which the places of all bands are written before they are shown to watchers.
    sight: WindowSight,
    pace: WatchPace,
    valued: Valued,
}

impl<D: BandDriver> BandwiseWeights<D> {
    fn over(
        partition: Partition,
        vectors: [PlacedBytes; 2],
        rows: Option<RowReader>,
        files: Vec<Arc<dyn DirectRead>>,
        driver: D,
        experts: Option<D::Experts>,
        slots: usize,
    ) -> Self {
        let shape = |group: &Group| {
            let bands = &partition.bands()[group.bands.start as usize..group.bands.end as usize];
            let bytes = bands.iter().map(|band| band.bytes as u64).sum();
            GroupShape { name: group.name.clone(), units: bands.len(), bytes }
        };
        let groups = partition.groups().iter().map(shape).collect();
        let monitor = Arc::new(StreamMonitor::new(groups, partition.swept_bytes()));
        let bands_streamed = BANDS_STREAMED.min(slots / 2).max(1);
        let mut weights = Self {
            partition,
            vectors,
            rows,
            files,
            driver,
            experts,
            computing_since: None,
            expert_since: None,
            bands_streamed,
            monitor,
            sight: WindowSight::default(),
            pace: WatchPace::default(),
            valued: Valued::default(),
        };
        weights.publish();
        weights
    }

    /// Returns the arena, which says which experts are in memory and what bringing experts has cost; `None` if the
    /// model has no experts. Where a device has its own memory, it is the arena of that memory.
    pub fn arena(&self) -> Option<&Arena> {
        self.experts.as_ref().map(SlabDriver::arena)
    }

    /// Returns the arena for changes, such as warming it by the uses of earlier runs; `None` if the model has no
    /// experts.
    pub fn arena_mut(&mut self) -> Option<&mut Arena> {
        self.experts.as_mut().map(SlabDriver::arena_mut)
    }

    /// Returns the monitor, through which other threads read about these weights while passes are computed.
    pub fn monitor(&self) -> Arc<StreamMonitor> {
        Arc::clone(&self.monitor)
    }

    fn vector_in(&self, TensorId { group, index }: TensorId, memory: &PlacedBytes) -> Weights {
        let TensorPlace::Vector { dtype, len, ref range } = self.partition.groups()[group].tensors[index] else {
            unreachable!("a matrix that is streamed is never at hand whole")
        };
        Weights::new(dtype, 1, len, memory.clone(), range.clone())
    }

    /// Publishes the statistics and events to the monitor.
    fn publish(&mut self) {
        let recorder = self.driver.recorder();
        self.monitor.publish(recorder.stats, recorder.take_events());
    }

    /// Publishes the place of each band, if anybody watches and the last publication is long enough ago. The call costs
    /// nothing while nobody watches.
    fn show_in_passing(&mut self) {
        if self.monitor.is_watched() && self.pace.is_due(Instant::now()) {
            self.show_now();
        }
    }

    fn show_now(&mut self) {
        let begin = Instant::now();
        let Self { driver, partition, sight, monitor, pace, .. } = self;
        sight.units.clear();
        (sight.host_bytes, sight.device_bytes) = (0, 0);
        for (band, place) in (0..).zip(partition.bands()) {
            let unit = driver.sight(band);
            sight.units.push(unit);
            sight.host_bytes += if unit.is_on_host() { place.bytes as u64 } else { 0 };
            sight.device_bytes += if unit.is_on_device() { place.bytes as u64 } else { 0 };
        }
        monitor.show(sight);
        pace.note(begin, Instant::now());
    }

    /// Takes the bands of one turn into `bands`. On failure, the caller must release the bands already taken.
    fn take_turn(
        &mut self,
        device: &mut dyn Device,
        (group, turn): (usize, usize),
        sweep: &Sweep,
        bands: &mut Bands,
    ) -> Result<(), WeightError> {
        let group = &self.partition.groups()[group];
        let turn = &group.turns[turn];
        for &(tensor, unit) in &turn.bands {
            let TensorPlace::Swept { dtype, cols, .. } = group.tensors[tensor] else {
                unreachable!("turns are of matrices that are swept")
            };
            let AcquiredBand { memory, range, copied, queue } = self.driver.acquire(unit, device)?;
            let matrix = sweep.tensors().iter().position(|swept| swept.index == tensor);
            bands.push(Band {
                matrix: matrix.expect("a sweep takes all matrices that are swept side by side"),
                rows: turn.rows.clone(),
                weights: Weights::new(dtype, turn.rows.len(), cols, memory, range),
                copied,
                queue,
                unit,
            });
        }
        Ok(())
    }

    /// Returns the range of its group's turns that a sweep goes through.
    fn turns(&self, sweep: &Sweep) -> Range<usize> {
        let turns = |tensor: &TensorId| match &self.partition.groups()[tensor.group].tensors[tensor.index] {
            TensorPlace::Swept { turns, .. } => turns.clone(),
            TensorPlace::Vector { .. } | TensorPlace::Rows { .. } | TensorPlace::OfExpert { .. } => 0..0,
        };
        let first = sweep.tensors().first().map_or(0, |tensor| turns(tensor).start);
        first..sweep.tensors().last().map_or(0, |tensor| turns(tensor).end)
    }
}

impl<D: BandDriver> WeightSource for BandwiseWeights<D> {
    fn begin_pass(&mut self, tokens: usize) -> Result<(), WeightError> {
        self.monitor.check_running()?;
        self.driver.check_files()?;
        if let Some(experts) = &mut self.experts {
            experts.abandon();
        }
        self.driver.begin_pass(tokens);
        self.driver.recorder().stats.passes += 1;
        Ok(())
    }

    fn vector(&self, tensor: TensorId) -> Weights {
        self.vector_in(tensor, &self.vectors[0])
    }

    fn computes_on_host(&self) -> bool {
        self.driver.computes_on_host()
    }

    fn vector_on_host(&self, tensor: TensorId) -> Weights {
        self.vector_in(tensor, &self.vectors[1])
    }

    fn bands(&mut self, device: &mut dyn Device, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError> {
        self.monitor.check_running()?;
        let Some(group) = sweep.tensors().first().map(|tensor| tensor.group) else { return Ok(()) };
        let turns = self.turns(sweep);
        self.driver.poll(device);
        if let Some(experts) = &mut self.experts {
            experts.poll(device, self.driver.recorder());
        }
        let mut streamed = 0;
        for turn in turns.start + sweep.cursor..turns.end {
            let units = &self.partition.groups()[group].turns[turn].bands;
            streamed += units.iter().filter(|(_, unit)| !self.driver.is_resident(*unit)).count();
            if !bands.is_empty() {
                // Beyond the first turn, take only bands that are present already.
                let room = bands.len() + units.len() <= BANDS_MAX && streamed <= self.bands_streamed;
                if !room || !units.iter().all(|&(_, unit)| self.driver.is_ready(unit)) {
                    break;
                }
            }
            if let Err(error) = self.take_turn(device, (group, turn), sweep, bands) {
                // What the device says of that matters less.
                let _ = self.driver.release(bands, device, None);
                self.publish();
                return Err(error);
            }
            sweep.cursor += 1;
        }
        self.computing_since = (!bands.is_empty()).then(|| (group, Instant::now()));
        // Now what is about to be computed with is in use, and what comes after it is on its way.
        self.show_in_passing();
        Ok(())
    }

    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError> {
        let released = self.driver.release(bands, device, used);
        if let Some((group, start)) = self.computing_since.take() {
            self.driver.recorder().compute(group as u32, start, Instant::now());
        }
        self.driver.poll(device);
        self.publish();
        released
    }

    fn rows<'a>(&mut self, TensorId { group, index }: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError> {
        self.monitor.check_running()?;
        let (&TensorPlace::Rows { at, rows, cols, row_bytes }, Some(reader)) =
            (&self.partition.groups()[group].tensors[index], &mut self.rows)
        else {
            unreachable!("rows are read of matrices that the spec says so of")
        };
        let StoredAt { dtype, file, offset } = at;
        let matrix = RowMatrix { file: Arc::clone(&self.files[file]), offset, rows, cols, dtype, row_bytes };
        let (before, failed_before, begin) = (reader.bytes_read, reader.reads_failed, Instant::now());
        let outcome = reader.read(&matrix, wanted);
        let end = Instant::now();
        self.driver.recorder().read(group as u32, reader.bytes_read - before, begin, end);
        self.driver.recorder().stall(group as u32, begin, end);
        self.driver.recorder().stats.reads_failed += reader.reads_failed - failed_before;
        self.publish();
        outcome
    }

    fn holds_expert(&self, group: usize, expert: u32) -> bool {
        self.experts.as_ref().is_some_and(|experts| experts.holds(group, expert))
    }

    fn visit(&mut self, device: &mut dyn Device, group: usize, wanted: &[(u32, u32)]) -> Result<(), WeightError> {
        self.monitor.check_running()?;
        let Self { experts, driver, .. } = self;
        Ok(experts.as_mut().expect("a group with experts").visit(group, wanted, device, driver.recorder())?)
    }

    fn next_expert(&mut self, device: &mut dyn Device) -> Result<Option<Expert>, WeightError> {
        self.monitor.check_running()?;
        let Self { experts, driver, .. } = self;
        let next = experts.as_mut().expect("a group with experts").next_expert(device, driver.recorder());
        self.expert_since = matches!(next, Ok(Some(_))).then(Instant::now);
        if self.expert_since.is_none() {
            // The visit is over.
            self.publish();
        }
        next
    }

    fn release_expert(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
    ) -> Result<(), DeviceError> {
        let Self { experts, driver, .. } = self;
        let experts = experts.as_mut().expect("a group with experts");
        let group = experts.group();
        let released = experts.release(expert, device, used, driver.recorder());
        if let (Some(start), Some(group)) = (self.expert_since.take(), group) {
            let end = Instant::now();
            driver.recorder().compute(group, start, end);
            driver.recorder().stats.expert_compute += end - start;
        }
        released
    }

    fn looks_ahead(&mut self, group: usize) -> bool {
        self.experts.as_mut().is_some_and(|experts| experts.looks_ahead(group))
    }

    fn out_of_turn(&self, tensor: TensorId, bands: &mut Bands) {
        let group = &self.partition.groups()[tensor.group];
        let TensorPlace::Swept { dtype, cols, ref turns, .. } = group.tensors[tensor.index] else { return };
        for turn in &group.turns[turns.clone()] {
            let of_tensor = turn.bands.iter().find(|(index, _)| *index == tensor.index);
            let resident = of_tensor.and_then(|&(_, unit)| Some((unit, self.driver.resident(unit)?)));
            let Some((unit, AcquiredBand { memory, range, copied, queue })) = resident.filter(|_| !bands.is_full())
            else {
                return bands.clear();
            };
            let weights = Weights::new(dtype, turn.rows.len(), cols, memory, range);
            bands.push(Band { matrix: 0, rows: turn.rows.clone(), weights, copied, queue, unit });
        }
    }

    fn guess(&mut self, group: usize, guesses: &[(u32, u32)]) {
        if let Some(experts) = &mut self.experts {
            experts.guess(group, guesses, self.driver.recorder());
        }
    }

    fn end_pass(&mut self) -> Result<(), WeightError> {
        if let Some(experts) = &mut self.experts {
            experts.forget_guesses();
            self.monitor.publish_counts(experts.arena());
        }
        // If files changed in mid-pass, some of what was read may be old and some new.
        Ok(self.driver.check_files()?)
    }

    fn elastic(&mut self) -> Option<&mut dyn ElasticWeights> {
        Some(self)
    }

    fn show(&mut self) {
        self.show_now();
    }
}
