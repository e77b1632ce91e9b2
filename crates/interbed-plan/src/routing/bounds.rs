//! Computes a number of bytes below which no policy can read.

use super::trace::Routing;

/// Returns the minimum number of bytes that any memory of `budget` bytes reads in the window after `passes_before`
/// passes (PFOO-L).
///
/// Between two uses, a slab is either kept, which takes its bytes for this number of visits, or read again. Over all
/// visits of the window, the memory has a sum of bytes times visits to spend. A reader that may spend this sum on any
/// intervals, the shortest first, reads no more than one that has to fit the intervals into memory visit by visit.
/// First uses are read in any case.
pub fn lower_bound(routing: &Routing, passes_before: usize, budget: u64) -> u64 {
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
