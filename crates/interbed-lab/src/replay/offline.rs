//! Hits under an eviction policy that knows the future: it evicts the block whose next use is farthest away. This is no
//! upper bound, which would have to consider whole prefixes, as hits do, and not blocks.

use std::collections::BTreeSet;

use super::trace::Trace;

/// In which order the blocks of one prompt are used, as far as evictions are concerned: of blocks whose next use is in
/// the same prompt, the one that is used last goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The tail first, as sequences let go of their blocks. The head of a chain then goes before what follows it.
    TailFirst,
    /// The head first, so that the end of a chain is evicted before its beginning: a tail cannot be found without its
    /// head.
    HeadFirst,
}

/// Blocks and tokens of prompts that a cache of `blocks` blocks finds. As elsewhere, a hit is part of a leading run of
/// blocks that are there; unlike elsewhere, each block is evicted by itself, whether others follow it or not.
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

/// Blocks in the order of their use.
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

/// Where each use's block is used again. [use]
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
