//! The report of `interbed bench experts`, and the bound with which it compares times.

use std::time::Duration;

use interbed_device::{Bytes, peak_resident};
use interbed_io::ReadSettings;
use interbed_weights::StreamStats;
use serde_json::json;

use super::median;
use super::pair::Pair;
use super::report::{Report, number, percent, value, words};

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

/// The measurement of one pass.
pub struct MeasuredPass {
    pub seconds: f64,
    pub stats: StreamStats,
    pub visits: Vec<VisitCost>,
}

/// The measurements with one batch size.
pub struct ExpertsLine {
    pub batch: usize,
    /// Whether experts were read ahead.
    pub ahead: bool,
    /// The memory for experts, in bytes.
    pub room: u64,
    /// The size of all experts, in bytes.
    pub bank: u64,
    /// The passes, each with the speed of plain disk reads, in bytes per second, and the time of reading one block, in
    /// seconds, right before it.
    pub passes: Vec<([f64; 2], MeasuredPass)>,
    pub computing: ComputeCost,
    /// The number of bytes of experts that are read per token in a simulation with the same routing and the same
    /// memory.
    pub simulated: f64,
    /// A lower bound on this number, for any choice of the experts that are kept in memory.
    pub least: f64,
}

/// Returns the report of `interbed bench experts` on the model of this name. Times are medians over forward passes.
/// Bytes and counts are means over tokens.
pub fn report(model: &str, settings: &ReadSettings, lines: &[ExpertsLine]) -> Report {
    let (mut report, mut of_bytes, peak_memory) = (Report::default(), Report::default(), Bytes(peak_resident()));
    for line in lines.iter().take(1) {
        report.line(format_args!("{model}: {} of experts, room for {}", Bytes(line.bank), Bytes(line.room)));
    }
    report.line(format_args!("  {:<14}{settings}", "disk"));
    report.line(format_args!("  {:<14}{peak_memory} at the peak", "memory"));
    for line in lines {
        line.tell(peak_memory, [&mut report, &mut of_bytes]);
    }
    report.append(of_bytes);
    report.line("\n  seconds are of a pass; experts are those that passes wanted for a token, each once a pass");
    report.line(
        "  loaded: the bound if computing and reading slow each other as they do here: beside each other they have \
         these parts of their speeds",
    );
    if lines.iter().any(|line| line.computing.beside_reads) {
        report.line("  * computing was measured beside reads: memory does not hold the experts of one token");
    }
    report
}

impl ExpertsLine {
    /// Adds the figures, and a row on times and one on bytes, each to its report.
    fn tell(&self, peak_memory: Bytes, [times, of_bytes]: [&mut Report; 2]) {
        let &ExpertsLine { batch, ahead, room, bank, ref passes, computing, simulated, least } = self;
        let ComputeCost { dense, expert, more, beside, beside_reads } = computing;
        let (bound, loaded) = (self.bound(None), self.bound(beside));
        let [disk, latency] = [0, 1].map(|of| median(passes.iter().map(|(disk, _)| disk[of]).collect()));
        let (seconds, tokens) = (bound.second, batch as f64);
        let stall: Duration = passes.iter().map(|(_, pass)| pass.stats.stall).sum();
        let stall_share = stall.as_secs_f64() / passes.iter().map(|(_, pass)| pass.seconds).sum::<f64>();
        let sum = |of: fn(&StreamStats) -> u64| passes.iter().map(|(_, pass)| of(&pass.stats)).sum::<u64>();
        let each = |of: fn(&StreamStats) -> u64| sum(of) as f64 / (batch * passes.len()) as f64;
        let (bytes, read_ahead) = (each(|stats| stats.expert_bytes_read), each(|stats| stats.experts_ahead));
        // An expert is wanted once for each pass and layer that needs it.
        let (wanted, experts) = (sum(|stats| stats.experts_wanted), each(|stats| stats.experts_wanted));
        let missed: u64 = passes.iter().flat_map(|(_, pass)| &pass.visits).map(|visit| visit.misses as u64).sum();
        let hits = 1.0 - missed as f64 / wanted as f64;
        // A read ahead may end after the router has chosen and before the layer's experts are computed.
        let came = sum(|stats| stats.experts_read + stats.experts_arriving);
        let read_again = (came as i64 - missed as i64).max(if ahead { 0 } else { i64::MIN });
        let params = json!({
            "batch": batch, "reads_ahead": ahead, "room_bytes": room, "bank_bytes": bank,
            "peak_memory_bytes": peak_memory.0, "disk_bytes_per_s": disk, "disk_latency_s": latency,
            "dense_seconds": dense, "expert_seconds": expert, "expert_seconds_per_token_more": more,
            "computing_beside_reads": beside.map(|beside| beside.computing),
            "reading_beside_computing": beside.map(|beside| beside.reading),
            "computed_beside_reads": beside_reads, "stall_share": stall_share, "experts_per_token": experts,
            "hits": hits, "read_ahead_per_token": read_ahead, "read_again": read_again,
        });
        times.figure(json!({
            "name": "experts.seconds_per_token", "value": seconds / tokens, "unit": "s",
            "bound": bound.first / tokens, "over_bound": bound.ratio, "loaded_bound": loaded.first / tokens,
            "over_loaded_bound": loaded.ratio, "params": params,
        }));
        times.figure(json!({
            "name": "experts.bytes_per_token", "value": bytes, "unit": "B", "simulated": simulated,
            "bound": least, "over_bound": share(bytes, least), "params": params,
        }));
        let ahead = if ahead { "yes" } else { "no" };
        times.row([
            value("sequences", batch),
            value("ahead", ahead),
            number("tokens/s", tokens / seconds, 2),
            number("seconds", seconds, 3),
            number("bound s", bound.first, 3),
            percent("of it", bound.ratio, 0),
            number("loaded s", loaded.first, 3),
            percent("of it", loaded.ratio, 0),
            number("disk GB/s", disk / 1e9, 2),
            percent("waited", stall_share, 0),
            number("experts", experts, 0),
            percent("hits", hits, 1),
            value("read twice", read_again),
        ]);
        let beside = beside.map_or("-".to_owned(), |beside| format!("{:.2}/{:.2}", beside.computing, beside.reading));
        of_bytes.row([
            value("sequences", batch),
            value("ahead", ahead),
            number("MB a token", bytes / 1e6, 1),
            number("simulated", simulated / 1e6, 1),
            percent("of it", share(bytes, simulated), 1),
            number("at least", least / 1e6, 1),
            percent("of it", share(bytes, least), 0),
            number("read ahead", read_ahead, 1),
            number("ms: expert", expert * 1e3, 3),
            number("+ token", more * 1e3, 3),
            number("others", dense * 1e3, 1),
            value("beside", beside),
            words("", if beside_reads { "*" } else { "" }),
        ]);
    }

    /// Returns the bound of a pass, in seconds, and the measured time. `beside` says how computing and reading slow
    /// each other down. Each bound uses the disk speed that was measured just before its pass.
    fn bound(&self, beside: Option<Beside>) -> Pair {
        let of_pass = |([disk, latency], pass): &([f64; 2], MeasuredPass)| {
            let others = pass.stats.bytes_read.saturating_sub(pass.stats.expert_bytes_read) as f64;
            let computing = ComputeCost { dense: self.computing.dense.max(others / disk), beside, ..self.computing };
            [PassCost { disk: *disk, latency: *latency, computing }.bound_seconds(&pass.visits), pass.seconds]
        };
        Pair::of(&self.passes.iter().map(of_pass).collect::<Vec<_>>())
    }
}

/// Returns `bytes / of`, and 1 if both are 0.
fn share(bytes: f64, of: f64) -> f64 {
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
