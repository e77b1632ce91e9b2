//! The interface between the engine and the code that computes, which is a model on a device or a simulation of one.

use std::ops::Range;
use std::sync::Arc;

use interbed_device::{Bytes, DeviceStats, StripStats};
use interbed_kv::{BlockBytes, BlockCopy, Mapping, StripConfig};
use interbed_model::{BatchSequence, ForwardError, KvBelow, KvLost, LogitRow, Logits};
use interbed_weights::StreamMonitor;
use thiserror::Error;

use crate::drafter::Drafter;
use crate::memory_trade::{KvDemand, KvGrant};

/// Computes forward passes. The engine thread owns the runner.
pub trait Runner: Send {
    /// Computes the KV of every token of the batch, and passes each requested row of logits to `sink`, in order. KV
    /// that is not in memory is read from `below`. A batch refers to such KV only if [`streams_kv`](Self::streams_kv)
    /// returns true.
    ///
    /// # Errors
    /// Fails if the forward pass failed; the error says why. The KV of the batch's own tokens is then unspecified, and
    /// no other KV has changed. Also fails if KV could not be read from `below`; in that case, nothing was passed to
    /// `sink`.
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError>;

    /// Copies KV blocks, in the order of `copies`. The engine calls this between forward passes, before any of the
    /// blocks is read, written or freed.
    fn copy_blocks(&mut self, copies: &[BlockCopy]);

    /// Allocates memory for the blocks `came`, and frees the memory of the blocks `left`. None of these blocks is read
    /// before it has been written again, except that copies may still read the blocks `left`. The engine calls this
    /// between forward passes, if memory moves between KV and weights, or between the blocks of groups of layers. In
    /// these cases the engine also calls this when it starts, for the blocks that have memory from the start on.
    fn resize_blocks(&mut self, _came: &[u32], _left: &[u32]) {}

    /// Returns access to the contents of KV blocks, for swapping, storing and reading blocks back. Returns `None` if
    /// blocks cannot be moved.
    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        None
    }

    /// Returns a number for prompts of this length. Two prompts may share KV only if their numbers are equal. The
    /// number enters the root of the chain of block hashes. The default is 0.
    fn cache_namespace(&self, _prompt_len: usize) -> u64 {
        0
    }

    /// Returns the drafter for speculative decoding, if there is one. With a drafter, a forward pass may compute
    /// several tokens of a sequence.
    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        None
    }

    /// Returns the memory of KV blocks if KV trades memory with the weights. With `None`, all blocks may be used at any
    /// time.
    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        None
    }

    /// Returns the strips in which the blocks of a sequence are mapped side by side, if the runner has strips. A
    /// forward pass then receives [`SequenceBlocks::From`](interbed_model::SequenceBlocks::From).
    fn strips(&mut self) -> Option<&mut dyn StripMemory> {
        None
    }

    /// Returns the publisher of the weights' locations, if the weights are streamed.
    fn shown_weights(&mut self) -> Option<&mut dyn ShownWeights> {
        None
    }

    /// Returns whether a sequence may have more KV than fits in memory.
    fn streams_kv(&self) -> bool {
        false
    }

    /// Returns the memory that the runner takes.
    fn memory(&mut self) -> RunnerMemory {
        RunnerMemory::default()
    }
}

/// Reason why a forward pass could not be computed.
#[derive(Debug, Error)]
pub enum PassError {
    /// The forward pass failed. The string says why.
    #[error("{0}")]
    Failed(String),
    /// The KV of a sequence could not be read from disk or from a shared store. The engine computes this KV again. If
    /// the sequence has lost KV too often, the sequence fails instead.
    #[error(transparent)]
    KvLost(#[from] KvLost),
}

impl From<ForwardError> for PassError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Kv(lost) => Self::KvLost(lost),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Manages the memory of the KV blocks. While the engine runs, the runner adds memory to the KV blocks and takes memory
/// away from them, so the number of usable blocks changes.
pub trait KvMemory {
    /// Returns the number of blocks that may be used when the engine starts.
    fn blocks_at_start(&mut self) -> usize;

    /// Returns how many blocks may be used from now on. The engine calls this between forward passes. While the engine
    /// is idle, it calls this from time to time until the grant is settled. Before each call, the engine has reported
    /// all added and withdrawn blocks through [`Runner::resize_blocks`].
    fn balance(&mut self, demand: KvDemand) -> KvGrant;
}

/// Manages strips. A strip is an address range in which the KV blocks of one sequence are mapped one after another, so
/// that a forward pass needs no block table for the sequence. A separate thread can change mappings while forward
/// passes run.
pub trait StripMemory {
    /// Returns the configuration of the strips.
    fn config(&self) -> StripConfig;

    /// Returns the block number that stands for the first block of a strip in a forward pass.
    fn first_block(&mut self, strip: u32) -> u32;

    /// Requests changes that the mapping thread makes while forward passes run, in the given order.
    fn change_beside(&mut self, changes: &[Mapping]);

    /// Waits until the mapping thread has handled `number` changes since the start. Removes and returns the changes
    /// that the operating system refused; nothing is mapped at their places.
    fn wait_for(&mut self, number: u64) -> Vec<Mapping>;

    /// Makes a change at once. Returns `false` if the operating system refused the change.
    fn change(&mut self, change: &Mapping) -> bool;

    /// Unpins all blocks, because no forward pass uses them.
    fn unpin(&mut self);

    /// Pins `blocks` of a strip, which the next forward pass reads. The forward pass also writes those of them from
    /// `written` on.
    fn pin(&mut self, strip: u32, blocks: Range<u32>, written: u32);

    /// Returns statistics of the mapping work so far.
    fn stats(&mut self) -> StripStats;
}

/// Publishes which streamed weights are in host memory and which are in the device's memory, for those who watch the
/// engine.
pub trait ShownWeights {
    /// Returns the monitor through which the state of the weights is published.
    fn monitor(&self) -> Arc<StreamMonitor>;

    /// Publishes where the weights are now. The engine calls this between forward passes while a watcher exists.
    fn show(&mut self);
}

/// The amounts of memory that a runner uses, with statistics of its device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunnerMemory {
    /// Amount of memory that the weights use now. If weights are streamed, this amount can change.
    pub weights: Bytes,
    /// Amount of memory that one KV block uses.
    pub kv_block: Bytes,
    /// Statistics of the device's memory and of the transfers between host and device. `None` if the device has no
    /// memory of its own.
    pub device: Option<DeviceStats>,
}
