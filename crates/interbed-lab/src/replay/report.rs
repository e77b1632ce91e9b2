//! Writes the results of a replay for people.

use std::fmt::{self, Write};

use interbed_device::Bytes;

use super::Found;
use super::hit_rates::label;
use super::load::Load;
use super::trace::Trace;
use interbed_plan::words::grouped;

impl Found {
    /// Returns the tables as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        write_trace(out, &self.name, &self.trace)?;
        if let count @ 1.. = self.trace.out_of_order() {
            writeln!(out, "  {count} came before the one above them in the file; the load is in order of time")?;
        }
        if self.trace.has_hashes() {
            self.write_hit_rates(out)?;
            self.write_runs(out)?;
            self.write_misses(out)?;
        }
        self.write_load(out)?;
        self.write_operations(out)
    }

    /// Writes the hit rates, with a line for each policy and a column for each cache size.
    fn write_hit_rates(&self, out: &mut String) -> fmt::Result {
        let Some(hits) = &self.hits else { return Ok(()) };
        let sizes = &hits.sizes;
        writeln!(out, "\nHit rate by block (by token) in %, by cache size in blocks")?;
        write!(out, "  {:<18}", "policy")?;
        for blocks in sizes {
            write!(out, "{:>16}", grouped(*blocks as u64))?;
        }
        writeln!(out)?;
        let mut row = |name: &str, rates: &mut dyn Iterator<Item = (f64, f64)>| {
            write!(out, "  {name:<18}")?;
            for (blocks, tokens) in rates {
                let cell = format!("{:.2} ({:.2})", blocks * 100.0, tokens * 100.0);
                write!(out, "{cell:>16}")?;
            }
            writeln!(out)
        };
        for policy in &hits.policies {
            let runs = policy.runs.iter().map(|run| (run.rate(&self.trace), run.token_rate(&self.trace)));
            row(&policy.label(), &mut runs.into_iter())?;
        }
        row("offline", &mut hits.offline.iter().copied())?;
        row("offline, leaves", &mut hits.offline_leaves.iter().copied())?;
        row("infinite", &mut sizes.iter().map(|_| hits.infinite))?;
        writeln!(
            out,
            "  offline knows the future: the block whose next use is farthest away goes first, whatever follows it; \
             of those\n  \
             that are used again together, the head goes first, or the leaves; to compare with, not a bound"
        )
    }

    /// Writes the other results of each run.
    fn write_runs(&self, out: &mut String) -> fmt::Result {
        let Some(hits) = &self.hits else { return Ok(()) };
        writeln!(
            out,
            "\n  {:<18}{:>10}{:>12}{:>14}{:>14}{:>14}{:>14}",
            "policy", "blocks", "evictions", "used, mean", "used, peak", "fragmented", "Mblocks/s"
        )?;
        for (place, _) in hits.sizes.iter().enumerate() {
            for policy in &hits.policies {
                let run = &policy.runs[place];
                writeln!(
                    out,
                    "  {:<18}{:>10}{:>12}{:>14}{:>14}{:>12.2} %{:>14.2}{}",
                    policy.label(),
                    grouped(run.blocks as u64),
                    grouped(run.evictions),
                    grouped(run.used_mean.round() as u64),
                    grouped(run.used_peak as u64),
                    run.fragmentation * 100.0,
                    run.blocks_per_second() / 1e6,
                    match run.refused {
                        0 => String::new(),
                        refused => format!("  ({refused} requests need more blocks)"),
                    }
                )?;
            }
        }
        writeln!(out, "  Mblocks/s: prompts through the manager, in blocks of one token; for larger ones see below")
    }

    /// Writes why prompts were not found.
    fn write_misses(&self, out: &mut String) -> fmt::Result {
        for policy in self.hits.iter().flat_map(|hits| &hits.policies) {
            for run in &policy.runs {
                let Some(misses) = &run.misses else { continue };
                writeln!(out, "\nWhy prompts missed: {}, {} blocks", policy.label(), grouped(run.blocks as u64))?;
                for (cause, tally) in misses.tallies() {
                    write!(
                        out,
                        "  {:<18}{:>8} requests, {:>9} blocks not found, {:>9} of them had been there",
                        cause.name(),
                        grouped(tally.requests),
                        grouped(tally.blocks),
                        grouped(tally.lost_blocks)
                    )?;
                    match tally.median_age() {
                        Some(age) => writeln!(out, "; evicted {} look-ups before (median)", grouped(age.into()))?,
                        None => writeln!(out)?,
                    }
                }
                for case in misses.worst() {
                    writeln!(
                        out,
                        "  request {} found {} of {} blocks, and {} more had been there: {}",
                        case.request,
                        case.found_blocks,
                        case.blocks,
                        case.lost_blocks,
                        case.why()
                    )?;
                }
            }
        }
        Ok(())
    }

    fn write_load(&self, out: &mut String) -> fmt::Result {
        let (outcome, pace) = (&self.load, self.load.pace);
        writeln!(
            out,
            "\nLoad in blocks of {} tokens, or with {} tokens pre-allocated for each sequence\n  assumed: each \
             prompt is \
             computed at {} tokens/s, each answer at {}, whatever else is computed; first come, first served",
            outcome.block_size,
            grouped(outcome.longest as u64),
            pace.prefill_rate,
            pace.decode_rate
        )?;
        let mut columns: Vec<(&str, &Load)> = vec![("ample blocks", &outcome.ample)];
        columns.extend(outcome.limited.as_ref().map(|limited| ("blocks", limited)));
        columns.push(("pre-allocated", &outcome.preallocated));
        write!(out, "  {:<26}", "")?;
        columns.iter().try_for_each(|(name, _)| write!(out, "{name:>20}"))?;
        writeln!(out)?;
        let mut row = |name: &str, cell: &dyn Fn(&Load) -> String| {
            write!(out, "  {name:<26}")?;
            for (_, load) in &columns {
                write!(out, "{:>20}", cell(load))?;
            }
            writeln!(out)
        };
        row("memory", &|load| match std::ptr::eq(load, &outcome.ample) {
            true => "as needed".into(),
            false => self.size(outcome.capacity_tokens as f64),
        })?;
        row("taken, mean", &|load| self.size(load.taken_mean))?;
        row("taken, peak", &|load| self.size(load.taken_peak as f64))?;
        row("of that empty", &|load| format!("{:.2} %", load.fragmentation * 100.0))?;
        row("sequences at once, mean", &|load| format!("{:.1}", load.running_mean))?;
        row("sequences at once, peak", &|load| grouped(load.running_peak as u64))?;
        row("waited", &|load| grouped(load.waited() as u64))?;
        row("wait, mean", &|load| format!("{:.1} s", load.wait_mean()))?;
        row("wait, longest", &|load| format!("{:.1} s", load.wait_max()))?;
        row("preempted", &|load| grouped(load.preemptions as u64))?;
        row("too long for it", &|load| grouped(load.refused as u64))?;
        let peak = outcome.ample.taken_peak as f64;
        let instead = outcome.preallocated_tokens();
        writeln!(
            out,
            "  For the {} sequences of the peak, pre-allocation takes {}, blocks {}: {:.1} % of it",
            grouped(outcome.ample.running_peak as u64),
            self.size(instead),
            self.size(peak),
            100.0 * peak / instead.max(1.0)
        )?;
        let fit = outcome.preallocated_sequences();
        let paged = outcome.paged().running_peak;
        writeln!(
            out,
            "  In {}, pre-allocation runs {} at once, blocks {}{}",
            self.size(outcome.capacity_tokens as f64),
            grouped(fit as u64),
            grouped(paged as u64),
            match fit {
                0 => String::new(),
                fit => format!(": {:.1} times as many", paged as f64 / fit as f64),
            }
        )
    }

    fn write_operations(&self, out: &mut String) -> fmt::Result {
        let Some((_, first)) = self.operations.first() else { return Ok(()) };
        writeln!(out, "\nOperations, ns a block of {} tokens (append_token: a token)", self.load.block_size)?;
        write!(out, "  {:<18}", "policy")?;
        for operation in first {
            write!(out, "{:>14}", operation.name)?;
        }
        writeln!(out)?;
        for (kind, operations) in &self.operations {
            write!(out, "  {:<18}", label(*kind))?;
            for operation in operations {
                write!(out, "{:>14.1}", operation.nanoseconds)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Returns the size of `tokens` tokens, in bytes if the size of a block is known, else in tokens.
    fn size(&self, tokens: f64) -> String {
        match self.block_bytes {
            Some(bytes) => Bytes((tokens / self.load.block_size as f64 * bytes.0 as f64) as u64).to_string(),
            None => format!("{} tokens", grouped(tokens.round() as u64)),
        }
    }
}

/// Writes what is in a trace.
pub(super) fn write_trace(out: &mut String, name: &str, trace: &Trace) -> fmt::Result {
    let count = trace.requests().len();
    let mean = |tokens: u64| grouped((tokens as f64 / count as f64).round() as u64);
    writeln!(
        out,
        "{name}: {} requests in {} s; tokens a request: {} in, {} out, {} both at the most",
        grouped(count as u64),
        grouped(trace.seconds().round() as u64),
        mean(trace.input_tokens()),
        mean(trace.output_tokens()),
        grouped(trace.longest() as u64)
    )?;
    if trace.has_hashes() {
        writeln!(
            out,
            "  {} blocks of {} tokens in prompts, {} different ones",
            grouped(trace.references().len() as u64),
            trace.block_tokens(),
            grouped(trace.distinct() as u64)
        )?;
    } else {
        writeln!(out, "  without hash_ids: which prompts begin alike is not known, so there are no hit rates")?;
    }
    if !trace.lengths_agree() {
        writeln!(
            out,
            "  that size explains how many blocks most prompts have, but not of all; hits by token assume it"
        )?;
    }
    Ok(())
}
