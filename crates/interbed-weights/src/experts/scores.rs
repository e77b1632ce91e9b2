//! Computes how much each slab is worth, from counts of uses that age.

use serde::{Deserialize, Serialize};

use super::error::ArenaError;
use super::shape::ArenaShape;

/// Number of uses of other slabs of its layer after which a slab is worth half.
const AGE: f64 = 8.0;

/// Average number of uses of a layer's experts at which the layer's counts are halved: some thousands of tokens.
const HALVED_AT: f64 = 128.0;

/// Maximum average number of uses of an expert after a warm start, so that earlier requests only choose where to begin.
const WARM_MAX: f64 = 16.0;

/// Numbers that tell how often each slab (the weights of one expert in one layer) was used. After a restart, an arena
/// can start from the numbers of the earlier run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SlabCounts {
    /// Weighted number of uses of each expert in each mixture layer: `[layer][expert]`. A layer's numbers are halved
    /// from time to time, so that later uses weigh more.
    pub uses: Vec<Vec<f32>>,
}

#[derive(Debug)]
pub(super) struct Scores {
    experts: usize,
    layer_of: Vec<u32>,      // [layer, expert]: quicker than to divide
    uses: Vec<f32>,          // [layer, expert]
    last: Vec<u64>,          // [layer, expert]: the layer's clock at the last use
    likelihood: Vec<f32>,    // [layer, expert]: 0 but for slabs that were read ahead of their layer's next visit
    totals: Vec<f64>,        // [layer]: the sum of its uses
    clocks: Vec<u64>,        // [layer]: distinct slabs of all its visits
    promised: Vec<Vec<u32>>, // [layer]: experts with a likelihood
}

impl Scores {
    pub fn new(shape: &ArenaShape) -> Self {
        let (layers, slabs) = (shape.layers(), shape.slabs());
        Self {
            experts: shape.experts(),
            layer_of: (0..slabs).map(|slab| (slab / shape.experts()) as u32).collect(),
            uses: vec![0.0; slabs],
            last: vec![0; slabs],
            likelihood: vec![0.0; slabs],
            totals: vec![0.0; layers],
            clocks: vec![0; layers],
            promised: vec![Vec::new(); layers],
        }
    }

    /// Adds the uses of a visit to the counts of `layer`, and drops the likelihoods that [`promise`](Self::promise)
    /// recorded for the visit. Each entry of `wanted` is the index of an expert and the number of tokens that use it.
    pub fn visited(&mut self, layer: usize, wanted: &[(u32, u32)]) {
        for expert in self.promised[layer].drain(..) {
            self.likelihood[layer * self.experts + expert as usize] = 0.0;
        }
        let tokens: u64 = wanted.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        if tokens == 0 {
            return;
        }
        let uses_of_token = wanted.len() as f64 / tokens as f64;
        self.clocks[layer] += wanted.len() as u64;
        for &(expert, tokens) in wanted {
            let slab = layer * self.experts + expert as usize;
            let uses = (f64::from(tokens) * uses_of_token) as f32;
            self.uses[slab] += uses;
            self.totals[layer] += f64::from(uses);
            self.last[slab] = self.clocks[layer];
        }
        if self.totals[layer] > HALVED_AT * self.experts as f64 {
            // Scores are shares, so halving a layer changes none of them: it only lets later uses count for more.
            self.scale(layer, 0.5);
        }
    }

    /// Records the likelihood that the next visit of the slab's layer uses the slab. This likelihood is dropped at that
    /// visit.
    pub fn promise(&mut self, slab: usize, likelihood: f32) {
        if self.likelihood[slab] == 0.0 && likelihood > 0.0 {
            self.promised[slab / self.experts].push((slab % self.experts) as u32);
        }
        self.likelihood[slab] = likelihood;
    }

    pub fn is_promised(&self, slab: usize) -> bool {
        self.likelihood[slab] > 0.0
    }

    pub fn score(&self, slab: usize) -> f64 {
        self.expected(slab, self.likelihood[slab])
    }

    /// Returns the score that a slab would have if the next visit of its layer used it with probability `likelihood`.
    pub fn expected(&self, slab: usize, likelihood: f32) -> f64 {
        let layer = self.layer_of[slab] as usize;
        let total = self.totals[layer];
        let uses = f64::from(self.uses[slab]);
        let age = (self.clocks[layer] - self.last[slab]) as f64;
        let as_is = if total > 0.0 { uses / (total * (1.0 + age / AGE)) } else { 0.0 };
        if likelihood == 0.0 {
            return as_is;
        }
        let likelihood = f64::from(likelihood);
        (1.0 - likelihood) * as_is + likelihood * (uses + 1.0) / (total + 1.0)
    }

    pub fn counts(&self) -> SlabCounts {
        let mut counts = SlabCounts::default();
        self.copy_counts(&mut counts);
        counts
    }

    /// Copies the use counts to `counts`. Nothing is allocated if `counts` already has the shape of the model.
    pub fn copy_counts(&self, counts: &mut SlabCounts) {
        counts.uses.resize_with(self.totals.len(), Vec::new);
        for (copy, uses) in counts.uses.iter_mut().zip(self.uses.chunks(self.experts)) {
            copy.clear();
            copy.extend_from_slice(uses);
        }
    }

    /// Replaces all use counts with those of an earlier run. Large counts are scaled down, so that later uses soon
    /// outweigh them.
    ///
    /// # Errors
    /// Fails, and changes nothing, if `counts` is for another number of layers or experts, or if a count is not a
    /// number from 0 to 1e12.
    pub fn warm(&mut self, counts: &SlabCounts) -> Result<(), ArenaError> {
        let refused = |what| Err(ArenaError::Counts { what });
        if counts.uses.len() != self.totals.len() {
            return refused(format!("expected {} layers, got {}", self.totals.len(), counts.uses.len()));
        }
        for (layer, uses) in counts.uses.iter().enumerate() {
            if uses.len() != self.experts {
                return refused(format!("layer {layer}: expected {} experts, got {}", self.experts, uses.len()));
            }
            if let Some(uses) = uses.iter().find(|uses| !(0.0..=1e12).contains(*uses)) {
                return refused(format!("layer {layer}: {uses} uses, expected a number from 0 to 1e12"));
            }
        }
        for (layer, uses) in counts.uses.iter().enumerate() {
            let own = layer * self.experts..(layer + 1) * self.experts;
            self.uses[own.clone()].copy_from_slice(uses);
            self.last[own].fill(self.clocks[layer]);
            self.totals[layer] = uses.iter().map(|&uses| f64::from(uses)).sum();
            let most = WARM_MAX * self.experts as f64;
            if self.totals[layer] > most {
                self.scale(layer, most / self.totals[layer]);
            }
        }
        Ok(())
    }

    fn scale(&mut self, layer: usize, factor: f64) {
        let own = &mut self.uses[layer * self.experts..(layer + 1) * self.experts];
        own.iter_mut().for_each(|uses| *uses = (f64::from(*uses) * factor) as f32);
        // The sum is computed again, so that rounding errors do not add up.
        self.totals[layer] = own.iter().map(|&uses| f64::from(uses)).sum();
    }
}
