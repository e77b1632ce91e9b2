//! Counts what a policy that knows the future reads.

use std::collections::BTreeSet;

use interbed_plan::routing::{Routing, lower_bound};

/// The next use of a slab that is never used again.
const NEVER: u64 = u64::MAX;

/// Returns the bytes of the slabs that the window uses, each counted at its first use.
pub(super) fn compulsory(routing: &Routing, passes_before: usize) -> u64 {
    lower_bound(routing, passes_before, u64::MAX)
}

/// Returns the bytes that a policy reads that knows the future and drops the slab whose next use is farthest away. A
/// slab that was just read may be dropped too. Slabs differ in size, so this greedy rule (Belady's) need not be the
/// best one. Within a visit hits come first.
pub(super) fn belady(routing: &Routing, passes_before: usize, budget: u64) -> u64 {
    let shape = routing.shape();
    let slab_of = |layer: u32, expert: u32| layer as usize * shape.experts() + expert as usize;
    let nexts = next_uses(routing);
    let mut nexts = nexts.iter();
    let mut next_of = vec![NEVER; shape.layers() * shape.experts()];
    let mut held: BTreeSet<(u64, usize)> = BTreeSet::new();
    let (mut used, mut read) = (0u64, 0u64);
    for (index, pass) in routing.passes().iter().enumerate() {
        for visit in &pass.visits {
            let bytes = shape.slab_bytes(visit.layer);
            for &(expert, _) in &visit.wanted {
                let slab = slab_of(visit.layer, expert);
                if held.remove(&(next_of[slab], slab)) {
                    used -= bytes;
                } else if index >= passes_before && !pass.prompt {
                    read += bytes;
                }
                next_of[slab] = *nexts.next().expect("as many as uses");
                if next_of[slab] != NEVER {
                    held.insert((next_of[slab], slab));
                    used += bytes;
                }
            }
            while used > budget {
                let (_, slab) = held.pop_last().expect("what is used is held");
                used -= shape.slab_bytes((slab / shape.experts()) as u32);
            }
        }
    }
    read
}

/// Returns the visit of each use's next use of the same slab, in the order of the uses. [use]
fn next_uses(routing: &Routing) -> Vec<u64> {
    let shape = routing.shape();
    let visits: Vec<_> = routing.passes().iter().flat_map(|pass| &pass.visits).collect();
    let mut next = vec![NEVER; shape.layers() * shape.experts()];
    let mut nexts = Vec::new();
    for (now, visit) in visits.iter().enumerate().rev() {
        for &(expert, _) in visit.wanted.iter().rev() {
            let slab = visit.layer as usize * shape.experts() + expert as usize;
            nexts.push(std::mem::replace(&mut next[slab], now as u64));
        }
    }
    nexts.reverse();
    nexts
}
