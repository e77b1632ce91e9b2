//! The interface between the forward pass and the sources of weights.

use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_device::{Device, DeviceError, OUTS_MAX, PRODUCTS_MAX, Queue, Token, Weights};

use crate::error::WeightError;

/// The most bands that are handed out together: what one command multiplies.
pub const BANDS_MAX: usize = PRODUCTS_MAX;

/// The most matrices of one sweep: each has a result of its own.
pub const SWEEP_MAX: usize = OUTS_MAX;

/// The most matrices of an expert.
pub const EXPERT_MATRICES_MAX: usize = 3;

/// A tensor of the model: its group, and its index in that group's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// Counted from 0 in the order of a pass.
    pub group: usize,
    /// Counted from 0 in the order of the spec.
    pub index: usize,
}

/// Brings weights to where a device can read them.
///
/// A pass calls [`begin_pass`](Self::begin_pass), sweeps over the matrices in the order of the specs, and calls
/// [`end_pass`](Self::end_pass). The head's matrix is swept once for every few rows of logits, and not at all if there
/// are none. Resident weights answer at once; streamed ones arrive band by band, and a wait for one is counted as a
/// stall. Between the sweeps of a mixture's group comes the [visit](Self::visit) to its experts.
pub trait WeightSource: Send {
    /// Begins a pass of `tokens` rows at the first group, however the last pass ended.
    ///
    /// # Errors
    /// Why weights cannot be read; another attempt may succeed.
    fn begin_pass(&mut self, _tokens: usize) -> Result<(), WeightError> {
        Ok(())
    }

    /// A vector as a matrix of one row; vectors are always in memory.
    ///
    /// # Panics
    /// If the spec has no such vector: specs and forward pass are written together.
    fn vector(&self, tensor: TensorId) -> Weights;

    /// Whether some bands of this pass may be the [host's](Queue::Host) to multiply with.
    fn computes_on_host(&self) -> bool {
        false
    }

    /// The same as [`vector`](Self::vector) for [`Queue::Host`]: in host memory.
    ///
    /// # Panics
    /// As [`vector`](Self::vector).
    fn vector_on_host(&self, tensor: TensorId) -> Weights {
        self.vector(tensor)
    }

    /// Fills `bands`, which must be empty, with the next bands of a sweep, and waits until there is at least one;
    /// leaves it empty once every row has been handed out. `device` is what computes with them. Rows of a matrix
    /// ascend. If matrices are swept side by side, one call hands out the same rows of all of them, one matrix
    /// after the other.
    ///
    /// # Errors
    /// Why the bytes could not be read, or the device's failure; `bands` is then empty.
    fn bands(&mut self, device: &mut dyn Device, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError>;

    /// Releases `bands`, so that their memory can be read into again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// The device failed, or still uses the bands although `used` has been executed. The bands are released all the
    /// same.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError>;

    /// Looks up the first rows of `wanted` in a matrix that is read row by row: all of them or fewer, at least one.
    ///
    /// # Errors
    /// Why the bytes could not be read.
    fn rows<'a>(&mut self, tensor: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError>;

    /// Whether an expert of `group` is in memory.
    fn holds_expert(&self, _group: usize, _expert: u32) -> bool {
        true
    }

    /// Begins to bring the experts of `group` that a pass needs. `wanted` are their numbers, ascending, each with how
    /// many of the pass's tokens it is for. Sweeps over other matrices may come before they are taken.
    ///
    /// # Errors
    /// Why they cannot be brought.
    fn visit(&mut self, group: usize, wanted: &[(u32, u32)]) -> Result<(), WeightError>;

    /// The next of the wanted experts that is in memory: in any order, each once. Waits for one if need be; `None` once
    /// all have been handed out. If another is to be waited for, `device` may be waited for as well.
    ///
    /// # Errors
    /// Why its bytes could not be read. The visit is over then.
    fn next_expert(&mut self, device: &mut dyn Device) -> Result<Option<Expert>, WeightError>;

    /// Releases an expert, so that its memory can be read into again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    fn release_expert(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
    ) -> Result<(), DeviceError>;

    /// Whether it is worth the work to guess which experts of `group`, behind the one that is visited, the pass will
    /// need.
    fn looks_ahead(&mut self, _group: usize) -> bool {
        false
    }

    /// Fills `bands`, which must be empty, with all of a matrix that is swept, out of turn, if it stays in memory;
    /// leaves it empty otherwise. They are not to be released, and read no longer than the visit lasts.
    fn out_of_turn(&self, _tensor: TensorId, _bands: &mut Bands) {}

    /// Experts of `group`, which comes behind the one that is visited, that the pass will probably need: each with its
    /// place in some token's choice, the best first. They may be brought while few others are being read.
    fn guess(&mut self, _group: usize, _guesses: &[(u32, u32)]) {}

    /// Ends the pass, and says whether its results can be trusted.
    ///
    /// # Errors
    /// If the weights changed during the pass.
    fn end_pass(&mut self) -> Result<(), WeightError> {
        Ok(())
    }

    /// These weights as [`ElasticWeights`], if their memory may change between passes.
    fn elastic(&mut self) -> Option<&mut dyn ElasticWeights> {
        None
    }

    /// Shows where the weights are, to those who watch their [`StreamMonitor`](crate::StreamMonitor). Called when there
    /// is no pass; passes show it themselves from time to time.
    fn show(&mut self) {}
}

/// Weights whose memory can be made larger or smaller.
pub trait ElasticWeights {
    /// The memory that they take, after reads that have ended were taken in.
    fn memory(&mut self) -> StreamMemory;

    /// Changes how many bytes of memory all of it may take. Memory that is not in use is given back before this
    /// returns; see [`StreamMemory::held`] for the rest.
    ///
    /// # Errors
    /// If it is less than the least with which passes can be computed; nothing has changed then.
    fn set_budget(&mut self, bytes: u64) -> Result<(), WeightError>;

    /// How many seconds less the passes since the last call would have waited with each byte of memory more, as far as
    /// can be told: what memory is worth here, to compare with what it is worth elsewhere. 0 where passes wait for
    /// nothing.
    fn worth(&mut self) -> f64;

    /// Bytes of weights that stay in memory from pass to pass.
    fn resident_bytes(&self) -> u64;

    /// Waits until everything that is being read ahead has arrived; for measurements.
    fn settle(&mut self);

    /// Whether experts are read before passes ask for them, which they are at first; for measurements.
    fn set_reads_ahead(&mut self, reads_ahead: bool);
}

/// The memory of streamed weights, in bytes, everything included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMemory {
    /// What they may take.
    pub budget: u64,
    /// What they take now. After the budget was lowered this may exceed it until the reads in flight have ended.
    pub held: u64,
    /// Whether reads are in flight.
    pub loading: bool,
}

/// A walk over all rows of matrices that follow each other in a group's spec.
#[derive(Debug, Clone)]
pub struct Sweep {
    tensors: ArrayVec<TensorId, SWEEP_MAX>,
    /// The source's position.
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

    /// The matrices that it goes over.
    pub fn tensors(&self) -> &[TensorId] {
        &self.tensors
    }
}

/// Bands that were handed out together.
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
    /// The submission that brings them there, of [`Queue::Upload`](interbed_device::Queue::Upload), which whoever reads
    /// them waits for.
    pub copied: Option<Token>,
    /// The queue that multiplies with them: [`Queue::Host`] if they are in host memory and stay there.
    pub queue: Queue,
    /// The source's own number for this band.
    pub(crate) unit: u32,
}

/// One expert of a group, to compute with.
#[derive(Debug)]
pub struct Expert {
    /// Which of the group's experts.
    pub number: u32,
    /// Its matrices, in the order of the spec.
    pub matrices: ArrayVec<Weights, EXPERT_MATRICES_MAX>,
}

/// Rows that were looked up.
#[derive(Debug)]
pub struct Rows<'a> {
    /// A matrix that contains them, `[any, cols]`.
    pub table: Weights,
    /// Their row numbers in `table`, in the order of the request.
    pub numbers: &'a [u32],
}
