//! What was made of the budget, on stderr.

use strata_engine::{MemoryNeeds, MemoryPlan};
use strata_model::generation_config::GenerationConfig;

use crate::model_dir::ModelDir;
use crate::options::LimitOptions;

/// How the budget is divided, on stderr.
pub fn division(dir: &ModelDir, plan: &MemoryPlan, needs: &MemoryNeeds, limits: &LimitOptions) {
    let from = if limits.memory.is_some() { "--memory" } else { "available" };
    eprintln!("{}: {:.1}M parameters", dir.name(), dir.config.num_parameters() as f64 / 1e6);
    eprintln!("memory  {:>10}  {from}", plan.budget.total());
    for (name, bytes) in plan.budget.entries() {
        let note = match name.as_str() {
            "KV blocks" if plan.num_blocks_max > plan.num_blocks => format!(
                "  {} x {} tokens; weights make room for up to {} blocks",
                plan.num_blocks, needs.block_size, plan.num_blocks_max
            ),
            "KV blocks" => format!("  {} x {} tokens", plan.num_blocks, needs.block_size),
            _ => String::new(),
        };
        eprintln!("  {name:<10}{bytes:>10}{note}");
    }
    eprintln!("  {:<10}{:>10}", "unused", plan.budget.left());
}

/// Says so where KV cannot hold the context that was asked for.
pub fn context(plan: &MemoryPlan, needs: &MemoryNeeds) {
    if plan.max_model_len < needs.max_model_len {
        eprintln!(
            "note: KV memory holds a context of {} tokens, not the {} asked for; give more --memory for more",
            plan.max_model_len, needs.max_model_len
        );
    }
}

/// Says so where a GGUF file says nothing of sampling.
pub fn sampling(generation: &GenerationConfig) {
    if *generation == GenerationConfig::llama_cpp() {
        eprintln!(
            "sampling as llama.cpp does by default, for the file gives none: temperature 0.8, top_k 40, top_p 0.95, \
             min_p 0.05"
        );
    }
}
