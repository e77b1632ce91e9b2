//! Sums up a plan: whether the model fits, how fast it will be, and what limits the speed.

use std::fmt;

use serde_json::{Value, json};

use super::{MixturePlan, Plan};
use crate::words::{bytes, grouped, number};

/// Holds the figures of the two lines with which a plan begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Name of the model.
    pub name: String,
    /// Number of bytes of the weights that passes go through, including the weights of all experts.
    pub weight_bytes: f64,
    /// Bytes that are read from disk for a token of one sequence.
    pub read_bytes: f64,
    /// Number of tokens for which the KV cache has room.
    pub kv_tokens: u64,
    /// Tokens per second of one sequence.
    pub tokens_per_s: f64,
    /// Largest number of sequences that was planned for, and the tokens per second of all of them together.
    pub together: Option<(usize, f64)>,
    /// Words for what limits the speed of one sequence.
    pub limit: &'static str,
}

impl Verdict {
    /// Returns whether all weights stay in memory.
    pub fn fits(&self) -> bool {
        self.read_bytes < 1.0
    }

    /// Writes the verdict as JSON, for scripts.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "fits": self.fits(),
            "weight_bytes": self.weight_bytes,
            "disk_bytes_per_token": self.read_bytes,
            "tokens_per_s": self.tokens_per_s,
            "limited_by": self.limit,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = bytes(self.weight_bytes);
        let kv = grouped(self.kv_tokens);
        match self.fits() {
            true => {
                writeln!(f, "{} fits: its {weights} of weights stay in memory, beside KV for {kv} tokens.", self.name)?;
            }
            false => {
                let (name, read) = (&self.name, bytes(self.read_bytes));
                writeln!(
                    f,
                    "{name} runs, but does not fit: of its {weights} of weights, {read} a token come from disk; KV for \
                     {kv} tokens."
                )?;
            }
        }
        write!(f, "It makes {} tokens/s", number(self.tokens_per_s))?;
        if let Some((sequences, rate)) = self.together {
            write!(f, ", or {} of {sequences} sequences together", number(rate))?;
        }
        writeln!(f, "; what limits it is {}.", self.limit)
    }
}

impl Plan {
    /// Sums up the plan.
    pub fn verdict(&self) -> Verdict {
        let decode = &self.forecast.decode;
        let rate = |index: usize| decode.get(index).map(|one| (one.batch, one.batch as f64 / one.seconds));
        let (_, tokens_per_s) = rate(0).unwrap_or_default();
        Verdict {
            name: self.subject.name.clone(),
            weight_bytes: self.bands.swept_bytes() as f64,
            read_bytes: decode.first().map_or(0.0, |one| one.disk_bytes),
            kv_tokens: self.division.kv.tokens,
            tokens_per_s,
            together: rate(decode.len().saturating_sub(1)).filter(|(sequences, _)| *sequences > 1),
            limit: worded(decode.first().map_or("", |one| one.bound.binding().name)),
        }
    }
}

impl MixturePlan {
    /// Sums up the plan.
    pub fn verdict(&self) -> Verdict {
        let rate = |index: usize| self.decode.get(index).map(|one| (one.batch, one.batch as f64 / one.seconds));
        let (_, tokens_per_s) = rate(0).unwrap_or_default();
        let by_disk = self.decode.first().is_some_and(|one| one.disk > one.compute);
        Verdict {
            name: self.subject.name.clone(),
            weight_bytes: (self.sizes.dense + self.sizes.bank) as f64,
            read_bytes: self.decode.first().map_or(0.0, |one| one.read),
            kv_tokens: self.kv.tokens,
            tokens_per_s,
            together: rate(self.decode.len().saturating_sub(1)).filter(|(sequences, _)| *sequences > 1),
            limit: if by_disk { "the disk" } else { "memory, or arithmetic" },
        }
    }
}

/// Returns the words for the term that limits the speed.
fn worded(term: &'static str) -> &'static str {
    match term {
        "disk" => "the disk",
        "memory" => "how fast memory is read",
        "link" => "the link to the GPU",
        "device memory" => "how fast the GPU's memory is read",
        "both memories" => "how fast both memories are read",
        other => other,
    }
}
