//! What is streamed and what is not: every matrix cut into bands, every vector kept. Pure arithmetic over headers.

use std::ops::Range;

use arrayvec::ArrayVec;
use strata_io::DIRECT_ALIGN;
use strata_kernels::DType;

use super::rows::row_reader_memory;
use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::group::{Access, GroupSpec};
use crate::resident::checked;
use crate::source::SWEEP_MAX;
use crate::window::UnitId;

/// Rows of a band come in multiples of this: what two threads share evenly in whole tiles of the widest kernel.
const ROW_GRANULE: usize = 64;

/// Every vector starts on a multiple of this many bytes: a cache line.
pub const VECTOR_ALIGN: usize = 64;

/// Matrices that are swept side by side, at most.
pub const BESIDE_MAX: usize = SWEEP_MAX;

/// Where the bytes of all groups lie and how they are read.
#[derive(Debug)]
pub struct Layout {
    pub groups: Vec<Group>,
    /// All bands, in the order in which a pass needs them.
    pub bands: Vec<BandPlace>,
    pub vectors: Vec<VectorPlace>,
    /// Bytes of all vectors, padded.
    pub vector_bytes: usize,
    /// Bytes of the tensors that passes sweep, as they are in the files: `W` of the bounds.
    pub swept_bytes: u64,
}

/// One group of the forward pass.
#[derive(Debug)]
pub struct Group {
    pub name: String,
    pub tensors: Vec<Tensor>,
    pub turns: Vec<Turn>,
    /// Bands of this group.
    pub bands: Range<u32>,
}

/// One tensor of a group, by how it is read.
#[derive(Debug)]
pub enum Tensor {
    /// At hand in the memory of vectors.
    Vector { dtype: DType, shape: Vec<usize>, range: Range<usize> },
    /// In bands, which are those of the group's turns `turns`.
    Swept { rows: usize, cols: usize, dtype: DType, turns: Range<usize> },
    /// Row by row, out of the file.
    Rows { rows: usize, cols: usize, dtype: DType, file: usize, offset: u64, row_bytes: usize },
}

/// Some rows of one matrix, or the same rows of matrices that are swept side by side.
#[derive(Debug)]
pub struct Turn {
    pub rows: Range<usize>,
    /// Tensor of the group, and number of the band.
    pub bands: ArrayVec<(usize, u32), BESIDE_MAX>,
}

/// Where a band's bytes come from. A read takes the aligned range around them.
#[derive(Debug, Clone, Copy)]
pub struct BandPlace {
    pub file: usize,
    /// Where the read begins, aligned.
    pub offset: u64,
    /// Bytes of the read before the band's first.
    pub skip: usize,
    /// Bytes of the band.
    pub bytes: usize,
}

impl BandPlace {
    /// Bytes that must arrive.
    pub fn needed(&self) -> usize {
        self.skip + self.bytes
    }

    /// Bytes of memory that the read needs, whole pages.
    pub fn memory(&self) -> usize {
        self.needed().next_multiple_of(DIRECT_ALIGN)
    }
}

/// Where a vector's bytes come from, and where in the memory of vectors they go.
#[derive(Debug, Clone)]
pub struct VectorPlace {
    pub file: usize,
    pub offset: u64,
    pub range: Range<usize>,
}

impl Layout {
    /// Checks every tensor against its spec, and cuts matrices into bands of about `band_bytes`.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or of a type we do not compute with; sizes beyond what can be counted.
    pub fn new(catalog: &Catalog, specs: &[GroupSpec], band_bytes: usize) -> Result<Self, WeightError> {
        let mut layout =
            Self { groups: Vec::new(), bands: Vec::new(), vectors: Vec::new(), vector_bytes: 0, swept_bytes: 0 };
        for spec in specs {
            layout.add_group(catalog, spec, band_bytes)?;
        }
        Ok(layout)
    }

    /// The memory of the largest band, in bytes.
    pub fn largest_band(&self) -> usize {
        self.bands.iter().map(BandPlace::memory).max().unwrap_or(0)
    }

    /// Bytes of weights in the bands that `chosen` picks.
    pub fn bytes_where(&self, chosen: impl Fn(UnitId) -> bool) -> u64 {
        let bands = self.bands.iter().enumerate();
        bands.filter(|(unit, _)| chosen(UnitId(*unit as u32))).map(|(_, band)| band.bytes as u64).sum()
    }

    /// Bytes of the longest row that is read by number, if there are such.
    pub fn row_bytes(&self) -> Option<usize> {
        let tensors = self.groups.iter().flat_map(|group| &group.tensors);
        let rows = tensors.filter_map(|tensor| match tensor {
            Tensor::Rows { row_bytes, .. } => Some(*row_bytes),
            Tensor::Vector { .. } | Tensor::Swept { .. } => None,
        });
        rows.max()
    }

    /// Bytes that all bands take in memory.
    pub fn band_memory(&self) -> u64 {
        self.bands.iter().map(|band| band.memory() as u64).sum()
    }

    /// Bytes of memory that are taken besides bands: vectors, and buffers for rows.
    pub fn fixed_bytes(&self) -> u64 {
        self.vector_bytes.saturating_add(self.row_bytes().map_or(0, row_reader_memory)) as u64
    }

    /// By band: the layer that it belongs to, attention and feed-forward network together; the head is one of its own.
    pub fn layers(&self) -> Vec<u32> {
        let mut layers = Vec::with_capacity(self.bands.len());
        for (index, group) in self.groups.iter().enumerate() {
            // Embedding, then two groups a layer, then the head.
            layers.extend(group.bands.clone().map(|_| (index as u32).div_ceil(2)));
        }
        layers
    }

    /// Most bands that the forward pass must hold together.
    pub fn widest_turn(&self) -> usize {
        self.groups.iter().flat_map(|group| &group.turns).map(|turn| turn.bands.len()).max().unwrap_or(0)
    }

    fn add_group(&mut self, catalog: &Catalog, spec: &GroupSpec, band_bytes: usize) -> Result<(), WeightError> {
        let too_large = || WeightError::TooLarge { group: spec.name.clone() };
        let first_band = self.count_bands().ok_or_else(too_large)?;
        let mut group =
            Group { name: spec.name.clone(), tensors: Vec::new(), turns: Vec::new(), bands: first_band..first_band };
        // Matrices that are swept side by side, with the place of each.
        let mut beside: Vec<(usize, Source)> = Vec::new();
        for (index, tensor) in spec.tensors.iter().enumerate() {
            let (entry, dtype) = checked(catalog, spec, tensor)?;
            let (file, offset) = (entry.file, entry.offset);
            let &[rows, cols] = tensor.shape.as_slice() else {
                let bytes = usize::try_from(entry.bytes).map_err(|_| too_large())?;
                let start = self.vector_bytes;
                let end = start.checked_add(bytes).ok_or_else(too_large)?;
                self.vector_bytes = end.checked_next_multiple_of(VECTOR_ALIGN).ok_or_else(too_large)?;
                self.vectors.push(VectorPlace { file, offset, range: start..end });
                group.tensors.push(Tensor::Vector { dtype, shape: tensor.shape.clone(), range: start..end });
                continue;
            };
            let row_bytes = dtype.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or_else(too_large)?;
            if tensor.access == Access::Rows {
                group.tensors.push(Tensor::Rows { rows, cols, dtype, file, offset, row_bytes });
                continue;
            }
            if tensor.access != Access::SweepBeside {
                self.cut(&mut group, &mut beside, band_bytes);
            }
            self.swept_bytes = self.swept_bytes.checked_add(entry.bytes).ok_or_else(too_large)?;
            beside.push((index, Source { file, offset, rows, row_bytes }));
            group.tensors.push(Tensor::Swept { rows, cols, dtype, turns: 0..0 });
        }
        self.cut(&mut group, &mut beside, band_bytes);
        group.bands.end = self.count_bands().ok_or_else(too_large)?;
        self.groups.push(group);
        Ok(())
    }

    fn count_bands(&self) -> Option<u32> {
        u32::try_from(self.bands.len()).ok()
    }

    /// Cuts matrices that are swept side by side into turns.
    fn cut(&mut self, group: &mut Group, beside: &mut Vec<(usize, Source)>, band_bytes: usize) {
        let Some((_, first)) = beside.first() else { return };
        let rows = first.rows;
        let widest = beside.iter().map(|(_, source)| source.row_bytes).max().unwrap_or(1);
        let step = rows_of_band(widest, band_bytes);
        let first_turn = group.turns.len();
        for start in (0..rows).step_by(step) {
            let range = start..(start + step).min(rows);
            let mut turn = Turn { rows: range.clone(), bands: ArrayVec::new() };
            for &(tensor, source) in beside.iter() {
                turn.bands.push((tensor, self.bands.len() as u32));
                self.bands.push(source.band(&range));
            }
            group.turns.push(turn);
        }
        let all = first_turn..group.turns.len();
        for (tensor, _) in beside.drain(..) {
            if let Tensor::Swept { turns, .. } = &mut group.tensors[tensor] {
                *turns = all.clone();
            }
        }
    }
}

/// A matrix in a file.
#[derive(Debug, Clone, Copy)]
struct Source {
    file: usize,
    offset: u64,
    rows: usize,
    row_bytes: usize,
}

impl Source {
    fn band(&self, rows: &Range<usize>) -> BandPlace {
        // The catalog has checked that the whole tensor lies in its file.
        let first = self.offset + (rows.start * self.row_bytes) as u64;
        let skip = (first % DIRECT_ALIGN as u64) as usize;
        BandPlace { file: self.file, offset: first - skip as u64, skip, bytes: rows.len() * self.row_bytes }
    }
}

/// Rows that make a band of about `band_bytes`: whole granules where one fits, otherwise fewer rows.
pub fn rows_of_band(row_bytes: usize, band_bytes: usize) -> usize {
    let fitting = (band_bytes / row_bytes).max(1);
    if fitting >= ROW_GRANULE { fitting / ROW_GRANULE * ROW_GRANULE } else { fitting }
}
