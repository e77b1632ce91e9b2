//! What the engine needs of the code that computes: a model on a device, or a simulation of one.

use std::sync::Arc;

use arrayvec::ArrayVec;
use strata_device::{AllocError, Bytes, Command, Cpu, CpuDevice, Device, KvPool, Queue};
use strata_kv::{BlockCopy, BlockId};
use strata_kv_disk::{BlockBytes, SwapStore};
use strata_model::config::ModelConfig;
use strata_model::{BatchSequence, ForwardError, KvBelow, KvLost, LogitRow, Model, NothingBelow};
use strata_weights::{StreamMonitor, StreamStats, WeightSource};
use thiserror::Error;

use crate::drafter::Drafter;
use crate::memory_trade::{KvDemand, KvGrant, MemoryTrade};

/// Computes forward passes. The engine thread owns it.
pub trait Runner: Send {
    /// Computes the KV of every token of the batch, and hands each wanted row of logits to `sink` in order.
    ///
    /// # Errors
    /// The pass failed, with the reason. The KV of the batch's own tokens is then unspecified; no other KV changed.
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), String>;

    /// The same where some of the KV may be below memory, and comes from `below`; only where
    /// [`streams_kv`](Self::streams_kv).
    ///
    /// # Errors
    /// As there, or KV that is below could not be read: then nothing was handed to `sink`.
    fn forward_from(
        &mut self,
        batch: &[BatchSequence<'_>],
        _below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), PassError> {
        self.forward(batch, sink).map_err(PassError::Failed)
    }

    /// Whether sequences may be longer than memory.
    fn streams_kv(&self) -> bool {
        false
    }

    /// Carries out transfers between KV blocks, in this order. Called between passes, before any of them is read,
    /// written or given back.
    fn copy_blocks(&mut self, copies: &[BlockCopy]);

    /// Hands over the swap space for KV blocks, if there is any: at least as many slots as the block manager was
    /// configured with. It is used with the blocks of [`block_bytes`](Self::block_bytes).
    fn take_swap(&mut self) -> Option<Box<dyn SwapStore>> {
        None
    }

    /// The memory of KV blocks, for what is swapped or stored on disk and comes back; `None` if nothing can be.
    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        None
    }

    /// A number that differs where equal tokens get different KV, for a prompt of this length. It enters the root of
    /// the chain of block hashes. 0 by default.
    fn cache_namespace(&self, _prompt_len: usize) -> u64 {
        0
    }

    /// The drafter that guesses tokens ahead of the model, if there is one: each pass then computes several tokens of a
    /// sequence.
    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        None
    }

    /// Whether, and how, KV gets memory from elsewhere. Without it all blocks may be used at any time.
    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        None
    }

    /// What streaming the weights has taken since the start, if they are streamed.
    fn stream_stats(&self) -> Option<StreamStats> {
        None
    }

    /// The memory that it takes.
    fn memory(&mut self) -> RunnerMemory {
        RunnerMemory::default()
    }
}

/// Why a pass could not be computed.
#[derive(Debug, Error)]
pub enum PassError {
    /// For this reason.
    #[error("{0}")]
    Failed(String),
    /// KV below memory could not be read: whoever it belongs to computes it again.
    #[error(transparent)]
    KvLost(#[from] KvLost),
}

/// Copies of blocks in one command.
const COPIES_AT_A_TIME: usize = 64;

/// Memory of KV blocks that comes and goes.
pub trait KvMemory {
    /// Blocks that may be used at first.
    fn blocks_at_start(&self) -> usize;

    /// How many blocks may be used from now on. Called between passes, and, while there are none, from time to time
    /// until the answer is settled. Everything that left before was [given back](Self::give_back).
    fn balance(&mut self, demand: KvDemand) -> KvGrant;

    /// These blocks have left: they will not be read before they have been written again. Called between passes.
    fn give_back(&mut self, blocks: &[u32]);
}

/// The memory that a runner takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunnerMemory {
    /// Weights in memory.
    pub weights: Bytes,
    /// One KV block.
    pub kv_block: Bytes,
}

/// A model, and the device that computes it.
pub struct ModelRunner {
    /// The model, with its weights.
    pub model: Model,
    /// The device, with the KV blocks.
    pub device: CpuDevice,
    /// Room to swap KV blocks to, until the engine takes it.
    pub swap: Option<Box<dyn SwapStore>>,
    /// The memory of the model's weights.
    pub weights: WeightMemory,
}

/// How much memory weights take.
pub enum WeightMemory {
    /// All of them are in memory.
    Resident(Bytes),
    /// Some of them are, and they trade memory with KV.
    Streamed {
        /// Figures about the streaming, kept up to date by passes.
        monitor: Arc<StreamMonitor>,
        /// How much they have, and KV.
        trade: MemoryTrade,
    },
}

impl ModelRunner {
    /// A model of these `weights` on the processor, for passes of up to `max_tokens` tokens.
    ///
    /// # Errors
    /// The system has no memory for such passes.
    pub fn on_cpu(
        config: ModelConfig,
        source: Box<dyn WeightSource>,
        weights: WeightMemory,
        kv: KvPool,
        cpu: Cpu,
        max_tokens: usize,
    ) -> Result<Self, AllocError> {
        let (needs, layout) = (Model::pass_needs(&config, max_tokens, max_tokens), kv.layout().clone());
        let device = CpuDevice::new(cpu, &needs, kv)?;
        Ok(Self { model: Model::new(config, source, layout), device, swap: None, weights })
    }
}

impl Runner for ModelRunner {
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), String> {
        self.forward_from(batch, &mut NothingBelow, sink).map_err(|error| error.to_string())
    }

    fn forward_from(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), PassError> {
        self.model.forward_from(&mut self.device, batch, below, sink).map_err(|error| match error {
            ForwardError::Kv(lost) => PassError::KvLost(lost),
            error => PassError::Failed(error.to_string()),
        })
    }

    fn streams_kv(&self) -> bool {
        true
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        for copies in copies.chunks(COPIES_AT_A_TIME) {
            let copies: ArrayVec<_, COPIES_AT_A_TIME> =
                copies.iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
            // Passes come after it in the same queue; the processor, which this is, never fails.
            let copied = self.device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]);
            copied.expect("the processor copies blocks at once");
        }
    }

    fn take_swap(&mut self) -> Option<Box<dyn SwapStore>> {
        self.swap.take()
    }

    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        Some(self)
    }

    fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.model.cache_namespace(prompt_len)
    }

    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        matches!(self.weights, WeightMemory::Streamed { .. }).then_some(self)
    }

    fn stream_stats(&self) -> Option<StreamStats> {
        match &self.weights {
            WeightMemory::Resident(_) => None,
            WeightMemory::Streamed { monitor, .. } => Some(monitor.stats()),
        }
    }

    fn memory(&mut self) -> RunnerMemory {
        let weights = match (&self.weights, self.model.weights().elastic()) {
            (WeightMemory::Streamed { .. }, Some(weights)) => Bytes(weights.memory().held),
            (WeightMemory::Resident(bytes), _) => *bytes,
            (WeightMemory::Streamed { .. }, None) => Bytes(0),
        };
        RunnerMemory { weights, kv_block: Bytes(self.device.kv().layout().block_bytes() as u64) }
    }
}

impl BlockBytes for ModelRunner {
    fn read(&self, block: BlockId, into: &mut [u8]) {
        into.copy_from_slice(self.device.kv().block(block.0));
    }

    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8])) {
        fill(self.device.kv_mut().block_mut(block.0));
    }
}

impl KvMemory for ModelRunner {
    fn blocks_at_start(&self) -> usize {
        match &self.weights {
            WeightMemory::Resident(_) => self.device.kv().num_blocks(),
            WeightMemory::Streamed { trade, .. } => trade.blocks_start(),
        }
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        let (WeightMemory::Streamed { trade, .. }, Some(weights)) = (&mut self.weights, self.model.weights().elastic())
        else {
            return KvGrant { blocks: self.device.kv().num_blocks(), settled: true };
        };
        let budget = trade.plan(demand);
        // Only what has changed: the window may have lowered its budget itself, when the system had no memory.
        if trade.weights_are_to_change()
            && let Err(error) = weights.set_budget(budget)
        {
            tracing::error!("weights cannot be streamed within {budget} bytes ({error}); KV stays as it is");
        }
        let memory = weights.memory();
        let grant = trade.grant(memory.held.max(memory.budget));
        KvGrant { settled: grant.settled && !memory.loading, ..grant }
    }

    fn give_back(&mut self, blocks: &[u32]) {
        if let Err(error) = self.device.kv_mut().give_back(blocks) {
            tracing::error!("the system did not take {} KV blocks back: {error}", blocks.len());
        }
    }
}
