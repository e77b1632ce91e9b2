//! Compaction: moves towards a pool whose contents lie together.

use interbed_kv::testing::Rng;
use interbed_kv::{BlockId, BlockManager, Fragmentation, KvConfig, Resize, SequenceState, SwapOutcome};

use crate::{UnderRoot, config, copies, id, pool, release, root, run_prompt, table, tokens};

/// Returns a pool of eight blocks of two tokens. Sequences 10, 11, … use the odd blocks, and the even blocks are free.
fn scattered() -> BlockManager {
    let mut manager = pool(8, 2);
    for number in 0..8 {
        run_prompt(&mut manager, number, &[100 + number as u32]);
    }
    (0..8).step_by(2).for_each(|number| release(&mut manager, number));
    manager
}

fn compact(manager: &mut BlockManager, max_steps: usize) -> usize {
    let steps = manager.compact(max_steps);
    manager.check().expect("invariants");
    steps
}

#[test]
fn content_moves_from_the_highest_blocks_to_the_lowest_free_ones() {
    let mut manager = scattered();
    let scattered = Fragmentation { blocks_misplaced: 2, blocks_above: 0, blocks_free: 4, free_run_max: 1 };
    assert_eq!(manager.fragmentation(), scattered);
    assert_eq!(compact(&mut manager, 1), 1);
    assert_eq!(table(&manager, 7), [0]);
    assert_eq!(compact(&mut manager, 8), 1);
    assert_eq!((table(&manager, 5), table(&manager, 1), table(&manager, 3)), (vec![2], vec![1], vec![3]));
    let done = Fragmentation { blocks_misplaced: 0, blocks_above: 0, blocks_free: 4, free_run_max: 4 };
    assert_eq!((manager.fragmentation(), compact(&mut manager, 8), manager.stats().moves), (done, 0, 2));
    let moved: Vec<_> = copies(&mut manager).iter().map(|(source, destination)| (source.0, destination.0)).collect();
    assert_eq!(moved, [(7, 0), (5, 2)]);
    // No memory has changed hands.
    assert_eq!(manager.take_resize(), Resize::default());
}

#[test]
fn a_smaller_pool_ends_below_its_size_with_its_prefix_cache() {
    let mut manager = pool(16, 2);
    run_prompt(&mut manager, 1, &tokens(0, 16));
    run_prompt(&mut manager, 2, &tokens(1000, 15));
    release(&mut manager, 1);
    release(&mut manager, 2);
    // Everything is cached except one partial block; that block is withdrawn, and then the tail of the first chain.
    manager.set_usable(12);
    let found =
        |manager: &BlockManager| [0, 1000].map(|start| manager.cached_prefix_under(&tokens(start, 17), &root()));
    let before = found(&manager);
    assert_eq!(manager.take_resize().left.len(), 4);
    assert_eq!((manager.blocks_above(), manager.fragmentation().blocks_above), (3, 3));
    assert_eq!((manager.stats().blocks_free, manager.stats().evictions), (0, 3));
    let mut steps = 0;
    while manager.blocks_above() > 0 {
        assert_eq!(compact(&mut manager, 1), 1);
        steps += 1;
        // As many blocks come as leave, and each is lower than the one that left for it.
        let Resize { came, left } = manager.take_resize();
        assert!(came.len() == left.len() && came.iter().zip(&left).all(|(came, left)| came < left));
        assert!(steps < 100, "{:?}", manager.fragmentation());
    }
    assert_eq!(manager.fragmentation().blocks_above, 0);
    // One more leaf was evicted to make room for a move.
    let [first, second] = found(&manager);
    assert_eq!((before[0] - first + before[1] - second, manager.stats().evictions), (2, 4));
    assert_eq!((manager.stats().blocks_cached, manager.stats().blocks_free), (11, 1));
    assert!(copies(&mut manager).len() <= 3);
    // At most free blocks are left to be gathered.
    while compact(&mut manager, 8) > 0 {}
    assert_eq!((manager.fragmentation().blocks_misplaced, manager.stats().evictions), (0, 4));
    // Shrinking again withdraws the end of the pool at once.
    manager.set_usable(16);
    let came = manager.take_resize().came;
    assert_eq!(came, [12, 13, 14, 15].map(BlockId));
}

#[test]
fn free_memory_is_exchanged_without_a_copy() {
    let mut manager = pool(8, 2);
    run_prompt(&mut manager, 1, &tokens(0, 8));
    run_prompt(&mut manager, 2, &tokens(1000, 8));
    release(&mut manager, 1);
    manager.set_usable(4);
    manager.reset_cache();
    release(&mut manager, 2);
    assert_eq!((manager.stats().blocks_free, manager.fragmentation().blocks_above), (4, 4));
    assert_eq!(compact(&mut manager, 8), 4);
    assert_eq!((copies(&mut manager).len(), manager.stats().moves), (0, 0));
    assert_eq!(manager.fragmentation().blocks_above, 0);
    manager.allocate_under(id(3), &tokens(0, 4), &root()).unwrap();
    let blocks = table(&manager, 3);
    assert!(blocks.iter().all(|&block| block < 4));
}

#[test]
fn blocks_of_a_swap_in_flight_stay() {
    let mut manager = BlockManager::new(KvConfig { num_swap_blocks: 2, ..config(8, 2) }).unwrap();
    for number in 0..8 {
        run_prompt(&mut manager, number, &[100 + number as u32]);
    }
    let out = manager.swap_out(&[id(7)]).unwrap();
    (0..6).for_each(|number| release(&mut manager, number));
    assert_eq!(compact(&mut manager, 8), 1);
    assert_eq!((table(&manager, 6), manager.state(id(7))), (vec![0], Some(SequenceState::Leaving(out.id))));
    manager.finish_swap(out.id, SwapOutcome::Done);
    assert_eq!(compact(&mut manager, 8), 0);
}

#[test]
fn copies_of_writes_and_moves_are_one_list() {
    let mut manager = pool(4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 2));
    run_prompt(&mut manager, 2, &tokens(1000, 2));
    manager.fork(id(2), id(3)).unwrap();
    manager.append(id(3), &[7]).unwrap();
    release(&mut manager, 1);
    assert_eq!(compact(&mut manager, 4), 1);
    let list: Vec<_> = copies(&mut manager).iter().map(|(source, destination)| (source.0, destination.0)).collect();
    // The copy is made first; then its result is moved.
    assert_eq!(list, [(1, 2), (2, 0)]);
    assert_eq!((table(&manager, 2), table(&manager, 3)), (vec![1], vec![0]));
}

/// Runs hours of load, in which sequences come, grow, fork and go, and the pool shrinks and grows. Returns how many
/// blocks were misplaced and how many lay above the line, summed over all observations.
fn fragmented(steps_of_compaction: usize) -> (usize, usize) {
    const BLOCKS: usize = 256;
    let mut rng = Rng(11);
    let mut manager = pool(BLOCKS, 4);
    let mut running: Vec<u64> = Vec::new();
    let (mut misplaced, mut above) = (0, 0);
    for number in 0..40_000u64 {
        match rng.below(8) {
            0 | 1 => {
                let prompt = tokens(1000 * rng.below(64) as u32, 1 + rng.below(40) as u32);
                if manager.allocate_under(id(number), &prompt, &root()).is_ok() {
                    manager.commit(id(number), prompt.len());
                    running.push(number);
                }
            }
            2 if !running.is_empty() => {
                let parent = running[rng.below(running.len())];
                manager.fork(id(parent), id(number)).unwrap();
                running.push(number);
            }
            3..7 if !running.is_empty() => {
                let chosen = running[rng.below(running.len())];
                if manager.append(id(chosen), &[rng.below(9) as u32]).is_ok() {
                    manager.commit(id(chosen), usize::MAX);
                }
            }
            _ => {}
        }
        while running.len() > 12 {
            manager.free(id(running.swap_remove(rng.below(running.len()))));
        }
        if number % 1000 == 0 {
            manager.set_usable(BLOCKS / 2 + rng.below(BLOCKS / 2));
        }
        if number % 64 == 0 {
            manager.compact(steps_of_compaction);
        }
        let _applied = (copies(&mut manager), manager.take_resize());
        if number % 100 == 0 {
            manager.check().expect("invariants");
            misplaced += manager.fragmentation().blocks_misplaced;
            above += manager.blocks_above();
        }
    }
    (misplaced, above)
}

#[test]
fn a_few_steps_now_and_then_keep_fragmentation_low() {
    let (without, with) = (fragmented(0), fragmented(8));
    assert!(2 * with.0 < without.0 && 2 * with.1 < without.1, "{with:?} with compaction, {without:?} without");
}

/// The cache is always full while requests are served, and the next request takes any block that becomes free.
#[test]
fn a_full_cache_comes_together_while_requests_are_served() {
    let mut manager = pool(64, 2);
    let mut rng = Rng(5);
    let mut serve = |manager: &mut BlockManager, number: u64| {
        let prompt = tokens(100 * rng.below(40) as u32, 9);
        run_prompt(manager, number, &prompt);
        release(manager, number);
    };
    (0..40).for_each(|number| serve(&mut manager, number));
    manager.set_usable(40);
    let scattered = manager.blocks_above();
    assert!(scattered > 4 && manager.stats().blocks_free == 0, "{scattered}");
    for number in 0..100 {
        compact(&mut manager, 4);
        let _applied = (copies(&mut manager), manager.take_resize());
        serve(&mut manager, number);
    }
    assert_eq!((manager.blocks_above(), manager.fragmentation().blocks_above), (0, 0));
    assert!(manager.stats().blocks_cached >= 38);
    // Nothing needs to be done, and nothing is evicted for it.
    let evictions = manager.stats().evictions;
    compact(&mut manager, 4);
    assert_eq!(manager.stats().evictions, evictions);
}
