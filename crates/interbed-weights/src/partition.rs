//! A model cut into the pieces that passes read and compute with: every matrix is cut into bands, every vector is kept,
//! the embedding is read row by row, and each expert of a mixture is a slab. Pure arithmetic over shapes; streaming,
//! reports and plans all use it.

mod bank;

use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_io::DIRECT_ALIGN;
use interbed_kernels::DType;

use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::experts::ArenaShape;
use crate::group::{Access, GroupSpec, Role, TensorSpec};
use crate::resident::checked;
use crate::source::{EXPERT_MATRICES_MAX, SWEEP_MAX};
use bank::StoredMatrix;

pub use bank::{ExpertBank, ExpertClasses, Pieces, Slab, SlabMatrix, SlabRead};

/// Number of rows of a band is a multiple of this where possible: two threads then share a band evenly, in whole tiles
/// of the widest kernel.
const ROW_GRANULE: usize = 64;

/// Every vector starts on a multiple of this many bytes: a cache line.
const VECTOR_ALIGN: usize = 64;

/// Maximum number of bands of a model, enough for 64 TiB of weights in bands of 4 MiB. A limit is needed because sizes
/// come from files, and each band takes some memory.
const PARTITION_BANDS_MAX: usize = 1 << 24;

/// Maximum number of rows that streamed weights return from one call of
/// [`WeightSource::rows`](crate::WeightSource::rows).
pub const ROWS_AT_A_TIME: usize = 32;

/// Place of a tensor in the model's files, and its element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAt {
    /// Type in which the elements are stored.
    pub dtype: DType,
    /// Index of the file among the model's files.
    pub file: usize,
    /// Offset of the tensor's first byte in the file.
    pub offset: u64,
}

/// Divides the weights of a model into pieces for reading, and states where each piece lies in the files.
#[derive(Debug, Clone)]
pub struct Partition {
    groups: Vec<Group>,
    bands: Vec<BandPlace>,
    vectors: Vec<VectorPlace>,
    vector_bytes: usize,
    swept_bytes: u64,
    banks: Vec<ExpertBank>,
    /// Number of rows, and bytes of a row, of each matrix that is read row by row. These numbers are kept here because
    /// they are needed between steps, and a mixture has tens of thousands of tensors to search.
    row_matrices: Vec<(usize, usize)>,
    /// Sizes of the memory buffers (slots) that experts are read into; `None` if the model has no experts.
    experts: Option<(ExpertClasses, ArenaShape)>,
}

/// The tensors that one part of the forward pass needs together, such as the attention of a decoder layer, and how they
/// are read.
#[derive(Debug, Clone)]
pub struct Group {
    /// Name of the group, for display.
    pub name: String,
    /// Role of the group in the forward pass.
    pub role: Role,
    /// Index of the decoder layer, as in [`GroupSpec::layer`].
    pub layer: usize,
    /// Tensors of the group, in the order of its [`GroupSpec`].
    pub tensors: Vec<TensorPlace>,
    /// Steps in which a forward pass goes through the group's matrices, in order.
    pub turns: Vec<Turn>,
    /// Range of the group's bands in [`Partition::bands`].
    pub bands: Range<u32>,
}

/// Place of one tensor of a group. The variant says how the tensor is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorPlace {
    /// A vector, which is always in memory: it lies in the buffer that holds all vectors.
    Vector {
        /// Type in which the elements are stored.
        dtype: DType,
        /// Number of elements.
        len: usize,
        /// Range of the vector's bytes in the buffer that holds all vectors.
        range: Range<usize>,
    },
    /// A matrix that a forward pass reads from the first row to the last, one band (a run of rows) at a time.
    Swept {
        /// Type in which the elements are stored.
        dtype: DType,
        /// Number of rows of the whole matrix.
        rows: usize,
        /// Number of columns of the whole matrix.
        cols: usize,
        /// Indices in [`Group::turns`] of the steps that contain the matrix's bands.
        turns: Range<usize>,
    },
    /// A matrix of which single rows are read from the file.
    Rows {
        /// Place of the matrix in its file.
        at: StoredAt,
        /// Number of rows of the matrix.
        rows: usize,
        /// Number of columns of the matrix.
        cols: usize,
        /// Number of bytes of a row.
        row_bytes: usize,
    },
    /// A matrix of an expert, which is read together with the expert's other matrices. [`Partition::banks`] states
    /// where it lies.
    OfExpert {
        /// Type in which the elements are stored.
        dtype: DType,
        /// Number of rows of the matrix.
        rows: usize,
        /// Number of columns of the matrix.
        cols: usize,
    },
}

/// One step of a forward pass through a group. The step uses a band (a run of rows) of one matrix. If the same rows of
/// several matrices are needed together, it uses one band of each of these matrices.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Range of rows that each of the step's bands covers in its matrix.
    pub rows: Range<usize>,
    /// Bands of the step. Each entry is the index of the band's matrix in [`Group::tensors`] and the index of the band
    /// in [`Partition::bands`].
    pub bands: ArrayVec<(usize, u32), SWEEP_MAX>,
}

/// Place of a band (a run of a matrix's rows) in its file. A direct read must begin and end at aligned offsets, so it
/// may begin before the band's first byte and end after its last byte.
#[derive(Debug, Clone, Copy)]
pub struct BandPlace {
    /// Index of the file among the model's files.
    pub file: usize,
    /// Offset in the file at which the read begins, aligned for direct reads.
    pub offset: u64,
    /// Number of bytes between the start of the read and the band's first byte.
    pub skip: usize,
    /// Number of bytes of the band.
    pub bytes: usize,
    /// Number of weights in the band, each of which takes one multiply-add per token.
    pub parameters: u64,
}

impl BandPlace {
    /// Returns the number of bytes from the start of the read to the end of the band.
    pub fn needed(&self) -> usize {
        self.skip + self.bytes
    }

    /// Returns the number of bytes of the buffer that the band is read into, a multiple of the page size.
    pub fn memory(&self) -> usize {
        self.needed().next_multiple_of(DIRECT_ALIGN)
    }
}

/// Place of a vector in its file, and in the buffer that holds all vectors.
#[derive(Debug, Clone)]
pub struct VectorPlace {
    /// Index of the file among the model's files.
    pub file: usize,
    /// Offset of the vector's first byte in the file.
    pub offset: u64,
    /// Range of the vector's bytes in the buffer that holds all vectors.
    pub range: Range<usize>,
}

/// A part of the weights that is moved, kept in memory and computed with as a whole: a band (a run of a matrix's rows),
/// or all bands of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightUnit {
    /// Number of bytes of the weights.
    pub bytes: u64,
    /// Number of bytes of memory that the unit takes, in whole pages.
    pub memory: u64,
    /// Number of weights in the unit, each of which takes one multiply-add per token.
    pub parameters: u64,
    /// Index of the decoder layer, as in [`GroupSpec::layer`].
    pub layer: usize,
    /// Role of the unit's group in the forward pass.
    pub role: Role,
}

impl Partition {
    /// Minimum number of memory buffers (slots) for streaming, whether each holds a band or a whole group: two are
    /// filled while the forward pass computes with the other two.
    pub const SLOTS_LEAST: usize = 4;

    /// Checks every tensor against its spec, and cuts matrices into bands (runs of rows) of about `band_bytes` bytes.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or has an unsupported type. Also fails in the cases of
    /// [`Self::new`].
    pub fn of_catalog(catalog: &Catalog, specs: &[GroupSpec], band_bytes: usize) -> Result<Self, WeightError> {
        Self::new(specs, band_bytes, |group, tensor| {
            let (entry, dtype) = checked(catalog, group, tensor)?;
            Ok(StoredAt { dtype, file: entry.file, offset: entry.offset })
        })
    }

    /// Cuts the matrices of `specs` into bands (runs of rows) of about `band_bytes` bytes; `stored_at` says where and
    /// how each tensor is stored.
    ///
    /// # Errors
    /// Fails if `stored_at` fails, if sizes overflow, if there are too many bands, or if matrices that are read side by
    /// side ([`Access::SweepBeside`]) are too many or differ in their number of rows. Fails if the experts have sizes
    /// that [`ArenaShape::new`] does not accept.
    pub fn new(
        specs: &[GroupSpec],
        band_bytes: usize,
        stored_at: impl Fn(&GroupSpec, &TensorSpec) -> Result<StoredAt, WeightError>,
    ) -> Result<Self, WeightError> {
        let mut partition = Self {
            groups: Vec::new(),
            bands: Vec::new(),
            vectors: Vec::new(),
            vector_bytes: 0,
            swept_bytes: 0,
            banks: Vec::new(),
            row_matrices: Vec::new(),
            experts: None,
        };
        for spec in specs {
            let mut stored = Vec::with_capacity(spec.tensors.len());
            for tensor in &spec.tensors {
                stored.push(stored_at(spec, tensor)?);
            }
            partition.add_group(spec, &stored, band_bytes)?;
        }
        if !partition.banks.is_empty() {
            let classes = ExpertClasses::of(&partition.banks);
            let most = |of: fn(&ExpertBank) -> usize| partition.banks.iter().map(of).max().unwrap_or(0);
            let [experts, chosen] = [most(|bank| bank.slabs.len()), most(|bank| bank.chosen)];
            let shape = ArenaShape::new(classes.slot_bytes().to_vec(), experts, chosen)?;
            partition.experts = Some((classes, shape));
        }
        Ok(partition)
    }

    /// Returns all groups, in the order of the forward pass.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the places of all bands, in the order in which a forward pass needs them.
    pub fn bands(&self) -> &[BandPlace] {
        &self.bands
    }

    /// Returns the places of all vectors.
    pub fn vectors(&self) -> &[VectorPlace] {
        &self.vectors
    }

    /// Returns the banks of experts, one for each group that has experts, in the order of the forward pass.
    pub fn banks(&self) -> &[ExpertBank] {
        &self.banks
    }

    /// Returns the sizes of the memory buffers (slots) that experts are read into, and the shape of the arena that
    /// manages them; `None` if the model has no experts.
    pub fn experts(&self) -> Option<(&ExpertClasses, &ArenaShape)> {
        self.experts.as_ref().map(|(classes, shape)| (classes, shape))
    }

    /// Divides `budget`, in bytes, between bands and experts, and returns the number of bytes for each. First,
    /// [`fixed_bytes`](Self::fixed_bytes) is subtracted from the budget. Bands take precedence, since every forward
    /// pass needs all of them. Experts get the rest, at least [`ArenaShape::least_bytes`] and at most the size of all
    /// experts.
    pub fn divide(&self, budget: u64) -> (u64, u64) {
        self.divide_with(budget, self.band_memory())
    }

    /// Divides `budget` in the way of [`divide`](Self::divide) where bands can use at most `of_bands` bytes.
    pub fn divide_with(&self, budget: u64, of_bands: u64) -> (u64, u64) {
        let rest = budget.saturating_sub(self.fixed_bytes());
        let Some((_, shape)) = self.experts() else { return (rest, 0) };
        let of_experts = rest.saturating_sub(of_bands).max(shape.least_bytes()).min(shape.bank_bytes()).min(rest);
        (rest - of_experts, of_experts)
    }

    /// Returns the number of bytes of all experts' weights.
    pub fn expert_bytes(&self) -> u64 {
        self.banks.iter().map(ExpertBank::bytes).sum()
    }

    /// Returns the number of bytes of all vectors, padding included.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// Returns the number of bytes, as stored in the files, of the matrices that a forward pass reads from the first
    /// row to the last.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// Returns the element types of the matrices that a forward pass reads from the first row to the last, each type
    /// once.
    pub fn swept_types(&self) -> Vec<DType> {
        let mut types = Vec::new();
        for tensor in self.groups.iter().flat_map(|group| &group.tensors) {
            if let TensorPlace::Swept { dtype, .. } = tensor
                && !types.contains(dtype)
            {
                types.push(*dtype);
            }
        }
        types
    }

    /// Returns one unit for each band.
    pub fn units(&self) -> Vec<WeightUnit> {
        let of_group = |group: &Group| {
            let (layer, role) = (group.layer, group.role);
            self.bands_of(group).iter().map(move |band| WeightUnit {
                bytes: band.bytes as u64,
                memory: band.memory() as u64,
                parameters: band.parameters,
                layer,
                role,
            })
        };
        self.groups.iter().flat_map(of_group).collect()
    }

    /// Returns one unit for each group that has bands. The unit consists of all bands of the group.
    pub fn group_units(&self) -> Vec<WeightUnit> {
        let of_group = |group: &Group| {
            let bands = self.bands_of(group);
            let sum = |of: fn(&BandPlace) -> u64| bands.iter().map(of).sum();
            (!bands.is_empty()).then(|| WeightUnit {
                bytes: sum(|band| band.bytes as u64),
                memory: sum(|band| band.memory() as u64),
                parameters: sum(|band| band.parameters),
                layer: group.layer,
                role: group.role,
            })
        };
        self.groups.iter().filter_map(of_group).collect()
    }

    /// Returns, for each band, the index of its group.
    pub fn groups_of_bands(&self) -> Vec<u32> {
        self.of_bands(|index, _| index as u32)
    }

    /// Returns, for each band, the index of its decoder layer.
    pub fn layers_of_bands(&self) -> Vec<u32> {
        self.of_bands(|_, group| group.layer as u32)
    }

    /// Returns the number of bytes of memory that the largest band takes.
    pub fn largest_band(&self) -> usize {
        self.bands.iter().map(BandPlace::memory).max().unwrap_or(0)
    }

    /// Returns the total number of bytes of the bands for whose index `chosen` returns true.
    pub fn bytes_where(&self, chosen: impl Fn(u32) -> bool) -> u64 {
        let bands = self.bands.iter().enumerate();
        bands.filter(|(band, _)| chosen(*band as u32)).map(|(_, band)| band.bytes as u64).sum()
    }

    /// Returns the length in bytes of the longest row among the matrices of which single rows are read; `None` if there
    /// is no such matrix.
    pub fn row_bytes(&self) -> Option<usize> {
        self.row_matrices.iter().map(|&(_, row_bytes)| row_bytes).max()
    }

    /// Returns the total number of bytes of the matrices of which forward passes read single rows.
    pub fn embedding_bytes(&self) -> u64 {
        self.row_matrices.iter().map(|&(rows, row_bytes)| rows as u64 * row_bytes as u64).sum()
    }

    /// Returns the number of bytes of memory that all bands take.
    pub fn band_memory(&self) -> u64 {
        self.bands.iter().map(|band| band.memory() as u64).sum()
    }

    /// Returns the number of bytes of memory that are needed whatever the budget: for vectors, and for the buffers into
    /// which single rows are read.
    pub fn fixed_bytes(&self) -> u64 {
        self.vector_bytes.saturating_add(self.row_bytes().map_or(0, row_reader_memory)) as u64
    }

    /// Returns the smallest budget, in bytes, with which all bands and experts stay in memory.
    pub fn full_budget(&self) -> u64 {
        let of_experts = self.experts().map_or(0, |(_, shape)| shape.bank_bytes());
        self.fixed_bytes().saturating_add(self.band_memory()).saturating_add(of_experts)
    }

    /// Returns the minimum number of memory buffers (slots) for streaming bands. The buffers hold the bands of two
    /// [`Turn`]s, so that one turn can be read while the forward pass computes with the other. The number is at least
    /// [`SLOTS_LEAST`](Self::SLOTS_LEAST).
    pub fn slots_least(&self) -> usize {
        let widest = self.groups.iter().flat_map(|group| &group.turns).map(|turn| turn.bands.len()).max();
        Self::SLOTS_LEAST.max(2 * widest.unwrap_or(0))
    }

    /// Returns the smallest budget, in bytes, with which a forward pass can be computed. The budget is the sum of
    /// [`fixed_bytes`](Self::fixed_bytes), the minimum for experts, and the memory for bands. Bands need
    /// [`slots_least`](Self::slots_least) buffers of the size of the largest band. If all bands together take less
    /// memory, this smaller amount is enough, but at least half of the buffers are needed.
    pub fn least_budget(&self) -> u64 {
        let (slots, largest) = (self.slots_least() as u64, self.largest_band() as u64);
        let all = self.band_memory().max((slots / 2).saturating_mul(largest));
        let of_experts = self.experts().map_or(0, |(_, shape)| shape.least_bytes());
        self.fixed_bytes().saturating_add(slots.saturating_mul(largest).min(all)).saturating_add(of_experts)
    }

    fn bands_of(&self, group: &Group) -> &[BandPlace] {
        &self.bands[group.bands.start as usize..group.bands.end as usize]
    }

    fn of_bands(&self, what: impl Fn(usize, &Group) -> u32) -> Vec<u32> {
        let groups = self.groups.iter().enumerate();
        groups.flat_map(|(index, group)| std::iter::repeat_n(what(index, group), group.bands.len())).collect()
    }

    fn add_group(&mut self, spec: &GroupSpec, stored: &[StoredAt], band_bytes: usize) -> Result<(), WeightError> {
        let too_large = || WeightError::TooLarge { group: spec.name.clone() };
        let first_band = self.count_bands();
        let mut group = Group {
            name: spec.name.clone(),
            role: spec.role,
            layer: spec.layer,
            tensors: Vec::new(),
            turns: Vec::new(),
            bands: first_band..first_band,
        };
        // Matrices that are swept side by side, each with its index in the group.
        let mut beside: Vec<(usize, Matrix)> = Vec::new();
        let (mut experts, mut chosen) = (Vec::<ArrayVec<StoredMatrix, EXPERT_MATRICES_MAX>>::new(), 0);
        for (index, (tensor, &at)) in spec.tensors.iter().zip(stored).enumerate() {
            let &[rows, cols] = tensor.shape.as_slice() else {
                group.tensors.push(self.add_vector(&tensor.shape, at).ok_or_else(too_large)?);
                continue;
            };
            let row_bytes = at.dtype.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or_else(too_large)?;
            let bytes = (row_bytes as u64).checked_mul(rows as u64).ok_or_else(too_large)?;
            if tensor.access == Access::Rows {
                self.row_matrices.push((rows, row_bytes));
                group.tensors.push(TensorPlace::Rows { at, rows, cols, row_bytes });
                continue;
            }
            if let Access::Expert { number: expert, chosen: of_token } = tensor.access {
                chosen = of_token;
                // Experts follow each other in specs.
                experts.resize(experts.len().max(expert as usize + 1), ArrayVec::new());
                let full = experts[expert as usize].try_push(StoredMatrix { at, rows, cols, bytes });
                assert!(full.is_ok(), "an expert has at most {EXPERT_MATRICES_MAX} matrices");
                group.tensors.push(TensorPlace::OfExpert { dtype: at.dtype, rows, cols });
                continue;
            }
            if tensor.access != Access::SweepBeside {
                self.cut(&mut group, &mut beside, band_bytes)?;
            }
            self.swept_bytes = self.swept_bytes.checked_add(bytes).ok_or_else(too_large)?;
            beside.push((index, Matrix { at, rows, cols, row_bytes }));
            group.tensors.push(TensorPlace::Swept { dtype: at.dtype, rows, cols, turns: 0..0 });
        }
        self.cut(&mut group, &mut beside, band_bytes)?;
        group.bands.end = self.count_bands();
        if !experts.is_empty() {
            self.banks.push(ExpertBank::new(self.groups.len(), chosen as usize, &experts).ok_or_else(too_large)?);
        }
        self.groups.push(group);
        Ok(())
    }

    /// Adds a vector behind those added before, and returns its place; `None` if sizes overflow.
    fn add_vector(&mut self, shape: &[usize], at: StoredAt) -> Option<TensorPlace> {
        let len = shape.iter().try_fold(1usize, |len, &size| len.checked_mul(size))?;
        let start = self.vector_bytes;
        let range = start..start.checked_add(at.dtype.row_bytes(len)?)?;
        self.vector_bytes = range.end.checked_next_multiple_of(VECTOR_ALIGN)?;
        self.vectors.push(VectorPlace { file: at.file, offset: at.offset, range: range.clone() });
        Some(TensorPlace::Vector { dtype: at.dtype, len, range })
    }

    fn count_bands(&self) -> u32 {
        // There are at most PARTITION_BANDS_MAX.
        self.bands.len() as u32
    }

    /// Cuts matrices of which the same rows are needed together into turns (steps of some rows each).
    fn cut(
        &mut self,
        group: &mut Group,
        beside: &mut Vec<(usize, Matrix)>,
        band_bytes: usize,
    ) -> Result<(), WeightError> {
        let Some(&(_, first)) = beside.first() else { return Ok(()) };
        let rows = first.rows;
        if beside.len() > SWEEP_MAX || beside.iter().any(|(_, matrix)| matrix.rows != rows) {
            return Err(WeightError::SideBySide { group: group.name.clone(), count: beside.len(), limit: SWEEP_MAX });
        }
        let widest = beside.iter().map(|(_, matrix)| matrix.row_bytes).max().unwrap_or(1);
        let step = rows_of_band(widest, band_bytes);
        let bands = rows.div_ceil(step).saturating_mul(beside.len()).saturating_add(self.bands.len());
        if bands > PARTITION_BANDS_MAX {
            let group = group.name.clone();
            return Err(WeightError::TooManyBands { group, band_bytes, limit: PARTITION_BANDS_MAX });
        }
        let first_turn = group.turns.len();
        for start in (0..rows).step_by(step) {
            let range = start..(start + step).min(rows);
            let mut turn = Turn { rows: range.clone(), bands: ArrayVec::new() };
            for &(tensor, matrix) in beside.iter() {
                turn.bands.push((tensor, self.bands.len() as u32));
                self.bands.push(matrix.band(&range));
            }
            group.turns.push(turn);
        }
        let all = first_turn..group.turns.len();
        for (tensor, _) in beside.drain(..) {
            if let TensorPlace::Swept { turns, .. } = &mut group.tensors[tensor] {
                *turns = all.clone();
            }
        }
        Ok(())
    }
}

/// A matrix that is to be cut into bands, and where it lies in its file.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    at: StoredAt,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl Matrix {
    fn band(&self, rows: &Range<usize>) -> BandPlace {
        // `stored_at` has checked that all of the tensor lies in the file.
        let first = self.at.offset + (rows.start * self.row_bytes) as u64;
        let skip = (first % DIRECT_ALIGN as u64) as usize;
        BandPlace {
            file: self.at.file,
            offset: first - skip as u64,
            skip,
            bytes: rows.len() * self.row_bytes,
            parameters: (rows.len() * self.cols) as u64,
        }
    }
}

/// Returns the number of bytes of memory that reading rows of `row_bytes` takes; `usize::MAX` if that overflows.
fn row_reader_memory(row_bytes: usize) -> usize {
    row_buffer_bytes(row_bytes).saturating_add(row_bytes).saturating_mul(ROWS_AT_A_TIME)
}

/// Returns the number of bytes of the buffer for reading one row of `row_bytes` bytes, with room for alignment.
pub fn row_buffer_bytes(row_bytes: usize) -> usize {
    row_bytes.saturating_add(DIRECT_ALIGN).checked_next_multiple_of(DIRECT_ALIGN).unwrap_or(usize::MAX)
}

/// Returns the number of rows in a band of about `band_bytes`: a multiple of [`ROW_GRANULE`] if that many rows fit,
/// otherwise fewer rows.
fn rows_of_band(row_bytes: usize, band_bytes: usize) -> usize {
    let fitting = (band_bytes / row_bytes).max(1);
    if fitting >= ROW_GRANULE { fitting / ROW_GRANULE * ROW_GRANULE } else { fitting }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a partition of one group of f32 matrices with these `[rows, cols]`; all matrices but the first are read
    /// with `access`.
    fn partition(shapes: &[[usize; 2]], access: Access, band_bytes: usize) -> Result<Partition, WeightError> {
        let tensors = shapes.iter().enumerate().map(|(index, &shape)| {
            let tensor = TensorSpec::new(format!("t{index}"), shape);
            if index > 0 { tensor.by(access) } else { tensor }
        });
        let spec =
            GroupSpec { name: "layer 3, ffn".into(), role: Role::FeedForward, layer: 3, tensors: tensors.collect() };
        Partition::new(&[spec], band_bytes, |_, _| Ok(StoredAt { dtype: DType::F32, file: 0, offset: 0 }))
    }

    #[test]
    fn the_least_budget_is_no_more_than_all_bands_take() {
        // A band of 256 KiB, and three bands of one page.
        let few = partition(&[[1, 1 << 16], [1, 8], [1, 8], [1, 8]], Access::Sweep, 1 << 20).unwrap();
        assert_eq!(few.least_budget(), 2 * (256 << 10), "two of the largest: one filling");
        let even = partition(&[[1, 1 << 16]; 3], Access::Sweep, 1 << 20).unwrap();
        assert_eq!(even.least_budget(), even.band_memory());
        let many = partition(&[[1, 1 << 16]; 9], Access::Sweep, 1 << 20).unwrap();
        assert_eq!(many.least_budget(), 4 * (256 << 10));
    }

    #[test]
    fn what_cannot_be_cut_is_refused_before_memory_is_taken_for_it() {
        let error = |shapes: &[[usize; 2]], access| partition(shapes, access, 1).unwrap_err().to_string();
        let many = error(&[[1 << 40, 8]], Access::Sweep);
        assert!(many.contains("layer 3, ffn") && many.contains("16777216 bands"), "{many}");
        let wide = error(&[[8, 8]; 5], Access::SweepBeside);
        assert!(wide.contains("layer 3, ffn") && wide.contains('5') && wide.contains('4'), "{wide}");
        let uneven = error(&[[8, 8], [9, 8]], Access::SweepBeside);
        assert!(uneven.contains("same rows"), "{uneven}");
        assert!(partition(&[[8, 8]; 4], Access::SweepBeside, 1).is_ok());
    }
}
