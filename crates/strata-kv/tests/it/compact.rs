//! Moves towards a pool whose content lies together (K8).

use strata_kv::{BlockId, BlockManager, Fragmentation, KvConfig, Resize, SequenceState, SwapOutcome};

use crate::{config, copies, id, pool, release, rng::Rng, root, run_prompt, table, tokens};

/// Eight blocks of two tokens: the odd ones used by sequences 10, 11, …, the others free.
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
    let moved: Vec<_> = copies(&mut manager).iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
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
    // All is cached but one partial block; that goes, and the tail of the first chain.
    manager.set_usable(12);
    let found = |manager: &BlockManager| [0, 1000].map(|start| manager.cached_prefix(&tokens(start, 17), &root()));
    let before = found(&manager);
    assert_eq!(manager.take_resize().left.len(), 4);
    assert_eq!(manager.fragmentation().blocks_above, 3);
    let mut steps = 0;
    while manager.fragmentation().blocks_above > 0 {
        assert_eq!(compact(&mut manager, 1), 1);
        steps += 1;
        // As many come as leave, and each is lower than the one that left for it.
        let Resize { came, left } = manager.take_resize();
        assert_eq!((came.len(), left.len()), (1, 1));
        assert!(came[0] < BlockId(12) && left[0] >= BlockId(12));
    }
    assert_eq!((found(&manager), manager.stats().blocks_cached), (before, 12));
    assert_eq!((copies(&mut manager).len(), manager.stats().evictions), (steps, 3));
    // Later shrinking takes the end at once.
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
    manager.allocate(id(3), &tokens(0, 4), &root()).unwrap();
    let blocks = table(&manager, 3);
    assert!(blocks.iter().all(|&block| block < 4));
}

#[test]
fn blocks_of_a_swap_under_way_stay() {
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
    let list: Vec<_> = copies(&mut manager).iter().map(|copy| (copy.source.0, copy.destination.0)).collect();
    // The copy is made first, and moved then.
    assert_eq!(list, [(1, 2), (2, 0)]);
    assert_eq!((table(&manager, 2), table(&manager, 3)), (vec![1], vec![0]));
}

/// Hours of load, in which sequences come, grow, fork and go, and the pool shrinks and grows; a few steps of compaction
/// now and then. What is fragmented must not become more.
#[test]
fn fragmentation_does_not_grow() {
    const BLOCKS: usize = 256;
    let mut rng = Rng(11);
    let mut manager = pool(BLOCKS, 4);
    let mut running: Vec<u64> = Vec::new();
    let mut quarters = Vec::new();
    for quarter in 0..4 {
        let (mut misplaced, mut internal) = (0, 0.0);
        for step in 0..20_000u64 {
            let number = quarter * 20_000 + step;
            match rng.below(8) {
                0 | 1 => {
                    let prompt = tokens(1000 * rng.below(64) as u32, 1 + rng.below(40) as u32);
                    if manager.allocate(id(number), &prompt, &root()).is_ok() {
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
            if step % 1000 == 0 {
                manager.set_usable(BLOCKS / 2 + rng.below(BLOCKS / 2));
            }
            if step % 64 == 0 {
                manager.compact(8);
            }
            let _applied = (copies(&mut manager), manager.take_resize());
            if step % 100 == 0 {
                manager.check().expect("invariants");
                misplaced += manager.fragmentation().blocks_misplaced;
                internal += manager.stats().internal_fragmentation();
            }
        }
        quarters.push((misplaced, internal));
    }
    let (first, last) = (quarters[0], quarters[3]);
    // A tenth is noise of the load; what accumulates would double.
    assert!(last.0 as f64 <= 1.1 * first.0 as f64 && last.1 <= 1.1 * first.1, "{quarters:?}");
    assert!(first.0 > 0, "nothing was ever misplaced");
}
