//! Starts the streaming of weights: opens files, and loads what stays in memory.

use std::sync::Arc;

use interbed_device::{Device, HostBuffer, PlacedBytes};
use interbed_io::{DirectFile, DirectRead, EngineKind, IoError, RandomAccessFile, ReadEngine};

use super::buffer::StreamBuffer;
use super::device_experts::DeviceExperts;
use super::driver::{Driver, OneTier};
use super::expert_driver::ExpertDriver;
use super::plan::{StreamConfig, StreamPlan};
use super::rows::RowReader;
use super::telemetry::Recorder;
use super::tiered::TieredDriver;
use super::valued::Valued;
use super::{StreamedWeights, TieredWeights};
use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::experts::Arena;
use crate::partition::Partition;
use crate::window::UnitId;

/// Opens a catalog's files for direct reads.
///
/// # Errors
/// Fails if a file cannot be opened, or has changed since the catalog read its header.
pub fn open_direct(catalog: &Catalog) -> Result<Vec<Arc<dyn DirectRead>>, WeightError> {
    let open = |file: &Arc<dyn RandomAccessFile>| -> Result<Arc<dyn DirectRead>, WeightError> {
        let direct = DirectFile::open(file.path())?;
        if let Some(known) = file.identity()
            && let Some(change) = known.change_to(direct.identity())
        {
            return Err(IoError::Changed { path: file.path().to_owned(), change }.into());
        }
        Ok(Arc::new(direct))
    };
    let opened = catalog.stored_files().iter().map(open).collect::<Result<_, _>>()?;
    Ok(catalog.with_rearranged(opened))
}

/// Parts that all kinds of streamed weights have, made before their driver starts.
struct Parts {
    plan: StreamPlan,
    slots: usize,
    vectors: HostBuffer,
    rows: Option<RowReader>,
    engine: Box<dyn ReadEngine<StreamBuffer>>,
    recorder: Recorder,
}

impl Parts {
    fn new(plan: StreamPlan, catalog: &Catalog, config: &StreamConfig) -> Result<Self, WeightError> {
        catalog.check_streamable()?;
        let slots = plan.slots(config);
        let engine = start_engine(config, config.depth)?;
        let partition = &plan.partition;
        let rows = partition.row_bytes().map(RowReader::new).transpose()?;
        let mut vectors = HostBuffer::new_zeroed(partition.vector_bytes())?;
        for vector in partition.vectors() {
            let bytes = &mut vectors.as_mut_slice()[vector.range.clone()];
            catalog.files()[vector.file].read_exact_at(bytes, vector.offset)?;
        }
        let recorder = Recorder::new(config.timeline, config.disk_bytes_per_s);
        Ok(Self { plan, slots, vectors, rows, engine, recorder })
    }
}

impl StreamedWeights {
    /// Reads all vectors, and the bands that stay in memory. `files` are the catalog's files, in the catalog's order.
    /// Calls `progress` as bands arrive. The first argument is the number of bytes of bands read so far, and the second
    /// is the number of bytes to read in total.
    ///
    /// # Errors
    /// Fails if the budget is below [`Partition::least_budget`], if a read fails, or if memory cannot be allocated.
    pub fn start(
        plan: StreamPlan,
        catalog: &Catalog,
        files: Vec<Arc<dyn DirectRead>>,
        config: StreamConfig,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WeightError> {
        let window = plan.window(&config)?;
        let (files, config) = hashed(catalog, files, config);
        let Parts { plan, slots, vectors, rows, engine, recorder } = Parts::new(plan, catalog, &config)?;
        let (partition, to_load) = (plan.partition, window.resident_bytes());
        let experts = start_experts(&partition, partition.divide(config.budget).1, &files, &config)?;
        let (places, groups) = (partition.bands().to_vec(), partition.groups_of_bands());
        let mut driver = Driver::new(OneTier::new(window), engine, files.clone(), places, groups, recorder);
        progress(0, to_load);
        driver.warm_up(&mut |bytes| progress(bytes.min(to_load), to_load))?;
        let vectors = PlacedBytes::from(Arc::new(vectors));
        Ok(Self::over(partition, [vectors.clone(), vectors], rows, files, driver, experts, slots))
    }
}

/// Wraps `files` so that their bytes are hashed as they are read, if the catalog has anything left to hash. In that
/// case the reads are done by threads, which hash what they have read: if the kernel read on its own, the thread that
/// computes the pass would have to hash.
fn hashed(
    catalog: &Catalog,
    files: Vec<Arc<dyn DirectRead>>,
    config: StreamConfig,
) -> (Vec<Arc<dyn DirectRead>>, StreamConfig) {
    match catalog.hashed_direct(&files) {
        Some(files) => (files, StreamConfig { engine: EngineKind::Pread, ..config }),
        None => (files, config),
    }
}

/// Minimum number of reads of experts that may be in flight. The configured depth comes from measurements with chunks
/// of some MiB, of which one or two at a time may be enough; the byte ranges of an expert are smaller.
const EXPERT_READS_MIN: usize = 4;

/// Starts the driver that brings experts to `budget` bytes of host memory; returns `None` if the model has no experts.
fn start_experts(
    partition: &Partition,
    budget: u64,
    files: &[Arc<dyn DirectRead>],
    config: &StreamConfig,
) -> Result<Option<ExpertDriver>, WeightError> {
    let Some((classes, shape)) = partition.experts() else { return Ok(None) };
    let arena = Arena::new(shape.clone(), budget)?;
    let engine = start_engine(config, config.depth.max(EXPERT_READS_MIN))?;
    Ok(Some(ExpertDriver::new(arena, engine, files.to_vec(), partition.banks().to_vec(), classes)))
}

fn start_engine(config: &StreamConfig, depth: usize) -> Result<Box<dyn ReadEngine<StreamBuffer>>, WeightError> {
    let engine = config.engine.start(depth)?;
    Ok(match &config.turns {
        Some(turns) => turns.first(engine),
        None => engine,
    })
}

impl TieredWeights {
    /// Reads the vectors and the bands that stay in host memory, and copies to the device the vectors and the bands
    /// that stay there. Experts get what bands leave of both memories. [`StreamedWeights::start`] explains `files` and
    /// `progress`.
    ///
    /// `config.budget` is the budget for host memory. It may be so small that host memory holds only the slots, which
    /// are the buffers through which bands are streamed. `device_budget` is the number of bytes of device memory that
    /// the weights may take, vectors included.
    ///
    /// # Errors
    /// Fails if a budget is below [`Partition::least_budget`], if a read fails, or if the system or the device refuses
    /// memory.
    pub fn start_on(
        device: &mut dyn Device,
        device_budget: u64,
        plan: StreamPlan,
        catalog: &Catalog,
        files: Vec<Arc<dyn DirectRead>>,
        config: StreamConfig,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WeightError> {
        let (files, config) = hashed(catalog, files, config);
        let [(on_host, host_experts), (on_device, device_experts)] = plan.divide(&config, device_budget);
        let (tiers, slots) = (plan.tiers(&config, [on_host, on_device])?, plan.device_slots(on_device));
        let Parts { plan, rows, vectors, engine, recorder, .. } = Parts::new(plan, catalog, &config)?;
        let partition = plan.partition;
        let experts = start_experts(&partition, host_experts, &files, &config)?;
        let to_load = tiers.host().resident_bytes() + tiers.device().resident_bytes();
        let (places, groups) = (partition.bands().to_vec(), partition.groups_of_bands());
        let host = Driver::new(tiers, engine, files.clone(), places.clone(), groups, recorder);
        let vectors = Arc::new(vectors);
        let vectors = [device.place(&vectors)?, PlacedBytes::from(vectors)];
        let host_tokens_max = if device.computes_on_host() { config.host_tokens_max } else { 0 };
        let mut driver = TieredDriver::new(host, places, host_tokens_max);
        progress(0, to_load);
        driver.warm_up(device, &mut |bytes| progress(bytes.min(to_load), to_load))?;
        // Bands have their memory by now, and come first where the device has less than it was said to have.
        let experts = experts.map(|host| DeviceExperts::new(host, &partition, device, device_experts)).transpose()?;
        let mut weights = Self::over(partition, vectors, rows, files, driver, experts, slots);
        weights.valued = Valued::new(config.link_bytes_per_s);
        Ok(weights)
    }

    /// Returns the arena of host memory, which decides what stays there of the experts that the device lacks; `None` if
    /// the model has no experts.
    pub fn host_arena(&self) -> Option<&Arena> {
        self.experts.as_ref().map(DeviceExperts::host_arena)
    }

    /// Checks the planners of both memories. The check looks at all bands and experts, so it is for tests.
    ///
    /// # Errors
    /// Fails with a description of what does not agree.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.driver.tiers().check_invariants()?;
        self.experts.as_ref().map_or(Ok(()), DeviceExperts::check_invariants)
    }

    /// Returns two totals in bytes: the size of the bands that stay on the device, and the size of the bands that stay
    /// only in host memory.
    pub fn resident_bytes(&self) -> [u64; 2] {
        let tiers = self.driver.tiers();
        let on_device = |band| tiers.device().is_resident(UnitId(band));
        let on_host = |band| tiers.host().is_resident(UnitId(band)) && !on_device(band);
        [self.partition.bytes_where(on_device), self.partition.bytes_where(on_host)]
    }
}
