//! What a plan comes to: whether the model fits, how fast it will be, and what limits that.

use std::fmt;

use serde_json::{Value, json};

use super::{MixturePlan, Plan};
use crate::words::{bytes, grouped, number};

/// The two lines with which a plan begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The model's name.
    pub name: String,
    /// Bytes of the weights that passes go through, those of all experts among them.
    pub weight_bytes: f64,
    /// Bytes from disk for a token of one sequence.
    pub read_bytes: f64,
    /// Tokens of the KV cache.
    pub kv_tokens: u64,
    /// Tokens a second of one sequence.
    pub tokens_per_s: f64,
    /// The most sequences that were planned for, and the tokens a second of them together.
    pub together: Option<(usize, f64)>,
    /// What limits one sequence.
    pub limit: &'static str,
}

impl Verdict {
    /// Whether all weights stay in memory.
    pub fn fits(&self) -> bool {
        self.read_bytes < 1.0
    }

    /// The verdict for scripts.
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
    /// What the plan comes to.
    pub fn verdict(&self) -> Verdict {
        let decode = &self.forecast.decode;
        let rate = |index: usize| decode.get(index).map(|one| (one.batch, one.batch as f64 / one.seconds));
        let (_, tokens_per_s) = rate(0).unwrap_or_default();
        Verdict {
            name: self.subject.name.clone(),
            weight_bytes: self.bands.swept_bytes() as f64,
            read_bytes: decode.first().map_or(0.0, |one| one.disk_bytes),
            kv_tokens: self.division.kv_tokens,
            tokens_per_s,
            together: rate(decode.len().saturating_sub(1)).filter(|(sequences, _)| *sequences > 1),
            limit: worded(decode.first().map_or("", |one| one.bound.binding().name)),
        }
    }
}

impl MixturePlan {
    /// What the plan comes to.
    pub fn verdict(&self) -> Verdict {
        let rate = |index: usize| self.decode.get(index).map(|one| (one.batch, one.batch as f64 / one.seconds));
        let (_, tokens_per_s) = rate(0).unwrap_or_default();
        let by_disk = self.decode.first().is_some_and(|one| one.disk > one.compute);
        Verdict {
            name: self.subject.name.clone(),
            weight_bytes: (self.sizes.dense + self.sizes.bank) as f64,
            read_bytes: self.decode.first().map_or(0.0, |one| one.read),
            kv_tokens: self.kv_tokens,
            tokens_per_s,
            together: rate(self.decode.len().saturating_sub(1)).filter(|(sequences, _)| *sequences > 1),
            limit: if by_disk { "the disk" } else { "memory, or arithmetic" },
        }
    }
}

/// The words for what binds.
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
