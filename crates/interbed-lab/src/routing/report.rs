//! Writes what was found, for people, for scripts, and as a plot.

use std::fmt::{self, Write};

use serde_json::json;

use super::figures::{RoutingFound, RowKind, SizedRow};
use crate::replay::json::Lines;
use crate::replay::plot::{Line, Panel, Role, Unit};
use interbed_plan::words::{bytes, grouped};

impl RoutingFound {
    /// Returns the tables as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    /// Returns one JSON object a line, `{"name": …, "value": …, "unit": …, "params": {…}}`.
    pub fn json_lines(&self) -> String {
        let mut lines = Lines::default();
        for row in self.policies.iter().chain(&self.variants) {
            for (&percent, &read) in self.percents.iter().zip(&row.read_bytes) {
                let params = json!({
                    "policy": row.name, "memory_percent": percent, "memory_bytes": self.budget(percent),
                    "from": self.from, "batch": self.batch, "default": row.name == "arena",
                });
                lines.add("replay.routing.read_bytes", self.per_token(read), "bytes/token", &params);
                lines.add("replay.routing.read_share", self.share(read), "fraction", &params);
            }
        }
        let params = json!({"from": self.from, "batch": self.batch});
        lines.add("replay.routing.used_bytes", self.per_token(self.demand_bytes), "bytes/token", &params);
        lines.add("replay.routing.repeats", self.repeats, "fraction", &params);
        lines.into_text()
    }

    /// Returns a plot of bytes over memory.
    pub fn panel(&self) -> Panel {
        let line = |row: &SizedRow| Line {
            label: row.label.trim().into(),
            values: row.read_bytes.iter().map(|&bytes| self.share(bytes)).collect(),
            role: match row.kind {
                RowKind::Own => Role::Default,
                RowKind::Other => Role::Other,
                RowKind::Reference => Role::Reference,
            },
        };
        Panel {
            heading: "Bytes read, in % of those that tokens use".into(),
            axis: "memory in % of all experts, logarithmic".into(),
            unit: Unit::Percent,
            // The plot has as many lines as can be told apart.
            lines: self
                .policies
                .iter()
                .filter(|row| !["aged_layer", "first_uses"].contains(&row.name))
                .map(line)
                .collect(),
        }
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let (layers, experts, top_k) = (self.shape.layers(), self.shape.experts(), self.shape.top_k());
        let arch = if self.head.arch.is_empty() { String::new() } else { format!(" {},", self.head.arch) };
        writeln!(
            out,
            "{}:{arch} {layers} layers of {experts} experts, {top_k} for a token; {} in all, {} for a token",
            self.name,
            bytes(self.shape.bank_bytes() as f64),
            bytes(self.shape.token_bytes() as f64)
        )?;
        let streams = if self.batch > 1 { format!(", cut into {} side by side", self.batch) } else { String::new() };
        writeln!(
            out,
            "  {} prompt tokens in {} prompts, {} generated{streams}; {} of these count, from {} on\n  \
             a token uses {:.1} % of the experts again that the layer's token before it used",
            grouped(self.prompt_tokens),
            grouped(self.prompts as u64),
            grouped(self.generated_tokens),
            grouped(self.tokens),
            grouped(self.from),
            self.repeats * 100.0
        )?;
        writeln!(out, "\nMB read for a token (in % of what it uses), by memory in % of all experts")?;
        self.write_rows(out, &self.policies)?;
        writeln!(
            out,
            "  arena is what Interbed does; greedy Belady and the bound know the future, and nothing reads less than \
             the bound"
        )?;
        writeln!(out, "\nThe arena with more to go by, in the same way")?;
        self.write_rows(out, &self.variants)
    }

    fn write_rows(&self, out: &mut String, rows: &[SizedRow]) -> fmt::Result {
        write!(out, "  {:<24}", "policy")?;
        for percent in &self.percents {
            write!(out, "{:>16}", format!("{percent} %"))?;
        }
        writeln!(out)?;
        for row in rows {
            write!(out, "  {:<24}", row.label)?;
            for &read in &row.read_bytes {
                let megabytes = self.per_token(read) / 1e6;
                let digits = if megabytes < 10.0 { 2 } else { 0 };
                let cell = format!("{megabytes:.digits$} ({:.1})", self.share(read) * 100.0);
                write!(out, "{cell:>16}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
