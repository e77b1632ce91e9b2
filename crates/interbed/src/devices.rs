//! `interbed devices`: lists the processor and the GPUs that could compute on this machine.

use anyhow::Result;
use clap::Args;
use interbed_device::{Bytes, DEVICE_KINDS, GpuInfo, HostMemory, usable_cores};
use interbed_kernels::Level;
use serde_json::json;

use crate::printable::print_answer;

/// List the devices of this machine that can compute: the processor, and GPUs with a Vulkan driver
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed devices\n  \
    interbed run models/1b --device vulkan:0 --prompt Hi   # on the first GPU of the list\n  \
    interbed devices --json | jq '.gpus[].name'")]
pub struct DevicesArgs {
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `interbed devices`.
///
/// # Errors
/// Fails if the output cannot be written.
pub fn run(args: DevicesArgs) -> Result<()> {
    let kinds: Vec<_> = DEVICE_KINDS.iter().map(|kind| (kind, (kind.list)())).collect();
    let (cores, level, memory) = (usable_cores(), Level::detect().name(), HostMemory::read());
    let json = || {
        let gpus = kinds.iter().flat_map(|(kind, gpus)| gpus.iter().flatten().map(|gpu| as_json(kind.name, gpu)));
        let mut report = json!({
            "processor": { "cores": cores, "level": level, "memory_bytes": memory.total },
            "gpus": gpus.collect::<Vec<_>>(),
        });
        for (kind, gpus) in &kinds {
            report[kind.name] = gpus.as_ref().err().map_or("there".to_owned(), ToString::to_string).into();
        }
        report
    };
    let text = || {
        let mut lines = vec![format!("{:<10}  {cores} cores, {level}, {} of memory", "cpu", Bytes(memory.total))];
        for (kind, gpus) in &kinds {
            match gpus {
                Ok(gpus) if gpus.is_empty() => lines.push(format!("no GPU: {}", kind.none_found)),
                Ok(gpus) => lines.extend(
                    gpus.iter()
                        .map(|gpu| format!("{:<10}  {}", format!("{}:{}", kind.name, gpu.number), describe(gpu))),
                ),
                Err(error) => lines.push(format!("no GPU: {error}")),
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    };
    Ok(print_answer(args.json, json, text)?)
}

fn describe(gpu: &GpuInfo) -> String {
    let mut parts = vec![format!("{}, {}, {} of memory", gpu.name, gpu.kind, gpu.memory)];
    let can = [
        (gpu.is_unified, "shared with the processor"),
        (gpu.copies_apart, "copies beside kernels"),
        (gpu.has_matrices, "matrix units"),
        (gpu.has_fast_dot_products, "integer dot products"),
        (gpu.has_dot_products && !gpu.has_fast_dot_products, "integer dot products made of others"),
        (gpu.reads_host_memory, "copies from host memory in place"),
        (gpu.has_sparse_memory, "memory by the page"),
    ];
    parts.extend(can.into_iter().filter(|(has, _)| *has).map(|(_, what)| what.to_owned()));
    parts.push(gpu.driver.clone());
    if let Some(missing) = gpu.missing {
        parts.push(format!("cannot be used: lacks {missing}"));
    }
    parts.join("; ")
}

fn as_json(kind: &str, gpu: &GpuInfo) -> serde_json::Value {
    json!({
        "device": format!("{kind}:{}", gpu.number),
        "name": gpu.name,
        "kind": gpu.kind,
        "driver": gpu.driver,
        "memory_bytes": gpu.memory.0,
        "is_unified": gpu.is_unified,
        "subgroup": gpu.subgroup,
        "copies_apart": gpu.copies_apart,
        "has_matrices": gpu.has_matrices,
        "has_dot_products": gpu.has_dot_products,
        "has_fast_dot_products": gpu.has_fast_dot_products,
        "reads_host_memory": gpu.reads_host_memory,
        "has_sparse_memory": gpu.has_sparse_memory,
        "lacks": gpu.missing,
    })
}
