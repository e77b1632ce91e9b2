//! What a comparison has found.

use interbed_plan::routing::RoutingHead;
use interbed_weights::experts::ArenaShape;

/// Everything that is told of a trace.
#[derive(Debug)]
pub(super) struct RoutingFound {
    /// The trace's file name.
    pub name: String,
    pub head: RoutingHead,
    pub shape: ArenaShape,
    pub prompts: usize,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// The first generated token that counts.
    pub from: u64,
    /// Streams side by side.
    pub batch: usize,
    /// Memory in % of all slabs.
    pub percents: Vec<usize>,
    /// The tokens that count.
    pub tokens: u64,
    /// Bytes of the slabs that these use, token by token.
    pub demand_bytes: u64,
    /// How often a token uses an expert that the layer's token before it used.
    pub repeats: f64,
    /// Policies, and what to compare them with.
    pub policies: Vec<SizedRow>,
    /// What else an engine can do.
    pub variants: Vec<SizedRow>,
}

/// Bytes read in the window, for each size of memory.
#[derive(Debug)]
pub(super) struct SizedRow {
    /// For people.
    pub label: &'static str,
    /// For scripts.
    pub name: &'static str,
    pub kind: RowKind,
    pub read_bytes: Vec<u64>,
}

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// What Interbed does.
    Own,
    /// What others do.
    Other,
    /// What is known only afterwards.
    Reference,
}

impl RoutingFound {
    /// Bytes of memory at a size.
    pub fn budget(&self, percent: usize) -> u64 {
        budget(&self.shape, percent)
    }

    /// A part of what tokens use.
    pub fn share(&self, bytes: u64) -> f64 {
        if self.demand_bytes == 0 { 0.0 } else { bytes as f64 / self.demand_bytes as f64 }
    }

    /// Bytes of a token.
    pub fn per_token(&self, bytes: u64) -> f64 {
        if self.tokens == 0 { 0.0 } else { bytes as f64 / self.tokens as f64 }
    }
}

/// Bytes of so many % of all slabs.
pub(super) fn budget(shape: &ArenaShape, percent: usize) -> u64 {
    (u128::from(shape.bank_bytes()) * percent as u128 / 100) as u64
}
