//! Weights that are larger than memory: read band by band while the forward pass computes (W1, W7, W13).
//!
//! `layout.rs` cuts matrices into bands, the window decides which of them stay and which pass through, `driver.rs` moves
//! them. What a band computes does not depend on the others, so results are those of weights in memory to the bit.

mod buffer;
mod driver;
mod layout;
mod memory;
mod plan;
mod rows;
mod telemetry;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrayvec::ArrayVec;
use strata_device::HostBuffer;
use strata_io::{DirectFile, DirectRead, IoError, RandomAccessFile};

use crate::band::Band;
use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::group::TensorView;
use crate::source::{BANDS_MAX, GroupGuard, GroupHolder, UseRows, WeightSource};
use crate::window::UnitId;
use driver::Driver;
use layout::{Layout, Tensor};
use plan::BANDS_STREAMED;
use rows::{RowMatrix, RowReader};
use telemetry::Recorder;

pub use layout::{VECTOR_ALIGN, rows_of_band};
pub use memory::StreamMemory;
pub use plan::{SLOTS_LEAST, StreamConfig, StreamPlan, StreamPolicy};
pub use rows::row_reader_memory;
pub use telemetry::{EVENTS_MAX, EventKind, StreamEvent, StreamStats};

/// Opens a catalog's files for direct reads.
///
/// # Errors
/// A file that cannot be opened, or is not the one any more whose header the catalog has read.
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
    catalog.files().iter().map(open).collect()
}

/// Weights of which some are in memory, and the rest come from disk in every pass.
pub struct StreamedWeights {
    layout: Layout,
    vectors: Arc<HostBuffer>,
    rows: Option<Mutex<RowReader>>,
    files: Vec<Arc<dyn DirectRead>>,
    /// The forward pass has it for as long as it takes to find or await bands.
    driver: Mutex<Driver>,
    /// Copied out of the driver whenever bands were released, so that reading it waits for nobody.
    stats: Mutex<StreamStats>,
    /// When the bands at hand were handed out.
    computing_since: Mutex<Option<Instant>>,
    /// Streamed bands that one filling takes, at most.
    bands_streamed: usize,
    stopped: AtomicBool,
}

impl StreamedWeights {
    /// Reads vectors and what is to stay; `progress(bytes read, bytes in all)` is called as they come. `files` are those
    /// of the catalog, in its order.
    ///
    /// # Errors
    /// A budget below [`StreamPlan::least_budget`], a failed read, memory that the system refuses.
    pub fn start(
        plan: StreamPlan,
        catalog: &Catalog,
        files: Vec<Arc<dyn DirectRead>>,
        config: StreamConfig,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WeightError> {
        let slots = plan.slots(&config);
        let window = plan.window(&config)?;
        let engine = config.engine.start(config.depth)?;
        let rows = plan.layout.row_bytes().map(RowReader::new).transpose()?.map(Mutex::new);
        let layout = plan.layout;
        let mut vectors = HostBuffer::new_zeroed(layout.vector_bytes)?;
        for vector in &layout.vectors {
            let bytes = &mut vectors.as_mut_slice()[vector.range.clone()];
            catalog.files()[vector.file].read_exact_at(bytes, vector.offset)?;
        }
        let mut groups = Vec::with_capacity(layout.bands.len());
        for (index, group) in layout.groups.iter().enumerate() {
            groups.extend(group.bands.clone().map(|_| index as u32));
        }
        let recorder = Recorder::new(config.timeline, config.disk_bytes_per_s);
        let to_load = window.resident_bytes();
        let mut driver = Driver::new(window, engine, files.clone(), layout.bands.clone(), groups, recorder);
        progress(0, to_load);
        driver.warm_up(&mut |bytes| progress(bytes.min(to_load), to_load))?;
        let stats = Mutex::new(driver.recorder.stats);
        Ok(Self {
            layout,
            vectors: Arc::new(vectors),
            rows,
            files,
            driver: Mutex::new(driver),
            stats,
            computing_since: Mutex::new(None),
            bands_streamed: BANDS_STREAMED.min(slots / 2).max(1),
            stopped: AtomicBool::new(false),
        })
    }

    /// Bytes of weights that stay in memory: `M` of `bounds.md`.
    pub fn resident_bytes(&self) -> u64 {
        let driver = lock(&self.driver);
        self.layout.bytes_where(|band| driver.window().is_resident(band))
    }

    /// Bytes of weights that a pass sweeps: `W` of `bounds.md`.
    pub fn swept_bytes(&self) -> u64 {
        self.layout.swept_bytes
    }

    /// What happened so far. Waits for nobody who computes.
    pub fn stats(&self) -> StreamStats {
        *lock(&self.stats)
    }

    /// Makes a pass under way, and every later one, fail at its next group: a pass may take long, and who ends the program
    /// does not want to wait for it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits until what is read ahead has come; for measurements.
    pub fn settle(&self) {
        let mut driver = lock(&self.driver);
        driver.settle();
        self.publish(&driver);
    }

    /// Lets others see the figures.
    fn publish(&self, driver: &Driver) {
        *lock(&self.stats) = driver.recorder.stats;
    }

    /// What happened since the last call, if a timeline is kept.
    pub fn take_events(&self) -> Vec<StreamEvent> {
        lock(&self.driver).recorder.take_events()
    }

    /// The name of a group, for people.
    pub fn group_name(&self, group: u32) -> &str {
        self.layout.groups.get(group as usize).map_or("", |group| &group.name)
    }

    /// Takes the bands of one turn into `bands`. On failure, those of the turn that were taken are given back.
    fn take_turn(
        &self,
        driver: &mut Driver,
        group: usize,
        turn: usize,
        tensors: &[usize],
        bands: &mut ArrayVec<Band, BANDS_MAX>,
    ) -> Result<(), WeightError> {
        let taken = bands.len();
        let turn = &self.layout.groups[group].turns[turn];
        for &(tensor, unit) in &turn.bands {
            let buffer = match driver.acquire(unit) {
                Ok(buffer) => buffer,
                Err(error) => {
                    bands.drain(taken..).for_each(|band| give_back(driver, band));
                    return Err(error);
                }
            };
            let (Tensor::Swept { cols, dtype, .. }, place) =
                (&self.layout.groups[group].tensors[tensor], self.layout.bands[unit as usize])
            else {
                unreachable!("turns are of matrices that are swept")
            };
            let matrix = tensors.iter().position(|&swept| swept == tensor);
            bands.push(Band {
                matrix: matrix.expect("a sweep takes all matrices that are swept side by side"),
                rows: turn.rows.clone(),
                cols: *cols,
                dtype: *dtype,
                buffer,
                range: place.skip..place.needed(),
                unit,
            });
        }
        Ok(())
    }

    /// The turns of the group that a sweep over `tensors` goes through.
    fn turns(&self, group: usize, tensors: &[usize]) -> std::ops::Range<usize> {
        let turns = |tensor: &usize| match &self.layout.groups[group].tensors[*tensor] {
            Tensor::Swept { turns, .. } => turns.clone(),
            Tensor::Vector { .. } | Tensor::Rows { .. } => 0..0,
        };
        let first = tensors.first().map_or(0, |tensor| turns(tensor).start);
        first..tensors.last().map_or(0, |tensor| turns(tensor).end)
    }
}

impl WeightSource for StreamedWeights {
    fn num_groups(&self) -> usize {
        self.layout.groups.len()
    }

    fn acquire(&self, group: usize) -> Result<GroupGuard<'_>, WeightError> {
        let num_groups = self.num_groups();
        if group >= num_groups {
            return Err(WeightError::NoSuchGroup { group, num_groups });
        }
        if self.stopped.load(Ordering::Relaxed) {
            return Err(WeightError::Stopped);
        }
        if group == 0 {
            let mut driver = lock(&self.driver);
            driver.check_files()?;
            driver.recorder.stats.passes += 1;
        }
        Ok(GroupGuard::new(self, group))
    }

    fn end_pass(&self) -> Result<(), WeightError> {
        // Files that changed in mid-pass may have been read before and after.
        Ok(lock(&self.driver).check_files()?)
    }
}

impl GroupHolder for StreamedWeights {
    fn num_tensors(&self, group: usize) -> usize {
        self.layout.groups[group].tensors.len()
    }

    fn tensor(&self, group: usize, index: usize) -> TensorView<'_> {
        match &self.layout.groups[group].tensors[index] {
            Tensor::Vector { dtype, shape, range } => {
                TensorView { dtype: *dtype, shape, bytes: &self.vectors.as_slice()[range.clone()] }
            }
            Tensor::Swept { .. } | Tensor::Rows { .. } => unreachable!("a streamed matrix is never at hand whole"),
        }
    }

    fn shape(&self, group: usize, index: usize) -> (usize, usize) {
        match &self.layout.groups[group].tensors[index] {
            Tensor::Swept { rows, cols, .. } | Tensor::Rows { rows, cols, .. } => (*rows, *cols),
            Tensor::Vector { .. } => unreachable!("a vector is no matrix"),
        }
    }

    fn next_bands(
        &self,
        group: usize,
        tensors: &[usize],
        cursor: &mut usize,
        bands: &mut ArrayVec<Band, BANDS_MAX>,
    ) -> Result<(), WeightError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(WeightError::Stopped);
        }
        let turns = self.turns(group, tensors);
        let mut driver = lock(&self.driver);
        driver.poll();
        let mut streamed = 0;
        for turn in turns.start + *cursor..turns.end {
            let units = &self.layout.groups[group].turns[turn].bands;
            streamed += units.iter().filter(|(_, unit)| !driver.window().is_resident(UnitId(*unit))).count();
            if !bands.is_empty() {
                // Beyond the first turn, only what is there anyway.
                let room = bands.len() + units.len() <= BANDS_MAX && streamed <= self.bands_streamed;
                if !room || !units.iter().all(|&(_, unit)| driver.is_ready(unit)) {
                    break;
                }
            }
            if let Err(error) = self.take_turn(&mut driver, group, turn, tensors, bands) {
                bands.drain(..).for_each(|band| give_back(&mut driver, band));
                self.publish(&driver);
                return Err(error);
            }
            *cursor += 1;
        }
        *lock(&self.computing_since) = (!bands.is_empty()).then(Instant::now);
        Ok(())
    }

    fn release_bands(&self, group: usize, bands: &mut ArrayVec<Band, BANDS_MAX>) {
        let mut driver = lock(&self.driver);
        if let Some(start) = lock(&self.computing_since).take() {
            driver.recorder.compute(group as u32, start, Instant::now());
        }
        bands.drain(..).for_each(|band| give_back(&mut driver, band));
        driver.poll();
        self.publish(&driver);
    }

    fn with_rows(
        &self,
        group: usize,
        index: usize,
        wanted: &[u32],
        use_rows: &mut UseRows<'_>,
    ) -> Result<(), WeightError> {
        let (Tensor::Rows { rows, cols, dtype, file, offset, row_bytes }, Some(reader)) =
            (&self.layout.groups[group].tensors[index], &self.rows)
        else {
            unreachable!("rows are read of matrices that the spec says so of")
        };
        let (file, offset) = (Arc::clone(&self.files[*file]), *offset);
        let matrix = RowMatrix { file, offset, rows: *rows, cols: *cols, dtype: *dtype, row_bytes: *row_bytes };
        let mut reader = lock(reader);
        let (before, failed_before, begin) = (reader.bytes_read, reader.reads_failed, Instant::now());
        let outcome = reader.with_rows(&matrix, wanted, use_rows);
        let end = Instant::now();
        // What is done with rows takes no time beside reading them.
        let mut driver = lock(&self.driver);
        driver.recorder.read(group as u32, reader.bytes_read - before, begin, end);
        driver.recorder.stall(group as u32, begin, end);
        driver.recorder.stats.reads_failed += reader.reads_failed - failed_before;
        self.publish(&driver);
        outcome
    }

    fn release(&self, _group: usize) {
        // Bands are released one by one.
    }
}

/// Releases a band. Its memory must be the driver's alone by then, for the window may want it back.
fn give_back(driver: &mut Driver, band: Band) {
    let unit = band.unit;
    drop(band);
    driver.release(unit);
}

/// Panics while one of these is held end the engine's thread, and with it everybody who uses them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
