//! The interface between the forward pass and what computes: a processor, a GPU, or a device that tests ordering.

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
    /// queues. A device of which the host is no part [does not have it](Device::computes_on_host).
    Host,
}

/// Names a submission. It is complete when it and everything submitted earlier to its queue have been executed, and
/// with them everything that they waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The queue of the submission.
    pub queue: Queue,
    /// Counted from 1 in the order of submission, across all queues.
    pub number: u64,
}

/// Why a device could not do what was asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The tensors of a pass do not fit into its memory.
    #[error(transparent)]
    OutOfTensors(#[from] OutOfTensors),
    /// Weights were released that the device has yet to read. Only weight sources that reuse their memory report this.
    #[error("weights were released while the device still uses them")]
    WeightsInUse,
    /// Two submissions use the same memory without an order between them. Only devices that check for it report this.
    #[error("submission {second} does not wait for submission {first}, which uses the same memory")]
    Unordered {
        /// The submission that came first.
        first: u64,
        /// The submission that should have waited.
        second: u64,
    },
    /// The host reads a tensor before its download is complete. Only devices that check for it report this.
    #[error("the host reads a tensor that submission {writer} has not written yet")]
    ReadTooEarly {
        /// The submission that writes the tensor.
        writer: u64,
    },
    /// The device computes in host memory.
    #[error("this device has no memory of its own")]
    NoMemory,
    /// The GPU, or its driver, could not.
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
    /// The most numbers that all tensors of a pass together may have.
    fn tensor_capacity(&self) -> usize;

    /// Submits `commands`, to be executed in this order, after `waits`.
    ///
    /// # Errors
    /// When the device refuses; nothing was submitted then.
    ///
    /// If shapes disagree, a tensor lies outside the capacity, or a block table is too short or names a block that does
    /// not exist: callers must prevent this.
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError>;

    /// Waits until everything submitted with `token` has been executed.
    ///
    /// # Errors
    /// When the execution failed.
    fn complete(&mut self, token: Token) -> Result<(), DeviceError>;

    /// Whether everything submitted with `token` is known to have been executed, without waiting for it.
    ///
    /// # Errors
    /// When the execution failed.
    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError>;

    /// The numbers of a tensor that was [downloaded](Command::Download), once the download is complete. The host may
    /// change them.
    ///
    /// # Errors
    /// See [`DeviceError::ReadTooEarly`].
    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError>;

    /// Whether there is a [`Queue::Host`].
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Whether what the host reads is copied to it: little of it is wanted then, and [`Command::Best`] takes the place
    /// of whole rows.
    fn copies_downloads(&self) -> bool {
        false
    }

    /// Memory of the device's own for `len` bytes of weights, which [`Command::CopyWeights`] writes.
    ///
    /// # Errors
    /// When it has none left, or none at all.
    fn allocate(&mut self, _len: usize) -> Result<PlacedBytes, DeviceError> {
        Err(DeviceError::NoMemory)
    }

    /// Has [copies](Command::CopyWeights) from this memory read it where it lies, from now on. False if they do not,
    /// and read all bytes before they are submitted. The device lets go of the memory once the copies are complete.
    fn share(&mut self, _memory: &HostBuffer) -> bool {
        false
    }

    /// Puts bytes of weights where the device reads them fastest, for good: by default where they are.
    ///
    /// # Errors
    /// When there is no memory for them.
    fn place(&mut self, bytes: &Arc<HostBuffer>) -> Result<PlacedBytes, DeviceError> {
        Ok(PlacedBytes::Host(Arc::clone(bytes)))
    }
}
