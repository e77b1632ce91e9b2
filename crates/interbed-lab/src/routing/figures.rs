//! The figures that a comparison of policies has found.

use interbed_plan::routing::RoutingHead;
use interbed_weights::experts::ArenaShape;

/// Everything that is reported of a trace.
#[derive(Debug)]
pub(super) struct RoutingFound {
    /// The trace's file name.
    pub name: String,
    pub head: RoutingHead,
    pub shape: ArenaShape,
    pub prompts: usize,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// The number of the first generated token that counts.
    pub from: u64,
    /// The number of streams side by side.
    pub batch: usize,
    /// The sizes of memory in % of all slabs.
    pub percents: Vec<usize>,
    /// The number of tokens that count.
    pub tokens: u64,
    /// The bytes of the slabs that the counted tokens use, summed over the tokens.
    pub demand_bytes: u64,
    /// The share of uses in which a token uses an expert that the layer's token before it used.
    pub repeats: f64,
    /// The policies, and what they are compared with.
    pub policies: Vec<SizedRow>,
    /// What an engine can do besides.
    pub variants: Vec<SizedRow>,
}

/// The bytes that are read in the measured window, for each size of memory.
#[derive(Debug)]
pub(super) struct SizedRow {
    /// The row's label for people.
    pub label: &'static str,
    /// The row's name for scripts.
    pub name: &'static str,
    pub kind: RowKind,
    pub read_bytes: Vec<u64>,
}

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// The row stands for what Interbed does.
    Own,
    /// The row stands for what other programs do.
    Other,
    /// The row stands for what can be known only afterwards.
    Reference,
}

impl RoutingFound {
    /// Returns the bytes of a memory that holds `percent` % of all slabs.
    pub fn budget(&self, percent: usize) -> u64 {
        budget(&self.shape, percent)
    }

    /// Returns `bytes` divided by the bytes of the slabs that the counted tokens use.
    pub fn share(&self, bytes: u64) -> f64 {
        if self.demand_bytes == 0 { 0.0 } else { bytes as f64 / self.demand_bytes as f64 }
    }

    /// Returns `bytes` divided by the number of tokens that count.
    pub fn per_token(&self, bytes: u64) -> f64 {
        if self.tokens == 0 { 0.0 } else { bytes as f64 / self.tokens as f64 }
    }
}

/// Returns the bytes of `percent` % of all slabs.
pub(super) fn budget(shape: &ArenaShape, percent: usize) -> u64 {
    (u128::from(shape.bank_bytes()) * percent as u128 / 100) as u64
}
