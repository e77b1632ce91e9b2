//! The interface between the engine and the code that computes, which is a model on a device or a simulation of one.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use interbed_device::{
    AllocError, Bytes, Command, Cpu, CpuDevice, Device, DeviceError, DeviceStats, KvPool, KvStrips, Mappings,
    PageAccess, Queue, StripChange, StripContent, StripShape, StripStats, mappings,
};
use interbed_kv::{BlockBytes, BlockCopy, BlockId, Hiding, Mapped, Mapping, StripConfig};
use interbed_model::blueprint::Blueprint;
use interbed_model::{BatchSequence, ForwardError, KvBelow, KvLost, LogitRow, Logits, Model, NothingBelow};
use interbed_weights::{StreamMonitor, StreamStats, WeightSource};
use thiserror::Error;

use crate::device_timeline::DeviceTimeline;
use crate::drafter::Drafter;
use crate::memory_trade::{KvDemand, KvGrant, MemoryTrade};

/// Computes forward passes. The engine thread owns the runner.
pub trait Runner: Send {
    /// Computes the KV of every token of the batch, and hands each wanted row of logits to `sink` in order.
    ///
    /// # Errors
    /// Fails if the pass failed; the error says why. The KV of the batch's own tokens is then unspecified, and no other
    /// KV has changed.
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), String>;

    /// Computes a pass, like [`forward`](Self::forward), whose KV may partly be below memory and then comes from
    /// `_below`. The engine passes KV below memory only if [`streams_kv`](Self::streams_kv) is true.
    ///
    /// # Errors
    /// Fails if the pass failed. The KV of the batch's own tokens is then unspecified, and no other KV has changed.
    /// Also fails if KV below memory could not be read; in that case nothing was handed to `sink`.
    fn forward_from(
        &mut self,
        batch: &[BatchSequence<'_>],
        _below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        self.forward(batch, sink).map_err(PassError::Failed)
    }

    /// Returns whether sequences may be longer than memory.
    fn streams_kv(&self) -> bool {
        false
    }

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

    /// Returns what streaming the weights has taken since the start, if weights are streamed.
    fn stream_stats(&self) -> Option<StreamStats> {
        None
    }

    /// Returns the monitor in which passes show what becomes of streamed weights, if weights are streamed.
    fn stream_monitor(&self) -> Option<Arc<StreamMonitor>> {
        None
    }

    /// Shows in the stream monitor where the weights are now. This is called between passes, while somebody watches.
    fn show_weights(&mut self) {}

    /// Returns the figures of a device with memory of its own, if the runner has one.
    fn device_stats(&self) -> Option<DeviceStats> {
        None
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

/// The number of blocks that one command copies.
const COPIES_AT_A_TIME: usize = 64;

/// Has `device` copy blocks before the passes that follow, which are in the same queue.
fn copy_blocks(device: &mut dyn Device, copies: &[BlockCopy]) -> Result<(), DeviceError> {
    copies.chunks(COPIES_AT_A_TIME).try_for_each(|copies| {
        let copies: ArrayVec<_, COPIES_AT_A_TIME> =
            copies.iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
        device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]).map(|_| ())
    })
}

/// The memory of KV blocks, which can grow and shrink.
pub trait KvMemory {
    /// Returns the number of blocks that may be used at first.
    fn blocks_at_start(&self) -> usize;

    /// Returns how many blocks may be used from now on. This is called between passes and, while there are no passes,
    /// from time to time until the grant is settled. All blocks that left before were [given back](Self::give_back).
    fn balance(&mut self, demand: KvDemand) -> KvGrant;

    /// Gives back the memory of `blocks`, which have left and will not be read before they have been written again.
    /// This is called between passes.
    fn give_back(&mut self, blocks: &[u32]);
}

/// The address space of strips, in which blocks are mapped, with a thread that maps blocks beside passes.
pub trait StripMemory {
    /// Returns how the strips are managed.
    fn config(&self) -> StripConfig;

    /// Returns the number by which passes know a strip's first block.
    fn first_block(&mut self, strip: u32) -> u32;

    /// Asks for changes that are made beside passes, in this order.
    fn change_beside(&mut self, changes: &[Mapping]);

    /// Waits until `number` of the changes beside passes have been made since the start. Takes the changes that the
    /// system has refused.
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

/// The memory that a runner takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunnerMemory {
    /// The memory of weights.
    pub weights: Bytes,
    /// The memory of one KV block.
    pub kv_block: Bytes,
}

/// A model, and the device that computes it.
pub struct ModelRunner<D> {
    /// The model, with its weights.
    pub model: Model,
    /// The device, with the KV blocks.
    pub device: D,
    /// The memory of the model's weights.
    pub weights: WeightMemory,
    /// How the device's strips are managed, if it has any.
    pub strips: Option<StripConfig>,
    timeline: Option<Arc<DeviceTimeline>>,
    /// The reason why a write to blocks failed. Once it is set, nothing more is computed over the blocks.
    failure: Option<String>,
}

/// The memory of the weights that a runner computes with.
pub struct WeightMemory {
    /// The bytes of weights that stay in memory, unless their memory changes from pass to pass.
    pub bytes: Bytes,
    /// The figures about streamed weights, which passes keep up to date; `None` if all weights stay in memory.
    pub monitor: Option<Arc<StreamMonitor>>,
    /// The division of memory between streamed weights and KV; `None` if they do not trade memory.
    pub trade: Option<MemoryTrade>,
}

impl WeightMemory {
    /// Describes weights of which all `bytes` bytes stay in memory.
    pub fn resident(bytes: Bytes) -> Self {
        Self { bytes, monitor: None, trade: None }
    }
}

impl<D: Device> ModelRunner<D> {
    /// Creates a model of `blueprint` with the weights of `source` on a device.
    pub fn new(mut device: D, blueprint: Blueprint, source: Box<dyn WeightSource>, weights: WeightMemory) -> Self {
        let (layout, num_blocks) = (device.kv_layout().clone(), device.num_blocks());
        let strips = device.strips().map(|strips| strip_config(strips.shape(), num_blocks));
        let model = Model::new(blueprint, source, layout);
        Self { model, device, weights, strips, timeline: None, failure: None }
    }

    /// Begins to record when the device executes batches of commands, and returns the timeline of these records.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn keep_timeline(&mut self) -> Result<Arc<DeviceTimeline>, DeviceError> {
        self.device.note_times()?;
        Ok(Arc::clone(self.timeline.insert(Arc::default())))
    }

    /// Waits until the device has executed everything and no weights are being read ahead. This is for measurements.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn settle(&mut self) -> Result<(), DeviceError> {
        if let Some(weights) = self.model.weights().elastic() {
            weights.settle();
        }
        self.device.settle()
    }

    fn kv_strips(&mut self) -> &mut KvStrips {
        self.device.strips().expect("whoever asks for them was told that there are strips")
    }
}

impl ModelRunner<CpuDevice> {
    /// Creates a model with the weights of `source` on the processor, for passes of up to `max_tokens` tokens.
    ///
    /// # Errors
    /// Fails if the system has no memory for such passes.
    pub fn on_cpu(
        blueprint: Blueprint,
        source: Box<dyn WeightSource>,
        weights: WeightMemory,
        kv: KvPool,
        cpu: Cpu,
        max_tokens: usize,
    ) -> Result<Self, AllocError> {
        let device = CpuDevice::new(cpu, &Model::pass_needs(&blueprint, max_tokens, max_tokens), kv)?;
        Ok(Self::new(device, blueprint, source, weights))
    }
}

/// Returns how strips of this shape are managed over `num_blocks` blocks.
fn strip_config(shape: StripShape, num_blocks: usize) -> StripConfig {
    // Other parts of the process need mappings too, so a quarter of the mappings that the system allows is left to
    // them.
    let Mappings { most, used } = mappings().unwrap_or(Mappings { most: MAPPINGS_USUAL, used: 0 });
    StripConfig {
        strips: shape.count,
        blocks: shape.blocks,
        mappings_max: (most - most / 4).saturating_sub(used),
        mapped_max: MAPPED_PER_BLOCK * num_blocks,
        hiding: Hiding::ALL,
    }
}

/// The number of mappings that a process may have if the system does not tell it. Linux allows this many by default.
const MAPPINGS_USUAL: usize = 65_530;

/// The number of times that a block may be mapped in strips, on average. Each mapping takes 8 bytes of page table per
/// page. All of them together take less than a hundredth of the block.
const MAPPED_PER_BLOCK: usize = 4;

impl<D: Device> Runner for ModelRunner<D> {
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), String> {
        self.forward_from(batch, &mut NothingBelow, sink).map_err(|error| error.to_string())
    }

    fn forward_from(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        if let Some(failure) = &self.failure {
            return Err(PassError::Failed(failure.clone()));
        }
        let computed = self.model.forward_from(&mut self.device, batch, below, sink);
        if let Some(timeline) = &self.timeline {
            timeline.add(self.device.take_times().map_err(|error| PassError::Failed(error.to_string()))?);
        }
        Ok(computed?)
    }

    fn streams_kv(&self) -> bool {
        true
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        if let Err(error) = copy_blocks(&mut self.device, copies) {
            self.failure = Some(format!("KV blocks could not be copied: {error}"));
        }
    }

    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        Some(self)
    }

    fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.model.cache_namespace(prompt_len)
    }

    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        self.weights.trade.is_some().then_some(self)
    }

    fn strips(&mut self) -> Option<&mut dyn StripMemory> {
        self.strips.is_some().then_some(self)
    }

    fn stream_stats(&self) -> Option<StreamStats> {
        self.stream_monitor().map(|monitor| monitor.stats())
    }

    fn stream_monitor(&self) -> Option<Arc<StreamMonitor>> {
        self.weights.monitor.clone()
    }

    fn show_weights(&mut self) {
        self.model.weights().show();
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        self.device.stats()
    }

    fn memory(&mut self) -> RunnerMemory {
        let held = self.model.weights().elastic().map(|weights| Bytes(weights.memory().held));
        let kv_block = Bytes(self.device.kv_layout().block_bytes() as u64);
        RunnerMemory { weights: held.unwrap_or(self.weights.bytes), kv_block }
    }
}

impl<D: Device> BlockBytes for ModelRunner<D> {
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        self.device.read_block(block.0, into).map_err(|error| error.to_string())
    }

    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8])) {
        if let Err(error) = self.device.fill_block(block.0, fill) {
            self.failure = Some(format!("a KV block could not be brought back: {error}"));
        }
    }
}

/// Returns the device's form of a change of mapping.
fn change_of(mapping: &Mapping) -> StripChange {
    let to = match mapping.to {
        Mapped::Read(block) => StripContent::Blocks(block.0, PageAccess::Read),
        Mapped::Write(block) => StripContent::Blocks(block.0, PageAccess::Write),
        Mapped::ReadOnly => StripContent::ReadOnly,
        Mapped::Nothing => StripContent::Nothing,
    };
    StripChange { strip: mapping.strip, first: mapping.first, count: mapping.count, to }
}

/// Returns the change of mapping for a change in the device's form.
fn mapping_of(change: &StripChange) -> Mapping {
    let to = match change.to {
        StripContent::Blocks(block, PageAccess::Read) => Mapped::Read(BlockId(block)),
        StripContent::Blocks(block, PageAccess::Write) => Mapped::Write(BlockId(block)),
        StripContent::ReadOnly => Mapped::ReadOnly,
        StripContent::Nothing => Mapped::Nothing,
    };
    Mapping { strip: change.strip, first: change.first, count: change.count, to }
}

impl<D: Device> StripMemory for ModelRunner<D> {
    fn config(&self) -> StripConfig {
        self.strips.expect("whoever asks was told that there are strips")
    }

    fn first_block(&mut self, strip: u32) -> u32 {
        self.kv_strips().first_block(strip)
    }

    fn change_beside(&mut self, changes: &[Mapping]) {
        self.kv_strips().change_beside(changes.iter().map(change_of));
    }

    fn wait_for(&mut self, number: u64) -> Vec<Mapping> {
        self.kv_strips().wait_for(number).iter().map(mapping_of).collect()
    }

    fn change(&mut self, change: &Mapping) -> bool {
        self.kv_strips().change(&change_of(change)).is_ok()
    }

    fn unpin(&mut self) {
        self.kv_strips().unpin();
    }

    fn pin(&mut self, strip: u32, blocks: Range<u32>, written: u32) {
        self.kv_strips().pin(strip, blocks.start as usize..blocks.end as usize, written as usize);
    }

    fn stats(&mut self) -> StripStats {
        self.kv_strips().stats()
    }
}

impl<D: Device> KvMemory for ModelRunner<D> {
    fn blocks_at_start(&self) -> usize {
        self.weights.trade.as_ref().map_or(self.device.num_blocks(), MemoryTrade::blocks_start)
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        let (Some(trade), Some(weights)) = (&mut self.weights.trade, self.model.weights().elastic()) else {
            return KvGrant { blocks: self.device.num_blocks(), settled: true };
        };
        let budget = trade.plan(demand, weights.worth());
        // The budget is set only if it has changed: the window may have lowered its own budget when the system had no
        // memory.
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
        if let Err(error) = self.device.give_back_blocks(blocks) {
            tracing::error!("{} KV blocks: {error}", blocks.len());
        }
    }
}
