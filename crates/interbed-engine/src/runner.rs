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
    /// Computes the KV of every token of the batch, and hands each wanted row of logits to `sink` in order. KV that is
    /// below memory comes from `below`; the engine passes such KV only if [`streams_kv`](Self::streams_kv) is true.
    ///
    /// # Errors
    /// Fails if the pass failed; the error says why. The KV of the batch's own tokens is then unspecified, and no other
    /// KV has changed. Also fails if KV below memory could not be read; in that case nothing was handed to `sink`.
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError>;

    /// Copies KV blocks, in the order of `copies`. This is called between passes, before any of the blocks is read,
    /// written or given back.
    fn copy_blocks(&mut self, copies: &[BlockCopy]);

    /// Returns the memory of KV blocks, from which blocks are swapped out or stored and into which they come back.
    /// Returns `None` if blocks cannot be moved.
    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        None
    }

    /// Returns a number that differs if equal tokens get different KV in a prompt of this length. The number enters the
    /// root of the chain of block hashes. It is 0 by default.
    fn cache_namespace(&self, _prompt_len: usize) -> u64 {
        0
    }

    /// Returns the drafter that guesses tokens ahead of the model, if there is one. With a drafter, a pass may compute
    /// several tokens of a sequence.
    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        None
    }

    /// Returns the memory that KV trades with weights, if it does. Without such a trade, all blocks may be used at any
    /// time.
    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        None
    }

    /// Returns the strips in which the blocks of sequences are mapped side by side, if the runner has strips. A pass
    /// then gets [`SequenceBlocks::From`](interbed_model::SequenceBlocks::From).
    fn strips(&mut self) -> Option<&mut dyn StripMemory> {
        None
    }

    /// Returns the weights as watchers see them, if weights are streamed.
    fn shown_weights(&mut self) -> Option<&mut dyn ShownWeights> {
        None
    }

    /// Returns whether sequences may be longer than memory.
    fn streams_kv(&self) -> bool {
        false
    }

    /// Returns the memory that the runner takes.
    fn memory(&mut self) -> RunnerMemory {
        RunnerMemory::default()
    }
}

/// The reason why a pass could not be computed.
#[derive(Debug, Error)]
pub enum PassError {
    /// The pass failed for this reason.
    #[error("{0}")]
    Failed(String),
    /// KV below memory could not be read. The sequence that it belongs to computes it again.
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

/// The memory of KV blocks, which can grow and shrink.
pub trait KvMemory {
    /// Returns the number of blocks that may be used at first.
    fn blocks_at_start(&mut self) -> usize;

    /// Returns how many blocks may be used from now on. This is called between passes and, while there are no passes,
    /// from time to time until the grant is settled. The runner was [told](Self::resize) of all blocks that came and
    /// left before.
    fn balance(&mut self, demand: KvDemand) -> KvGrant;

    /// Gives the blocks `came` their memory, and gives back the memory of the blocks `left`. Neither will be read
    /// before they have been written again, except that copies may still read blocks that left. This is called between
    /// passes, after the copies of blocks.
    fn resize(&mut self, came: &[u32], left: &[u32]);
}

/// The address space of strips, in which blocks are mapped, with a thread that maps blocks beside passes.
pub trait StripMemory {
    /// Returns how the strips are managed.
    fn config(&self) -> StripConfig;

    /// Returns the number by which passes know a strip's first block.
    fn first_block(&mut self, strip: u32) -> u32;

    /// Asks for changes that are made beside passes, in this order.
    fn change_beside(&mut self, changes: &[Mapping]);

    /// Waits until `number` of the changes beside passes have been made since the start. Takes the places of changes
    /// that the system has refused, where nothing is mapped now.
    fn wait_for(&mut self, number: u64) -> Vec<Mapping>;

    /// Makes a change at once. Returns `false` if the system refused the change.
    fn change(&mut self, change: &Mapping) -> bool;

    /// Unpins all blocks, because no pass uses them.
    fn unpin(&mut self);

    /// Pins `blocks` of a strip, which the next pass reads. The pass writes the blocks from `written` on.
    fn pin(&mut self, strip: u32, blocks: Range<u32>, written: u32);

    /// Returns the counts of the mapping work so far.
    fn stats(&mut self) -> StripStats;
}

/// Streamed weights, as watchers of the engine see them.
pub trait ShownWeights {
    /// Returns the monitor in which passes show what becomes of the weights.
    fn monitor(&self) -> Arc<StreamMonitor>;

    /// Shows in the monitor where the weights are now. This is called between passes, while somebody watches.
    fn show(&mut self);
}

/// The memory that a runner takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunnerMemory {
    /// The memory of all weights.
    pub weights: Bytes,
    /// The memory of one KV block.
    pub kv_block: Bytes,
    /// The figures of a device with memory of its own, if the runner has one.
    pub device: Option<DeviceStats>,
}
