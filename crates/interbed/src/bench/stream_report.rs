//! The report of `interbed bench stream`.

use std::fmt::{self, Display, Formatter};

use interbed_device::Bytes;
use interbed_io::ReadSettings;
use serde_json::{Value, json};

use super::limits::Summary;
use super::passes::Shape;
use super::work::Work;
use crate::options::StreamPolicyOption;

/// Returns the minimum time, in seconds, of forward passes that read `streamed` bytes of weights from a disk. `disk` is
/// the disk's speed in bytes per second. The result is the maximum of three times: the time of reading `streamed` bytes
/// from the disk, the time of moving `work.bytes + streamed` bytes over the memory bus, and the time of computing
/// `work.flops` operations. `work.bytes` already includes the streamed bytes, because they cross the memory bus twice.
pub fn bound_seconds(streamed: f64, disk: f64, work: Work, machine: &Summary) -> f64 {
    let peak = machine.peaks.first().map_or(f64::INFINITY, |(_, peak)| *peak);
    let terms = [streamed / disk, (work.bytes + streamed) / machine.read_bandwidth, work.flops / peak];
    terms.into_iter().fold(0.0, f64::max)
}

/// The measurement of one decode batch or prompt length under one streaming policy.
#[derive(Debug, Clone)]
pub struct Line {
    pub policy: StreamPolicyOption,
    pub shape: Shape,
    pub measured: Measured,
}

/// The times and bytes of one measurement.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The median time, in seconds.
    pub seconds: f64,
    pub bound: f64,
    /// The median ratio of the bound to the measured time. Each bound uses the disk speed that was measured just
    /// before.
    pub share_of_bound: f64,
    /// The median speed of plain disk reads, in bytes per second.
    pub disk: f64,
    /// The mean number of bytes read from disk in one repetition.
    pub bytes: f64,
    /// The minimum number of bytes that one repetition must read from disk.
    pub bytes_bound: f64,
    /// The number of bytes of weights that the policy keeps in memory.
    pub resident_bytes: u64,
    /// The total time that forward passes waited for weights, as a fraction of their measured time.
    pub stall_share: f64,
    pub overlap_efficiency: Option<f64>,
}

/// The results of `interbed bench stream`.
pub struct StreamReport {
    pub model: String,
    /// The number of bytes of weights that one forward pass reads, from memory or disk.
    pub swept_bytes: u64,
    pub machine: Summary,
    pub settings: Option<ReadSettings>,
    pub peak_memory: Bytes,
    pub lines: Vec<Line>,
}

/// Writes the results as a table.
impl Display for StreamReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}: a pass goes through {} of weights", self.model, Bytes(self.swept_bytes))?;
        if let Some(settings) = &self.settings {
            writeln!(out, "  {:<14}{settings}", "disk")?;
        }
        writeln!(out, "  {:<14}{:.1} GB/s", "memory reads", self.machine.read_bandwidth / 1e9)?;
        if let Some((unit, peak)) = self.machine.peaks.first() {
            writeln!(out, "  {:<14}{:.0} G operations/s ({})", "arithmetic", peak / 1e9, unit.name())?;
        }
        writeln!(out, "  {:<14}{} at the peak", "memory", self.peak_memory)?;
        writeln!(
            out,
            "\n{:<10}{:<22}{:>9}{:>10}{:>9}{:>10}{:>10}{:>10}{:>9}{:>10}",
            "policy", "", "seconds", "tokens/s", "bound s", "of bound", "GB read", "at least", "stalled", "disk GB/s"
        )?;
        for line in &self.lines {
            let m = &line.measured;
            writeln!(
                out,
                "{:<10}{:<22}{:>9.3}{:>10.2}{:>9.3}{:>8.0} %{:>10.3}{:>10.3}{:>7.0} %{:>10.2}",
                policy_name(line.policy),
                line.shape.label(),
                m.seconds,
                line.shape.tokens() as f64 / m.seconds,
                m.bound,
                m.share_of_bound * 100.0,
                m.bytes / 1e9,
                m.bytes_bound / 1e9,
                m.stall_share * 100.0,
                m.disk / 1e9
            )?;
        }
        Ok(())
    }
}

impl StreamReport {
    /// Returns the results as JSON lines.
    pub fn json_lines(&self) -> String {
        let mut out = Vec::new();
        for line in &self.lines {
            let m = &line.measured;
            let mut params = json!({
                "policy": policy_name(line.policy), "swept_bytes": self.swept_bytes, "resident_bytes": m.resident_bytes,
                "disk_bytes_per_s": m.disk, "peak_memory_bytes": self.peak_memory.0, "stall_share": m.stall_share,
                "overlap_efficiency": m.overlap_efficiency,
            });
            let tokens = line.shape.tokens() as f64;
            match line.shape {
                Shape::Decode { batch } => {
                    params["batch"] = json!(batch);
                    let (seconds, bound) = (m.seconds / tokens, m.bound / tokens);
                    out.push(figure("stream.decode.seconds_per_token", seconds, "s", bound, m.share_of_bound, &params));
                    let (bytes, bound) = (m.bytes / tokens, m.bytes_bound / tokens);
                    out.push(figure("stream.bytes_per_token", bytes, "B", bound, bound / bytes, &params));
                    if let Some(single) = self.single(line.policy).filter(|_| batch > 1) {
                        let speedup = tokens * single.seconds / m.seconds;
                        out.push(
                            json!({"name": "stream.batch_speedup", "value": speedup, "unit": "x", "params": params}),
                        );
                    }
                }
                Shape::Prefill { .. } => {
                    params["prompt_tokens"] = json!(line.shape.tokens());
                    params["seconds"] = json!(m.seconds);
                    let (rate, bound) = (tokens / m.seconds, tokens / m.bound);
                    out.push(figure("stream.prefill.tokens_per_s", rate, "tok/s", bound, m.share_of_bound, &params));
                }
            }
        }
        out.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns the measurement of decoding one sequence under a policy.
    fn single(&self, policy: StreamPolicyOption) -> Option<&Measured> {
        let single = |line: &&Line| line.policy == policy && matches!(line.shape, Shape::Decode { batch: 1 });
        self.lines.iter().find(single).map(|line| &line.measured)
    }
}

fn figure(name: &str, value: f64, unit: &str, bound: f64, share: f64, params: &Value) -> Value {
    json!({"name": name, "value": value, "unit": unit, "bound": bound, "share_of_bound": share, "params": params})
}

fn policy_name(policy: StreamPolicyOption) -> &'static str {
    match policy {
        StreamPolicyOption::Resident => "resident",
        StreamPolicyOption::Ring => "ring",
    }
}
