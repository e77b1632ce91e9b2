//! `interbed plan` without a model: lists the well-known shapes by how fast this machine would run them.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::Result;
use interbed_kernels::DType;
use interbed_model::preset_names;
use interbed_plan::plan::{Subject, Verdict};
use interbed_plan::words::{self, bytes, number, scaled};
use serde_json::{Value, json};

use super::{PlanArgs, plan_of};
use crate::needs;
use crate::printable::print_answer;
use crate::report::report;
use crate::short_names;

/// The type that weights are assumed to have: 4 bits, which most people use.
const DTYPE: DType = DType::Q4K;

/// The prefix of the names of models that are published in MXFP4 only.
const IN_MXFP4: &str = "gpt-oss";

/// The shapes that are left out: shapes for tests, and other names of shapes that are listed.
const LEFT_OUT: [&str; 2] = ["tiny", "jiuge-7b"];

/// A shape with the result of its plan, or the reason why it cannot run.
struct Row {
    name: &'static str,
    /// The short name of a model with this shape, if there is one. Other commands accept this name.
    short_name: Option<String>,
    parameters: u64,
    active: u64,
    is_mixture: bool,
    verdict: Result<Verdict, String>,
}

impl Row {
    fn rate(&self) -> f64 {
        self.verdict.as_ref().map_or(0.0, |verdict| verdict.tokens_per_s)
    }
}

/// Prints the table of well-known model shapes, with the speed that this machine would reach with each of them.
///
/// # Errors
/// Fails if the speed of the machine cannot be measured.
pub fn run(args: &PlanArgs) -> Result<()> {
    let asked = args.dtype.map(DType::from);
    let dtype = asked.unwrap_or(DTYPE);
    // The table shows the speed of a single sequence.
    let args = &PlanArgs { batch: vec![NonZeroUsize::MIN], ..args.clone() };
    let machine = args.machine.known(args.limits.memory);
    let machine = machine.with_measured_cores(needs::threads(&args.limits), dtype)?;
    let mut rows = Vec::new();
    for name in listed() {
        let Some(subject) = Subject::imagined(Path::new(name), Some(asked.unwrap_or_else(|| usual_dtype(name))))?
        else {
            continue;
        };
        let config = &subject.config;
        let (parameters, active) = (config.blueprint.num_parameters(), config.blueprint.active_parameters());
        let is_mixture = config.blueprint.mixture().is_some();
        let verdict = plan_of(args, subject, None, machine.clone(), None).map(|made| made.verdict);
        let short_name = short_names::spelled_otherwise(name);
        rows.push(Row {
            name,
            short_name,
            parameters,
            active,
            is_mixture,
            verdict: verdict.map_err(|error| error.to_string()),
        });
    }
    // Mixtures come first, because they are the fastest among models of a given size.
    rows.sort_by(|one, other| other.is_mixture.cmp(&one.is_mixture).then(other.rate().total_cmp(&one.rate())));
    let json = || json!({ "dtype": dtype.name(), "models": rows.iter().map(to_json).collect::<Vec<_>>() });
    let text = || {
        let memory = args.limits.memory.unwrap_or(machine.memory_here);
        let mxfp4 = if asked.is_none() { ", gpt-oss in MXFP4" } else { "" };
        let note = args.machine.memory_note(args.limits.memory).map_or_else(String::new, |note| format!("({note})\n"));
        let table = table(&rows);
        format!("What {memory} of memory on this machine run, with weights in {dtype}{mxfp4}\n{note}\n{table}")
    };
    print_answer(args.json, json, text)?;
    let rate = |known: Option<f64>, unit: &str| known.map_or_else(|| "unknown".into(), |value| scaled(value, unit));
    let disk = machine.disk_bw.map_or_else(|| "taken to give 2 GB/s (--disk-bw)".into(), |rate| scaled(rate, "B/s"));
    report!(
        "memory {}, arithmetic {}, disk {disk}; `interbed plan NAME` tells more of a row, `interbed pull` and \
         `interbed run` take what stands under \"to fetch\"",
        rate(machine.host_bw, "B/s"),
        rate(machine.flops, "FLOP/s")
    );
    Ok(())
}

/// Returns the weight type that `interbed plan` assumes for a well-known shape. Returns `None` for names that are not
/// in the table, and for paths that exist.
pub fn listed_dtype(model: &Path) -> Option<DType> {
    let name = model.to_str().filter(|_| !model.exists())?;
    listed().find(|known| *known == name).map(usual_dtype)
}

fn listed() -> impl Iterator<Item = &'static str> {
    preset_names().filter(|name| !LEFT_OUT.contains(name))
}

fn usual_dtype(name: &str) -> DType {
    if name.starts_with(IN_MXFP4) { DType::Mxfp4 } else { DTYPE }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let short = |row: &Row| row.short_name.clone().unwrap_or_else(|| "-".into());
    let fetch = rows.iter().map(|row| short(row).len()).max().unwrap_or(0);
    let mut text = format!(
        "  {:width$}{:>13}{:>11}{:>11}{:>11}{:>14}  {:fetch$}  limited by\n",
        "", "parameters", "a token", "weights", "tokens/s", "from disk", "to fetch"
    );
    for row in rows {
        let sizes = format!("{:>13}{:>11}", words::short(row.parameters), words::short(row.active));
        let name = row.name;
        match &row.verdict {
            Ok(verdict) => {
                let disk = if verdict.fits() { "nothing".into() } else { bytes(verdict.read_bytes) };
                text.push_str(&format!(
                    "  {name:width$}{sizes}{:>11}{:>11}{disk:>14}  {:fetch$}  {}\n",
                    bytes(verdict.weight_bytes),
                    number(verdict.tokens_per_s),
                    short(row),
                    verdict.limit
                ));
            }
            Err(why) => text.push_str(&format!("  {name:width$}{sizes}  {why}\n")),
        }
    }
    text
}

fn to_json(row: &Row) -> Value {
    let verdict = row.verdict.as_ref();
    json!({
        "name": row.name,
        "short_name": row.short_name,
        "parameters": row.parameters,
        "active_parameters": row.active,
        "mixture": row.is_mixture,
        "fits": verdict.is_ok_and(Verdict::fits),
        "weight_bytes": verdict.ok().map(|verdict| verdict.weight_bytes),
        "disk_bytes_per_token": verdict.ok().map(|verdict| verdict.read_bytes),
        "tokens_per_s": verdict.ok().map(|verdict| verdict.tokens_per_s),
        "limited_by": verdict.ok().map(|verdict| verdict.limit),
        "refused": row.verdict.as_ref().err(),
    })
}
