//! The interface between the forward pass and the sources of weights.

use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_device::{Device, DeviceError, OUTS_MAX, PRODUCTS_MAX, Queue, Token, Weights};

use crate::error::WeightError;

/// Maximum number of bands (runs of a matrix's rows) that one call of [`WeightSource::bands`] hands out. One device
/// command can multiply with at most this many bands.
pub const BANDS_MAX: usize = PRODUCTS_MAX;

/// Maximum number of matrices that one [`Sweep`] covers. Each matrix gives one result, and one device command can
/// compute at most this many results.
pub const SWEEP_MAX: usize = OUTS_MAX;

/// Maximum number of matrices of an expert.
pub const EXPERT_MATRICES_MAX: usize = 3;

/// Identifies a tensor of the model by its group and by the tensor's index in that group's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// Index of the group, counted from 0 in the order of the forward pass.
    pub group: usize,
    /// Index of the tensor, counted from 0 in the order of the group's spec.
    pub index: usize,
}

/// Supplies weights in memory that a device can read.
///
/// A forward pass calls [`begin_pass`](Self::begin_pass), sweeps over the matrices in the order of the specs, and calls
/// [`end_pass`](Self::end_pass). It sweeps over the head's matrix once for every few rows of logits, and not at all if
/// no logits are wanted. In a group of a mixture layer, it [visits](Self::visit) the experts between sweeps. Resident
/// weights are available at once. Streamed weights arrive band by band, and each wait for a band is counted as a stall.
pub trait WeightSource: Send {
    /// Begins a forward pass over `tokens` tokens at the first group, whether or not the last pass was completed.
    ///
    /// # Errors
    /// Fails if weights cannot be read; another attempt may succeed.
    fn begin_pass(&mut self, _tokens: usize) -> Result<(), WeightError> {
        Ok(())
    }

    /// Returns a vector as a matrix of one row; vectors are always in memory.
    ///
    /// # Panics
    /// Panics if the spec has no such vector, which would be a bug in the forward pass.
    fn vector(&self, tensor: TensorId) -> Weights;

    /// Returns whether some bands of this pass may be multiplied by the [host](Queue::Host) rather than the device.
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Returns a vector like [`vector`](Self::vector), but in host memory, where [`Queue::Host`] can read it.
    ///
    /// # Panics
    /// Panics if the spec has no such vector.
    fn vector_on_host(&self, tensor: TensorId) -> Weights {
        self.vector(tensor)
    }

    /// Fills `bands`, which must be empty, with the next bands of a sweep, for `device` to compute with. Waits until at
    /// least one band is available. Leaves `bands` empty once all rows have been handed out. The rows of a matrix come
    /// in ascending order. If several matrices are swept together, one call hands out the same rows of each, one matrix
    /// after another.
    ///
    /// # Errors
    /// Fails if the bytes could not be read or the device failed; `bands` is then empty.
    fn bands(&mut self, device: &mut dyn Device, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError>;

    /// Releases `bands`, so that their memory can be read into again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// Fails if the device failed, or still uses the bands although it has executed `used`. The bands are released all
    /// the same.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError>;

    /// Looks up rows of a matrix that is read row by row. Returns at least the first of the `wanted` rows, and at most
    /// all of them.
    ///
    /// # Errors
    /// Fails if the bytes could not be read.
    fn rows<'a>(&mut self, tensor: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError>;

    /// Returns whether an expert of `group` is in memory.
    fn holds_expert(&self, _group: usize, _expert: u32) -> bool {
        true
    }

    /// Begins to load the experts of `group` that a forward pass needs. Each entry of `wanted` is the index of an
    /// expert and the number of the pass's tokens that use it, in ascending order of indices. The caller may sweep over
    /// other matrices before it takes the experts.
    ///
    /// # Errors
    /// Fails if the experts cannot be brought, or if `device`, which will compute with them, failed.
    fn visit(&mut self, device: &mut dyn Device, group: usize, wanted: &[(u32, u32)]) -> Result<(), WeightError>;

    /// Returns the next of the wanted experts that is in memory, in any order and each once. Waits for one if need be;
    /// returns `None` once all have been handed out. While it waits for an expert, it may also wait for `device`. An
    /// expert is released before the next is asked for.
    ///
    /// # Errors
    /// Fails if the bytes of an expert could not be read, or not be copied to `device`. The visit is over then.
    fn next_expert(&mut self, device: &mut dyn Device) -> Result<Option<Expert>, WeightError>;

    /// Releases an expert, so that its memory can be read into again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// Fails if the device failed, or still uses the expert although it has executed `used`. The expert is released all
    /// the same.
    fn release_expert(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
    ) -> Result<(), DeviceError>;

    /// Returns whether it is worth guessing which experts of `group` the pass will need. `group` comes after the group
    /// that is being visited.
    fn looks_ahead(&mut self, _group: usize) -> bool {
        false
    }

    /// Fills `bands`, which must be empty, with all bands of a matrix if the matrix stays in memory, and leaves it
    /// empty otherwise. A matrix can be asked for before its sweep. The bands need no release, and are valid until the
    /// visit ends.
    fn out_of_turn(&self, _tensor: TensorId, _bands: &mut Bands) {}

    /// Takes guesses of the experts of `group` that the pass will probably need. `group` comes after the group that is
    /// being visited. Each guess is the index of an expert and its rank among the experts chosen for some token, where
    /// 0 is the best. The experts may be loaded while few other experts are being read.
    fn guess(&mut self, _group: usize, _guesses: &[(u32, u32)]) {}

    /// Ends the pass, and says whether its results can be trusted.
    ///
    /// # Errors
    /// Fails if the weights changed during the pass.
    fn end_pass(&mut self) -> Result<(), WeightError> {
        Ok(())
    }

    /// Returns these weights as [`ElasticWeights`] if their memory may change between passes.
    fn elastic(&mut self) -> Option<&mut dyn ElasticWeights> {
        None
    }

    /// Publishes where the weights are, for watchers with a [`StreamMonitor`](crate::StreamMonitor). The caller calls
    /// this between passes; during a pass, the weights publish this from time to time by themselves.
    fn show(&mut self) {}
}

/// Weights whose memory can be made larger or smaller between passes.
pub trait ElasticWeights {
    /// Processes the reads and copies that have completed, and returns how much of the memory the weights take in which
    /// `device` computes with them.
    fn memory(&mut self, device: &mut dyn Device) -> StreamMemory;

    /// Sets how many bytes the weights may take in total, of the memory in which `device` computes with them. Memory
    /// that is not in use is freed before the call returns; [`StreamMemory::held`] tells how much is still held.
    ///
    /// # Errors
    /// Fails if `bytes` is less than the least with which passes can be computed; nothing has changed then.
    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WeightError>;

    /// Returns the estimated value of more memory: by how many seconds each additional byte would have shortened the
    /// waits of the passes since the last call. The value is 0 if passes do not wait.
    fn worth(&mut self) -> f64;

    /// Returns the least budget that [`set_budget`](Self::set_budget) accepts, in bytes.
    fn least_budget(&self) -> u64;

    /// Returns the budget with which all weights stay in memory, in bytes. A larger budget has no further effect.
    fn full_budget(&self) -> u64;

    /// Returns the number of bytes of weights that stay in memory from pass to pass.
    fn resident_bytes(&self) -> u64;

    /// Waits until everything that is being read ahead has arrived. This is for measurements.
    fn settle(&mut self);

    /// Sets whether experts are read before passes ask for them, which is the default. This is for measurements.
    fn set_reads_ahead(&mut self, reads_ahead: bool);
}

/// Memory that streamed weights take in total, in bytes, where they are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMemory {
    /// Number of bytes that the weights may take.
    pub budget: u64,
    /// Number of bytes that the weights take now. If the budget was lowered, this may exceed the budget until the reads
    /// in flight have completed.
    pub held: u64,
    /// Number of bytes of host memory that the weights take besides, if a device computes with them in memory of its
    /// own.
    pub beside: u64,
    /// Whether reads are in flight.
    pub loading: bool,
}

/// Progress of a forward pass that goes through all rows of one matrix, or of several matrices side by side. Such
/// matrices are consecutive in their group's spec and have the same number of rows.
#[derive(Debug, Clone)]
pub struct Sweep {
    tensors: ArrayVec<TensorId, SWEEP_MAX>,
    /// Position of the walk, which only the source of the weights interprets.
    pub(crate) cursor: usize,
}

impl Sweep {
    /// Starts a sweep over these matrices of one group.
    ///
    /// # Panics
    /// Panics if there are more than [`SWEEP_MAX`] matrices.
    pub fn new(tensors: impl IntoIterator<Item = TensorId>) -> Self {
        Self { tensors: tensors.into_iter().collect(), cursor: 0 }
    }

    /// Returns the matrices that the sweep covers.
    pub fn tensors(&self) -> &[TensorId] {
        &self.tensors
    }
}

/// Bands (runs of a matrix's rows) that were handed out together.
pub type Bands = ArrayVec<Band, BANDS_MAX>;

/// A run of a matrix's whole rows: the unit in which streamed weights are read, kept in memory and multiplied.
#[derive(Debug)]
pub struct Band {
    /// Index of the band's matrix among the matrices of its [`Sweep`], counted from 0.
    pub matrix: usize,
    /// Range of the band's rows in the matrix.
    pub rows: Range<usize>,
    /// Weights of the band's rows, of shape `[rows, cols]`.
    pub weights: Weights,
    /// Submission to [`Queue::Upload`](interbed_device::Queue::Upload) that copies the weights to the device. Readers
    /// of the weights must wait for it. `None` if there is no copy to wait for.
    pub copied: Option<Token>,
    /// Queue that multiplies with the band: [`Queue::Host`] if the host's processor multiplies instead of the device,
    /// otherwise [`Queue::Compute`].
    pub queue: Queue,
    /// Number that the source of the weights has given this band.
    pub(crate) unit: u32,
}

/// An expert whose weights are in memory, ready to compute with.
#[derive(Debug)]
pub struct Expert {
    /// Index of the expert in its group.
    pub number: u32,
    /// Matrices of the expert, in the order of the group's spec.
    pub matrices: ArrayVec<Weights, EXPERT_MATRICES_MAX>,
    /// Submission to [`Queue::Upload`](interbed_device::Queue::Upload) that copies the weights to the device; a reader
    /// of the weights waits for it. `None` if there is no copy to wait for.
    pub copied: Option<Token>,
}

/// Rows of a matrix that were looked up by index.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Matrix that contains the rows. It may have other rows too.
    pub table: Weights,
    /// Indices of the rows in `table`, in the order of the request.
    pub numbers: &'a [u32],
}
