//! The experts of one layer as they lie in files: each is a slab, all of whose matrices are read and held together.

use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_io::DIRECT_ALIGN;
use interbed_kernels::DType;

use super::StoredAt;
use crate::source::EXPERT_MATRICES_MAX;

/// Maximum distance in bytes between matrices that are read together: reading the bytes between them takes less time
/// than a second read. Packed stores begin each matrix on a page.
const GAP_MAX: u64 = 8 << 10;

/// The experts of one group, and where their bytes lie in the files.
#[derive(Debug, Clone)]
pub struct ExpertBank {
    /// Index of the group in [`Partition::groups`](crate::Partition::groups).
    pub group: usize,
    /// Place of each expert's matrices, by the index of the expert.
    pub slabs: Vec<Slab>,
    /// Sizes in bytes of the buffers into which one expert is read, one buffer for each read. Each size is a whole
    /// number of pages, and is sufficient for every expert of the bank.
    pub pieces: Pieces,
    /// Number of experts that each token uses.
    pub chosen: usize,
}

/// Slot sizes of all banks. A slot is memory for one expert.
#[derive(Debug, Clone)]
pub struct ExpertClasses {
    /// Each size in bytes once, with the sizes of the buffers that make up a slot of that size.
    classes: Vec<(u64, Pieces)>,
    /// Size in bytes of the slots of each bank.
    slot_bytes: Vec<u64>,
}

/// Each matrix of an expert begins on a multiple of this many bytes in a device's own memory: a cache line.
const PACKED_ALIGN: usize = 64;

/// Sizes in bytes of the buffers that make up a slot (memory for one expert), one buffer for each read.
pub type Pieces = ArrayVec<usize, EXPERT_MATRICES_MAX>;

/// Maximum number of different slot sizes. With more sizes, small layers could not lend each other memory; all slots
/// with the same number of reads are then made as large as the largest.
const CLASSES_MAX: usize = 4;

impl ExpertClasses {
    /// Finds the slot sizes that the experts of these banks need.
    pub fn of(banks: &[ExpertBank]) -> Self {
        let mut kinds: Vec<Pieces> = banks.iter().map(|bank| bank.pieces.clone()).collect();
        let count = |kinds: &[Pieces]| {
            let mut distinct = kinds.to_vec();
            distinct.sort();
            distinct.dedup();
            distinct.len()
        };
        if count(&kinds) > CLASSES_MAX {
            let own = kinds.clone();
            for pieces in &mut kinds {
                let reads = pieces.len();
                for other in own.iter().filter(|other| other.len() == reads) {
                    pieces.iter_mut().zip(other).for_each(|(piece, &other)| *piece = (*piece).max(other));
                }
            }
        }
        let mut classes: Vec<(u64, Pieces)> = Vec::new();
        let slot_bytes = kinds.into_iter().map(|pieces| {
            if let Some((bytes, _)) = classes.iter().find(|(_, of)| *of == pieces) {
                return *bytes;
            }
            let mut bytes: u64 = pieces.iter().map(|&bytes| bytes as u64).sum();
            // Slots of one size whose buffers differ must be told apart by their size.
            while classes.iter().any(|(of, _)| *of == bytes) {
                bytes += DIRECT_ALIGN as u64;
            }
            classes.push((bytes, pieces));
            bytes
        });
        let slot_bytes = slot_bytes.collect();
        Self { classes, slot_bytes }
    }

    /// Returns the slot size of each bank, in bytes.
    pub fn slot_bytes(&self) -> &[u64] {
        &self.slot_bytes
    }

    /// Returns, for each of `banks`, the size in bytes of slots on a device, where the matrices of an expert lie
    /// [packed](Slab::packed). Banks whose slots have one size in host memory have one size there, too.
    pub fn packed_bytes(&self, banks: &[ExpertBank]) -> Vec<u64> {
        let of_bank = |bank: &ExpertBank| bank.slabs.iter().map(|slab| slab.packed().1).max().unwrap_or(0) as u64;
        let of_class = |bytes: &u64| {
            let of_banks = self.slot_bytes.iter().zip(banks).filter(|(of, _)| *of == bytes);
            of_banks.map(|(_, bank)| of_bank(bank)).max().unwrap_or(0)
        };
        self.slot_bytes.iter().map(of_class).collect()
    }

    /// Returns the sizes of the buffers that make up a slot of `slot_bytes` bytes.
    ///
    /// # Panics
    /// Panics if no slot has this size.
    pub fn pieces_of(&self, slot_bytes: u64) -> Pieces {
        let class = self.classes.iter().find(|(bytes, _)| *bytes == slot_bytes);
        class.map(|(_, pieces)| pieces.clone()).expect("a size of slots that there are")
    }
}

/// Says where the matrices of one expert (a slab) lie in the files, and where they lie in the buffers into which they
/// are read.
#[derive(Debug, Clone)]
pub struct Slab {
    /// Reads that load the expert, each into its own buffer.
    pub reads: ArrayVec<SlabRead, EXPERT_MATRICES_MAX>,
    /// Matrices of the expert, in the order of the group's spec.
    pub matrices: ArrayVec<SlabMatrix, EXPERT_MATRICES_MAX>,
    /// Number of bytes of the expert's weights.
    pub bytes: u64,
}

/// One of the reads that load an expert's matrices (a slab) into memory.
#[derive(Debug, Clone, Copy)]
pub struct SlabRead {
    /// Index of the file among the model's files.
    pub file: usize,
    /// Offset in the file at which the read begins; it is aligned for direct reads.
    pub offset: u64,
    /// Number of bytes that the read must deliver.
    pub needed: usize,
}

/// A matrix of an expert, and its place in the buffer into which it is read.
#[derive(Debug, Clone)]
pub struct SlabMatrix {
    /// Type in which the elements are stored.
    pub dtype: DType,
    /// Number of rows of the matrix.
    pub rows: usize,
    /// Number of columns of the matrix.
    pub cols: usize,
    /// Index in [`Slab::reads`] of the read that contains the matrix.
    pub read: usize,
    /// Range of the matrix's bytes in the buffer into which it is read.
    pub range: Range<usize>,
}

/// Position of an expert's matrix in its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredMatrix {
    pub at: StoredAt,
    pub rows: usize,
    pub cols: usize,
    pub bytes: u64,
}

impl ExpertBank {
    /// Makes the bank of `experts`, which all have the same number of matrices. Returns `None` if sizes overflow.
    pub(super) fn new(
        group: usize,
        chosen: usize,
        experts: &[ArrayVec<StoredMatrix, EXPERT_MATRICES_MAX>],
    ) -> Option<Self> {
        // Slots are alike, so either all slabs are read in as many reads, or each matrix in one of its own.
        let cut = |gap| experts.iter().map(|matrices| Slab::cut(matrices, gap)).collect::<Option<Vec<_>>>();
        let mut slabs = cut(Some(GAP_MAX))?;
        let reads = slabs.first().map_or(0, |slab| slab.reads.len());
        if slabs.iter().any(|slab| slab.reads.len() != reads) {
            slabs = cut(None)?;
        }
        let pieces = slabs.first().map_or(0, |slab| slab.reads.len());
        let largest = |piece: usize| slabs.iter().map(|slab| slab.reads[piece].memory()).max().unwrap_or(0);
        Some(Self { group, chosen, pieces: (0..pieces).map(largest).collect(), slabs })
    }

    /// Returns the number of bytes of all experts' weights.
    pub fn bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes).sum()
    }

    /// Returns the number of weights in one expert, each of which takes one multiply-add per token.
    pub fn parameters(&self) -> u64 {
        let of = |slab: &Slab| slab.matrices.iter().map(|matrix| (matrix.rows * matrix.cols) as u64).sum();
        self.slabs.first().map_or(0, of)
    }
}

impl SlabRead {
    /// Returns the number of bytes of memory that the read takes, in whole pages.
    pub fn memory(&self) -> usize {
        self.needed.next_multiple_of(DIRECT_ALIGN)
    }
}

impl Slab {
    /// Returns the range of bytes of each matrix where all matrices lie one behind the other, as in a device's own
    /// memory, and the number of bytes of all.
    pub fn packed(&self) -> (ArrayVec<Range<usize>, EXPERT_MATRICES_MAX>, usize) {
        let mut end = 0usize;
        let of_matrix = |matrix: &SlabMatrix| {
            let start = end.next_multiple_of(PACKED_ALIGN);
            end = start + matrix.range.len();
            start..end
        };
        let ranges = self.matrices.iter().map(of_matrix).collect();
        (ranges, end)
    }

    /// Plans the reads that bring `matrices`. Matrices that lie at most `gap` bytes apart share a read; with no `gap`,
    /// each matrix has its own read. Returns `None` if sizes overflow.
    fn cut(matrices: &[StoredMatrix], gap: Option<u64>) -> Option<Self> {
        let mut order: ArrayVec<usize, EXPERT_MATRICES_MAX> = (0..matrices.len()).collect();
        if gap.is_some() {
            order.sort_by_key(|&index| (matrices[index].at.file, matrices[index].at.offset));
        }
        let mut reads: ArrayVec<SlabRead, EXPERT_MATRICES_MAX> = ArrayVec::new();
        let mut placed = [const { (0usize, 0..0usize) }; EXPERT_MATRICES_MAX];
        for index in order {
            let StoredMatrix { at, bytes, .. } = matrices[index];
            let end = at.offset.checked_add(bytes)?;
            let joins = |read: &&mut SlabRead| {
                let read_end = read.offset + read.needed as u64;
                read.file == at.file && at.offset >= read_end && gap.is_some_and(|gap| at.offset - read_end <= gap)
            };
            let first = at.offset - at.offset % DIRECT_ALIGN as u64;
            let read = match reads.last_mut().filter(joins) {
                Some(read) => read,
                None => {
                    reads.push(SlabRead { file: at.file, offset: first, needed: 0 });
                    reads.last_mut()?
                }
            };
            let begin = usize::try_from(at.offset - read.offset).ok()?;
            read.needed = usize::try_from(end - read.offset).ok()?;
            let range = begin..read.needed;
            placed[index] = (reads.len() - 1, range);
        }
        let matrix = |(matrix, (read, range)): (&StoredMatrix, (usize, Range<usize>))| {
            let StoredMatrix { at, rows, cols, .. } = *matrix;
            SlabMatrix { dtype: at.dtype, rows, cols, read, range }
        };
        let bytes = matrices.iter().try_fold(0u64, |sum, matrix| sum.checked_add(matrix.bytes))?;
        Some(Self { reads, matrices: matrices.iter().zip(placed).map(matrix).collect(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expert(offsets: &[u64]) -> ArrayVec<StoredMatrix, EXPERT_MATRICES_MAX> {
        let matrix = |&offset| StoredMatrix {
            at: StoredAt { dtype: DType::F32, file: 0, offset },
            rows: 100,
            cols: 25,
            bytes: 10_000,
        };
        offsets.iter().map(matrix).collect()
    }

    #[test]
    fn what_lies_together_is_read_together() {
        // As safetensors have them, down first; as GGUF has them, far apart.
        let together = ExpertBank::new(0, 1, &[expert(&[30_100, 40_100, 20_100])]).unwrap();
        let slab = &together.slabs[0];
        assert_eq!((slab.reads.len(), slab.reads[0].offset, slab.reads[0].needed), (1, 16_384, 50_100 - 16_384));
        assert_eq!(slab.matrices[2].range, 20_100 - 16_384..30_100 - 16_384);
        assert_eq!(together.pieces[..], [36_864]);
        let apart =
            ExpertBank::new(0, 1, &[expert(&[0, 1 << 20, 2 << 20]), expert(&[10_000, (1 << 20) + 10_000, 3 << 20])]);
        let apart = apart.unwrap();
        assert_eq!(apart.pieces[..], [12_288, 12_288, 12_288]);
        assert_eq!(apart.slabs[1].matrices[0].range, 1808..11_808);
    }

    #[test]
    fn matrices_on_a_device_lie_one_behind_the_other() {
        let banks = [0, 1].map(|bank| {
            let matrix = |offset| StoredMatrix {
                at: StoredAt { dtype: DType::BF16, file: 0, offset },
                rows: 5 + bank,
                cols: 9,
                bytes: 2 * 9 * (5 + bank) as u64,
            };
            ExpertBank::new(bank, 1, &[[0, 5000, 200].map(matrix).into_iter().collect()]).unwrap()
        });
        let (ranges, bytes) = banks[0].slabs[0].packed();
        assert_eq!((&ranges[..], bytes), (&[0..90, 128..218, 256..346][..], 346));
        // Their slots in host memory are alike, and so are those on a device.
        let classes = ExpertClasses::of(&banks);
        assert_eq!(classes.slot_bytes()[0], classes.slot_bytes()[1]);
        assert_eq!(classes.packed_bytes(&banks), [364, 364]);
    }

    #[test]
    fn slabs_of_one_bank_are_read_alike() {
        let bank = ExpertBank::new(0, 1, &[expert(&[0, 10_000, 20_000]), expert(&[1 << 30, 10_000, 20_000])]).unwrap();
        assert!(bank.slabs.iter().all(|slab| slab.reads.len() == 3));
        assert_eq!(bank.slabs[0].matrices[1].read, 1);
    }
}
