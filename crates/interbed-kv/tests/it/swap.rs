//! Groups that leave for the swap pool and come back.

use interbed_kv::{
    AllocStatus, BlockError, BlockManager, KvConfig, SequenceId, SequenceState, Swap, SwapDirection, SwapId,
    SwapOutcome,
};

use crate::{UnderRoot, config, copies, id, release, root, run_prompt, table, tokens};

fn pool(num_blocks: usize, block_size: usize, num_swap_blocks: usize) -> BlockManager {
    BlockManager::new(KvConfig { num_swap_blocks, ..config(num_blocks, block_size) }).expect("a good configuration")
}

fn finish(manager: &mut BlockManager, swap: &Swap, outcome: SwapOutcome) -> Vec<SequenceId> {
    let concerned = manager.finish_swap(swap.id, outcome);
    manager.check().expect("invariants");
    concerned
}

fn swap_out(manager: &mut BlockManager, group: &[SequenceId]) -> Swap {
    assert_eq!(manager.can_swap_out(group), AllocStatus::Ok);
    let swap = manager.swap_out(group).expect("slots");
    manager.check().expect("invariants");
    swap
}

fn swap_in(manager: &mut BlockManager, group: &[SequenceId]) -> Swap {
    assert_eq!(manager.can_swap_in(group), AllocStatus::Ok);
    let swap = manager.swap_in(group).expect("blocks");
    manager.check().expect("invariants");
    swap
}

fn used_and_swapped(manager: &BlockManager) -> (usize, usize) {
    (manager.stats().blocks_used, manager.stats().swap_slots_used)
}

#[test]
fn out_and_in_again() {
    let mut manager = pool(8, 4, 8);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    let held = table(&manager, 1);
    assert_eq!((manager.swap_cost(&[id(1)]), manager.recompute_cost(&[id(1)])), (3, 2));

    let out = swap_out(&mut manager, &[id(1)]);
    assert_eq!((out.direction, out.num_spared), (SwapDirection::Out, 0));
    assert_eq!(out.transfers.iter().map(|transfer| transfer.part.block.0).collect::<Vec<_>>(), held);
    assert_eq!(manager.state(id(1)), Some(SequenceState::Leaving(out.id)));
    // Before the copies are there, its blocks are not reused, and it may not compute.
    assert_eq!((used_and_swapped(&manager), manager.block_table(id(1))), ((3, 3), None));
    assert!(!manager.can_append(id(1), 1));
    let state = SequenceState::Leaving(out.id);
    assert_eq!(manager.append(id(1), &[1]), Err(BlockError::WrongState { id: id(1), state }));
    assert_eq!(manager.fork(id(1), id(2)), Err(BlockError::WrongState { id: id(1), state }));

    assert_eq!(finish(&mut manager, &out, SwapOutcome::Done), [id(1)]);
    assert_eq!(manager.state(id(1)), Some(SequenceState::Swapped));
    assert_eq!((used_and_swapped(&manager), manager.stats().blocks_cached), ((0, 3), 2));
    assert_eq!((manager.num_tokens(id(1)), manager.stats().sequences_swapped), (Some(10), 1));

    // The full blocks are still findable: only the partial one is copied.
    let back = swap_in(&mut manager, &[id(1)]);
    assert_eq!((back.direction, back.transfers.len(), back.num_spared), (SwapDirection::In, 1, 2));
    assert_eq!(back.transfers[0].slot, out.transfers[2].slot);
    assert_eq!((manager.state(id(1)), manager.block_table(id(1))), (Some(SequenceState::Arriving(back.id)), None));
    assert_eq!(finish(&mut manager, &back, SwapOutcome::Done), [id(1)]);
    assert_eq!((manager.state(id(1)), used_and_swapped(&manager)), (Some(SequenceState::Resident), (3, 0)));
    assert_eq!(table(&manager, 1)[..2], held[..2]);
    let stats = manager.stats();
    assert_eq!((stats.swapped_out_blocks, stats.swapped_in_blocks, stats.swap_spared_blocks), (3, 1, 2));
    manager.append(id(1), &[10, 11]).unwrap();
    manager.commit(id(1), 12);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 13), &root()), 12);
    release(&mut manager, 1);
}

#[test]
fn what_was_evicted_meanwhile_is_copied_and_found_again_once_it_is_there() {
    let mut manager = pool(4, 4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 14));
    let out = swap_out(&mut manager, &[id(1)]);
    finish(&mut manager, &out, SwapOutcome::Done);
    run_prompt(&mut manager, 2, &tokens(1000, 10));
    assert_eq!(manager.cached_prefix_under(&tokens(0, 14), &root()), 4);
    assert_eq!(manager.can_swap_in(&[id(1)]), AllocStatus::Later);
    assert_eq!(manager.swap_in(&[id(1)]), Err(BlockError::OutOfBlocks { need: 3, available: 0 }));
    release(&mut manager, 2);
    let back = swap_in(&mut manager, &[id(1)]);
    assert_eq!((back.transfers.len(), back.num_spared), (3, 1));
    assert_eq!(manager.cached_prefix_under(&tokens(0, 14), &root()), 4);
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 14), &root()), 12);
}

#[test]
fn a_group_moves_as_one_and_its_shared_blocks_once() {
    for prefix_caching in [true, false] {
        let config = KvConfig { num_swap_blocks: 4, prefix_caching, ..config(8, 4) };
        let mut manager = BlockManager::new(config).unwrap();
        let group = [id(1), id(2)];
        run_prompt(&mut manager, 1, &tokens(0, 10));
        manager.fork(id(1), id(2)).unwrap();
        manager.append(id(2), &[100]).unwrap();
        manager.commit(id(2), 11);
        assert_eq!(copies(&mut manager).len(), 1);
        assert_eq!((manager.swap_cost(&group), manager.swap_cost(&group[1..])), (4, 3));
        assert_eq!(manager.recompute_cost(&group), if prefix_caching { 5 } else { 13 });
        let out = swap_out(&mut manager, &[id(2), id(1), id(2)]);
        assert_eq!(out.transfers.len(), 4);
        assert_eq!(finish(&mut manager, &out, SwapOutcome::Done), group);
        assert_eq!(used_and_swapped(&manager), (0, 4));
        let back = swap_in(&mut manager, &group);
        assert_eq!(back.transfers.len(), if prefix_caching { 2 } else { 4 });
        finish(&mut manager, &back, SwapOutcome::Done);
        assert_eq!(used_and_swapped(&manager), (4, 0));
        assert_eq!(table(&manager, 1)[..2], table(&manager, 2)[..2]);
        assert_ne!(table(&manager, 1)[2], table(&manager, 2)[2]);
    }
}

#[test]
fn members_of_a_group_may_come_back_one_by_one() {
    let mut manager = pool(8, 4, 8);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    let out = swap_out(&mut manager, &[id(1), id(2)]);
    assert_eq!(out.transfers.len(), 2);
    finish(&mut manager, &out, SwapOutcome::Done);
    let back = swap_in(&mut manager, &[id(2)]);
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(used_and_swapped(&manager), (2, 2));
    manager.append(id(2), &[1]).unwrap();
    assert_eq!(copies(&mut manager), []);
    let back = swap_in(&mut manager, &[id(1)]);
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(used_and_swapped(&manager), (3, 0));
}

#[test]
fn what_cannot_be_reserved_changes_nothing() {
    let mut manager = pool(8, 4, 3);
    run_prompt(&mut manager, 1, &tokens(0, 8));
    run_prompt(&mut manager, 2, &tokens(1000, 8));
    run_prompt(&mut manager, 3, &tokens(2000, 16));
    assert_eq!(manager.can_swap_out(&[id(3)]), AllocStatus::Never { need: 4, limit: 3 });
    let _out = swap_out(&mut manager, &[id(1)]);
    let before = manager.stats();
    assert_eq!(manager.can_swap_out(&[id(2)]), AllocStatus::Later);
    assert_eq!(manager.swap_out(&[id(2)]), Err(BlockError::OutOfSwap { need: 2, available: 1, limit: 3 }));
    assert_eq!(manager.swap_out(&[id(2), id(9)]), Err(BlockError::NotHeld(id(9))));
    let state = SequenceState::Resident;
    assert_eq!(manager.swap_in(&[id(2)]), Err(BlockError::WrongState { id: id(2), state }));
    assert_eq!(manager.stats(), before);
    manager.check().unwrap();
    // Without a swap pool, nothing is swapped out.
    let mut manager = pool(8, 4, 0);
    run_prompt(&mut manager, 1, &tokens(0, 2));
    assert_eq!(manager.can_swap_out(&[id(1)]), AllocStatus::Never { need: 1, limit: 0 });
}

#[test]
fn the_watermark_holds_for_coming_back_but_not_on_an_idle_device() {
    let config = KvConfig { num_swap_blocks: 8, watermark: 0.25, ..config(8, 1) };
    let mut manager = BlockManager::new(config).unwrap();
    run_prompt(&mut manager, 1, &tokens(0, 8));
    let out = swap_out(&mut manager, &[id(1)]);
    finish(&mut manager, &out, SwapOutcome::Done);
    run_prompt(&mut manager, 2, &[1000]);
    assert_eq!(manager.can_swap_in(&[id(1)]), AllocStatus::Later);
    release(&mut manager, 2);
    assert_eq!(manager.can_swap_in(&[id(1)]), AllocStatus::Ok);
    assert_eq!(manager.can_allocate_under(&tokens(3000, 8), &root()), AllocStatus::Ok);
}

#[test]
fn a_failed_swap_loses_the_kv_of_its_group_and_nothing_else() {
    let mut manager = pool(8, 4, 8);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    run_prompt(&mut manager, 2, &tokens(1000, 3));
    let out = swap_out(&mut manager, &[id(1)]);
    assert_eq!(finish(&mut manager, &out, SwapOutcome::Failed), [id(1)]);
    assert_eq!((manager.state(id(1)), used_and_swapped(&manager)), (None, (1, 0)));
    // What is still in memory can be found: the recomputation begins after it.
    assert_eq!(run_prompt(&mut manager, 1, &tokens(0, 10)), 8);

    let out = swap_out(&mut manager, &[id(1)]);
    finish(&mut manager, &out, SwapOutcome::Done);
    manager.reset_cache();
    let back = swap_in(&mut manager, &[id(1)]);
    assert_eq!(back.transfers.len(), 3);
    assert_eq!(finish(&mut manager, &back, SwapOutcome::Failed), [id(1)]);
    assert_eq!((manager.state(id(1)), used_and_swapped(&manager)), (None, (1, 0)));
    assert_eq!(manager.cached_prefix_under(&tokens(0, 10), &root()), 0);
    assert_eq!(manager.stats().swaps_failed, 2);
}

#[test]
fn what_was_not_committed_when_it_left_is_neither_found_nor_shared() {
    let mut manager = pool(8, 4, 8);
    manager.allocate_under(id(1), &tokens(0, 12), &root()).unwrap();
    manager.commit(id(1), 5);
    let out = swap_out(&mut manager, &[id(1)]);
    // A step that ends after the decision to swap.
    manager.commit(id(1), 12);
    finish(&mut manager, &out, SwapOutcome::Done);
    // Another sequence computes all of it. The one that comes back would write to these blocks.
    run_prompt(&mut manager, 2, &tokens(0, 12));
    let back = swap_in(&mut manager, &[id(1)]);
    // Of three blocks one is found, one was computed in part, and one not at all.
    assert_eq!((back.transfers.len(), back.num_spared), (1, 1));
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(table(&manager, 1)[0], table(&manager, 2)[0]);
    assert!(table(&manager, 1)[1..].iter().all(|block| !table(&manager, 2).contains(block)));
    manager.commit(id(1), 12);
    assert_eq!(table(&manager, 1), table(&manager, 2));
}

#[test]
fn only_what_was_computed_is_copied_and_all_of_its_tokens_come_back() {
    let mut manager = pool(8, 4, 2);
    manager.allocate_under(id(1), &tokens(0, 18), &root()).unwrap();
    manager.commit(id(1), 6);
    // Five blocks, of which two hold computed tokens, and one of these is findable: slots for two are enough.
    assert_eq!((manager.swap_cost(&[id(1)]), manager.blocks_required(&[id(1)])), (2, 5));
    assert_eq!(manager.recompute_cost(&[id(1)]), 2);
    let out = swap_out(&mut manager, &[id(1)]);
    assert_eq!((out.transfers.len(), out.num_freed), (2, 5));
    finish(&mut manager, &out, SwapOutcome::Done);
    assert_eq!((used_and_swapped(&manager), manager.num_tokens(id(1))), ((0, 2), Some(18)));

    // Nothing less than all five blocks is enough.
    run_prompt(&mut manager, 2, &tokens(1000, 16));
    assert_eq!(manager.can_swap_in(&[id(1)]), AllocStatus::Later);
    assert_eq!(manager.swap_in(&[id(1)]), Err(BlockError::OutOfBlocks { need: 4, available: 3 }));
    release(&mut manager, 2);
    manager.reset_cache();
    let back = swap_in(&mut manager, &[id(1)]);
    assert_eq!((back.transfers.len(), back.num_spared, back.num_freed), (2, 0, 0));
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(used_and_swapped(&manager), (5, 0));
    // It continues where it was, with the tokens that it had.
    let mut manager = pool(8, 4, 2);
    manager.allocate_under(id(1), &tokens(0, 18), &root()).unwrap();
    let out = swap_out(&mut manager, &[id(1)]);
    assert_eq!(out.transfers, []);
    finish(&mut manager, &out, SwapOutcome::Done);
    let back = swap_in(&mut manager, &[id(1)]);
    assert_eq!(back.transfers, []);
    finish(&mut manager, &back, SwapOutcome::Done);
    manager.commit(id(1), 18);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 18), &root()), 16);
}

#[test]
fn what_others_hold_does_not_come_free() {
    let mut manager = pool(8, 4, 8);
    let group = [id(1), id(2)];
    run_prompt(&mut manager, 1, &tokens(0, 14));
    manager.fork(id(1), id(2)).unwrap();
    manager.append(id(2), &[100]).unwrap();
    assert_eq!(run_prompt(&mut manager, 3, &tokens(0, 6)), 4);
    let exclusive = [&group[..1], &group[1..], &group, &[id(1), id(2), id(1)], &[id(3)], &[id(9)]];
    assert_eq!(exclusive.map(|group| manager.blocks_exclusive(group)), [1, 1, 4, 4, 1, 0]);
    let before = manager.stats();
    let out = swap_out(&mut manager, &group);
    assert_eq!((out.transfers.len(), out.num_freed), (5, 4));
    // The swap in flight holds them too.
    assert_eq!(manager.blocks_exclusive(&group), 0);
    finish(&mut manager, &out, SwapOutcome::Done);
    assert_eq!(before.blocks_used - manager.stats().blocks_used, out.num_freed);
}

#[test]
fn a_report_of_an_unknown_swap_changes_nothing() {
    let mut manager = pool(4, 4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    let out = swap_out(&mut manager, &[id(1)]);
    finish(&mut manager, &out, SwapOutcome::Done);
    let before = manager.stats();
    assert_eq!(manager.finish_swap(out.id, SwapOutcome::Failed), []);
    assert_eq!(manager.finish_swap(SwapId(77), SwapOutcome::Done), []);
    assert_eq!(manager.stats(), before);
}

#[test]
fn a_cow_while_the_sibling_leaves_does_not_disturb_the_copy() {
    let mut manager = pool(8, 4, 8);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.fork(id(1), id(2)).unwrap();
    let out = swap_out(&mut manager, &[id(2)]);
    let shared = table(&manager, 1)[1];
    // The sibling is aborted, but the swap still reads the block.
    release(&mut manager, 2);
    manager.append(id(1), &[7]).unwrap();
    let copied = copies(&mut manager);
    assert_eq!((copied.len(), copied[0].0.0), (1, shared));
    assert_eq!(finish(&mut manager, &out, SwapOutcome::Done), []);
    assert_eq!(used_and_swapped(&manager), (2, 0));
}
