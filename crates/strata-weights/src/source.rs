//! The seam between the forward pass and wherever weights come from.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use strata_kernels::Matrix;

use crate::band::Band;
use crate::error::WeightError;
use crate::group::TensorView;

/// Bands that are at hand together at most.
pub const BANDS_MAX: usize = 16;

/// Matrices of one sweep at most.
pub const SWEEP_MAX: usize = 4;

/// Something that can bring the weights of a group where compute can read them.
///
/// The forward pass acquires a group, computes, drops the guard, in the order of the groups, once a pass. Resident
/// weights answer at once; streamed ones arrive band by band, and a wait for one is counted as a stall.
pub trait WeightSource: Send + Sync {
    /// How many groups there are; they are numbered from 0 in the order of the forward pass.
    fn num_groups(&self) -> usize;

    /// Begins to use `group`: its vectors are at hand until the guard is dropped, its matrices can be swept. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`WeightError::NoSuchGroup`], or whatever keeps the bytes from coming; the group is then not held, and another
    /// attempt may succeed.
    fn acquire(&self, group: usize) -> Result<GroupGuard<'_>, WeightError>;

    /// The pass is over: tells whether what it computed can be trusted.
    ///
    /// # Errors
    /// The weights changed under it.
    fn end_pass(&self) -> Result<(), WeightError> {
        Ok(())
    }
}

impl<T: WeightSource + ?Sized> WeightSource for Arc<T> {
    fn num_groups(&self) -> usize {
        (**self).num_groups()
    }

    fn acquire(&self, group: usize) -> Result<GroupGuard<'_>, WeightError> {
        (**self).acquire(group)
    }

    fn end_pass(&self) -> Result<(), WeightError> {
        (**self).end_pass()
    }
}

/// Uses some rows of a matrix: those `wanted[range]`, which are rows `place(0)`, `place(1)`, … of the matrix given.
pub type UseRows<'a> = dyn FnMut(Range<usize>, Matrix<'_>, &(dyn Fn(usize) -> usize + Sync)) + 'a;

/// What stands behind a guard. Every method is called between acquisition and release of `group` only.
pub trait GroupHolder: Send + Sync {
    /// How many tensors `group` has.
    fn num_tensors(&self, group: usize) -> usize;

    /// The tensor at `index` in the order of the group's spec, which must be one that is at hand whole. Its bytes neither
    /// move nor change.
    fn tensor(&self, group: usize, index: usize) -> TensorView<'_>;

    /// Rows and columns of the matrix at `index`.
    fn shape(&self, group: usize, index: usize) -> (usize, usize);

    /// Fills `bands` with the next ones of a sweep over the matrices `tensors`, waiting until there is at least one; leaves
    /// it empty if the sweep is over. `cursor` is 0 when it begins and belongs to the holder afterwards. Of matrices that
    /// are swept side by side, the same rows follow each other in one filling.
    ///
    /// # Errors
    /// What kept the bytes from coming; `bands` is then empty.
    fn next_bands(
        &self,
        group: usize,
        tensors: &[usize],
        cursor: &mut usize,
        bands: &mut ArrayVec<Band, BANDS_MAX>,
    ) -> Result<(), WeightError>;

    /// The bands will not be read any more. Does not block.
    fn release_bands(&self, group: usize, bands: &mut ArrayVec<Band, BANDS_MAX>);

    /// Hands the rows `wanted` of the matrix at `index` to `use_rows`, all at once or in several parts.
    ///
    /// # Errors
    /// What kept the bytes from coming.
    fn with_rows(
        &self,
        group: usize,
        index: usize,
        wanted: &[u32],
        use_rows: &mut UseRows<'_>,
    ) -> Result<(), WeightError>;

    /// One guard of `group` is gone. Called exactly once for each guard; does not block.
    fn release(&self, group: usize);
}

/// The right to read one group's weights.
pub struct GroupGuard<'a> {
    holder: &'a dyn GroupHolder,
    group: usize,
}

impl<'a> GroupGuard<'a> {
    /// For sources: a guard over a group that the holder has just begun to hold.
    pub fn new(holder: &'a dyn GroupHolder, group: usize) -> Self {
        Self { holder, group }
    }

    /// Which group it guards.
    pub fn group(&self) -> usize {
        self.group
    }

    /// How many tensors the group has.
    pub fn num_tensors(&self) -> usize {
        self.holder.num_tensors(self.group)
    }

    /// The tensor at `index` in the order of the group's spec: a vector, or with resident weights any. The view ends with
    /// the guard.
    ///
    /// # Panics
    /// If the spec has no such tensor, or it is not at hand whole: forward pass and spec are written together.
    pub fn tensor(&self, index: usize) -> TensorView<'_> {
        self.holder.tensor(self.group, index)
    }

    /// Rows and columns of the matrix at `index`.
    ///
    /// # Panics
    /// If the spec has no such matrix.
    pub fn shape(&self, index: usize) -> (usize, usize) {
        self.holder.shape(self.group, index)
    }

    /// A sweep over all rows of the matrices at `indices`, which follow each other in the spec.
    ///
    /// # Panics
    /// If there are more than [`SWEEP_MAX`].
    pub fn sweep(&self, indices: &[usize]) -> Sweep<'_> {
        let tensors = indices.iter().copied().collect();
        Sweep { holder: self.holder, group: self.group, tensors, cursor: 0, bands: ArrayVec::new() }
    }

    /// Hands the rows `wanted` of the matrix at `index` to `use_rows`, all at once or in several parts.
    ///
    /// # Errors
    /// What kept the bytes from coming.
    pub fn with_rows(&self, index: usize, wanted: &[u32], use_rows: &mut UseRows<'_>) -> Result<(), WeightError> {
        self.holder.with_rows(self.group, index, wanted, use_rows)
    }
}

impl Drop for GroupGuard<'_> {
    fn drop(&mut self) {
        self.holder.release(self.group);
    }
}

impl std::fmt::Debug for GroupGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupGuard").field("group", &self.group).finish_non_exhaustive()
    }
}

/// A walk over all rows of some matrices, a few bands at a time.
pub struct Sweep<'a> {
    holder: &'a dyn GroupHolder,
    group: usize,
    tensors: ArrayVec<usize, SWEEP_MAX>,
    cursor: usize,
    bands: ArrayVec<Band, BANDS_MAX>,
}

impl Sweep<'_> {
    /// Lets go of the bands at hand and waits for the next ones. They come in ascending order of each matrix's rows, and
    /// every row once; none when all have been.
    ///
    /// # Errors
    /// What kept the bytes from coming.
    pub fn advance(&mut self) -> Result<&[Band], WeightError> {
        self.let_go();
        self.holder.next_bands(self.group, &self.tensors, &mut self.cursor, &mut self.bands)?;
        Ok(&self.bands)
    }

    fn let_go(&mut self) {
        if !self.bands.is_empty() {
            self.holder.release_bands(self.group, &mut self.bands);
        }
    }
}

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}
