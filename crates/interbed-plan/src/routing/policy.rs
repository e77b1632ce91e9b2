//! Defines policies for a memory of slabs, and measures what they read.

use super::trace::{LayerVisit, Routing, RoutingPass};

/// Plays a memory for slabs, the weights of one expert in one layer, within a fixed size.
pub trait SlabPolicy {
    /// Visits a layer in a pass. Returns the bytes that were read for the visit, except the bytes that were read ahead
    /// of it.
    fn visit(&mut self, visit: &LayerVisit) -> u64;
}

/// Returns the bytes that generating passes read, in the part of a routing after `passes_before` passes.
pub fn read_bytes(routing: &Routing, passes_before: usize, policy: &mut dyn SlabPolicy) -> u64 {
    let (before, window) = routing.passes().split_at(passes_before);
    play(before, policy);
    play(window, policy)
}

/// Returns the bytes that these passes read, prompts excepted.
pub fn play(passes: &[RoutingPass], policy: &mut dyn SlabPolicy) -> u64 {
    let mut read = 0;
    for pass in passes {
        let bytes: u64 = pass.visits.iter().map(|visit| policy.visit(visit)).sum();
        read += if pass.prompt { 0 } else { bytes };
    }
    read
}

/// Counts the generated tokens of a routing after `passes_before` passes, and the bytes of all slabs that they use,
/// token by token.
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
