//! The report of `interbed bench`.

use std::fmt::{self, Display, Formatter};

use interbed_kernels::{Level, Unit};
use serde_json::{Value, json};

use super::Measured;
use super::limits::Summary;
use super::passes::Measurement;
use super::work::ModelWork;

/// The measurement of one decode batch or prompt length.
pub struct Figure {
    pub measurement: Measurement,
    pub measured: Measured,
}

impl Figure {
    fn tokens_per_s(&self) -> f64 {
        self.measurement.shape.tokens() as f64 / self.measured.seconds
    }

    /// Returns the bound in tokens per second. The number follows from the share of the bound, which is a median of
    /// ratios measured side by side.
    fn bound(&self) -> f64 {
        self.tokens_per_s() / self.measured.share_of_bound
    }

    fn bytes_per_s(&self) -> f64 {
        self.measurement.work.bytes / self.measured.seconds
    }

    fn flops(&self) -> f64 {
        self.measurement.work.flops / self.measured.seconds
    }
}

/// The results of `interbed bench`.
pub struct Report {
    pub model: String,
    pub work: ModelWork,
    pub level: Level,
    pub threads: usize,
    pub machine: Summary,
    pub figures: Vec<Figure>,
}

/// Writes the results as a table.
impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        writeln!(
            out,
            "{}: {} parameters, {}B, mostly {}; {threads} at level {}",
            self.model,
            scaled(self.work.parameters),
            scaled(self.work.weight_bytes),
            self.work.weights,
            self.level.name()
        )?;
        writeln!(out, "\nThis machine")?;
        let (reads, sweep) = (self.machine.read_bandwidth / 1e9, self.machine.sweep);
        writeln!(out, "  {:<22}{reads:>9.1} GB/s   over {sweep}", "memory reads")?;
        for (i, (unit, peak)) in self.machine.peaks.iter().enumerate() {
            let note = if i == 0 { "   <- this model's products" } else { "" };
            writeln!(out, "  {:<22}{:>9.1} G{}/s{note}", describe(*unit), peak / 1e9, operation(*unit))?;
        }
        writeln!(
            out,
            "\n{:<24}{:>10}{:>10}{:>11}{:>12}{:>10}  limited by",
            "This model", "tokens/s", "GB/s", "TFLOP/s", "bound", "of bound"
        )?;
        for figure in &self.figures {
            writeln!(
                out,
                "  {:<22}{:>10.1}{:>10.1}{:>11.3}{:>12.1}{:>8.0} %  {}",
                figure.measurement.shape.label(),
                figure.tokens_per_s(),
                figure.bytes_per_s() / 1e9,
                figure.flops() / 1e12,
                figure.bound(),
                figure.measured.share_of_bound * 100.0,
                figure.measured.bound.limit.name()
            )?;
        }
        Ok(())
    }
}

impl Report {
    /// Returns the results as JSON lines: the machine's limits, then the measurements.
    pub fn json_lines(&self) -> String {
        let common = |mut params: Value| {
            params["threads"] = json!(self.threads);
            params["level"] = json!(self.level.name());
            params
        };
        let mut lines = vec![json!({
            "name": "machine.read_bytes_per_s", "value": self.machine.read_bandwidth, "unit": "B/s",
            "params": common(json!({"sweep_bytes": self.machine.sweep.0})),
        })];
        for (unit, peak) in &self.machine.peaks {
            lines.push(json!({
                "name": "machine.flops", "value": peak, "unit": "FLOP/s",
                "params": common(json!({"arithmetic_unit": unit.name()})),
            }));
        }
        for figure in &self.figures {
            let mut params = common(figure.measurement.params());
            params["weights"] = json!(self.work.weights.name());
            params["arithmetic_unit"] = json!(self.unit().map(Unit::name));
            lines.push(json!({
                "name": format!("{}.tokens_per_s", figure.measurement.shape.name()),
                "value": figure.tokens_per_s(), "unit": "tok/s", "params": params,
                "seconds": figure.measured.seconds,
                "bytes_per_s": figure.bytes_per_s(),
                "flops": figure.flops(),
                "bound": figure.bound(),
                "share_of_bound": figure.measured.share_of_bound,
                "limited_by": figure.measured.bound.limit.name(),
            }));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns the arithmetic unit of the model's products.
    fn unit(&self) -> Option<Unit> {
        self.machine.peaks.first().map(|(unit, _)| *unit)
    }
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

fn describe(unit: Unit) -> &'static str {
    match unit {
        Unit::F32Fma => "f32 multiply-adds",
        Unit::Bf16Dot => "bf16 dot products",
        Unit::Int8Dot => "int8 dot products",
        Unit::AmxBf16 => "AMX bf16 tiles",
        Unit::AmxInt8 => "AMX int8 tiles",
    }
}

fn operation(unit: Unit) -> &'static str {
    match unit {
        Unit::F32Fma | Unit::Bf16Dot | Unit::AmxBf16 => "FLOP",
        Unit::Int8Dot | Unit::AmxInt8 => "OP",
    }
}
