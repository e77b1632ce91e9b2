//! Counts hits under an eviction policy that knows the future and evicts the block whose next use is farthest away. The
//! result is no upper bound: that would have to consider whole prefixes, as hits do, and not single blocks.

use std::collections::BTreeSet;

use super::trace::Trace;

/// The order in which the blocks of one prompt count as used. Among blocks whose next use is in the same prompt, the
/// one that is used last is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The tail is used first, as sequences release their blocks. The head of a chain is then evicted before what
    /// follows it.
    TailFirst,
    /// The head is used first, so that the end of a chain is evicted before its beginning: a tail cannot be found
    /// without its head.
    HeadFirst,
}

/// Returns the numbers of prompt blocks and prompt tokens that a cache of `blocks` blocks finds. A hit is part of a
/// leading run of blocks that are in the cache, as in a replay. But each block is evicted by itself, whether other
/// blocks follow it or not.
pub(super) fn hits(trace: &Trace, blocks: usize, order: Order) -> (u64, u64) {
    let uses = uses(trace, order);
    let next = next_uses(&uses, trace.distinct());
    let mut cache = Cache { next: vec![None; trace.distinct()], order: BTreeSet::new() };
    let (mut hit_blocks, mut hit_tokens, mut at) = (0, 0, 0);
    for request in trace.requests() {
        let run = trace.blocks(request);
        let found = run.iter().take_while(|&&block| cache.next[block as usize].is_some()).count();
        hit_blocks += found as u64;
        hit_tokens += trace.tokens_of(found).min(request.input_tokens) as u64;
        for place in at..at + run.len() {
            cache.touch(uses[place], next[place], blocks);
        }
        at += run.len();
    }
    (hit_blocks, hit_tokens)
}

/// Returns all blocks of the trace in the order of their use.
fn uses(trace: &Trace, order: Order) -> Vec<u32> {
    let mut uses = trace.references().to_vec();
    if order == Order::TailFirst {
        let mut rest = uses.as_mut_slice();
        for request in trace.requests() {
            let (run, others) = rest.split_at_mut(trace.blocks(request).len());
            run.reverse();
            rest = others;
        }
    }
    uses
}

/// Returns where each use's block is used again, or `usize::MAX` if it is not. [use]
fn next_uses(uses: &[u32], distinct: usize) -> Vec<usize> {
    let mut seen = vec![usize::MAX; distinct];
    let mut next = vec![usize::MAX; uses.len()];
    for (place, &block) in uses.iter().enumerate().rev() {
        next[place] = std::mem::replace(&mut seen[block as usize], place);
    }
    next
}

struct Cache {
    next: Vec<Option<usize>>, // [block], some while it is there
    order: BTreeSet<(usize, u32)>,
}

impl Cache {
    fn touch(&mut self, block: u32, next: usize, blocks: usize) {
        if let Some(known) = self.next[block as usize].replace(next) {
            self.order.remove(&(known, block));
        } else if self.order.len() == blocks
            && let Some((_, victim)) = self.order.pop_last()
        {
            self.next[victim as usize] = None;
        }
        self.order.insert((next, block));
    }
}
