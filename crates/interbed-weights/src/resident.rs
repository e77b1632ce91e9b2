//! All weights in memory, loaded once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use interbed_device::{Device, DeviceError, HostBuffer, PlacedBytes, Queue, Token, Weights};
use interbed_io::RandomAccessFile;
use interbed_kernels::{DType, join_scales};

use crate::catalog::fp8::CODES;
use crate::catalog::{Catalog, CatalogEntry};
use crate::error::WeightError;
use crate::group::{Access, GroupSpec, TensorSpec};
use crate::safetensors::ElementType;
use crate::source::{Band, Bands, EXPERT_MATRICES_MAX, Expert, Rows, Sweep, TensorId, WeightSource};

/// Every tensor starts on a multiple of this many bytes: a cache line, and the widest vector.
const TENSOR_ALIGN: usize = 64;
/// Buffers are rounded up to a multiple of this many bytes.
const PAGE: usize = 4096;
/// One read, in bytes: large enough for full disk speed, small enough for smooth progress.
const CHUNK_BYTES: usize = 8 << 20;
/// Threads that read; more do not make a disk faster.
const READERS: usize = 4;
/// Files of at least this size are dropped from the page cache as they are read, so that the weights are in memory
/// once, not twice.
const DROP_CACHE_FROM: u64 = 64 << 20;

/// Weights that all stay in memory.
#[derive(Debug)]
pub struct ResidentWeights {
    plan: LoadPlan,
    buffers: Vec<PlacedBytes>, // one for each group
    /// Group that is being visited, and its experts that are yet to be handed out, the next one last.
    visited: (usize, Vec<u32>),
}

impl ResidentWeights {
    /// Checks every tensor against its spec, then loads them all. Calls `progress(bytes done, bytes in all)` on the
    /// caller's thread after each piece, and at least once.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or has an unsupported type, if memory cannot be allocated, or if
    /// a read fails.
    pub fn load(
        catalog: &Catalog,
        specs: &[GroupSpec],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WeightError> {
        let plan = LoadPlan::new(catalog, specs)?;
        let mut buffers =
            plan.buffer_bytes.iter().map(|&len| HostBuffer::new_zeroed(len)).collect::<Result<Vec<_>, _>>()?;
        let pieces = cut_into_pieces(&plan.loads, &mut buffers);
        read_pieces(catalog, pieces, progress)?;
        join_all(catalog, &plan.loads, &mut buffers)?;
        Ok(Self::over(plan, buffers.into_iter().map(|buffer| Arc::new(buffer).into()).collect()))
    }

    /// Loads the weights as [`load`](Self::load) does, but into the memory from which `device` reads fastest. If the
    /// device has its own memory, the groups are loaded one after another, so that host memory never holds more than
    /// one group.
    ///
    /// # Errors
    /// Fails in the cases of [`load`](Self::load), or if the device has no memory for the weights.
    pub fn load_on(
        device: &mut dyn Device,
        catalog: &Catalog,
        specs: &[GroupSpec],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WeightError> {
        if !device.has_own_memory() {
            return Self::load(catalog, specs, progress);
        }
        let plan = LoadPlan::new(catalog, specs)?;
        let (mut buffers, mut done, all) = (Vec::new(), 0, plan.bytes());
        progress(done, all);
        for (group, &len) in plan.buffer_bytes.iter().enumerate() {
            let own = plan.loads.iter().filter(|load| load.buffer == group);
            let loads: Vec<_> = own.map(|load| TensorLoad { buffer: 0, ..load.clone() }).collect();
            let mut buffer = [HostBuffer::new_zeroed(len)?];
            let pieces = cut_into_pieces(&loads, &mut buffer);
            read_pieces(catalog, pieces, &mut |read, _| progress(done + read, all))?;
            join_all(catalog, &loads, &mut buffer)?;
            let [buffer] = buffer;
            buffers.push(device.place(&Arc::new(buffer))?);
            done += len as u64;
        }
        progress(done, all);
        Ok(Self::over(plan, buffers))
    }

    fn over(plan: LoadPlan, buffers: Vec<PlacedBytes>) -> Self {
        Self { plan, buffers, visited: (0, Vec::new()) }
    }

    /// Returns the number of bytes of host memory that the largest group of `specs` takes while it is loaded.
    ///
    /// # Errors
    /// Fails in the cases of [`plan_bytes`].
    pub fn largest_group(catalog: &Catalog, specs: &[GroupSpec]) -> Result<u64, WeightError> {
        let plan = LoadPlan::new(catalog, specs)?;
        Ok(plan.buffer_bytes.iter().map(|&bytes| bytes as u64).max().unwrap_or(0))
    }

    /// Returns the number of bytes of memory that the weights take, rounding included.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }
}

/// Checks every tensor as [`ResidentWeights::load`] does, and returns the number of bytes of memory that loading will
/// take.
///
/// # Errors
/// Fails if a tensor is missing, has another shape or has an unsupported type.
pub fn plan_bytes(catalog: &Catalog, specs: &[GroupSpec]) -> Result<u64, WeightError> {
    LoadPlan::new(catalog, specs).map(|plan| plan.bytes())
}

impl ResidentWeights {
    /// Returns a whole tensor.
    fn whole(&self, TensorId { group, index }: TensorId) -> Weights {
        let Placed { dtype, ref shape, buffer, ref range } = self.plan.groups[group][index];
        let (rows, cols) = match *shape.as_slice() {
            [rows, cols] => (rows, cols),
            ref vector => (1, vector.iter().product()),
        };
        Weights::new(dtype, rows, cols, self.buffers[buffer].clone(), range.clone())
    }
}

impl WeightSource for ResidentWeights {
    fn vector(&self, tensor: TensorId) -> Weights {
        self.whole(tensor)
    }

    fn bands(&mut self, _device: &mut dyn Device, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError> {
        if std::mem::replace(&mut sweep.cursor, 1) == 0 {
            bands.extend(sweep.tensors().iter().enumerate().map(|(matrix, &tensor)| {
                let weights = self.whole(tensor);
                Band { matrix, rows: 0..weights.rows(), weights, copied: None, queue: Queue::Compute, unit: 0 }
            }));
        }
        Ok(())
    }

    fn release(
        &mut self,
        bands: &mut Bands,
        _device: &mut dyn Device,
        _used: Option<Token>,
    ) -> Result<(), DeviceError> {
        // The memory of resident weights is never read into again.
        bands.clear();
        Ok(())
    }

    fn rows<'a>(&mut self, tensor: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError> {
        Ok(Rows { table: self.whole(tensor), numbers: wanted })
    }

    fn visit(&mut self, _device: &mut dyn Device, group: usize, wanted: &[(u32, u32)]) -> Result<(), WeightError> {
        let (visited, experts) = &mut self.visited;
        *visited = group;
        experts.clear();
        experts.extend(wanted.iter().rev().map(|(expert, _)| expert));
        Ok(())
    }

    fn next_expert(&mut self, _device: &mut dyn Device) -> Result<Option<Expert>, WeightError> {
        let (group, experts) = &mut self.visited;
        let (group, Some(number)) = (*group, experts.pop()) else { return Ok(None) };
        let matrices = self.plan.experts[group].matrices_of(number);
        let matrices = matrices.map(|index| self.whole(TensorId { group, index })).collect();
        Ok(Some(Expert { number, matrices, copied: None }))
    }

    fn release_expert(
        &mut self,
        _expert: Expert,
        _device: &mut dyn Device,
        _used: Option<Token>,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Positions in a group's spec of the matrices of its experts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExpertTensors {
    /// Index of the first matrix of an expert.
    first: usize,
    /// Number of matrices of each expert.
    each: usize,
}

impl ExpertTensors {
    /// Returns the positions of the experts' matrices in `spec`; there are none if the group has no experts.
    ///
    /// # Panics
    /// Panics if the experts do not come one after another, each with the same number of matrices. Specs come from
    /// Interbed's code rather than from files, so this would be a bug.
    pub fn of(spec: &GroupSpec) -> Self {
        let expert_of = |tensor: &TensorSpec| match tensor.access {
            Access::Expert { number, .. } => Some(number as usize),
            _ => None,
        };
        let Some(first) = spec.tensors.iter().position(|tensor| expert_of(tensor).is_some()) else {
            return Self::default();
        };
        let of_experts = &spec.tensors[first..];
        let each = of_experts.iter().take_while(|tensor| expert_of(tensor) == Some(0)).count();
        assert!((1..=EXPERT_MATRICES_MAX).contains(&each) && of_experts.len().is_multiple_of(each));
        assert!(of_experts.iter().enumerate().all(|(index, tensor)| expert_of(tensor) == Some(index / each)));
        Self { first, each }
    }

    /// Returns the indices, in the group's spec, of one expert's matrices.
    pub fn matrices_of(&self, expert: u32) -> Range<usize> {
        let first = self.first + expert as usize * self.each;
        first..first + self.each
    }
}

/// Returns the tensor that a spec names, and its type.
///
/// # Errors
/// Fails if there is no such tensor, or if it has another shape or a type that is not supported.
pub(crate) fn checked<'c>(
    catalog: &'c Catalog,
    group: &GroupSpec,
    tensor: &TensorSpec,
) -> Result<(&'c CatalogEntry, DType), WeightError> {
    let name = || catalog.name_in_file(&tensor.name);
    let entry = catalog
        .get(&tensor.name)
        .ok_or_else(|| WeightError::MissingTensor { tensor: name(), group: group.name.clone() })?;
    if entry.shape != tensor.shape {
        return Err(WeightError::ShapeMismatch {
            tensor: name(),
            file: catalog.path_of(entry),
            expected: tensor.shape.clone(),
            found: entry.shape.clone(),
        });
    }
    let unsupported = |tensor: String, found: &str| {
        Err(WeightError::UnsupportedDType { tensor, file: catalog.path_of(entry), found: found.to_owned() })
    };
    match entry.element_type {
        // Norms and biases are read element by element; blocks are for matrices only.
        ElementType::Known(dtype) if tensor.shape.len() != 2 && !dtype.is_plain() => {
            unsupported(format!("{} (a vector, which must be F32, F16 or BF16)", name()), dtype.name())
        }
        ElementType::Known(dtype) => Ok((entry, dtype)),
        ref other if other.name() == CODES => {
            unsupported(name(), "F8_E4M3 without a weight_scale_inv of one number for each 128 rows and columns")
        }
        ref other => unsupported(name(), other.name()),
    }
}

/// Place of a tensor in memory.
#[derive(Debug, Clone)]
struct Placed {
    dtype: DType,
    shape: Vec<usize>,
    buffer: usize,
    range: Range<usize>,
}

/// A read of a tensor from a file into memory.
#[derive(Debug, Clone)]
struct TensorLoad {
    file: usize,
    offset: u64,
    buffer: usize,
    range: Range<usize>,
    /// Bytes of a row in the file: pieces end between two rows.
    row_bytes: usize,
    /// The matrix, if its scales are apart; the scales are joined to its rows once it is read.
    scaled: Option<CatalogEntry>,
}

/// Places of all tensors, decided before any memory is taken.
#[derive(Debug)]
struct LoadPlan {
    groups: Vec<Vec<Placed>>,
    loads: Vec<TensorLoad>, // ordered by (buffer, start)
    buffer_bytes: Vec<usize>,
    experts: Vec<ExpertTensors>, // one for each group
}

impl LoadPlan {
    fn new(catalog: &Catalog, specs: &[GroupSpec]) -> Result<Self, WeightError> {
        let mut plan =
            LoadPlan { groups: Vec::new(), loads: Vec::new(), buffer_bytes: Vec::new(), experts: Vec::new() };
        plan.experts.extend(specs.iter().map(ExpertTensors::of));
        let mut first_uses: HashMap<&str, Placed> = HashMap::new();
        let mut total = 0usize;
        for (buffer, spec) in specs.iter().enumerate() {
            let too_large = || WeightError::TooLarge { group: spec.name.clone() };
            let mut group = Vec::with_capacity(spec.tensors.len());
            let mut end = 0usize;
            for tensor in &spec.tensors {
                let (entry, dtype) = checked(catalog, spec, tensor)?;
                // A tied embedding appears in two groups; it is loaded for the first and shared with the second.
                if let Some(placed) = first_uses.get(tensor.name.as_str()) {
                    group.push(placed.clone());
                    continue;
                }
                let start = end.checked_next_multiple_of(TENSOR_ALIGN).ok_or_else(too_large)?;
                let len = held_bytes(entry, dtype).ok_or_else(too_large)?;
                end = start.checked_add(len).ok_or_else(too_large)?;
                let placed = Placed { dtype, shape: entry.shape.clone(), buffer, range: start..end };
                let (file, offset) = (entry.file, entry.offset);
                let scaled = entry.scales.is_some().then(|| entry.clone());
                let row_bytes = usize::try_from(entry.leaf_bytes()).map_err(|_| too_large())?;
                plan.loads.push(TensorLoad { file, offset, buffer, range: start..end, row_bytes, scaled });
                first_uses.insert(&tensor.name, placed.clone());
                group.push(placed);
            }
            let buffer_bytes = end.checked_next_multiple_of(PAGE).ok_or_else(too_large)?;
            total = total.checked_add(buffer_bytes).ok_or_else(too_large)?;
            plan.buffer_bytes.push(buffer_bytes);
            plan.groups.push(group);
        }
        Ok(plan)
    }

    fn bytes(&self) -> u64 {
        self.buffer_bytes.iter().map(|&bytes| bytes as u64).sum()
    }
}

/// One read: bytes of a file and where they go.
struct Piece<'a> {
    file: usize,
    offset: u64,
    target: &'a mut [u8],
}

/// Returns the bytes that a tensor takes in memory: as many as in its file, unless scales are to be joined to it.
fn held_bytes(entry: &CatalogEntry, dtype: DType) -> Option<usize> {
    match *entry.shape {
        [rows, cols] if entry.scales.is_some() => dtype.row_bytes(cols)?.checked_mul(rows),
        _ => usize::try_from(entry.bytes).ok(),
    }
}

/// Joins scales to the matrices whose files have them apart.
fn join_all(catalog: &Catalog, loads: &[TensorLoad], buffers: &mut [HostBuffer]) -> Result<(), WeightError> {
    for load in loads {
        let Some(entry) = &load.scaled else { continue };
        if let (Some(scales), &[_, cols]) = (catalog.read_scales(entry)?, entry.shape.as_slice()) {
            join_scales(&mut buffers[load.buffer].as_mut_slice()[load.range.clone()], cols, 0, &scales);
        }
    }
    Ok(())
}

/// Cuts loads into pieces, in the order in which they lie on disk; threads may read them in any order.
fn cut_into_pieces<'a>(loads: &[TensorLoad], buffers: &'a mut [HostBuffer]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut loads = loads.iter().peekable();
    for (buffer, memory) in buffers.iter_mut().enumerate() {
        let mut rest = memory.as_mut_slice();
        let mut position = 0;
        while let Some(load) = loads.next_if(|load| load.buffer == buffer) {
            let (_, after_gap) = std::mem::take(&mut rest).split_at_mut(load.range.start - position);
            let (target, after) = after_gap.split_at_mut(load.range.len());
            // Codes without scales go to the end, see `join_scales`.
            let codes = load.scaled.as_ref().map_or(target.len(), |entry| entry.bytes as usize);
            let target = &mut target[load.range.len() - codes..];
            (rest, position) = (after, load.range.end);
            let mut offset = load.offset;
            for chunk in target.chunks_mut((CHUNK_BYTES / load.row_bytes).max(1) * load.row_bytes) {
                let len = chunk.len() as u64;
                pieces.push(Piece { file: load.file, offset, target: chunk });
                offset += len;
            }
        }
    }
    pieces.sort_by_key(|piece| (piece.file, piece.offset));
    pieces
}

/// Reads all pieces on a few threads. The first failure stops the other threads and is returned.
fn read_pieces(
    catalog: &Catalog,
    pieces: Vec<Piece<'_>>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), WeightError> {
    let total: u64 = pieces.iter().map(|piece| piece.target.len() as u64).sum();
    let readers = READERS.min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    let mut done = 0;
    progress(done, total);
    std::thread::scope(|scope| {
        for _ in 0..readers {
            let (sender, queue, stop) = (sender.clone(), &queue, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // The lock is held only while the iterator advances, which cannot panic.
                    let Some(piece) = queue.lock().ok().and_then(|mut pieces| pieces.next()) else { break };
                    let outcome = read_piece(catalog.files()[piece.file].as_ref(), piece);
                    if outcome.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if sender.send(outcome).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for outcome in receiver {
            done += outcome?;
            progress(done, total);
        }
        Ok(())
    })
}

/// Fills one piece and returns its length in bytes.
fn read_piece(file: &dyn RandomAccessFile, piece: Piece<'_>) -> Result<u64, WeightError> {
    let len = piece.target.len() as u64;
    file.read_exact_at(piece.target, piece.offset)?;
    if file.len() >= DROP_CACHE_FROM {
        file.drop_cache(piece.offset..piece.offset.saturating_add(len));
    }
    Ok(len)
}
