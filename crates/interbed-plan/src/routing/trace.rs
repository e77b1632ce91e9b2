//! A routing in memory.

use interbed_weights::experts::ArenaShape;

/// Records which experts a model's mixture layers asked for, pass by pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    pub(super) shape: ArenaShape,
    pub(super) passes: Vec<RoutingPass>,
}

/// Records one pass through the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingPass {
    /// Whether the pass computed a prompt; other passes generate.
    pub prompt: bool,
    /// Number of tokens in the pass.
    pub tokens: u32,
    /// Visits of the mixture layers in the pass, in order.
    pub visits: Vec<LayerVisit>,
}

/// Records which experts one mixture layer asked for in one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerVisit {
    /// Number of the layer, counting mixture layers only.
    pub layer: u32,
    /// Numbers of the experts, ascending, each with the number of tokens that use it.
    pub wanted: Vec<(u32, u32)>,
}

impl Routing {
    /// Makes the routing of `passes`.
    ///
    /// # Panics
    /// Panics if a pass visits a layer, or wants an expert, that `shape` does not have.
    pub fn new(shape: ArenaShape, passes: Vec<RoutingPass>) -> Self {
        for visit in passes.iter().flat_map(|pass| &pass.visits) {
            assert!((visit.layer as usize) < shape.layers(), "layer {}", visit.layer);
            let beyond = visit.wanted.iter().find(|(expert, _)| *expert as usize >= shape.experts());
            assert_eq!(beyond, None, "layer {}", visit.layer);
        }
        Self { shape, passes }
    }

    /// Returns the shape of the model's mixture layers.
    pub fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    /// Returns the passes in order.
    pub fn passes(&self) -> &[RoutingPass] {
        &self.passes
    }

    /// Returns this routing without the passes of prompts.
    pub fn generated(&self) -> Self {
        let passes = self.passes.iter().filter(|pass| !pass.prompt).cloned().collect();
        Self { shape: self.shape.clone(), passes }
    }

    /// Returns how many tokens the passes generate.
    pub fn generated_tokens(&self) -> u64 {
        self.passes.iter().filter(|pass| !pass.prompt).map(|pass| u64::from(pass.tokens)).sum()
    }

    /// Returns the number of passes before the generated token `from` is computed. Measuring begins with the pass after
    /// them.
    pub fn passes_before(&self, from: u64) -> usize {
        let mut generated = 0;
        let is_before = |pass: &&RoutingPass| {
            let before = pass.prompt || generated < from;
            generated += if pass.prompt { 0 } else { u64::from(pass.tokens) };
            before
        };
        self.passes.iter().take_while(is_before).count()
    }

    /// Returns the generated tokens cut into `streams` parts of equal length that go through the model side by side.
    /// All parts are of one text, so they are more alike than tokens of different clients.
    pub fn side_by_side(&self, streams: usize) -> Self {
        let alone: Vec<&RoutingPass> = self.passes.iter().filter(|pass| !pass.prompt).collect();
        let length = alone.len() / streams.max(1);
        let together = |step: usize| {
            let tokens = alone.iter().skip(step).step_by(length.max(1)).take(streams);
            let mut pass = RoutingPass { prompt: false, tokens: 0, visits: Vec::new() };
            let mut counts = vec![std::collections::BTreeMap::<u32, u32>::new(); self.shape.layers()];
            for token in tokens {
                pass.tokens += token.tokens;
                for visit in &token.visits {
                    for &(expert, tokens) in &visit.wanted {
                        *counts[visit.layer as usize].entry(expert).or_default() += tokens;
                    }
                }
            }
            let visits = counts.into_iter().zip(0..).filter(|(wanted, _)| !wanted.is_empty());
            pass.visits =
                visits.map(|(wanted, layer)| LayerVisit { layer, wanted: wanted.into_iter().collect() }).collect();
            pass
        };
        Self { shape: self.shape.clone(), passes: (0..length).map(together).collect() }
    }
}
