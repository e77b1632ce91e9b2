//! Writes what fleets did for people.

use std::fmt::{self, Write};

use interbed_device::Bytes;

use super::FleetFound;
use super::outcome::Outcome;
use crate::replay::hits::share;
use crate::replay::report::write_trace;
use interbed_plan::words::{self, grouped, short};

impl FleetFound {
    /// Returns the table as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        write_trace(out, &self.name, &self.trace)?;
        if let count @ 1.. = self.trace.out_of_order() {
            writeln!(out, "  {count} came before the one above them in the file; here they come with it")?;
        }
        self.write_setting(out)?;
        self.write_table(out)?;
        self.write_notes(out)
    }

    fn write_setting(&self, out: &mut String) -> fmt::Result {
        write!(out, "\nFleets of servers")?;
        if self.trace.has_hashes() {
            let bytes = self.bytes(self.blocks as u64).map(|bytes| format!(" ({})", Bytes(bytes as u64)));
            let (blocks, tokens) = (grouped(self.blocks as u64), self.trace.block_tokens());
            let bytes = bytes.unwrap_or_default();
            write!(out, " with {blocks} blocks of {tokens} tokens each{bytes}, evicted by {}", self.policy)?;
        }
        match self.remote {
            Some((size, blocks)) => writeln!(out, "; a remote tier of {size} ({} blocks)", grouped(blocks as u64))?,
            None => writeln!(out)?,
        }
        write!(
            out,
            "  assumed: a server computes its prompts one after the other at {} tokens/s, each answer at {}, and \
             fetches in no time",
            self.pace.prefill_rate, self.pace.decode_rate
        )?;
        if self.event_lag > 0.0 {
            write!(out, ";\n  KV events reach the router {} late", words::seconds(self.event_lag))?;
        }
        writeln!(out)
    }

    fn write_table(&self, out: &mut String) -> fmt::Result {
        write!(out, "\n  {:>7}  {:<8}", "servers", "route")?;
        if self.remote.is_some() {
            write!(out, "{:<8}", "remote")?;
        }
        write!(
            out,
            "{:>16}{:>11}{:>11}{:>9}{:>11}{:>12}{:>10}",
            "hit rate, %", "in memory", "computed", "skew", "in flight", "first token", "p99"
        )?;
        if self.remote.is_some() {
            write!(out, "{:>9}{:>11}{:>11}", "saved", "written", "fetched")?;
        }
        writeln!(out)?;
        let mut servers = 0;
        for outcome in &self.outcomes {
            if servers != outcome.servers {
                if servers > 0 {
                    self.write_pooled(out, servers)?;
                }
                servers = outcome.servers;
            }
            self.write_row(out, outcome)?;
        }
        self.write_pooled(out, servers)
    }

    fn write_row(&self, out: &mut String, outcome: &Outcome) -> fmt::Result {
        write!(out, "  {:>7}  {:<8}", grouped(outcome.servers as u64), outcome.route)?;
        if self.remote.is_some() {
            write!(out, "{:<8}", if outcome.remote_blocks.is_some() { "yes" } else { "-" })?;
        }
        let (rate, memory) = match self.trace.has_hashes() {
            true => (self.rate(outcome), format!("{:.2}", outcome.memory_rate(&self.trace) * 100.0)),
            false => ("-".into(), "-".into()),
        };
        write!(
            out,
            "{rate:>16}{memory:>11}{:>11}{:>9.2}{:>11.2}{:>12}{:>10}",
            short(outcome.computed_tokens),
            outcome.skew_computed,
            outcome.skew_in_flight,
            words::seconds(outcome.first_token_mean()),
            words::seconds(outcome.first_token_p99())
        )?;
        if let Some(without) = self.without_remote(outcome) {
            let saved = 100.0 - 100.0 * share(outcome.computed_tokens, without.computed_tokens);
            let sent = |blocks| self.bytes(blocks).map_or_else(String::new, |bytes| Bytes(bytes as u64).to_string());
            write!(out, "{saved:>7.1} %{:>11}{:>11}", sent(outcome.written_blocks), sent(outcome.fetched_blocks))?;
        }
        match outcome.refused {
            0 => writeln!(out),
            refused => writeln!(out, "  ({} requests need more blocks)", grouped(refused as u64)),
        }
    }

    /// Writes what the memory of all `servers` servers would find if one server had it.
    fn write_pooled(&self, out: &mut String, servers: usize) -> fmt::Result {
        let Some((_, pooled)) = self.pooled.iter().find(|(count, _)| *count == servers && *count > 1) else {
            return Ok(());
        };
        if !self.trace.has_hashes() {
            return Ok(());
        }
        let remote = if self.remote.is_some() { "        " } else { "" };
        let (rate, computed) = (self.rate(pooled), short(pooled.computed_tokens));
        writeln!(out, "  {:>7}  {:<8}{remote}{rate:>16}{:>11}{computed:>11}", "", "pooled", "")
    }

    fn write_notes(&self, out: &mut String) -> fmt::Result {
        if self.trace.has_hashes() {
            writeln!(
                out,
                "\n  hit rate: by block (by token), of the server's memory and the remote tier; pooled: of one server \
                 with the memory of all;\n  \
                 of endless memory: {:.2} ({:.2})",
                self.infinite.0 * 100.0,
                self.infinite.1 * 100.0
            )?;
        }
        writeln!(
            out,
            "  computed: tokens of prompts; skew: those of the server that computed most, divided by the mean; in \
             flight: the same of\n  \
             the requests in flight on average; first token: after the arrival, on the mean"
        )?;
        if let Some(token_bytes) = self.token_bytes.filter(|_| self.remote.is_some()) {
            writeln!(
                out,
                "  saved: computed tokens that the remote tier spares the fleet; written, fetched: over the network, \
                 in whole blocks. To\n  \
                 fetch a block is quicker than to compute it if the server's network gives more than {}/s",
                Bytes((token_bytes * self.pace.prefill_rate) as u64)
            )?;
        }
        Ok(())
    }

    fn rate(&self, outcome: &Outcome) -> String {
        format!("{:.2} ({:.2})", outcome.hit_rate(&self.trace) * 100.0, outcome.token_rate(&self.trace) * 100.0)
    }
}
