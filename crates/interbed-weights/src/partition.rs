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

/// A band's number of rows is a multiple of this where possible: two threads share them evenly in whole tiles of the
/// widest kernel.
const ROW_GRANULE: usize = 64;

/// Every vector starts on a multiple of this many bytes: a cache line.
const VECTOR_ALIGN: usize = 64;

/// The most bands of a model: 64 TiB of weights at 4 MiB each. Sizes come from files, and each band takes some memory.
const PARTITION_BANDS_MAX: usize = 1 << 24;

/// Rows of the embedding that are read at a time.
pub const ROWS_AT_A_TIME: usize = 32;

/// How a tensor lies in its file, or would lie in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAt {
    /// How elements are stored.
    pub dtype: DType,
    /// Which of the model's files.
    pub file: usize,
    /// The first byte.
    pub offset: u64,
}

/// Where the bytes of all groups lie, and in which pieces they are read.
#[derive(Debug, Clone)]
pub struct Partition {
    groups: Vec<Group>,
    bands: Vec<BandPlace>,
    vectors: Vec<VectorPlace>,
    vector_bytes: usize,
    swept_bytes: u64,
    banks: Vec<ExpertBank>,
    /// For each matrix that is read row by row: its rows, and the bytes of a row. Asked for between steps, so they are
    /// kept: a mixture has tens of thousands of tensors to look through.
    row_matrices: Vec<(usize, usize)>,
    /// The slots of experts, if there are any.
    experts: Option<(ExpertClasses, ArenaShape)>,
}

/// One group of the forward pass.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name, for display.
    pub name: String,
    /// Its role in a pass.
    pub role: Role,
    /// See [`GroupSpec::layer`].
    pub layer: usize,
    /// Its tensors, in the order of the spec.
    pub tensors: Vec<TensorPlace>,
    /// Its turns, in the order of a pass.
    pub turns: Vec<Turn>,
    /// Its bands.
    pub bands: Range<u32>,
}

/// One tensor of a group, by how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorPlace {
    /// Held in the memory of vectors.
    Vector {
        /// How elements are stored.
        dtype: DType,
        /// How many elements there are.
        len: usize,
        /// Its bytes within that memory.
        range: Range<usize>,
    },
    /// Read in bands, which belong to the turns `turns` of the group.
    Swept {
        /// How elements are stored.
        dtype: DType,
        /// Rows of the whole matrix.
        rows: usize,
        /// Columns of the whole matrix.
        cols: usize,
        /// The turns that hold its bands.
        turns: Range<usize>,
    },
    /// Read row by row from the file.
    Rows {
        /// Where the matrix begins.
        at: StoredAt,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Read with the other matrices of its expert, see [`Partition::banks`].
    OfExpert {
        /// How elements are stored.
        dtype: DType,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
}

/// Some rows of one matrix, or the same rows of several matrices that are swept side by side.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The rows.
    pub rows: Range<usize>,
    /// For each band: its tensor's index in the group, and the band's number.
    pub bands: ArrayVec<(usize, u32), SWEEP_MAX>,
}

/// Where a band's bytes lie in their file. A read takes the aligned range around them.
#[derive(Debug, Clone, Copy)]
pub struct BandPlace {
    /// Which of the model's files.
    pub file: usize,
    /// Where the read begins, aligned.
    pub offset: u64,
    /// Bytes of the read that come before the band's first byte.
    pub skip: usize,
    /// Bytes of the band.
    pub bytes: usize,
    /// Weights in the band, each of which takes one multiply-add per token.
    pub parameters: u64,
}

impl BandPlace {
    /// Bytes that the read must deliver.
    pub fn needed(&self) -> usize {
        self.skip + self.bytes
    }

    /// Bytes of memory that the read takes, in whole pages.
    pub fn memory(&self) -> usize {
        self.needed().next_multiple_of(DIRECT_ALIGN)
    }
}

/// Where a vector's bytes lie, and where they go in the memory of vectors.
#[derive(Debug, Clone)]
pub struct VectorPlace {
    /// Which of the model's files.
    pub file: usize,
    /// The first byte.
    pub offset: u64,
    /// Where it goes.
    pub range: Range<usize>,
}

/// What is moved, held and computed with in one piece: a band, or all matrices of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightUnit {
    /// Bytes of weights.
    pub bytes: u64,
    /// Bytes of memory, in whole pages.
    pub memory: u64,
    /// Weights in the unit, each of which takes one multiply-add per token.
    pub parameters: u64,
    /// See [`GroupSpec::layer`].
    pub layer: usize,
    /// Its role in a pass.
    pub role: Role,
}

impl Partition {
    /// The fewest slots that units of any kind can pass through: twice two, so that one half is read while the pass
    /// computes with the other.
    pub const SLOTS_LEAST: usize = 4;

    /// Checks every tensor against its spec, and cuts matrices into bands of about `band_bytes`.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape or a type that is not supported; and the errors of [`Self::new`].
    pub fn of_catalog(catalog: &Catalog, specs: &[GroupSpec], band_bytes: usize) -> Result<Self, WeightError> {
        Self::new(specs, band_bytes, |group, tensor| {
            let (entry, dtype) = checked(catalog, group, tensor)?;
            Ok(StoredAt { dtype, file: entry.file, offset: entry.offset })
        })
    }

    /// Cuts the matrices of `specs` into bands of about `band_bytes`; `stored_at` says how each tensor is stored.
    ///
    /// # Errors
    /// The errors of `stored_at`; sizes that overflow; more bands than a window takes; and matrices side by side that
    /// do not fit one sweep.
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

    /// All groups, in the order of a pass.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// All bands, in the order in which a pass needs them.
    pub fn bands(&self) -> &[BandPlace] {
        &self.bands
    }

    /// All vectors.
    pub fn vectors(&self) -> &[VectorPlace] {
        &self.vectors
    }

    /// The experts of mixtures, a bank for each group that has some, in the order of a pass.
    pub fn banks(&self) -> &[ExpertBank] {
        &self.banks
    }

    /// The slots that experts are read into, if there are experts.
    pub fn experts(&self) -> Option<(&ExpertClasses, &ArenaShape)> {
        self.experts.as_ref().map(|(classes, shape)| (classes, shape))
    }

    /// Divides a budget: bytes of memory for bands, and for experts. Bands stay if there is room for all of them, since
    /// every pass needs them; experts get the rest.
    pub fn divide(&self, budget: u64) -> (u64, u64) {
        let rest = budget.saturating_sub(self.fixed_bytes());
        let Some((_, shape)) = self.experts() else { return (rest, 0) };
        let of_experts = rest.saturating_sub(self.band_memory()).max(shape.least_bytes()).min(shape.bank_bytes());
        (rest.saturating_sub(of_experts), of_experts)
    }

    /// Bytes of the weights of all experts.
    pub fn expert_bytes(&self) -> u64 {
        self.banks.iter().map(ExpertBank::bytes).sum()
    }

    /// Bytes of all vectors, padding included.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// Bytes of the matrices that a pass sweeps, as they are in the files.
    pub fn swept_bytes(&self) -> u64 {
        self.swept_bytes
    }

    /// The types of the matrices that a pass sweeps, each once.
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

    /// Each band as a unit.
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

    /// Each group that has matrices as a unit of all its bands.
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

    /// The group of each band.
    pub fn groups_of_bands(&self) -> Vec<u32> {
        self.of_bands(|index, _| index as u32)
    }

    /// The layer of each band.
    pub fn layers_of_bands(&self) -> Vec<u32> {
        self.of_bands(|_, group| group.layer as u32)
    }

    /// The memory of the largest band, in bytes.
    pub fn largest_band(&self) -> usize {
        self.bands.iter().map(BandPlace::memory).max().unwrap_or(0)
    }

    /// Bytes of weights in the bands that `chosen` picks by their numbers.
    pub fn bytes_where(&self, chosen: impl Fn(u32) -> bool) -> u64 {
        let bands = self.bands.iter().enumerate();
        bands.filter(|(band, _)| chosen(*band as u32)).map(|(_, band)| band.bytes as u64).sum()
    }

    /// Bytes of the longest row that is read by number, if rows are read so.
    pub fn row_bytes(&self) -> Option<usize> {
        self.row_matrices.iter().map(|&(_, row_bytes)| row_bytes).max()
    }

    /// Bytes of the matrices of which passes read single rows.
    pub fn embedding_bytes(&self) -> u64 {
        self.row_matrices.iter().map(|&(rows, row_bytes)| rows as u64 * row_bytes as u64).sum()
    }

    /// Bytes that all bands take in memory.
    pub fn band_memory(&self) -> u64 {
        self.bands.iter().map(|band| band.memory() as u64).sum()
    }

    /// Bytes of memory that are taken apart from the bands: vectors, and buffers for rows.
    pub fn fixed_bytes(&self) -> u64 {
        self.vector_bytes.saturating_add(self.row_bytes().map_or(0, row_reader_memory)) as u64
    }

    /// The memory with which everything stays, in bytes.
    pub fn full_budget(&self) -> u64 {
        let of_experts = self.experts().map_or(0, |(_, shape)| shape.bank_bytes());
        self.fixed_bytes().saturating_add(self.band_memory()).saturating_add(of_experts)
    }

    /// The fewest slots that bands can stream through: two turns, so that one is read while the pass computes with the
    /// other.
    pub fn slots_least(&self) -> usize {
        let widest = self.groups.iter().flat_map(|group| &group.turns).map(|turn| turn.bands.len()).max();
        Self::SLOTS_LEAST.max(2 * widest.unwrap_or(0))
    }

    /// The least memory with which passes can be computed, in bytes: the fewest slots, but no more than all bands take,
    /// as long as one turn has its slots.
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

    /// `None` if sizes overflow.
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

    /// Cuts matrices that are swept side by side into turns.
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

/// A matrix in a file.
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

/// Bytes of memory that reading rows of `row_bytes` takes; `usize::MAX` if that overflows.
fn row_reader_memory(row_bytes: usize) -> usize {
    row_buffer_bytes(row_bytes).saturating_add(row_bytes).saturating_mul(ROWS_AT_A_TIME)
}

/// Bytes of memory for the read of one row: the row, and what alignment adds around it.
pub fn row_buffer_bytes(row_bytes: usize) -> usize {
    row_bytes.saturating_add(DIRECT_ALIGN).checked_next_multiple_of(DIRECT_ALIGN).unwrap_or(usize::MAX)
}

/// Rows in a band of about `band_bytes`: whole granules if at least one fits, otherwise fewer rows.
fn rows_of_band(row_bytes: usize, band_bytes: usize) -> usize {
    let fitting = (band_bytes / row_bytes).max(1);
    if fitting >= ROW_GRANULE { fitting / ROW_GRANULE * ROW_GRANULE } else { fitting }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition of one group of f32 matrices with these `[rows, cols]`; all but the first are read with `access`.
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
