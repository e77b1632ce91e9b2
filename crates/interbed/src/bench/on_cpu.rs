//! `interbed bench` on the processor: measures passes, compared with what memory and arithmetic allow.

use anyhow::Result;
use interbed_device::Bytes;
use interbed_kernels::Unit;
use serde_json::{Value, json};

use super::limits::{MachineLimits, Summary};
use super::pass_bench::{PassBench, PassFigure};
use super::report::{Report, number, percent, words};
use crate::audience::Surroundings;
use crate::place::Processor;

/// Measures a model on the processor, and prints the results. Read sweeps go through `sweep` bytes of memory.
///
/// # Errors
/// Fails if there is too little memory, or a pass fails.
pub fn run(bench: &PassBench, sweep: Bytes) -> Result<()> {
    let mut machine = None;
    let figures = bench.measured(&Processor, &Surroundings::of_passes(), |trial, of, number| {
        let cpu = trial.passes.processor();
        let machine = match &mut machine {
            Some(machine) => machine,
            // The model comes first, because the sweep takes no more memory than is left.
            None => machine.insert(MachineLimits::new(cpu, Unit::of(cpu.level, bench.work.weights), sweep)?),
        };
        // The speed of a shared machine varies, so its limits are measured anew before every time.
        let bound = machine.bound(cpu, of.work);
        Ok((trial.passes.run(of, number)?.as_secs_f64(), bound))
    })?;
    machine.iter().for_each(|machine| report(bench, &machine.summary(), &figures).print(bench.json));
    Ok(())
}

fn report(PassBench { dir, work, .. }: &PassBench, machine: &Summary, figures: &[PassFigure]) -> Report {
    let mut report = Report::default();
    let Summary { level, threads, read_bandwidth, sweep, peaks } = machine;
    let counted = if *threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    report.line(format_args!(
        "{}: {} parameters, {}B, mostly {}; {counted} at level {}\n\nThis machine",
        dir.name(),
        scaled(work.parameters),
        scaled(work.weight_bytes),
        work.weights,
        level.name()
    ));
    let common = |mut params: Value| {
        params["threads"] = json!(threads);
        params["level"] = json!(level.name());
        params
    };
    report.line(format_args!("  {:<22}{:>9.1} GB/s   over {sweep}", "memory reads", read_bandwidth / 1e9));
    report.figure(json!({
        "name": "machine.read_bytes_per_s", "value": read_bandwidth, "unit": "B/s",
        "params": common(json!({"sweep_bytes": sweep.0})),
    }));
    for (i, (unit, peak)) in peaks.iter().enumerate() {
        let note = if i == 0 { "   <- this model's products" } else { "" };
        let (name, operation) = described(*unit);
        report.line(format_args!("  {name:<22}{:>9.1} G{operation}/s{note}", peak / 1e9));
        report.figure(json!({
            "name": "machine.flops", "value": peak, "unit": "FLOP/s",
            "params": common(json!({"arithmetic_unit": unit.name()})),
        }));
    }
    for figure in figures {
        let (of, seconds) = (&figure.of, figure.time.first);
        let (bytes_per_s, flops) = (of.work.bytes / seconds, of.work.flops / seconds);
        report.row([
            words("This model", format_args!("  {}", of.shape.label())),
            number("tokens/s", figure.tokens_per_s(), 1),
            number("GB/s", bytes_per_s / 1e9, 1),
            number("TFLOP/s", flops / 1e12, 3),
            number("bound", figure.tokens_per_s_bound(), 1),
            percent("of bound", figure.time.ratio, 0),
            words("limited by", figure.limit),
        ]);
        let mut params = common(of.params());
        params["weights"] = json!(work.weights.name());
        params["arithmetic_unit"] = json!(peaks.first().map(|(unit, _)| unit.name()));
        report.figure(json!({
            "name": format!("{}.tokens_per_s", of.shape.name()),
            "value": figure.tokens_per_s(), "unit": "tok/s", "params": params, "seconds": seconds,
            "bytes_per_s": bytes_per_s, "flops": flops, "bound": figure.tokens_per_s_bound(),
            "share_of_bound": figure.time.ratio, "limited_by": figure.limit,
        }));
    }
    report
}

/// Returns a number with three digits or so and a unit prefix.
fn scaled(number: u64) -> String {
    let number = number as f64;
    match number {
        1e9.. => format!("{:.2} G", number / 1e9),
        1e6.. => format!("{:.1} M", number / 1e6),
        _ => format!("{:.1} k", number / 1e3),
    }
}

/// Returns what a unit computes, and the name of one of its operations.
fn described(unit: Unit) -> (&'static str, &'static str) {
    match unit {
        Unit::F32Fma => ("f32 multiply-adds", "FLOP"),
        Unit::Bf16Dot => ("bf16 dot products", "FLOP"),
        Unit::Int8Dot => ("int8 dot products", "OP"),
        Unit::AmxBf16 => ("AMX bf16 tiles", "FLOP"),
        Unit::AmxInt8 => ("AMX int8 tiles", "OP"),
    }
}
