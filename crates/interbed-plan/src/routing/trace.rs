//! A routing in memory.

use interbed_weights::experts::ArenaShape;

/// What passes through a model's mixture layers asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    pub(super) shape: ArenaShape,
    pub(super) passes: Vec<RoutingPass>,
}

/// One pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingPass {
    /// Whether it computed a prompt; other passes generate.
    pub prompt: bool,
    /// Tokens in it.
    pub tokens: u32,
    /// Its mixture layers in order.
    pub visits: Vec<LayerVisit>,
}

/// What a pass asks a mixture layer for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerVisit {
    /// Counts mixture layers only.
    pub layer: u32,
    /// Experts, ascending, each with the number of tokens that use it.
    pub wanted: Vec<(u32, u32)>,
}

impl Routing {
    /// The routing of `passes`.
    ///
    /// # Panics
    /// If a pass visits a layer, or wants an expert, that `shape` does not have.
    pub fn new(shape: ArenaShape, passes: Vec<RoutingPass>) -> Self {
        for visit in passes.iter().flat_map(|pass| &pass.visits) {
            assert!((visit.layer as usize) < shape.layers(), "layer {}", visit.layer);
            let beyond = visit.wanted.iter().find(|(expert, _)| *expert as usize >= shape.experts());
            assert_eq!(beyond, None, "layer {}", visit.layer);
        }
        Self { shape, passes }
    }

    /// The model's mixture layers.
    pub fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    /// The passes in order.
    pub fn passes(&self) -> &[RoutingPass] {
        &self.passes
    }

    /// Without the passes of prompts.
    pub fn generated(&self) -> Self {
        let passes = self.passes.iter().filter(|pass| !pass.prompt).cloned().collect();
        Self { shape: self.shape.clone(), passes }
    }

    /// Tokens of passes that generate.
    pub fn generated_tokens(&self) -> u64 {
        self.passes.iter().filter(|pass| !pass.prompt).map(|pass| u64::from(pass.tokens)).sum()
    }

    /// The number of passes before the generated token `from` is computed: measuring begins with the pass after them.
    pub fn passes_before(&self, from: u64) -> usize {
        let mut generated = 0;
        let is_before = |pass: &&RoutingPass| {
            let before = pass.prompt || generated < from;
            generated += if pass.prompt { 0 } else { u64::from(pass.tokens) };
            before
        };
        self.passes.iter().take_while(is_before).count()
    }

    /// The generated tokens cut into `streams` parts of equal length that go through the model side by side. They are
    /// of one text, so they are more alike than those of different clients.
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
