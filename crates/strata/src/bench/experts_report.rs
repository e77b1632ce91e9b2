//! What `strata bench experts` prints, and the bound that it prints it beside.

use std::fmt::Write;

use serde_json::json;
use strata_device::Bytes;
use strata_io::ReadSettings;

/// What a pass wanted of a mixture layer.
#[derive(Debug, Clone, Copy)]
pub struct VisitCost {
    /// Experts that were in memory.
    pub hits: usize,
    /// Experts that were not.
    pub misses: usize,
    pub slab_bytes: f64,
}

/// What a pass pays with.
#[derive(Debug, Clone, Copy)]
pub struct PassCost {
    /// Bytes a second.
    pub disk: f64,
    /// Seconds from the start of a read to its first byte.
    pub latency: f64,
    /// Seconds of all that is not an expert.
    pub dense: f64,
    /// Seconds with one expert.
    pub expert: f64,
}

impl PassCost {
    /// The least seconds of a pass that knows a layer's experts once its router has spoken, and not before: those that
    /// are there are computed while the others come, one after the other, each of which is computed once it has come.
    pub fn bound_seconds(&self, visits: &[VisitCost]) -> f64 {
        let of_visit = |visit: &VisitCost| {
            let hits = visit.hits as f64 * self.expert;
            (1..=visit.misses).fold(hits, |now, miss| {
                now.max(self.latency + miss as f64 * visit.slab_bytes / self.disk) + self.expert
            })
        };
        self.dense + visits.iter().map(of_visit).sum::<f64>()
    }
}

/// What was found with so many sequences. Times are medians of passes, bytes and counts are means of tokens.
#[derive(Debug, Clone)]
pub struct ExpertsLine {
    pub batch: usize,
    /// Bytes that experts may take in memory, and that all of them have.
    pub room: u64,
    pub bank: u64,
    pub seconds: f64,
    pub bound: f64,
    /// Median of the ratios, each with the disk as it was just before.
    pub over_bound: f64,
    /// Seconds that a pass computes without experts, and with each.
    pub dense_seconds: f64,
    pub expert_seconds: f64,
    /// The part of the time that passes waited for weights.
    pub stall_share: f64,
    /// Bytes a second of plain reads.
    pub disk: f64,
    /// Seconds of a read of one block.
    pub latency: f64,
    /// Bytes of experts that were read for a token, that the simulator reads, and that are read at least.
    pub bytes: f64,
    pub simulated: f64,
    pub least: f64,
    /// Experts that passes wanted, each once a pass and layer, for a token.
    pub experts: f64,
    /// The share of them that was in memory.
    pub hits: f64,
    /// Reads beyond one for each expert that a pass wanted and had not.
    pub read_again: i64,
}

/// All that a run found.
pub struct ExpertsReport {
    pub model: String,
    pub settings: ReadSettings,
    pub peak_memory: Bytes,
    pub lines: Vec<ExpertsLine>,
}

impl ExpertsReport {
    /// One JSON object a line.
    pub fn json_lines(&self) -> String {
        let line = |line: &ExpertsLine| {
            let tokens = line.batch as f64;
            let params = json!({
                "batch": line.batch, "room_bytes": line.room, "bank_bytes": line.bank,
                "peak_memory_bytes": self.peak_memory.0, "disk_bytes_per_s": line.disk, "disk_latency_s": line.latency,
                "dense_seconds": line.dense_seconds, "expert_seconds": line.expert_seconds,
                "stall_share": line.stall_share, "experts_per_token": line.experts, "hits": line.hits,
                "read_again": line.read_again,
            });
            let seconds = json!({
                "name": "experts.seconds_per_token", "value": line.seconds / tokens, "unit": "s",
                "bound": line.bound / tokens, "over_bound": line.over_bound, "params": params,
            });
            let bytes = json!({
                "name": "experts.bytes_per_token", "value": line.bytes, "unit": "B", "simulated": line.simulated,
                "bound": line.least, "over_bound": times(line.bytes, line.least), "params": params,
            });
            format!("{seconds}\n{bytes}\n")
        };
        self.lines.iter().map(line).collect()
    }

    /// The same for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        if let Some(line) = self.lines.first() {
            writeln!(out, "{}: {} of experts, room for {}", self.model, Bytes(line.bank), Bytes(line.room))?;
        }
        writeln!(out, "  {:<14}{}", "disk", self.settings)?;
        writeln!(out, "  {:<14}{} at the peak", "memory", self.peak_memory)?;
        writeln!(
            out,
            "\n{:>9}{:>10}{:>9}{:>9}{:>9}{:>10}{:>9}{:>11}{:>9}{:>11}",
            "sequences",
            "tokens/s",
            "seconds",
            "bound s",
            "of it",
            "disk GB/s",
            "waited",
            "experts",
            "hits",
            "read twice"
        )?;
        for line in &self.lines {
            writeln!(
                out,
                "{:>9}{:>10.2}{:>9.3}{:>9.3}{:>7.0} %{:>10.2}{:>7.0} %{:>11.0}{:>7.1} %{:>11}",
                line.batch,
                line.batch as f64 / line.seconds,
                line.seconds,
                line.bound,
                line.over_bound * 100.0,
                line.disk / 1e9,
                line.stall_share * 100.0,
                line.experts,
                line.hits * 100.0,
                line.read_again
            )?;
        }
        writeln!(
            out,
            "\n{:>9}{:>13}{:>13}{:>9}{:>11}{:>9}{:>18}{:>16}",
            "sequences", "MB a token", "simulated", "of it", "at least", "of it", "computes: experts", "all else"
        )?;
        for line in &self.lines {
            writeln!(
                out,
                "{:>9}{:>13.1}{:>13.1}{:>7.1} %{:>11.1}{:>7.0} %{:>15.3} ms{:>13.1} ms",
                line.batch,
                line.bytes / 1e6,
                line.simulated / 1e6,
                times(line.bytes, line.simulated) * 100.0,
                line.least / 1e6,
                times(line.bytes, line.least) * 100.0,
                line.expert_seconds * 1e3,
                line.dense_seconds * 1e3
            )?;
        }
        writeln!(out, "\n  seconds are of a pass; experts are those that passes wanted for a token, each once a pass")
    }
}

/// How many times `of` there is; of nothing, nothing is all.
fn times(bytes: f64, of: f64) -> f64 {
    if bytes == of { 1.0 } else { bytes / of }
}

#[cfg(test)]
mod tests {
    use super::{PassCost, VisitCost};

    #[test]
    fn a_layer_takes_as_long_as_the_longer_of_reading_and_computing_and_what_cannot_overlap() {
        let seconds = |expert: f64, hits: usize, misses: usize| {
            let cost = PassCost { disk: 1e9, latency: 0.5e-3, dense: 10e-3, expert };
            cost.bound_seconds(&[VisitCost { hits, misses, slab_bytes: 1e6 }]) * 1e3 - 10.0
        };
        let is = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        is(seconds(0.25e-3, 8, 0), 2.0);
        // Reading takes longer: three reads, and the last expert.
        is(seconds(0.25e-3, 5, 3), 0.5 + 3.0 + 0.25);
        // Computing takes longer: it never waits.
        is(seconds(4e-3, 5, 3), 32.0);
        // Nothing to compute until the first has come.
        is(seconds(4e-3, 0, 2), 0.5 + 1.0 + 8.0);
    }
}
