//! A runner that computes a model on a device.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use interbed_device::{
    AllocError, Bytes, Command, Cpu, CpuDevice, Device, DeviceError, KvPool, KvStrips, Mappings, PageAccess, Queue,
    StripChange, StripContent, StripShape, StripStats, mappings,
};
use interbed_kv::{BlockBytes, BlockCopy, BlockPart, Hiding, Mapped, Mapping, StripConfig};
use interbed_model::blueprint::Blueprint;
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits, Model};
use interbed_weights::{StreamMonitor, WeightSource};

use crate::device_timeline::DeviceTimeline;
use crate::memory_trade::{KvDemand, KvGrant, MemoryTrade};
use crate::runner::{KvMemory, PassError, Runner, RunnerMemory, ShownWeights, StripMemory};

/// A model, and the device that computes it.
pub struct ModelRunner<D> {
    /// Model, with its weights.
    pub model: Model,
    /// Device, with the KV blocks.
    pub device: D,
    /// Description of the memory that the model's weights take.
    pub weights: WeightMemory,
    /// Configuration of the device's strips; `None` if the device has none. A strip is an address range in which the KV
    /// blocks of one sequence are mapped side by side.
    pub strips: Option<StripConfig>,
    timeline: Option<Arc<DeviceTimeline>>,
    /// The reason why a write to blocks failed. Once it is set, nothing more is computed over the blocks.
    failure: Option<String>,
}

/// Describes the memory of the weights that a runner computes with.
pub struct WeightMemory {
    /// Memory that the weights take if this amount is fixed. If the amount can change between forward passes, the
    /// weights report it themselves, and this number is not used.
    pub bytes: Bytes,
    /// Monitor through which other threads see the statistics and locations of streamed weights; `None` if all weights
    /// stay in memory.
    pub monitor: Option<Arc<StreamMonitor>>,
    /// Planner that divides memory between streamed weights and KV; `None` if this division does not change.
    pub trade: Option<MemoryTrade>,
}

impl WeightMemory {
    /// Describes weights that take `bytes` and all stay in memory.
    pub fn resident(bytes: Bytes) -> Self {
        Self { bytes, monitor: None, trade: None }
    }
}

impl<D: Device> ModelRunner<D> {
    /// Creates a runner that computes the model that `blueprint` describes. The model runs on `device` and takes its
    /// weights from `source`. `weights` describes the memory of these weights.
    pub fn new(mut device: D, blueprint: Blueprint, source: Box<dyn WeightSource>, weights: WeightMemory) -> Self {
        let blocks = device.block_groups().clone();
        let strips = device.strips().map(|strips| strip_config(strips.shape(), blocks.groups()[0].num_blocks()));
        let model = Model::new(blueprint, source, blocks);
        Self { model, device, weights, strips, timeline: None, failure: None }
    }

    /// Starts recording the times at which the device executes batches of commands. Returns a timeline, to which each
    /// forward pass adds its records.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn keep_timeline(&mut self) -> Result<Arc<DeviceTimeline>, DeviceError> {
        self.device.note_times()?;
        Ok(Arc::clone(self.timeline.insert(Arc::default())))
    }

    /// Waits until the device has executed all commands and no read-ahead of weights is in progress. This is meant for
    /// measurements.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn settle(&mut self) -> Result<(), DeviceError> {
        if let Some(weights) = self.model.weights().elastic() {
            weights.settle();
        }
        self.device.settle()
    }

    /// Allocates memory for the first `others[g]` blocks of each group `g` behind the first, and for as many of the
    /// first group's blocks as fit beside them into the memory of `count` of these. Code that runs forward passes
    /// without an engine calls this first. On a device whose blocks always have memory, this changes nothing.
    ///
    /// # Errors
    /// Fails if the device has no memory for these blocks, or if the device fails.
    pub fn take_blocks(&mut self, count: usize, others: &[usize]) -> Result<(), DeviceError> {
        let groups = self.device.block_groups();
        let others = || groups.groups()[1..].iter().zip(others);
        let beside: usize = others().map(|(group, count)| count * group.block_bytes()).sum();
        let first = count.saturating_sub(beside.div_ceil(groups.trunk().block_bytes().max(1)));
        let of_others = others().flat_map(|(group, &count)| group.numbers().take(count));
        let came: Vec<_> = (0..first).chain(of_others).map(|block| block as u32).collect();
        self.give_memory(&came)
    }

    /// Gives the blocks `came`, of any groups, memory that is free.
    fn give_memory(&mut self, came: &[u32]) -> Result<(), DeviceError> {
        let groups = self.device.block_groups();
        let mut counts = vec![0; groups.groups().len()];
        came.iter().for_each(|&block| counts[groups.group_of(block)] += 1);
        for (group, count) in counts.into_iter().enumerate() {
            if self.device.reserve_blocks(group, count)? < count {
                return Err(DeviceError::Full);
            }
        }
        self.device.resize_blocks(came, &[])
    }

    /// Gives the blocks `came` memory and takes that of the blocks `left`.
    fn try_resize(&mut self, came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
        if self.device.block_groups().groups().len() == 1 || !self.device.has_own_memory() {
            // Memory for what comes was reserved before, or there is always some.
            return self.device.resize_blocks(came, left);
        }
        // A block of another group may have left for one that comes. What has left and come again has memory.
        self.device.resize_blocks(&[], &[left, came].concat())?;
        self.give_memory(came)
    }

    /// Takes memory for `count` blocks that are to come, and returns how many of them get it.
    fn reserve(&mut self, count: usize) -> usize {
        self.device.reserve_blocks(0, count).unwrap_or_else(|error| {
            self.failure = Some(format!("KV blocks could not get their memory: {error}"));
            0
        })
    }

    fn kv_strips(&mut self) -> &mut KvStrips {
        self.device.strips().expect("whoever asks for them was told that there are strips")
    }
}

impl ModelRunner<CpuDevice> {
    /// Creates a runner that computes the model that `blueprint` describes on the CPU, with weights from `source`.
    /// `weights` describes the memory of these weights. A forward pass has at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Fails if the system cannot allocate the memory for such a forward pass.
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

/// The number of blocks that one command copies.
const COPIES_AT_A_TIME: usize = 64;

/// Returns how strips of this shape are managed over `num_blocks` blocks of the trunk.
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

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        // After a failure, blocks may be without memory, and nothing more is computed over them.
        if self.failure.is_some() {
            return;
        }
        let copied = copies.chunks(COPIES_AT_A_TIME).try_for_each(|copies| {
            let copies: ArrayVec<_, COPIES_AT_A_TIME> =
                copies.iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
            self.device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]).map(|_| ())
        });
        if let Err(error) = copied {
            self.failure = Some(format!("KV blocks could not be copied: {error}"));
        }
    }

    fn resize_blocks(&mut self, came: &[u32], left: &[u32]) {
        match self.try_resize(came, left) {
            Ok(()) => {}
            Err(error @ DeviceError::GiveBack(_)) => tracing::error!("{} KV blocks: {error}", left.len()),
            Err(error) => self.failure = Some(format!("KV blocks could not get their memory: {error}")),
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

    fn shown_weights(&mut self) -> Option<&mut dyn ShownWeights> {
        self.weights.monitor.is_some().then_some(self)
    }

    fn streams_kv(&self) -> bool {
        true
    }

    fn memory(&mut self) -> RunnerMemory {
        let memory = self.model.weights().elastic().map(|weights| weights.memory(&mut self.device));
        let held = memory.map(|memory| Bytes(memory.held.saturating_add(memory.beside)));
        let kv_block = Bytes(self.device.block_groups().trunk().block_bytes() as u64);
        RunnerMemory { weights: held.unwrap_or(self.weights.bytes), kv_block, device: self.device.stats() }
    }
}

impl<D: Device> BlockBytes for ModelRunner<D> {
    fn read(&mut self, BlockPart { block, part }: BlockPart, into: &mut [u8]) -> Result<(), String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let content = self.device.block_groups().layout_of(block.0).content_bytes();
        let begin = part as usize * into.len();
        let (bytes, behind) = into.split_at_mut(content.saturating_sub(begin).min(into.len()));
        behind.fill(0);
        self.device.read_block(block.0, begin, bytes).map_err(|error| error.to_string())
    }

    fn fill(&mut self, BlockPart { block, part }: BlockPart, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let content = self.device.block_groups().layout_of(block.0).content_bytes();
        let begin = part as usize * len;
        let inside = content.saturating_sub(begin).min(len);
        let bytes = begin..begin + inside;
        let filled = match inside == len {
            _ if self.failure.is_some() => return,
            true => self.device.fill_block(block.0, bytes, fill),
            false => {
                // What lies behind the end of the block is dropped.
                let mut padded = vec![0; len];
                fill(&mut padded);
                self.device.fill_block(block.0, bytes, &mut |to| to.copy_from_slice(&padded[..inside]))
            }
        };
        if let Err(error) = filled {
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
        let refused = self.kv_strips().wait_for(number);
        let unmapped = |change: &StripChange| Mapping {
            strip: change.strip,
            first: change.first,
            count: change.count,
            to: Mapped::Nothing,
        };
        refused.iter().map(unmapped).collect()
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

impl<D: Device> ShownWeights for ModelRunner<D> {
    fn monitor(&self) -> Arc<StreamMonitor> {
        Arc::clone(self.weights.monitor.as_ref().expect("whoever asks was told that there is one"))
    }

    fn show(&mut self) {
        self.model.weights().show();
    }
}

impl<D: Device> KvMemory for ModelRunner<D> {
    fn blocks_at_start(&mut self) -> usize {
        let all = self.device.block_groups().num_blocks();
        let wanted = self.weights.trade.as_ref().map_or(all, MemoryTrade::blocks_start);
        self.reserve(wanted).max(1)
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        let (Some(trade), Some(weights)) = (&mut self.weights.trade, self.model.weights().elastic()) else {
            return KvGrant { blocks: self.device.block_groups().num_blocks(), settled: true };
        };
        let budget = trade.plan(demand, weights.worth());
        // The budget is set only if it has changed: the window may have lowered its own budget when the system had no
        // memory.
        if trade.weights_are_to_change()
            && let Err(error) = weights.set_budget(budget, &mut self.device)
        {
            tracing::error!("weights cannot be streamed within {budget} bytes ({error}); KV stays as it is");
        }
        let memory = weights.memory(&mut self.device);
        let KvGrant { blocks, settled } = trade.grant(memory.held.max(memory.budget));
        let wanted = blocks.saturating_sub(demand.present);
        let coming = self.reserve(wanted);
        if let Some(trade) = self.weights.trade.as_mut().filter(|_| coming < wanted) {
            trade.lacks(wanted - coming);
        }
        KvGrant { blocks: blocks.min(demand.present + coming), settled: settled && !memory.loading }
    }
}
