//! Sequences with a common past, and the blocks that they need when they diverge.

use interbed_kv::{BlockError, BlockId, BlockManager, KvConfig};

use crate::{UnderRoot, config, copies, id, pool, release, root, run_prompt, table, tokens};

fn copy(source: u32, destination: u32) -> (BlockId, BlockId) {
    (BlockId(source), BlockId(destination))
}

#[test]
fn a_child_shares_every_block_and_whoever_writes_first_gets_a_copy() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    manager.check().unwrap();
    assert_eq!(table(&manager, 1), table(&manager, 2));
    let stats = manager.stats();
    assert_eq!((stats.blocks_used, stats.slots_empty, stats.sequences, stats.forks), (2, 2, 2, 1));
    assert_eq!(copies(&mut manager), []);

    let shared = table(&manager, 1);
    manager.append(id(2), &[100]).unwrap();
    manager.check().unwrap();
    let own = table(&manager, 2);
    assert_eq!((table(&manager, 1), own[0]), (shared.clone(), shared[0]));
    assert_ne!(own[1], shared[1]);
    assert_eq!(copies(&mut manager), [copy(shared[1], own[1])]);
    // The parent is the last holder, and writes in place.
    manager.append(id(1), &[200]).unwrap();
    manager.check().unwrap();
    assert_eq!((table(&manager, 1), copies(&mut manager)), (shared, vec![]));
    assert_eq!((manager.stats().copy_on_writes, manager.stats().slots_empty), (1, 2));
    release(&mut manager, 1);
    release(&mut manager, 2);
}

#[test]
fn full_blocks_are_never_copied() {
    for prefix_caching in [true, false] {
        let mut manager = BlockManager::new(KvConfig { prefix_caching, ..config(8, 4) }).unwrap();
        run_prompt(&mut manager, 1, &tokens(0, 8));
        manager.fork(id(1), id(2)).unwrap();
        manager.append(id(1), &[100]).unwrap();
        manager.append(id(2), &[200]).unwrap();
        manager.check().unwrap();
        assert_eq!(copies(&mut manager), []);
        assert_eq!(table(&manager, 1)[..2], table(&manager, 2)[..2]);
        assert_eq!(manager.stats().blocks_used, 4);
        release(&mut manager, 1);
        release(&mut manager, 2);
        assert_eq!(manager.stats().blocks_used, 0);
    }
}

#[test]
fn the_copy_counts_as_a_block() {
    let mut manager = pool(3, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    assert!(manager.can_append(id(1), 0) && manager.can_append(id(1), 1) && manager.can_append(id(1), 2));
    // One block for growth, and one more for the copy.
    assert!(!manager.can_append(id(1), 3));
    assert_eq!(manager.append(id(1), &[1, 2, 3]), Err(BlockError::OutOfBlocks { need: 2, available: 1 }));
    manager.append(id(1), &[1, 2]).unwrap();
    assert!(!manager.can_append(id(1), 1));
    // The other sequence is now the only holder of its block.
    assert!(manager.can_append(id(2), 2));
    manager.check().unwrap();
}

#[test]
fn a_free_before_the_write_saves_the_copy() {
    let mut manager = pool(4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    release(&mut manager, 1);
    manager.append(id(2), &[100]).unwrap();
    assert_eq!((copies(&mut manager), manager.stats().copy_on_writes), (vec![], 0));
}

// Copies are one ordered list: here the first one's source is the second one's destination.
#[test]
fn a_source_may_be_overwritten_later_in_the_list() {
    let mut manager = pool(4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 2));
    run_prompt(&mut manager, 2, &tokens(1000, 2));
    manager.fork(id(1), id(3)).unwrap();
    manager.fork(id(2), id(4)).unwrap();
    let (first, second) = (table(&manager, 1)[0], table(&manager, 2)[0]);
    manager.append(id(3), &[5]).unwrap();
    release(&mut manager, 1);
    manager.append(id(4), &[6]).unwrap();
    let (third, fourth) = (table(&manager, 3)[0], table(&manager, 4)[0]);
    assert_eq!(fourth, first);
    assert_eq!(copies(&mut manager), [copy(first, third), copy(second, fourth)]);
}

#[test]
fn forks_of_what_is_not_computed_or_not_there_are_refused() {
    let mut manager = pool(8, 4);
    manager.allocate_under(id(1), &tokens(0, 6), &root()).unwrap();
    assert_eq!(manager.fork(id(1), id(2)), Err(BlockError::Uncomputed { id: id(1), computed: 0, tokens: 6 }));
    manager.commit(id(1), 6);
    manager.fork(id(1), id(2)).unwrap();
    assert_eq!(manager.fork(id(1), id(2)), Err(BlockError::AlreadyHeld(id(2))));
    assert_eq!(manager.fork(id(7), id(8)), Err(BlockError::NotHeld(id(7))));
    manager.append(id(1), &[1]).unwrap();
    let error = manager.fork(id(1), id(3)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "sequence 1 has KV for 6 of its 7 tokens; compute and commit the others before it is forked"
    );
    manager.check().unwrap();
}

#[test]
fn forks_that_compute_the_same_are_merged_again() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    for number in [1, 2] {
        manager.append(id(number), &[7, 8]).unwrap();
        manager.commit(id(number), 8);
        manager.check().unwrap();
    }
    assert_eq!(table(&manager, 1), table(&manager, 2));
    assert_eq!((manager.stats().blocks_used, manager.stats().blocks_merged), (2, 1));
}

#[test]
fn slots_reserved_ahead_are_used_by_the_next_append() {
    let mut manager = pool(5, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    assert_eq!(manager.num_blocks_touched_by_append(id(1), 1, 3), 2);
    // The partial block is shared: speculation must not write to it either.
    manager.ensure_num_empty_slots(id(1), 4).unwrap();
    manager.check().unwrap();
    assert_eq!((table(&manager, 1).len(), copies(&mut manager).len(), manager.num_tokens(id(1))), (3, 1, Some(6)));
    let reserved = table(&manager, 1);
    manager.append(id(1), &[1, 2, 3]).unwrap();
    assert_eq!((table(&manager, 1), copies(&mut manager).len()), (reserved.clone(), 0));
    manager.commit(id(1), 9);
    // Blocks reserved ahead are not the child's.
    manager.ensure_num_empty_slots(id(1), 4).unwrap();
    manager.fork(id(1), id(3)).unwrap();
    manager.check().unwrap();
    assert_eq!((table(&manager, 1).len(), table(&manager, 3)), (4, reserved));
    assert_eq!(manager.ensure_num_empty_slots(id(2), 12), Err(BlockError::OutOfBlocks { need: 3, available: 0 }),);
    for number in 1..4 {
        release(&mut manager, number);
    }
}

#[test]
fn figures_of_a_table() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    assert_eq!(
        [(0, 0), (1, 0), (4, 0), (4, 1), (9, 7)].map(|(a, b)| manager.num_required_blocks(a, b)),
        [0, 1, 1, 2, 4]
    );
    let touched = [(0, 0), (1, 0), (2, 0), (3, 0), (1, 6), (2, 9)];
    assert_eq!(touched.map(|(a, b)| manager.num_blocks_touched_by_append(id(1), a, b)), [0, 1, 1, 2, 3, 4]);
    assert_eq!(manager.unseen_token_ids(id(1), &tokens(0, 9)), tokens(6, 3));
    assert_eq!(manager.unseen_token_ids(id(1), &tokens(0, 5)), tokens(0, 0));
    assert_eq!(manager.unseen_token_ids(id(9), &tokens(0, 5)), tokens(0, 5));
}
