//! The division of memory: what each part of an engine gets of the host's memory, or of a device's and the host's.

use anyhow::Result;
use interbed_device::{Bytes, ChunkShape};
use interbed_engine::{LEAST_CONTEXT, MemoryNeeds, MemoryPlan, MemoryTrade};

use crate::failure::Advised;
use crate::needs::{BATCHED_TOKENS, Needs, batched_tokens};

/// A device's memory, and what the use of the device takes there and in host memory.
pub struct DeviceRoom {
    /// The name in reports.
    pub name: String,
    /// The bytes that may be used.
    pub total: Bytes,
    /// The bytes of the tensors of a pass in the device's memory.
    pub scratch: Bytes,
    /// The bytes of host memory that computing on the device takes.
    pub host_scratch: Bytes,
    /// The bytes of weights that are in host memory at a time while the device loads them.
    pub loading: Bytes,
}

/// The division of a memory budget for a model.
pub struct Division {
    /// The needs that the budget of host memory was divided by.
    pub needs: MemoryNeeds,
    /// The parts of host memory, and the numbers of KV blocks, which are in the memory that computes.
    pub plan: MemoryPlan,
    /// The maximum number of tokens in one pass.
    pub batched_tokens: usize,
    /// The division of the memory of a device that has its own, or `None` if all memory is the host's.
    pub device: Option<DeviceDivision>,
}

/// The division of the memory of a device that has its own.
pub struct DeviceDivision {
    /// The memory.
    pub room: DeviceRoom,
    /// The needs that the memory was divided by.
    pub needs: MemoryNeeds,
    /// The parts of the memory.
    pub plan: MemoryPlan,
}

impl Division {
    /// Divides `host` bytes of host memory, and a device's memory if one computes.
    ///
    /// # Errors
    /// Fails if a memory is too small. The error advises the least that works.
    pub fn of(needs: &Needs<'_>, host: Bytes, device: Option<DeviceRoom>) -> Result<Self> {
        match device {
            None => in_host_memory(needs, host),
            Some(device) => on_device(needs, host, device),
        }
    }

    /// Returns whether weights are streamed, because they do not fit into the memory that they are computed in.
    pub fn is_streamed(&self) -> bool {
        self.device.as_ref().map_or(&self.plan, |device| &device.plan).streamed
    }

    /// Returns how streamed weights and KV trade memory where both are computed with, once it is known what weights
    /// take there at least and at most. Updates the number of blocks and the context to what these limits leave.
    pub fn trade(&mut self, weights_least: Bytes, weights_most: Bytes) -> MemoryTrade {
        let Some(DeviceDivision { needs, plan, .. }) = &mut self.device else {
            return self.plan.trade(&self.needs, weights_least, weights_most);
        };
        let trade = plan.trade(needs, weights_least, weights_most);
        self.plan = self.plan.clone().with_kv_of(plan);
        trade
    }
}

fn in_host_memory(model: &Needs<'_>, total: Bytes) -> Result<Division> {
    model.check_kv_memory(total)?;
    let plan = MemoryPlan::divide_within(total, &|total| model.within(total))?;
    let needs = model.within(total);
    let batched_tokens = batched_tokens(model.limits, BATCHED_TOKENS);
    let mut division = Division { needs, plan, batched_tokens, device: None };
    if division.plan.streamed
        && let Some((scratch, batched_tokens)) = model.longer_passes(total)
    {
        let needs = MemoryNeeds { scratch, ..needs };
        if let Ok(plan) = MemoryPlan::divide(total, &needs) {
            division = Division { needs, plan, batched_tokens, device: None };
        }
    }
    // Memory for a long conversation is reserved only if the budget is larger than the minimum.
    if let Some(requests) = model.audience.of_context(division.plan.max_model_len, total)
        && requests > division.needs.requests
    {
        let needs = MemoryNeeds { requests, ..division.needs };
        if let Ok(plan) = MemoryPlan::divide(total, &needs) {
            division = Division { needs, plan, ..division };
        }
    }
    Ok(division)
}

/// Divides the memory of a device that computes, and host memory beside it.
fn on_device(model: &Needs<'_>, total: Bytes, device: DeviceRoom) -> Result<Division> {
    let needs = model.within(total);
    let content = Bytes(model.layout.block_bytes() as u64);
    let tails = model.tails.iter().map(|tail| tail.block_bytes);
    let [block, beside] = ChunkShape::new(std::iter::once(model.layout.block_bytes()).chain(tails)).cost();
    let of_device = MemoryNeeds {
        // Memory that groups of blocks share stays with them.
        block_returnable: if model.tails.is_empty() { block } else { Bytes(0) },
        blocks_most: model.blocks_within(beside, block),
        ..needs.on_device(Bytes(device.scratch.0.saturating_add(beside.0)), block)
    };
    // The driver rounds buffers up, so one percent is left free.
    let usable = Bytes(device.total.0 / 100 * 99);
    let on_device = MemoryPlan::divide(usable, &of_device).map_err(|refused| {
        let least = refused.smallest.0.div_ceil(99) * 100;
        Advised::input(
            format!(
                "{usable} of GPU memory cannot work: weights {} (streamed), tensors of a pass {} and KV for {} tokens",
                of_device.weights_streamed.min(of_device.weights),
                device.scratch,
                of_device.max_model_len.min(LEAST_CONTEXT)
            ),
            format!(
                "give --gpu-memory {}M or more if the GPU has it, take a smaller model, or --device cpu",
                least.div_ceil(1 << 20)
            ),
        )
    })?;
    let beside = |total: Bytes| {
        let needs = model.within(total);
        // During loading, some weights are in host memory for a moment.
        let (weights, weights_streamed) = match on_device.streamed {
            true => (needs.weights, needs.weights_streamed),
            false => (device.loading, device.loading),
        };
        MemoryNeeds {
            weights,
            weights_streamed,
            scratch: device.host_scratch,
            // In host memory, each block takes only the block manager's bookkeeping.
            block: Bytes(needs.block.0.saturating_sub(content.0)),
            block_returnable: Bytes(0),
            blocks_most: on_device.num_blocks_max,
            ..needs
        }
    };
    let host = MemoryPlan::divide_within(total, &beside)?;
    // The context is what the device has room for, whatever the host streams.
    let plan = MemoryPlan { streams_below: None, ..host }.with_kv_of(&on_device);
    let batched_tokens = batched_tokens(model.limits, BATCHED_TOKENS);
    Ok(Division {
        needs: beside(total),
        plan,
        batched_tokens,
        device: Some(DeviceDivision { room: device, needs: of_device, plan: on_device }),
    })
}
