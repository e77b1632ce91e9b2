//! What computes: the seam between the forward pass and a processor, a GPU, or a device that tests order.

use thiserror::Error;

use crate::{Command, OutOfTensors, Tensor};

/// A queue of a device. A device executes commands of one queue as if one after the other, in the order in which they
/// were submitted. Between queues, only waits make an order. Queues may share one piece of hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The operations of passes.
    Compute,
    /// From the host to the device.
    Upload,
    /// From the device to the host.
    Download,
}

/// Names a submission: it is complete when everything that was submitted with it and before it to its queue has been
/// executed, and with that all that those waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Where it was submitted.
    pub queue: Queue,
    /// Counted from 1 in the order of submission, over all queues.
    pub number: u64,
}

/// A device that could not do what it was asked for.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The tensors of a pass do not fit.
    #[error(transparent)]
    OutOfTensors(#[from] OutOfTensors),
    /// Weights were let go of that the device has yet to read. Only a source that needs their memory says so.
    #[error("weights were released while the device still uses them")]
    WeightsInUse,
    /// Two submissions use the same memory in no order. Only a device that looks for it says so.
    #[error("submission {second} does not wait for submission {first}, which uses the same memory")]
    Unordered {
        /// The one submitted first.
        first: u64,
        /// The one that should have waited.
        second: u64,
    },
    /// The host reads a tensor before its download is complete. Only a device that looks for it says so.
    #[error("the host reads a tensor that submission {writer} has not written yet")]
    ReadTooEarly {
        /// Which submission writes it.
        writer: u64,
    },
}

/// Executes the operations of passes on tensors and KV blocks.
///
/// - What a command borrows is read before [`submit`](Self::submit) returns. When its *results* may be used is a matter
///   of tokens: by later commands of the same queue at once, by commands of other queues that wait for its token, by
///   the host once [`complete`](Self::complete) has returned.
/// - Wait only for tokens of earlier submissions. The host waits in `complete` alone, so nothing in a queue waits for
///   it.
/// - A submission whose execution fails makes `complete` fail, for its own token and all that wait for it.
pub trait Device: Send {
    /// Numbers that all tensors of a pass together may have.
    fn tensor_capacity(&self) -> usize;

    /// Has `commands` executed in this order, after `waits`.
    ///
    /// # Errors
    /// Nothing was submitted then.
    ///
    /// # Panics
    /// If shapes disagree, a tensor lies outside the capacity, or a block table is too short or names a block that
    /// there is not: the callers' promise.
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError>;

    /// Waits until everything submitted with `token` has been executed.
    ///
    /// # Errors
    /// Its execution failed.
    fn complete(&mut self, token: Token) -> Result<(), DeviceError>;

    /// The numbers of a tensor that was [downloaded](Command::Download), once that is complete. The host may change
    /// them.
    ///
    /// # Errors
    /// See [`DeviceError::ReadTooEarly`].
    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError>;
}
