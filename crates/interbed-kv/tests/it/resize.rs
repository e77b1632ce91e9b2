//! Blocks that come and leave while sequences hold others.

use interbed_kv::{AllocStatus, BlockError, BlockId, BlockManager, KvConfig, Resize};

use crate::{UnderRoot, config, id, pool, release, root, run_prompt, table, tokens};

#[test]
fn free_blocks_go_first_then_cached_leaves_and_never_used_ones() {
    let mut manager = pool(8, 2);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    run_prompt(&mut manager, 2, &tokens(1000, 4));
    release(&mut manager, 1);
    let cached = |manager: &BlockManager| manager.cached_prefix_under(&tokens(0, 7), &root());
    assert_eq!(cached(&manager), 6);
    manager.set_usable(5);
    manager.check().unwrap();
    assert_eq!((cached(&manager), manager.stats().blocks_free), (6, 0));
    manager.set_usable(3);
    manager.check().unwrap();
    assert_eq!((cached(&manager), manager.stats().blocks_cached), (2, 1));
    // Two blocks are used, and stay so.
    manager.set_usable(1);
    manager.check().unwrap();
    assert_eq!((manager.present(), manager.usable(), manager.stats().blocks_used), (2, 1, 2));
    assert_eq!(manager.take_resize().left.len(), 6);
    let held = table(&manager, 2);
    release(&mut manager, 2);
    assert_eq!((manager.present(), manager.stats().blocks_withdrawn), (1, 7));
    // The leaf of the chain was evicted, and its parent is still found.
    assert_eq!(manager.take_resize(), Resize { came: vec![], left: vec![BlockId(held[1])] });
    assert_eq!(manager.cached_prefix_under(&tokens(1000, 5), &root()), 2);
}

#[test]
fn each_block_is_reported_on_the_side_where_it_is() {
    let mut manager = pool(4, 2);
    manager.set_usable(1);
    manager.set_usable(3);
    let resize = manager.take_resize();
    assert_eq!((resize.came.len(), resize.left.len()), (2, 1));
    manager.set_usable(4);
    manager.set_usable(2);
    // One of these was never reported to have come, but it may have been written to in between.
    let resize = manager.take_resize();
    assert_eq!((resize.came.len(), resize.left.len()), (0, 2));
    manager.set_usable(4);
    assert_eq!(manager.take_resize().came.len(), 2);
    assert_eq!(manager.take_resize(), Resize::default());
    manager.check().unwrap();
}

#[test]
fn never_refers_to_the_maximum_and_the_watermark_to_what_may_be_used() {
    let mut manager = BlockManager::new(KvConfig { watermark: 0.5, ..config(8, 2) }).unwrap();
    manager.set_usable(4);
    assert_eq!(manager.can_allocate_under(&tokens(0, 16), &root()), AllocStatus::Later);
    assert_eq!(manager.can_allocate_under(&tokens(0, 17), &root()), AllocStatus::Never { need: 9, limit: 8 });
    assert_eq!(
        manager.allocate_under(id(1), &tokens(0, 16), &root()),
        Err(BlockError::OutOfBlocks { need: 8, available: 4 })
    );
    run_prompt(&mut manager, 1, &tokens(0, 2));
    assert_eq!(manager.can_allocate_under(&tokens(1000, 2), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 4), &root()), AllocStatus::Later);
    manager.set_usable(8);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 6), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 8), &root()), AllocStatus::Later);
}

#[test]
fn sizes_out_of_range_are_brought_into_it() {
    let mut manager = pool(4, 2);
    manager.set_usable(0);
    assert_eq!(manager.usable(), 1);
    manager.set_usable(usize::MAX);
    assert_eq!((manager.usable(), manager.present()), (4, 4));
}

#[test]
fn an_emptied_manager_keeps_its_size() {
    let mut manager = pool(8, 2);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    manager.set_usable(3);
    assert_eq!(manager.present(), 5);
    let mut emptied = manager.emptied();
    emptied.check().unwrap();
    assert_eq!((emptied.stats().blocks_free, emptied.take_resize().left.len()), (3, 5));
}
