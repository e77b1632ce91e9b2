//! What a policy is here, and how it is measured.

use super::trace::{LayerVisit, Routing, RoutingPass};

/// A memory for slabs of a fixed size.
pub trait SlabPolicy {
    /// A pass visits a layer. Tells the bytes that were read for it, those read ahead of it excepted.
    fn visit(&mut self, visit: &LayerVisit) -> u64;
}

/// Bytes read in a routing's window for passes that generate.
pub fn read_bytes(routing: &Routing, passes_before: usize, policy: &mut dyn SlabPolicy) -> u64 {
    let (before, window) = routing.passes().split_at(passes_before);
    play(before, policy);
    play(window, policy)
}

/// Bytes read in these passes, prompts excepted.
pub fn play(passes: &[RoutingPass], policy: &mut dyn SlabPolicy) -> u64 {
    let mut read = 0;
    for pass in passes {
        let bytes: u64 = pass.visits.iter().map(|visit| policy.visit(visit)).sum();
        read += if pass.prompt { 0 } else { bytes };
    }
    read
}

/// Generated tokens of a routing's window, and the bytes of all slabs that they use, token by token.
pub fn demand(routing: &Routing, passes_before: usize) -> (u64, u64) {
    let window = routing.passes().iter().skip(passes_before).filter(|pass| !pass.prompt);
    window.fold((0, 0), |(tokens, bytes), pass| {
        let of_visit = |visit: &LayerVisit| {
            let uses: u64 = visit.wanted.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
            uses * routing.shape().slab_bytes(visit.layer)
        };
        (tokens + u64::from(pass.tokens), bytes + pass.visits.iter().map(of_visit).sum::<u64>())
    })
}
