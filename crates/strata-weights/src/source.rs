//! The seam between the forward pass and wherever weights come from.

use std::ops::Range;

use arrayvec::ArrayVec;
use strata_device::{Device, DeviceError, OUTS_MAX, PRODUCTS_MAX, Token, Weights};

use crate::error::WeightError;

/// Bands that are at hand together at most: what one command multiplies.
pub const BANDS_MAX: usize = PRODUCTS_MAX;

/// Matrices of one sweep at most: each has a result of its own.
pub const SWEEP_MAX: usize = OUTS_MAX;

/// A tensor of the model: its group, and its place in that group's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// Counted from 0 in the order of a pass.
    pub group: usize,
    /// Counted from 0 in the order of the spec.
    pub index: usize,
}

/// Brings weights to where a device reads them.
///
/// A pass calls [`begin_pass`](Self::begin_pass), sweeps over the matrices in the order of the specs (the head's once
/// for each few rows of logits, and not at all without), and calls [`end_pass`](Self::end_pass). Resident weights
/// answer at once; streamed ones arrive band by band, and a wait for one is counted as a stall.
pub trait WeightSource: Send {
    /// Begins a pass at the first group, whatever became of the pass before.
    ///
    /// # Errors
    /// What keeps weights from coming; another attempt may succeed.
    fn begin_pass(&mut self) -> Result<(), WeightError> {
        Ok(())
    }

    /// A vector, which is at hand at any time, as a matrix of one row.
    ///
    /// # Panics
    /// If the spec has no such vector: specs and forward pass are written together.
    fn vector(&self, tensor: TensorId) -> Weights;

    /// Fills `bands`, which is empty, with the next ones of a sweep, waiting until there is at least one; leaves it
    /// empty once every row has come. Rows of a matrix ascend. Of matrices that are swept side by side, the same rows
    /// follow each other in one filling.
    ///
    /// # Errors
    /// What kept the bytes from coming; `bands` is then empty.
    fn bands(&mut self, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError>;

    /// Lets go of `bands`, so that their memory can be read into again once `device` has executed what `used` names.
    ///
    /// # Errors
    /// The device failed, or still uses them, which `used` should have said. The bands are gone all the same.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError>;

    /// Finds the first few rows `wanted` of a matrix that is read row by row, all of them or fewer, at least one.
    ///
    /// # Errors
    /// What kept the bytes from coming.
    fn rows<'a>(&mut self, tensor: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError>;

    /// The pass is over: tells whether what it computed can be trusted.
    ///
    /// # Errors
    /// The weights changed under it.
    fn end_pass(&mut self) -> Result<(), WeightError> {
        Ok(())
    }

    /// These weights as some whose memory may change between passes, where it may.
    fn elastic(&mut self) -> Option<&mut dyn ElasticWeights> {
        None
    }
}

/// Weights that take more or less memory as they are asked to.
pub trait ElasticWeights {
    /// The memory that they take, once the reads that have ended are taken note of.
    fn memory(&mut self) -> StreamMemory;

    /// Changes how many bytes of memory all of it may take. What is not in use is given back before this returns; see
    /// [`StreamMemory::held`] for the rest.
    ///
    /// # Errors
    /// Less than the least with which passes can be computed; nothing has changed then.
    fn set_budget(&mut self, bytes: u64) -> Result<(), WeightError>;

    /// Bytes of weights that stay in memory from pass to pass.
    fn resident_bytes(&self) -> u64;

    /// Waits until what is read ahead has come; for measurements.
    fn settle(&mut self);
}

/// What memory streamed weights take, in bytes, everything included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMemory {
    /// What they may take.
    pub budget: u64,
    /// What they take now: more than a budget that was lowered while reads were in flight, until those have ended.
    pub held: u64,
    /// Whether reads are in flight.
    pub loading: bool,
}

/// A walk over all rows of some matrices that follow each other in a group's spec.
#[derive(Debug, Clone)]
pub struct Sweep {
    tensors: ArrayVec<TensorId, SWEEP_MAX>,
    /// Belongs to the source.
    pub(crate) cursor: usize,
}

impl Sweep {
    /// A sweep over these matrices of one group.
    ///
    /// # Panics
    /// If there are more than [`SWEEP_MAX`].
    pub fn new(tensors: impl IntoIterator<Item = TensorId>) -> Self {
        Self { tensors: tensors.into_iter().collect(), cursor: 0 }
    }

    /// What it goes over.
    pub fn tensors(&self) -> &[TensorId] {
        &self.tensors
    }
}

/// Bands that are at hand.
pub type Bands = ArrayVec<Band, BANDS_MAX>;

/// Some whole rows of a matrix, the unit in which streamed weights are read, held and multiplied.
#[derive(Debug)]
pub struct Band {
    /// Which of a sweep's matrices, counted from 0 in the sweep's order.
    pub matrix: usize,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// The rows' weights, `[rows, cols]`.
    pub weights: Weights,
    /// For the source, which band of its own this is.
    pub(crate) unit: u32,
}

/// Rows that were looked up.
#[derive(Debug)]
pub struct Rows<'a> {
    /// A matrix that has them, `[any, cols]`.
    pub table: Weights,
    /// Which of its rows they are, in the order in which they were wanted.
    pub numbers: &'a [u32],
}
