//! A [`Runner`] whose model has its weights, KV blocks and passes on a GPU.

use std::sync::{Arc, Mutex, PoisonError};

use interbed_device::{Bytes, DeviceEvent, DeviceStats, Gpu, GpuError, ProductArithmetic, VulkanDevice};
use interbed_kernels::KvLayout;
use interbed_kv::{BlockBytes, BlockCopy, BlockId, SwapStore};
use interbed_model::blueprint::Blueprint;
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits, Model, NothingBelow, RouteSink};
use interbed_weights::{StreamMonitor, StreamStats, WeightSource};

use crate::runner::{PassError, Runner, RunnerMemory, copy_blocks};

/// The memory and the figures of the weights that a GPU computes with.
pub struct GpuWeights {
    /// The bytes of the weights that stay on the GPU or in host memory.
    pub bytes: Bytes,
    /// The figures about streamed weights, which passes keep up to date; `None` if no weights are streamed.
    pub monitor: Option<Arc<StreamMonitor>>,
}

/// The most batches that a timeline keeps. The batches take about 20 MB, which no budget counts.
const EVENTS_MAX: usize = 400_000;

/// The times at which batches of commands ran on a GPU.
#[derive(Debug, Default)]
pub struct DeviceTimeline(Mutex<Vec<DeviceEvent>>);

impl DeviceTimeline {
    /// Takes the batches that have ended since the last call.
    pub fn take(&self) -> Vec<DeviceEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, new: impl Iterator<Item = DeviceEvent>) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = EVENTS_MAX.saturating_sub(events.len());
        events.extend(new.take(room));
    }
}

/// A model whose weights, KV and passes are on a GPU.
pub struct GpuRunner {
    model: Model,
    device: VulkanDevice,
    weights: GpuWeights,
    kv_block: Bytes,
    /// The room to swap KV blocks to, until the engine takes it.
    pub swap: Option<Box<dyn SwapStore>>,
    timeline: Option<Arc<DeviceTimeline>>,
    /// The reason why a write to blocks failed. Once it is set, nothing more is computed over the blocks.
    failure: Option<String>,
}

impl GpuRunner {
    /// Creates a model of `blueprint` with `num_blocks` KV blocks of `layout`, for passes of up to `max_tokens` tokens.
    /// `arithmetic` is the arithmetic of products with quantised weights. `load` gets the device and returns the
    /// weights.
    ///
    /// # Errors
    /// Fails if the GPU has too little memory for the model and its KV blocks, or if `load` fails.
    pub fn new<E: From<GpuError>>(
        gpu: &Arc<Gpu>,
        blueprint: Blueprint,
        layout: KvLayout,
        num_blocks: usize,
        max_tokens: usize,
        arithmetic: ProductArithmetic,
        load: impl FnOnce(&mut VulkanDevice) -> Result<(Box<dyn WeightSource>, GpuWeights), E>,
    ) -> Result<Self, E> {
        let needs = Model::pass_needs(&blueprint, max_tokens, max_tokens);
        let mut device = VulkanDevice::with_products(gpu, &needs, &layout, num_blocks, arithmetic)?;
        let (source, weights) = load(&mut device)?;
        let kv_block = Bytes(layout.block_bytes() as u64);
        Ok(Self {
            model: Model::new(blueprint, source, layout),
            device,
            weights,
            kv_block,
            swap: None,
            timeline: None,
            failure: None,
        })
    }

    /// Has the model report its routes to `sink`, by [`Model::tell_routes`].
    pub fn tell_routes(&mut self, sink: Box<dyn RouteSink>) {
        self.model.tell_routes(sink);
    }

    /// Begins to record when batches of commands run on the GPU, and returns the timeline of these records.
    ///
    /// # Errors
    /// Fails if the GPU cannot record times.
    pub fn keep_timeline(&mut self) -> Result<Arc<DeviceTimeline>, GpuError> {
        self.device.note_times()?;
        Ok(Arc::clone(self.timeline.insert(Arc::default())))
    }

    /// Waits until the GPU has finished all its work.
    ///
    /// # Errors
    /// Fails if the GPU fails.
    pub fn settle(&mut self) -> Result<(), GpuError> {
        self.device.settle()
    }
}

impl Runner for GpuRunner {
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
            let events = self.device.take_times().map_err(|error| PassError::Failed(error.to_string()))?;
            timeline.add(events.into_iter());
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

    fn take_swap(&mut self) -> Option<Box<dyn SwapStore>> {
        self.swap.take()
    }

    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        Some(self)
    }

    fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.model.cache_namespace(prompt_len)
    }

    fn stream_stats(&self) -> Option<StreamStats> {
        self.weights.monitor.as_ref().map(|monitor| monitor.stats())
    }

    fn stream_monitor(&self) -> Option<Arc<StreamMonitor>> {
        self.weights.monitor.clone()
    }

    fn show_weights(&mut self) {
        self.model.weights().show();
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        Some(self.device.stats())
    }

    fn memory(&mut self) -> RunnerMemory {
        RunnerMemory { weights: self.weights.bytes, kv_block: self.kv_block }
    }
}

impl BlockBytes for GpuRunner {
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        self.device.read_block(block.0, into).map_err(|error| error.to_string())
    }

    fn fill(&mut self, block: BlockId, fill: &mut dyn FnMut(&mut [u8])) {
        if let Err(error) = self.device.write_block(block.0, self.kv_block.0 as usize, |bytes| fill(bytes)) {
            self.failure = Some(format!("a KV block could not be brought back: {error}"));
        }
    }
}
