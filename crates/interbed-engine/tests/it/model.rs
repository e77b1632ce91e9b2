//! Engines over real models.

use std::time::Duration;

use interbed_device::{KvPool, StripShape};
use interbed_engine::{EngineConfig, Limits, SchedulerConfig};
use interbed_kernels::{BlockGroups, KvLayout};
use interbed_kv::KvConfig;
use interbed_model::config::ModelConfig;

/// The KV blocks of a model that no test has special wishes of; for up to 64 sequences of up to all blocks.
pub fn kv_pool(layout: KvLayout, blocks: usize) -> KvPool {
    if !crate::IN_STRIPS {
        return KvPool::new_sparse(BlockGroups::new(layout, blocks)).unwrap();
    }
    let groups = BlockGroups::new(layout.in_pages(PAGE), blocks);
    KvPool::new_in_strips(groups, StripShape { count: 64, blocks }).unwrap()
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// An engine for `model` that no test has special wishes of.
pub fn engine_config(model: &ModelConfig, scheduler: SchedulerConfig, kv: KvConfig) -> EngineConfig {
    let kv_capacity_tokens = kv.num_blocks * kv.block_size;
    EngineConfig {
        scheduler,
        limits: Limits {
            vocab_size: model.blueprint.vocab_size,
            max_model_len: model.blueprint.context.min(kv_capacity_tokens),
            model_context: model.blueprint.context,
            kv_capacity_tokens,
            kv_block_tokens: kv.block_size,
            kv_blocks_beside: 0,
            max_logprobs: 20,
            max_beam_width: scheduler.max_num_seqs,
            max_waiting: 100,
        },
        kv,
        eos_token_ids: Vec::new(),
        stall: Duration::from_secs(60),
        idle_turn: Duration::from_millis(2),
        check_invariants: false,
    }
}
