//! A model on a GPU: weights, KV blocks and passes.

use std::sync::Arc;

use arrayvec::ArrayVec;
use strata_device::{Bytes, Command, Device, Gpu, GpuError, Queue, VulkanDevice};
use strata_kernels::KvLayout;
use strata_kv::BlockCopy;
use strata_model::config::ModelConfig;
use strata_model::{BatchSequence, LogitRow, Model};
use strata_weights::WeightSource;

use crate::runner::{COPIES_AT_A_TIME, Runner, RunnerMemory};

/// A model whose weights, KV and passes are on a GPU.
pub struct GpuRunner {
    model: Model,
    device: VulkanDevice,
    weights: Bytes,
    kv_block: Bytes,
    /// Why blocks could not be copied: nothing is computed over them then.
    failure: Option<String>,
}

impl GpuRunner {
    /// A model of `config` with `num_blocks` KV blocks of `layout`, for passes of up to `max_tokens` tokens. `load`
    /// gets the device, and gives the weights and how many bytes they are.
    ///
    /// # Errors
    /// The GPU has no memory for all of it, or `load` failed.
    pub fn new<E: From<GpuError>>(
        gpu: &Arc<Gpu>,
        config: ModelConfig,
        layout: KvLayout,
        num_blocks: usize,
        max_tokens: usize,
        load: impl FnOnce(&mut dyn Device) -> Result<(Box<dyn WeightSource>, Bytes), E>,
    ) -> Result<Self, E> {
        let needs = Model::pass_needs(&config, max_tokens, max_tokens);
        let mut device = VulkanDevice::new(gpu, &needs, &layout, num_blocks)?;
        let (source, weights) = load(&mut device)?;
        let kv_block = Bytes(layout.block_bytes() as u64);
        Ok(Self { model: Model::new(config, source, layout), device, weights, kv_block, failure: None })
    }
}

impl Runner for GpuRunner {
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), String> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.model.forward(&mut self.device, batch, sink).map_err(|error| error.to_string()),
        }
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        for copies in copies.chunks(COPIES_AT_A_TIME) {
            let copies: ArrayVec<_, COPIES_AT_A_TIME> =
                copies.iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
            // Passes come after it in the same queue.
            if let Err(error) = self.device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]) {
                self.failure = Some(format!("KV blocks could not be copied: {error}"));
            }
        }
    }

    fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.model.cache_namespace(prompt_len)
    }

    fn memory(&mut self) -> RunnerMemory {
        RunnerMemory { weights: self.weights, kv_block: self.kv_block }
    }
}
