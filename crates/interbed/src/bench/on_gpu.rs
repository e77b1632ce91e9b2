//! `interbed bench` and `interbed bench stream` on a GPU: measures passes, compared with what memory and link allow.

use anyhow::{Context, Result};
use interbed_device::{Bytes, CopyRates};
use interbed_engine::DeviceStats;
use serde_json::json;

use super::limits::Bound;
use super::pass_bench::{PassBench, PassFigure};
use super::report::{Report, number, percent, words};
use crate::audience::Surroundings;
use crate::gpu::GpuPlace;

/// The number of bytes of the copies that measure the GPU's memory and link, if the GPU has enough memory.
const COPY: u64 = 256 << 20;

/// Measures a model on a GPU, and prints the results.
///
/// # Errors
/// Fails if the GPU does not exist, it has too little memory for the model, or a pass fails.
pub fn run(bench: &PassBench) -> Result<()> {
    let gpu = GpuPlace::chosen(&bench.dir, &bench.limits)?.context("the processor computes")?;
    let (rates, swept) = (gpu.rates(COPY)?, bench.work.swept_bytes());
    let figures = bench.measured(&gpu, &Surroundings::of_passes(), |trial, of, number| {
        let before = trial.stats();
        let seconds = trial.passes.run(of, number)?.as_secs_f64();
        let moved = trial.stats().since(&before);
        let (through, disk_seconds) = match &trial.streamed {
            None => (0, 0.0),
            Some(streaming) => {
                // Of streamed experts, a pass copies only those that it needs.
                let copied = streaming.experts.as_ref().map(|_| moved.bytes_copied);
                let left = swept.saturating_sub(streaming.on_device) * of.passes as u64;
                let disk = streaming.settings.bytes_per_s;
                (copied.unwrap_or(left), if disk > 0.0 { moved.bytes_read as f64 / disk } else { 0.0 })
            }
        };
        let bound = Bound::longest([
            ("GPU memory", of.work.bytes / rates.device),
            ("link", through as f64 / rates.to_device),
            ("disk", disk_seconds),
        ]);
        Ok((seconds, bound))
    })?;
    let last = figures.last().and_then(|figure| figure.device.as_ref());
    let [_, used] = last.context("a GPU has figures")?;
    report(bench, rates, used, &figures).print(bench.json);
    Ok(())
}

fn report(bench: &PassBench, rates: CopyRates, used: &DeviceStats, figures: &[PassFigure]) -> Report {
    let mut report = Report::default();
    let swept = Bytes(bench.work.swept_bytes());
    report.line(format_args!("{}: a pass goes through {swept} of weights, on {}", bench.dir.name(), used.name));
    report.line(format_args!("  {:<22}{} of {}", "GPU memory in use", used.memory_used, used.memory_budget));
    for (label, name, rate) in [
        ("GPU memory", "gpu.memory_bytes_per_s", rates.device),
        ("link to the GPU", "gpu.link_to_device_bytes_per_s", rates.to_device),
        ("link to the host", "gpu.link_to_host_bytes_per_s", rates.to_host),
    ] {
        report.line(format_args!("  {label:<22}{:>9.1} GB/s   by copying", rate / 1e9));
        report.figure(json!({"name": name, "value": rate, "unit": "B/s", "params": {"gpu": &*used.name}}));
    }
    for figure in figures {
        let PassFigure { of, time, limit, streamed, device, .. } = figure;
        let policy = figure.policy();
        let moved =
            |count: fn(&DeviceStats) -> u64| device.as_ref().map_or(0, |[before, now]| count(now) - count(before));
        let read = figure.each(streamed.bytes_read);
        let to_device = figure.each(moved(|stats| stats.bytes_to_device));
        let label = [of.shape.label()].into_iter().chain(policy.clone()).collect::<Vec<_>>().join(", ");
        report.row([
            words("This model", format_args!("  {label}")),
            number("tokens/s", figure.tokens_per_s(), 1),
            number("bound", figure.tokens_per_s_bound(), 1),
            percent("of bound", time.ratio, 0),
            number("GB read", read / 1e9, 3),
            number("GB to GPU", to_device / 1e9, 3),
            words("limited by", limit),
        ]);
        let mut params = of.params();
        params["gpu"] = json!(&*used.name);
        params["memory_used_bytes"] = json!(used.memory_used.0);
        policy.iter().for_each(|policy| params["policy"] = json!(policy));
        report.figure(json!({
            "name": format!("gpu.{}.tokens_per_s", of.shape.name()),
            "value": figure.tokens_per_s(), "unit": "tok/s", "params": params, "seconds": time.first,
            "bytes_per_s": of.work.bytes / time.first, "bound": figure.tokens_per_s_bound(),
            "share_of_bound": time.ratio, "limited_by": limit, "bytes_read": read, "bytes_to_device": to_device,
            "bytes_to_host": figure.each(moved(|stats| stats.bytes_to_host)),
            "waits_for_room": moved(|stats| stats.waits_for_room),
        }));
    }
    report
}
