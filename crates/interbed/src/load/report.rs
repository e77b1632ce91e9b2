//! Reports on stderr about how memory was divided.

use interbed_engine::MemoryPlan;

use crate::device_option::DeviceOption;
use crate::division::{DeviceDivision, Division};
use crate::model_dir::ModelDir;
use crate::options::LimitOptions;
use crate::report::report;

/// Tells the user how memory is divided.
pub fn division(dir: &ModelDir, division: &Division, limits: &LimitOptions) {
    let Division { needs, plan, device, .. } = division;
    let blocks = |plan: &MemoryPlan| format!("{} x {} tokens", plan.num_blocks, needs.block_size);
    let traded = |plan: &MemoryPlan| {
        (plan.num_blocks_max > plan.num_blocks)
            .then(|| format!("{}; weights make room for up to {} blocks", blocks(plan), plan.num_blocks_max))
    };
    if let Some(DeviceDivision { room, plan: on_device, .. }) = device {
        report!("device  {:>10}  {}", room.total, room.name);
        parts(on_device, &traded(on_device).unwrap_or_else(|| blocks(on_device)));
        report!("host    {:>10}", plan.budget.total());
        return;
    }
    let from = if limits.memory.is_some() { "--memory" } else { "available" };
    report!("{}: {:.1}M parameters", dir.name(), dir.config.blueprint.num_parameters() as f64 / 1e6);
    report!("memory  {:>10}  {from}", plan.budget.total());
    let padding = dir.kv_layout(limits).padding_bytes();
    let padded = if padding > 0 { format!(", {padding} B of each to fill pages") } else { String::new() };
    parts(plan, &traded(plan).unwrap_or_else(|| format!("{}{padded}; {AS_USED}", blocks(plan))));
    report!("  {:<10}{:>10}", "unused", plan.budget.left());
    if needs.schemas.most > 0 && plan.schemas == 0 {
        report!("note: no memory is left for schemas and grammars, which tools need, too; give more --memory for them");
    }
    if let Some((limit, more)) = plan.streams_below {
        report!(
            "note: all weights stay in memory; below --memory {}M they are streamed, which is slower, and leave room \
             for up to {} tokens of KV instead of {}",
            limit.0.div_ceil(1 << 20),
            more * needs.block_size,
            plan.num_blocks * needs.block_size
        );
    }
}

/// What the report says of memory that is set aside for KV, because the number alone frightens.
const AS_USED: &str = "a block takes memory only once it is used";

/// Prints the parts of a memory. `blocks` is the note on KV blocks.
fn parts(plan: &MemoryPlan, blocks: &str) {
    for (name, bytes) in plan.budget.entries().iter().filter(|(_, bytes)| bytes.0 > 0) {
        let note = if name == "KV blocks" { format!("  {blocks}") } else { String::new() };
        report!("  {name:<10}{bytes:>10}{note}");
    }
}

/// Tells the user if requests get a shorter context than `wanted`, or if a part of the context is kept on disk. `has`
/// is the maximum number of tokens of a request.
pub fn context(plan: &MemoryPlan, has: usize, wanted: usize, limits: &LimitOptions) {
    if has > plan.max_model_len {
        let held = plan.max_model_len;
        report!("context {has:>10}  tokens; KV memory holds {held}, and what a request has beyond that is on disk");
    }
    let more = match limits.compute.device {
        DeviceOption::Cpu => "--memory",
        _ => "--gpu-memory or --memory",
    };
    context_note(has, wanted, limits.max_model_len.is_some(), more).into_iter().for_each(|note| report!("{note}"));
}

fn context_note(has: usize, wanted: usize, asked: bool, more: &str) -> Option<String> {
    let of_what = if asked { "that --max-model-len asks for" } else { "of the model" };
    (has < wanted).then(|| {
        format!(
            "note: KV memory holds a context of {has} tokens, not the {wanted} {of_what}; give more {more} for more"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::context_note;

    #[test]
    fn nobody_is_said_to_have_asked_who_did_not() {
        assert_eq!(context_note(512, 512, true, "--memory"), None);
        assert!(context_note(256, 8192, true, "--memory").unwrap().contains("8192 that --max-model-len asks for"));
        let note = context_note(256, 8192, false, "--gpu-memory").unwrap();
        assert!(note.contains("of 256 tokens, not the 8192 of the model") && !note.contains("ask"), "{note}");
    }
}
