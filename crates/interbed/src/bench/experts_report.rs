//! The report of `interbed bench experts`, and the bound with which it compares times.

use std::fmt::{self, Display, Formatter};

use interbed_device::Bytes;
use interbed_io::ReadSettings;
use serde_json::json;

/// The number of experts that one forward pass needs in one mixture layer, and how many of them were in memory.
#[derive(Debug, Clone, Copy)]
pub struct VisitCost {
    /// The number of experts that were in memory.
    pub hits: usize,
    /// The number of experts that were not in memory.
    pub misses: usize,
    /// The number of pairs of a token and an expert that the token uses.
    pub rows: usize,
    pub slab_bytes: f64,
}

/// The computing times of a forward pass, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct ComputeCost {
    /// The time of everything except experts, in seconds.
    pub dense: f64,
    /// The time of computing one expert for one token, in seconds.
    pub expert: f64,
    /// The additional time of one expert for each further token, in seconds.
    pub more: f64,
    /// The relative speeds of computing and reading while both run at the same time, or `None` if they were not
    /// measured.
    pub beside: Option<Beside>,
    /// Whether experts were read from disk while computing was measured, because memory does not hold all experts of
    /// one token.
    pub beside_reads: bool,
}

/// The speeds of computing and reading while both run at the same time, each as a fraction of its speed alone.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    pub computing: f64,
    pub reading: f64,
}

/// The costs of reading and computing that determine the minimum time of a forward pass.
#[derive(Debug, Clone, Copy)]
pub struct PassCost {
    /// The disk's read speed, in bytes per second.
    pub disk: f64,
    /// The latency of a disk read, in seconds.
    pub latency: f64,
    pub computing: ComputeCost,
}

impl PassCost {
    /// Returns the minimum time of a forward pass, in seconds. The bound assumes that a layer's router has to run
    /// before the layer's experts are known. Experts in memory are computed while missing experts are read one after
    /// the other, and each missing expert is computed once it has been read.
    pub fn bound_seconds(&self, visits: &[VisitCost]) -> f64 {
        self.computing.dense + visits.iter().map(|visit| self.visit_seconds(visit)).sum::<f64>()
    }

    fn visit_seconds(&self, visit: &VisitCost) -> f64 {
        let ComputeCost { expert, more, beside, .. } = self.computing;
        let experts = visit.hits + visit.misses;
        let each = expert + more * (visit.rows as f64 / experts.max(1) as f64 - 1.0);
        let beside = beside.unwrap_or(Beside { computing: 1.0, reading: 1.0 });
        // `work` is the remaining time of computing the experts that are in memory, at full speed.
        let (mut work, mut now) = (visit.hits as f64 * each, 0.0);
        for miss in 0..visit.misses {
            let read = visit.slab_bytes / self.disk + if miss == 0 { self.latency } else { 0.0 };
            // Reading and computing go on together until one of them ends; the rest of the read then goes on alone.
            let both = (work / beside.computing).min(read / beside.reading);
            now += both + (read - both * beside.reading).max(0.0);
            work = (work - both * beside.computing).max(0.0) + each;
        }
        now + work
    }
}

/// The results for one batch size. Times are medians over forward passes. Bytes and counts are means over tokens.
#[derive(Debug, Clone)]
pub struct ExpertsLine {
    pub batch: usize,
    /// Whether experts were read ahead.
    pub ahead: bool,
    /// The memory for experts, in bytes.
    pub room: u64,
    /// The size of all experts, in bytes.
    pub bank: u64,
    pub seconds: f64,
    pub bound: f64,
    /// The median ratio of the measured time to the bound. Each bound uses the disk speed that was measured just before
    /// its forward pass.
    pub over_bound: f64,
    /// The bound, in seconds, if computing and reading slow each other down as measured. `over_loaded` is the median
    /// ratio of the measured time to this bound.
    pub loaded: f64,
    pub over_loaded: f64,
    pub computing: ComputeCost,
    /// The total time that forward passes waited for weights, as a fraction of their measured time.
    pub stall_share: f64,
    /// The speed of plain disk reads, in bytes per second.
    pub disk: f64,
    /// The time of reading one block from disk, in seconds.
    pub latency: f64,
    /// The number of bytes of experts that were read per token. `simulated` is this number in a simulation with the
    /// same routing and the same memory. `least` is a lower bound on this number, for any choice of the
    /// experts that are kept in memory.
    pub bytes: f64,
    pub simulated: f64,
    pub least: f64,
    /// The number of experts needed per token. An expert counts once per forward pass and layer.
    pub experts: f64,
    /// The share of needed experts that were in memory.
    pub hits: f64,
    /// The number of experts that were read ahead, per token.
    pub read_ahead: f64,
    /// The number of experts that were read, minus the number of needed experts that were not in memory. If `ahead` is
    /// true, a negative difference counts as 0.
    pub read_again: i64,
}

/// The results of `interbed bench experts`.
pub struct ExpertsReport {
    pub model: String,
    pub settings: ReadSettings,
    pub peak_memory: Bytes,
    pub lines: Vec<ExpertsLine>,
}

/// Writes the results as a table.
impl Display for ExpertsReport {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.lines.first() {
            writeln!(out, "{}: {} of experts, room for {}", self.model, Bytes(line.bank), Bytes(line.room))?;
        }
        writeln!(out, "  {:<14}{}", "disk", self.settings)?;
        writeln!(out, "  {:<14}{} at the peak", "memory", self.peak_memory)?;
        self.write_times(out)?;
        self.write_bytes(out)?;
        writeln!(out, "\n  seconds are of a pass; experts are those that passes wanted for a token, each once a pass")?;
        writeln!(
            out,
            "  loaded: the bound if computing and reading slow each other as they do here: beside each other they have \
             these parts of their speeds"
        )?;
        if self.lines.iter().any(|line| line.computing.beside_reads) {
            writeln!(out, "  * computing was measured beside reads: memory does not hold the experts of one token")?;
        }
        Ok(())
    }
}

impl ExpertsReport {
    /// Returns the results as JSON lines.
    pub fn json_lines(&self) -> String {
        let line = |line: &ExpertsLine| {
            let tokens = line.batch as f64;
            let params = json!({
                "batch": line.batch, "reads_ahead": line.ahead, "room_bytes": line.room, "bank_bytes": line.bank,
                "peak_memory_bytes": self.peak_memory.0, "disk_bytes_per_s": line.disk, "disk_latency_s": line.latency,
                "dense_seconds": line.computing.dense, "expert_seconds": line.computing.expert,
                "expert_seconds_per_token_more": line.computing.more,
                "computing_beside_reads": line.computing.beside.map(|beside| beside.computing),
                "reading_beside_computing": line.computing.beside.map(|beside| beside.reading),
                "computed_beside_reads": line.computing.beside_reads,
                "stall_share": line.stall_share, "experts_per_token": line.experts, "hits": line.hits,
                "read_ahead_per_token": line.read_ahead, "read_again": line.read_again,
            });
            let seconds = json!({
                "name": "experts.seconds_per_token", "value": line.seconds / tokens, "unit": "s",
                "bound": line.bound / tokens, "over_bound": line.over_bound, "loaded_bound": line.loaded / tokens,
                "over_loaded_bound": line.over_loaded, "params": params,
            });
            let bytes = json!({
                "name": "experts.bytes_per_token", "value": line.bytes, "unit": "B", "simulated": line.simulated,
                "bound": line.least, "over_bound": times(line.bytes, line.least), "params": params,
            });
            format!("{seconds}\n{bytes}\n")
        };
        self.lines.iter().map(line).collect()
    }

    fn write_times(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "\n{:>9}{:>7}{:>10}{:>9}{:>9}{:>7}{:>10}{:>7}{:>11}{:>8}{:>9}{:>8}{:>12}",
            "sequences",
            "ahead",
            "tokens/s",
            "seconds",
            "bound s",
            "of it",
            "loaded s",
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
                "{:>9}{:>7}{:>10.2}{:>9.3}{:>9.3}{:>5.0} %{:>10.3}{:>5.0} %{:>11.2}{:>6.0} %{:>9.0}{:>6.1} %{:>12}",
                line.batch,
                if line.ahead { "yes" } else { "no" },
                line.batch as f64 / line.seconds,
                line.seconds,
                line.bound,
                line.over_bound * 100.0,
                line.loaded,
                line.over_loaded * 100.0,
                line.disk / 1e9,
                line.stall_share * 100.0,
                line.experts,
                line.hits * 100.0,
                line.read_again
            )?;
        }
        Ok(())
    }

    fn write_bytes(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "\n{:>9}{:>7}{:>12}{:>11}{:>9}{:>10}{:>8}{:>12}{:>12}{:>9}{:>8}{:>11}",
            "sequences",
            "ahead",
            "MB a token",
            "simulated",
            "of it",
            "at least",
            "of it",
            "read ahead",
            "ms: expert",
            "+ token",
            "others",
            "beside"
        )?;
        for line in &self.lines {
            let ComputeCost { dense, expert, more, beside, beside_reads } = line.computing;
            writeln!(
                out,
                "{:>9}{:>7}{:>12.1}{:>11.1}{:>7.1} %{:>10.1}{:>6.0} %{:>12.1}{:>12.3}{:>9.3}{:>8.1}{:>11}{}",
                line.batch,
                if line.ahead { "yes" } else { "no" },
                line.bytes / 1e6,
                line.simulated / 1e6,
                times(line.bytes, line.simulated) * 100.0,
                line.least / 1e6,
                times(line.bytes, line.least) * 100.0,
                line.read_ahead,
                expert * 1e3,
                more * 1e3,
                dense * 1e3,
                beside.map_or("-".to_owned(), |beside| format!("{:.2}/{:.2}", beside.computing, beside.reading)),
                if beside_reads { " *" } else { "" }
            )?;
        }
        Ok(())
    }
}

/// Returns `bytes / of`, and 1 if both are 0.
fn times(bytes: f64, of: f64) -> f64 {
    if bytes == of { 1.0 } else { bytes / of }
}

#[cfg(test)]
mod tests {
    use super::{Beside, ComputeCost, PassCost, VisitCost};

    #[test]
    fn a_layer_takes_as_long_as_the_longer_of_reading_and_computing_and_what_cannot_overlap() {
        let of_all = |expert: f64, beside: Option<Beside>, [hits, misses, rows]: [usize; 3]| {
            let computing = ComputeCost { dense: 10e-3, expert, more: 0.1e-3, beside, beside_reads: false };
            let cost = PassCost { disk: 1e9, latency: 0.5e-3, computing };
            cost.bound_seconds(&[VisitCost { hits, misses, rows, slab_bytes: 1e6 }]) * 1e3 - 10.0
        };
        let seconds = |expert: f64, hits: usize, misses: usize| of_all(expert, None, [hits, misses, hits + misses]);
        let is = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        is(seconds(0.25e-3, 8, 0), 2.0);
        // Reading takes longer: the time is that of three reads and the last expert.
        is(seconds(0.25e-3, 5, 3), 0.5 + 3.0 + 0.25);
        // Computing takes longer, so it never waits.
        is(seconds(4e-3, 5, 3), 32.0);
        // Nothing can be computed until the first expert has been read.
        is(seconds(4e-3, 0, 2), 0.5 + 1.0 + 8.0);
        // Two tokens use each expert.
        is(of_all(0.25e-3, None, [8, 0, 16]), 8.0 * 0.35);
        // While both go on, reading and computing have half their speed.
        let half = Some(Beside { computing: 0.5, reading: 0.5 });
        is(of_all(0.25e-3, half, [8, 0, 8]), 2.0);
        // Computing ends after 2 ms, in which 1 ms of 1.5 ms is read; the rest is read alone.
        is(of_all(0.25e-3, half, [4, 1, 5]), 2.0 + 0.5 + 0.25);
        // Reading ends after 3 ms, in which 1.5 ms of 8 ms is computed.
        is(of_all(1e-3, half, [8, 1, 9]), 3.0 + 6.5 + 1.0);
    }
}
