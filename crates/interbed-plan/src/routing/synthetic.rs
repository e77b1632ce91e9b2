//! Makes up routings, for models of which there is no trace.

use interbed_weights::experts::ArenaShape;

use super::random::Random;
use super::trace::{LayerVisit, Routing, RoutingPass};

impl Routing {
    /// Makes the routing of a router that likes all experts equally, token by token, which is the worst case for any
    /// memory.
    pub fn uniform(seed: u64, shape: ArenaShape, tokens: usize) -> Self {
        Self::zipf(seed, shape, tokens, 0.0, 0.0)
    }

    /// Makes the routing of `tokens` generated tokens by a router that likes the expert of rank `r` as `1 / r^skew`.
    /// Each layer has ranks of its own. The ranks drift: after each token, `drift` experts of each layer (on the mean;
    /// 0 for never) change their rank with any other expert.
    pub fn zipf(seed: u64, shape: ArenaShape, tokens: usize, skew: f64, drift: f64) -> Self {
        let mut random = Random::new(seed);
        let experts = shape.experts();
        let logarithms: Vec<f64> = (1..=experts).map(|rank| -skew * (rank as f64).ln()).collect();
        // [layer][rank]
        let mut ranks: Vec<Vec<u32>> = (0..shape.layers())
            .map(|_| {
                let mut experts: Vec<u32> = (0..experts as u32).collect();
                (1..experts.len()).rev().for_each(|last| experts.swap(last, random.below(last + 1)));
                experts
            })
            .collect();
        let mut liked = Vec::with_capacity(experts);
        let mut pass = |_| {
            let mut visits = Vec::with_capacity(ranks.len());
            for (layer, ranks) in (0..).zip(&mut ranks) {
                // The k largest of these sums are a draw without replacement by the weights (Gumbel's trick).
                liked.clear();
                let gumbel = |random: &mut Random| -(-random.unit().ln()).ln();
                liked.extend(ranks.iter().zip(&logarithms).map(|(&expert, &log)| (log + gumbel(&mut random), expert)));
                liked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
                let mut wanted: Vec<(u32, u32)> =
                    liked[..shape.top_k()].iter().map(|&(_, expert)| (expert, 1)).collect();
                wanted.sort_unstable();
                visits.push(LayerVisit { layer, wanted });
                let moves = drift.floor() as usize + usize::from(random.unit() < drift.fract());
                for _ in 0..moves {
                    let (one, other) = (random.below(experts), random.below(experts));
                    ranks.swap(one, other);
                }
            }
            RoutingPass { prompt: false, tokens: 1, visits }
        };
        let passes = (0..tokens).map(&mut pass).collect();
        Self { shape, passes }
    }
}
