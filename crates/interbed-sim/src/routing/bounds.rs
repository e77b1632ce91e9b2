//! What no policy reads less than, and what one that knows the future reads.

use std::collections::BTreeSet;

use super::trace::Routing;

/// Never again.
const NEVER: u64 = u64::MAX;

/// Bytes that any memory of `budget` bytes reads at least in the window (PFOO-L).
///
/// Between two uses of a slab it is either kept, which takes its bytes for so many visits, or read again. The memory
/// has its bytes for all visits of the window to give away in sum; whoever may spend them on any intervals, the
/// shortest first, reads no more than who has to fit them into memory visit by visit. First uses are read anyway.
pub(super) fn lower_bound(routing: &Routing, passes_before: usize, budget: u64) -> u64 {
    let shape = routing.shape();
    let mut last: Vec<Option<u64>> = vec![None; shape.layers() * shape.experts()];
    let from: u64 = routing.passes().iter().take(passes_before).map(|pass| pass.visits.len() as u64).sum();
    let mut intervals = Vec::new(); // visits, bytes
    let (mut compulsory, mut now) = (0u64, 0u64);
    for pass in routing.passes() {
        for visit in &pass.visits {
            let counts = now >= from && !pass.prompt;
            let bytes = shape.slab_bytes(visit.layer);
            for &(expert, _) in &visit.wanted {
                let slab = visit.layer as usize * shape.experts() + expert as usize;
                match last[slab].replace(now) {
                    // What was kept before the window cost nothing of it.
                    Some(before) if counts => intervals.push((now - before.max(from), bytes)),
                    None if counts => compulsory += bytes,
                    _ => {}
                }
            }
            now += 1;
        }
    }
    let visits = now.saturating_sub(from);
    let mut room = u128::from(budget) * u128::from(visits);
    intervals.sort_unstable();
    let mut read = compulsory;
    for (visits, bytes) in intervals {
        let cost = u128::from(visits) * u128::from(bytes);
        let kept = if visits == 0 { bytes } else { (room / u128::from(visits)).min(u128::from(bytes)) as u64 };
        read += bytes - kept;
        room -= cost.min(room);
    }
    read
}

/// Bytes of the window's first uses.
pub(super) fn compulsory(routing: &Routing, passes_before: usize) -> u64 {
    lower_bound(routing, passes_before, u64::MAX)
}

/// Bytes that are read by who knows the future and drops what is used again last, slabs that were just read included
/// (Belady, greedy and with bypass). Within a visit hits come first.
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

/// For each use, in order, the visit of the slab's next use.
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
