//! The queues of a device, and the names of what is submitted to them.

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
    /// [Products](crate::Command::Products) with weights in host memory, which the host's processor computes beside the
    /// other queues. A device that does not use the host's processor
    /// [has no such queue](crate::Device::computes_on_host).
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
