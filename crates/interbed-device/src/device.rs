//! The interface between the forward pass and the device that computes: a processor, a GPU, or a device that tests
//! ordering.

use std::sync::Arc;

use thiserror::Error;

use crate::{Command, GpuError, HostBuffer, OutOfTensors, PlacedBytes, Tensor};

/// A queue of a device. A device executes the commands of one queue as if one after the other, in the order in which
/// they were submitted. Between queues, only waits establish an order. Queues may share one piece of hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The operations of passes.
    Compute,
    /// Copies from the host to the device.
    Upload,
    /// Copies from the device to the host.
    Download,
    /// [Products](Command::Products) with weights in host memory, which the host's processor computes beside the other
    /// queues. A device that does not use the host's processor [has no such queue](Device::computes_on_host).
    Host,
}

/// Names a submission. A submission is complete when this submission, everything submitted earlier to its queue, and
/// everything that any of these waited for have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The queue of the submission.
    pub queue: Queue,
    /// The number of the submission, counted from 1 in the order of submission across all queues.
    pub number: u64,
}

/// The reasons for which a device cannot do what was asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The tensors of a pass do not fit into the device's memory.
    #[error(transparent)]
    OutOfTensors(#[from] OutOfTensors),
    /// Weights were released that the device has yet to read. This error comes only with weight sources that reuse
    /// their memory.
    #[error("weights were released while the device still uses them")]
    WeightsInUse,
    /// Two submissions use the same memory without an order between them. Only devices that check the order report this
    /// error.
    #[error("submission {second} does not wait for submission {first}, which uses the same memory")]
    Unordered {
        /// The submission that came first.
        first: u64,
        /// The submission that should have waited.
        second: u64,
    },
    /// The host reads a tensor before its download is complete. Only devices that check the order report this error.
    #[error("the host reads a tensor that submission {writer} has not written yet")]
    ReadTooEarly {
        /// The submission that writes the tensor.
        writer: u64,
    },
    /// The device computes in host memory.
    #[error("this device has no memory of its own")]
    NoMemory,
    /// The GPU or its driver failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Executes the operations of passes on tensors and KV blocks.
///
/// - Everything that a command borrows is read before [`submit`](Self::submit) returns, but for memory that the device
///   [shares](Self::share). When its *results* may be used depends on tokens: later commands of the same queue may use
///   them at once, commands of other queues if they wait for its token, and the host once
///   [`complete`](Self::complete) has returned.
/// - A submission may wait only for tokens of earlier submissions. The thread that submits waits in `complete` alone,
///   so nothing in a queue waits for that thread.
/// - If the execution of a submission fails, `complete` fails for its token and for all submissions that wait for it.
pub trait Device: Send {
    /// Returns the maximum number of numbers that all tensors of a pass together may have.
    fn tensor_capacity(&self) -> usize;

    /// Submits `commands`, to be executed in this order, after `waits`.
    ///
    /// # Errors
    /// Fails if the device refuses; nothing was submitted then.
    ///
    /// Fails if shapes disagree, a tensor lies outside the capacity, or a block table is too short or names a block
    /// that does not exist: callers must prevent this.
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError>;

    /// Waits until everything submitted with `token` has been executed.
    ///
    /// # Errors
    /// Fails if the execution failed.
    fn complete(&mut self, token: Token) -> Result<(), DeviceError>;

    /// Returns whether everything submitted with `token` is known to have been executed, without waiting for it.
    ///
    /// # Errors
    /// Fails if the execution failed.
    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError>;

    /// Returns the numbers of a tensor that was [downloaded](Command::Download), once the download is complete. The
    /// host may change them.
    ///
    /// # Errors
    /// Fails if the device finds that the download is not complete ([`DeviceError::ReadTooEarly`]).
    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError>;

    /// Returns whether there is a [`Queue::Host`].
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Returns whether the tensors that the host reads are copied to the host. If so, the host should want little, and
    /// [`Command::Best`] takes the place of whole rows.
    fn copies_downloads(&self) -> bool {
        false
    }

    /// Allocates `len` bytes of the device's own memory for weights, which [`Command::CopyWeights`] writes.
    ///
    /// # Errors
    /// Fails if the device has no memory left, or no memory of its own at all.
    fn allocate(&mut self, _len: usize) -> Result<PlacedBytes, DeviceError> {
        Err(DeviceError::NoMemory)
    }

    /// Lets [copies](Command::CopyWeights) from this host memory read the bytes in place from now on, and returns true.
    /// Returns false if the device cannot; copies then read all bytes before they are submitted. The device lets go of
    /// the memory once the copies are complete.
    fn share(&mut self, _memory: &HostBuffer) -> bool {
        false
    }

    /// Puts bytes of weights permanently where the device reads them fastest. By default they stay where they are.
    ///
    /// # Errors
    /// Fails if there is no memory for the bytes.
    fn place(&mut self, bytes: &Arc<HostBuffer>) -> Result<PlacedBytes, DeviceError> {
        Ok(PlacedBytes::Host(Arc::clone(bytes)))
    }
}
