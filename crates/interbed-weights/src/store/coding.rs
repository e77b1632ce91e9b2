//! Decides which matrices of a model a store codes, and codes their rows.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::thread;

use interbed_device::usable_cores;
use interbed_io::WriteTarget;
use interbed_kernels::{DType, encode_row, join_scales, patches_of};

use super::error::StoreProblem;
use super::format::{Head, read_unfinished};
use super::source::source;
use crate::catalog::{Catalog, CatalogEntry};
use crate::chunks::{Extent, for_each_chunk};
use crate::error::WeightError;
use crate::group::GroupSpec;
use crate::safetensors::ElementType;

/// Maximum fraction of its original bytes that a coded matrix may have; with more, decoding is not worth it.
const WORTH: (u64, u64) = (15, 16);

/// Names the bf16 matrices of a model that a packed store holds in coded (losslessly compressed) form.
#[derive(Debug, Clone, Default)]
pub struct Coding {
    /// Number of patches for which each row of a matrix has room, by the name of the matrix.
    patches: HashMap<String, u16>,
}

impl Coding {
    /// Returns a coding that names no matrices, so that none is coded.
    pub fn none() -> Self {
        Self::default()
    }

    /// Chooses which bf16 matrices of `specs` to code: those that become at least 1/16 shorter, so that decoding them
    /// is worth its cost. Reads all bf16 matrices of `specs` completely, since the row that needs the most patches
    /// (separately stored exponents) decides the row length of its coded matrix. Calls
    /// `watch(bytes done, bytes in all)` after each chunk.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or has an unknown type, or if a read fails. Fails with
    /// [`StoreProblem::Stopped`] if `watch` returns `Break`.
    pub fn measure(
        catalog: &Catalog,
        specs: &[GroupSpec],
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self, WeightError> {
        crate::plan_bytes(catalog, specs)?;
        let mut matrices: HashMap<&str, &CatalogEntry> = HashMap::new();
        for tensor in specs.iter().flat_map(|spec| &spec.tensors) {
            let entry = catalog.get(&tensor.name).filter(|entry| is_codable(entry));
            matrices.extend(entry.map(|entry| (tensor.name.as_str(), entry)));
        }
        let mut matrices: Vec<_> = matrices.into_iter().collect();
        matrices.sort_by_key(|(_, entry)| (entry.file, entry.offset));
        let extents: Vec<_> = matrices.iter().map(|(_, entry)| extent_of(entry)).collect();
        let files: Vec<_> = catalog.files().iter().map(|file| file.as_ref()).collect();
        let (mut done, total) = (0, extents.iter().map(|extent| extent.bytes).sum());
        let (mut rows, mut most) = (Rows::default(), vec![0usize; matrices.len()]);
        for_each_chunk(&files, &extents, |chunk| {
            let (extent, cols) = (chunk.extent, matrices[chunk.extent].1.shape[1]);
            let bytes = chunk.outcome?;
            rows.take(bytes, cols);
            most[extent] = most[extent].max(most_patches(rows.whole(), cols));
            done += chunk.bytes;
            match watch(done, total) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => {
                    let file = files[extents[extent].file].path().to_owned();
                    Err(WeightError::Store { file, problem: Box::new(StoreProblem::Stopped) })
                }
            }
        })?;
        let worth = matrices.iter().zip(most).filter_map(|((name, entry), most)| {
            let patches = u16::try_from(most).ok()?;
            let coded = DType::CodedBf16 { patches }.row_bytes(entry.shape[1])? as u64 * entry.shape[0] as u64;
            (coded * WORTH.1 <= entry.bytes * WORTH.0).then(|| ((*name).to_owned(), patches))
        });
        Ok(Self { patches: worth.collect() })
    }

    /// Chooses all matrices that [`Coding::measure`] may choose, with no room for patches. No coding makes the store
    /// smaller, so a plan with this coding tells the least room that the store needs.
    pub fn least(catalog: &Catalog, specs: &[GroupSpec]) -> Self {
        let tensors = specs.iter().flat_map(|spec| &spec.tensors);
        let codable = tensors.filter(|tensor| catalog.get(&tensor.name).is_some_and(is_codable));
        Self { patches: codable.map(|tensor| (tensor.name.clone(), 0)).collect() }
    }

    /// Returns the coding of an unfinished store that an interrupted run packed into `target` from the same source, so
    /// that the caller need not measure the source again. Returns `None` if there is no such store or if the store has
    /// no coded matrices.
    ///
    /// # Errors
    /// Fails if the source or the target cannot be read.
    pub fn left_in(target: &WriteTarget, catalog: &Catalog) -> Result<Option<Self>, WeightError> {
        let Ok(Head { manifest, .. }) = read_unfinished(&target.reader()?) else { return Ok(None) };
        let tensors = manifest.groups.iter().flat_map(|group| &group.tensors);
        let patches: HashMap<_, _> =
            tensors.filter_map(|tensor| Some((tensor.name.clone(), tensor.patches?))).collect();
        Ok((!patches.is_empty() && manifest.source == source(catalog)?).then_some(Self { patches }))
    }

    /// Returns the type in which the tensor `name` is stored, if it has type `dtype` in the model.
    pub(super) fn stored(&self, name: &str, dtype: DType) -> DType {
        let patches = self.patches.get(name).filter(|_| dtype == DType::BF16);
        patches.map_or(dtype, |&patches| DType::CodedBf16 { patches })
    }
}

/// Returns whether this is a matrix of bf16 whose rows can be cut into blocks of numbers.
fn is_codable(entry: &CatalogEntry) -> bool {
    let can_be = |cols| DType::CodedBf16 { patches: 0 }.row_bytes(cols).is_some();
    let known = entry.element_type == ElementType::Known(DType::BF16);
    known && matches!(*entry.shape, [rows, cols] if rows > 0 && cols > 0 && can_be(cols))
}

/// Returns where a tensor lies in its catalog's files.
pub(super) fn extent_of(entry: &CatalogEntry) -> Extent {
    Extent { file: entry.file, offset: entry.offset, bytes: entry.bytes }
}

/// Whole rows of a matrix whose bytes arrive in chunks.
#[derive(Debug, Default)]
struct Rows {
    /// Whole rows of the last chunk, then the begun row that follows them.
    numbers: Vec<u16>,
    whole: usize,
}

impl Rows {
    /// Takes the next chunk, which has whole numbers, as all chunks of a tensor have.
    fn take(&mut self, bytes: &[u8], cols: usize) {
        self.numbers.drain(..self.whole);
        self.numbers.extend(bytes.as_chunks().0.iter().map(|&bits| u16::from_le_bytes(bits)));
        self.whole = self.numbers.len() / cols * cols;
    }

    /// Returns the rows that the last chunk made whole.
    fn whole(&self) -> &[u16] {
        &self.numbers[..self.whole]
    }
}

/// Returns how many of `rows` rows each thread takes.
fn fair(rows: usize) -> usize {
    rows.div_ceil(usable_cores().get()).max(1)
}

/// Returns the number of patches of the row that needs the most.
fn most_patches(rows: &[u16], cols: usize) -> usize {
    thread::scope(|scope| {
        let shares = rows.chunks(fair(rows.len() / cols) * cols);
        let most = |share: &[u16]| share.chunks_exact(cols).map(patches_of).max().unwrap_or(0);
        let shares: Vec<_> = shares.map(|share| scope.spawn(move || most(share))).collect();
        shares.into_iter().map(joined).max().unwrap_or(0)
    })
}

/// Returns the result of a thread, and passes on a panic of the thread.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Joins scales to the rows of an FP8 matrix whose codes arrive in chunks.
#[derive(Debug)]
pub(super) struct Joiner {
    cols: usize,
    scales: Vec<f32>,
    /// Number of rows that are joined already.
    rows: usize,
    /// Codes of a begun row.
    begun: Vec<u8>,
    joined: Vec<u8>,
}

impl Joiner {
    /// Creates a joiner for rows of `cols` columns, at least one, and the scales of all blocks of the matrix.
    pub(super) fn new(cols: usize, scales: Vec<f32>) -> Self {
        Self { cols, scales, rows: 0, begun: Vec::new(), joined: Vec::new() }
    }

    /// Returns the rows that the next chunk makes whole, with their scales.
    pub(super) fn join(&mut self, bytes: &[u8]) -> &[u8] {
        self.begun.extend(bytes);
        let (cols, count) = (self.cols, self.begun.len() / self.cols);
        // The plan has checked that these sizes do not overflow.
        let row_bytes = DType::Fp8.row_bytes(cols).unwrap_or(0);
        self.joined.resize(count * row_bytes, 0);
        let codes = self.joined.len() - count * cols;
        self.joined[codes..].copy_from_slice(&self.begun[..count * cols]);
        join_scales(&mut self.joined, cols, self.rows, &self.scales);
        self.begun.drain(..count * cols);
        self.rows += count;
        &self.joined
    }
}

/// Codes a matrix whose bytes arrive in chunks.
#[derive(Debug)]
pub(super) struct Coder {
    cols: usize,
    patches: u16,
    rows: Rows,
    coded: Vec<u8>,
}

impl Coder {
    /// Creates a coder for rows of `cols` columns, which are whole blocks, with room for `patches` patches each.
    pub(super) fn new(cols: usize, patches: u16) -> Self {
        Self { cols, patches, rows: Rows::default(), coded: Vec::new() }
    }

    /// Returns the coded rows that the next chunk makes whole; `None` if one of them needs more patches than it has
    /// room for.
    pub(super) fn code(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        let Self { cols, patches, ref mut rows, ref mut coded } = *self;
        rows.take(bytes, cols);
        let count = rows.whole().len() / cols;
        // The plan has checked that these sizes do not overflow.
        let row_bytes = DType::CodedBf16 { patches }.row_bytes(cols).unwrap_or(0);
        coded.resize(count * row_bytes, 0);
        let code = |rows: &[u16], out: &mut [u8]| {
            let mut rows = rows.chunks_exact(cols).zip(out.chunks_exact_mut(row_bytes));
            rows.all(|(row, out)| encode_row(row, patches, out))
        };
        let fits = thread::scope(|scope| {
            let (rows, coded) =
                (rows.whole().chunks(fair(count) * cols), coded.chunks_mut((fair(count) * row_bytes).max(1)));
            let shares: Vec<_> = rows.zip(coded).map(|(rows, out)| scope.spawn(move || code(rows, out))).collect();
            shares.into_iter().map(joined).fold(true, |all, fits| all & fits)
        });
        fits.then_some(coded)
    }
}
