//! Tests of which sequences are admitted, what that costs, and what the figures say.

use interbed_kv::{AllocStatus, BlockError, BlockManager, KvConfig, KvConfigError};

use crate::{UnderRoot, config, id, pool, release, root, run_prompt, table, tokens};

#[test]
fn never_later_ok() {
    let mut manager = pool(4, 4);
    assert_eq!(manager.capacity_tokens(), 16);
    assert_eq!(manager.can_allocate_under(&tokens(0, 16), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(0, 17), &root()), AllocStatus::Never { need: 5, limit: 4 });
    assert_eq!(manager.allocate_under(id(1), &tokens(0, 17), &root()), Err(BlockError::Never { need: 5, limit: 4 }),);
    run_prompt(&mut manager, 1, &tokens(0, 9));
    assert_eq!(manager.can_allocate_under(&tokens(1000, 4), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 5), &root()), AllocStatus::Later);
    assert_eq!(
        manager.allocate_under(id(2), &tokens(1000, 5), &root()),
        Err(BlockError::OutOfBlocks { need: 2, available: 1 }),
    );
    // Hits make it fit; but a prompt longer than the pool never fits, whatever it hits.
    assert_eq!(manager.can_allocate_under(&tokens(0, 12), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(0, 18), &root()), AllocStatus::Never { need: 5, limit: 4 });
}

#[test]
fn cached_blocks_count_once_as_hit_or_as_room() {
    let mut manager = pool(3, 2);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    release(&mut manager, 1);
    run_prompt(&mut manager, 2, &[500]);
    // Two blocks are cached, and one of them is the hit: one is left where two are needed.
    assert_eq!(manager.stats().blocks_cached, 2);
    assert_eq!(manager.can_allocate_under(&[0, 1, 900, 901, 902], &root()), AllocStatus::Later);
    assert_eq!(
        manager.allocate_under(id(3), &[0, 1, 900, 901, 902], &root()),
        Err(BlockError::OutOfBlocks { need: 2, available: 1 }),
    );
    assert_eq!(manager.can_allocate_under(&[0, 1, 900, 901], &root()), AllocStatus::Ok);
    assert_eq!(run_prompt(&mut manager, 3, &[0, 1, 900, 901]), 2);
}

#[test]
fn the_watermark_holds_back_blocks_only_while_others_run() {
    let config = KvConfig { watermark: 0.25, ..config(8, 1) };
    let mut manager = BlockManager::new(config).unwrap();
    assert_eq!(manager.can_allocate_under(&tokens(0, 8), &root()), AllocStatus::Ok);
    manager.allocate_under(id(1), &tokens(0, 3), &root()).unwrap();
    assert_eq!(manager.can_allocate_under(&tokens(1000, 3), &root()), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 4), &root()), AllocStatus::Later);
    // Growth may use the blocks that admission must leave.
    assert!(manager.can_append(id(1), 5));
    manager.append(id(1), &tokens(3, 5)).unwrap();
    assert!(!manager.can_append(id(1), 1));
    // Idle again: a sequence that fits is admitted, although every block is cached.
    manager.commit(id(1), 8);
    release(&mut manager, 1);
    assert_eq!(manager.can_allocate_under(&tokens(1000, 8), &root()), AllocStatus::Ok);
}

#[test]
fn append_takes_a_block_only_on_crossing_a_boundary() {
    let mut manager = pool(3, 4);
    manager.allocate_under(id(1), &tokens(0, 3), &root()).unwrap();
    for (length, blocks) in [(4, 1), (5, 2), (6, 2), (7, 2), (8, 2), (9, 3), (10, 3), (11, 3), (12, 3)] {
        assert!(manager.can_append(id(1), 1));
        manager.append(id(1), &[length]).unwrap();
        assert_eq!(table(&manager, 1).len(), blocks);
        manager.check().unwrap();
    }
    assert!(manager.can_append(id(1), 0));
    assert!(!manager.can_append(id(1), 1));
    assert_eq!(manager.append(id(1), &[13]), Err(BlockError::Never { need: 4, limit: 3 }));
    assert_eq!(manager.num_tokens(id(1)), Some(12));
}

#[test]
fn a_failed_append_changes_nothing() {
    let mut manager = pool(3, 2);
    manager.allocate_under(id(1), &[1], &root()).unwrap();
    manager.allocate_under(id(2), &[2], &root()).unwrap();
    let before = table(&manager, 1);
    assert_eq!(manager.append(id(1), &[3, 4, 5, 6]), Err(BlockError::OutOfBlocks { need: 2, available: 1 }));
    assert_eq!((table(&manager, 1), manager.num_tokens(id(1))), (before, Some(1)));
    assert_eq!(manager.stats().allocation_failures, 1);
    manager.check().unwrap();
    // Nor was anything written: the next token lands where it should.
    manager.append(id(1), &[7, 8]).unwrap();
    manager.commit(id(1), 3);
    assert_eq!(manager.cached_prefix_under(&[1, 7, 8], &root()), 2);
}

#[test]
fn the_plain_allocator_shares_and_keeps_nothing() {
    let mut manager = BlockManager::new(KvConfig { prefix_caching: false, ..config(8, 2) }).unwrap();
    assert_eq!(run_prompt(&mut manager, 1, &tokens(0, 5)), 0);
    assert_eq!(run_prompt(&mut manager, 2, &tokens(0, 5)), 0);
    assert_eq!(manager.stats().blocks_used, 6);
    release(&mut manager, 1);
    release(&mut manager, 2);
    let stats = manager.stats();
    assert_eq!((stats.blocks_free, stats.blocks_cached, stats.prefix_query_tokens), (8, 0, 0));
    assert_eq!(stats.hit_rate(), 0.0);
}

#[test]
fn a_reset_hides_everything_and_takes_nothing_away() {
    let mut manager = pool(8, 2);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    run_prompt(&mut manager, 2, &tokens(0, 6));
    run_prompt(&mut manager, 3, &tokens(1000, 4));
    release(&mut manager, 3);
    manager.reset_cache();
    manager.check().unwrap();
    let stats = manager.stats();
    assert_eq!((stats.blocks_used, stats.blocks_cached, stats.blocks_free), (3, 0, 5));
    // A sequence begun before the reset stays hidden, and so does what it computes later.
    manager.append(id(1), &tokens(6, 2)).unwrap();
    manager.commit(id(1), 8);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 9), &root()), 0);
    release(&mut manager, 1);
    release(&mut manager, 2);
    assert_eq!(manager.stats().blocks_free, 8);
    run_prompt(&mut manager, 4, &tokens(0, 6));
    assert_eq!(manager.cached_prefix_under(&tokens(0, 6), &root()), 4);
}

#[test]
fn figures_add_up() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    run_prompt(&mut manager, 2, &tokens(0, 10));
    let stats = manager.stats();
    assert_eq!((stats.prefix_query_tokens, stats.prefix_hit_tokens, stats.allocations), (20, 8, 2));
    assert_eq!(stats.hit_rate(), 0.4);
    // Two shared blocks and two half-empty ones.
    assert_eq!((stats.blocks_used, stats.slots_allocated, stats.slots_empty, stats.sequences), (4, 16, 4, 2));
    assert_eq!(stats.internal_fragmentation(), 0.25);
    assert_eq!(manager.sequences().collect::<Vec<_>>(), [id(1), id(2)]);
}

// Below 5 % at block size 16 on chats of some hundreds of tokens.
#[test]
fn internal_fragmentation_is_small() {
    let mut manager = pool(4096, 16);
    for number in 0..64u32 {
        let length = 100 + number * 37 % 800;
        manager.allocate_under(id(number.into()), &tokens(number * 1000, length), &root()).unwrap();
    }
    let fragmentation = manager.stats().internal_fragmentation();
    assert!(fragmentation > 0.0 && fragmentation < 0.05, "{fragmentation}");
}

#[test]
fn configurations_that_cannot_work_are_refused_with_their_limit() {
    let error = |config| BlockManager::new(config).unwrap_err();
    assert_eq!(error(config(0, 16)), KvConfigError::NumBlocks { got: 0 });
    assert_eq!(error(config(4, 24)), KvConfigError::BlockSize { got: 24 });
    assert!(error(config(usize::MAX, 16)).to_string().contains("67108864"));
    assert!(error(KvConfig { watermark: 1.5, ..config(4, 16) }).to_string().contains("1.5"));
}

#[test]
fn an_empty_prompt_holds_no_block() {
    let mut manager = pool(1, 16);
    assert_eq!(run_prompt(&mut manager, 1, &[]), 0);
    assert!(table(&manager, 1).is_empty());
    manager.append(id(1), &[5]).unwrap();
    assert_eq!(table(&manager, 1).len(), 1);
    release(&mut manager, 1);
}
