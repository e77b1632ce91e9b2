//! The experts of one layer as they lie in files: each is a slab, all of whose matrices are read and held together.

use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_io::DIRECT_ALIGN;
use interbed_kernels::DType;

use super::StoredAt;
use crate::source::EXPERT_MATRICES_MAX;

/// Matrices that lie no further apart than this are read together: a read of so much more takes less time than a second
/// one. Packed stores begin each matrix on a page.
const GAP_MAX: u64 = 8 << 10;

/// The experts of one group.
#[derive(Debug, Clone)]
pub struct ExpertBank {
    /// The group's index.
    pub group: usize,
    /// One for each expert.
    pub slabs: Vec<Slab>,
    /// Bytes of memory for each read of a slab: what the largest of them takes, in whole pages.
    pub pieces: Pieces,
    /// How many of them a token goes through.
    pub chosen: usize,
}

/// The sizes of slots that the slabs of all banks go into.
#[derive(Debug, Clone)]
pub struct ExpertClasses {
    /// Each size once, with the buffers that make it.
    classes: Vec<(u64, Pieces)>,
    /// For each bank, the bytes of its slots.
    slot_bytes: Vec<u64>,
}

/// The sizes of the buffers of a slot, one for each read.
pub type Pieces = ArrayVec<usize, EXPERT_MATRICES_MAX>;

/// The most sizes of slots. With more, small layers could not lend each other memory; then all slots that are filled by
/// as many reads are as large as the largest.
const CLASSES_MAX: usize = 4;

impl ExpertClasses {
    /// Of the banks of a model.
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

    /// For each bank, the bytes of its slots.
    pub fn slot_bytes(&self) -> &[u64] {
        &self.slot_bytes
    }

    /// The buffers of slots of so many bytes.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn pieces_of(&self, slot_bytes: u64) -> Pieces {
        let class = self.classes.iter().find(|(bytes, _)| *bytes == slot_bytes);
        class.map(|(_, pieces)| pieces.clone()).expect("a size of slots that there are")
    }
}

/// Where an expert's bytes lie, and where they go.
#[derive(Debug, Clone)]
pub struct Slab {
    /// What is read, each into a buffer of its own.
    pub reads: ArrayVec<SlabRead, EXPERT_MATRICES_MAX>,
    /// The matrices, in the order of the spec.
    pub matrices: ArrayVec<SlabMatrix, EXPERT_MATRICES_MAX>,
    /// Bytes of weights.
    pub bytes: u64,
}

/// One read of a slab.
#[derive(Debug, Clone, Copy)]
pub struct SlabRead {
    /// Which of the model's files.
    pub file: usize,
    /// Where it begins, aligned.
    pub offset: u64,
    /// Bytes that it must deliver.
    pub needed: usize,
}

/// A matrix within what was read.
#[derive(Debug, Clone)]
pub struct SlabMatrix {
    /// How elements are stored.
    pub dtype: DType,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Which of the slab's reads.
    pub read: usize,
    /// Which of its bytes.
    pub range: Range<usize>,
}

/// A matrix of an expert in its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredMatrix {
    pub at: StoredAt,
    pub rows: usize,
    pub cols: usize,
    pub bytes: u64,
}

impl ExpertBank {
    /// The bank of `experts`, each with as many matrices as the others. `None` if sizes overflow.
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

    /// Bytes of all experts' weights.
    pub fn bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes).sum()
    }

    /// Weights in an expert, each of which takes one multiply-add per token.
    pub fn parameters(&self) -> u64 {
        let of = |slab: &Slab| slab.matrices.iter().map(|matrix| (matrix.rows * matrix.cols) as u64).sum();
        self.slabs.first().map_or(0, of)
    }
}

impl SlabRead {
    /// Bytes of memory that it takes, in whole pages.
    pub fn memory(&self) -> usize {
        self.needed.next_multiple_of(DIRECT_ALIGN)
    }
}

impl Slab {
    /// Reads for `matrices`, with those in one read that lie no more than `gap` bytes apart; each in its own for
    /// `None`. `None` if sizes overflow.
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
    fn slabs_of_one_bank_are_read_alike() {
        let bank = ExpertBank::new(0, 1, &[expert(&[0, 10_000, 20_000]), expert(&[1 << 30, 10_000, 20_000])]).unwrap();
        assert!(bank.slabs.iter().all(|slab| slab.reads.len() == 3));
        assert_eq!(bank.slabs[0].matrices[1].read, 1);
    }
}
