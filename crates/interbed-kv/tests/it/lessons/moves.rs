//! Bugs of forks, swaps and moves, some of them from the lessons under "Scheduling".

use interbed_kv::{AllocStatus, BlockError, BlockManager, KvConfig, SequenceState, Swap, SwapOutcome};

use crate::{UnderRoot, config, copies, id, pool, release, root, run_prompt, table, tokens};

fn swapping_pool(num_blocks: usize, num_swap_blocks: usize) -> BlockManager {
    BlockManager::new(KvConfig { num_swap_blocks, ..config(num_blocks, 4) }).expect("a good configuration")
}

fn swap_out(manager: &mut BlockManager, number: u64) -> Swap {
    let swap = manager.swap_out(&[id(number)]).expect("slots");
    manager.check().unwrap();
    swap
}

fn finish(manager: &mut BlockManager, swap: &Swap, outcome: SwapOutcome) -> usize {
    let concerned = manager.finish_swap(swap.id, outcome).len();
    manager.check().unwrap();
    concerned
}

fn nothing_held(manager: &BlockManager) -> bool {
    let stats = manager.stats();
    (stats.blocks_used, stats.swap_slots_used, stats.sequences) == (0, 0, 0)
}

// vllm#45387, vllm-ascend#16315, TRT-LLM PR#15931: two swaps out at once waited for slots that each other's copies
// held.
#[test]
fn a_swap_reserves_its_destination_before_anything_moves() {
    let mut manager = swapping_pool(8, 3);
    run_prompt(&mut manager, 1, &tokens(0, 8));
    run_prompt(&mut manager, 2, &tokens(1000, 8));
    let first = swap_out(&mut manager, 1);
    assert_eq!(manager.stats().swap_slots_used, 2);
    // The second group is told at once that it must be dropped; it could not be swapped out in part.
    assert_eq!(manager.swap_out(&[id(2)]), Err(BlockError::OutOfSwap { need: 2, available: 1, limit: 3 }));
    assert_eq!(manager.state(id(2)), Some(SequenceState::Resident));
    assert!(manager.can_append(id(2), 1));
    assert_eq!(finish(&mut manager, &first, SwapOutcome::Done), 1);
    // The same on the way in: blocks for the whole group, or none.
    manager.reset_cache();
    run_prompt(&mut manager, 3, &tokens(2000, 20));
    let before = manager.stats();
    assert_eq!(manager.swap_in(&[id(1)]), Err(BlockError::OutOfBlocks { need: 2, available: 1 }));
    assert_eq!(manager.stats().blocks_used, before.blocks_used);
    manager.check().unwrap();
}

// vllm#39734, sglang#28530: a group that can never come back must not wait for it.
#[test]
fn a_group_larger_than_a_pool_is_told_so() {
    let mut manager = swapping_pool(8, 2);
    run_prompt(&mut manager, 1, &tokens(0, 12));
    assert_eq!(manager.can_swap_out(&[id(1)]), AllocStatus::Never { need: 3, limit: 2 });
    // Nor does waiting help where there is nothing to swap.
    assert_eq!(manager.can_swap_in(&[id(1)]), AllocStatus::Never { need: 3, limit: 8 });
    assert_eq!(manager.can_swap_in(&[id(9)]), AllocStatus::Never { need: 0, limit: 8 });
}

// vllm#46283: blocks leaked when a request was aborted during an asynchronous load. LMCache#4185: and its completion
// came.
#[test]
fn an_abort_in_the_midst_of_a_swap_leaks_nothing() {
    for outcome in [SwapOutcome::Done, SwapOutcome::Failed] {
        let mut manager = swapping_pool(8, 8);
        run_prompt(&mut manager, 1, &tokens(0, 10));
        let out = swap_out(&mut manager, 1);
        release(&mut manager, 1);
        // The driver still reads these blocks and writes these slots.
        assert_eq!((manager.stats().blocks_used, manager.stats().swap_slots_used), (3, 3));
        assert_eq!(finish(&mut manager, &out, outcome), 0);
        assert!(nothing_held(&manager));

        run_prompt(&mut manager, 1, &tokens(0, 10));
        let out = swap_out(&mut manager, 1);
        finish(&mut manager, &out, SwapOutcome::Done);
        manager.reset_cache();
        let back = manager.swap_in(&[id(1)]).unwrap();
        release(&mut manager, 1);
        assert_eq!((manager.stats().blocks_used, manager.stats().swap_slots_used), (3, 3));
        assert_eq!(finish(&mut manager, &back, outcome), 0);
        assert!(nothing_held(&manager));
        assert_eq!(manager.cached_prefix_under(&tokens(0, 10), &root()), 0);
    }
}

#[test]
fn a_late_completion_does_not_concern_a_new_request_of_the_same_number() {
    let mut manager = swapping_pool(8, 8);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    let old = swap_out(&mut manager, 1);
    release(&mut manager, 1);
    run_prompt(&mut manager, 1, &tokens(1000, 6));
    let new = swap_out(&mut manager, 1);
    assert_eq!(finish(&mut manager, &old, SwapOutcome::Failed), 0);
    assert_eq!(manager.state(id(1)), Some(SequenceState::Leaving(new.id)));
    assert_eq!(finish(&mut manager, &new, SwapOutcome::Done), 1);
    assert_eq!((manager.num_tokens(id(1)), manager.stats().swap_slots_used), (Some(6), 2));
}

// nano-vllm#208 once more: KV that is being swapped in must not be found, just like KV that is not computed yet.
#[test]
fn what_arrives_is_found_only_when_it_is_there() {
    let mut manager = swapping_pool(8, 8);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    let out = swap_out(&mut manager, 1);
    finish(&mut manager, &out, SwapOutcome::Done);
    // Other sequences have needed all blocks meanwhile.
    run_prompt(&mut manager, 2, &tokens(1000, 32));
    release(&mut manager, 2);
    let back = manager.swap_in(&[id(1)]).unwrap();
    assert_eq!(back.transfers.len(), 3);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 10), &root()), 0);
    assert_eq!(manager.block_table(id(1)), None);
    finish(&mut manager, &back, SwapOutcome::Done);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 10), &root()), 8);
}

// dynamo#15079: a load that failed was counted as a hit.
#[test]
fn a_failed_load_is_a_miss() {
    let mut manager = swapping_pool(4, 4);
    run_prompt(&mut manager, 1, &tokens(0, 14));
    let out = swap_out(&mut manager, 1);
    finish(&mut manager, &out, SwapOutcome::Done);
    run_prompt(&mut manager, 2, &tokens(1000, 16));
    release(&mut manager, 2);
    let back = manager.swap_in(&[id(1)]).unwrap();
    assert_eq!(finish(&mut manager, &back, SwapOutcome::Failed), 1);
    assert!(nothing_held(&manager));
    assert_eq!((manager.stats().swapped_in_blocks, manager.stats().swap_spared_blocks), (0, 0));
    assert_eq!(run_prompt(&mut manager, 1, &tokens(0, 14)), 0);
}

// dynamo PR#13398, with tables that share everything.
#[test]
fn forks_are_freed_one_by_one() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 10));
    for child in 2..6 {
        manager.fork(id(1), id(child)).unwrap();
    }
    for number in [3, 1, 5, 2] {
        release(&mut manager, number);
        assert_eq!(manager.stats().blocks_used, 3);
    }
    release(&mut manager, 4);
    assert_eq!((manager.stats().blocks_cached, manager.stats().blocks_free), (2, 6));
}

// A sequence may still write to uncomputed slots: a fork would read, or write, the other's.
#[test]
fn uncomputed_slots_are_never_shared() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 6));
    manager.append(id(1), &[6]).unwrap();
    assert_eq!(manager.fork(id(1), id(2)), Err(BlockError::Uncomputed { id: id(1), computed: 6, tokens: 7 }));
    manager.commit(id(1), 7);
    manager.fork(id(1), id(2)).unwrap();
    manager.check().unwrap();
}

// nano-vllm#163 once more: after a move, neither the index nor a child may lead to the old place.
#[test]
fn moved_content_is_found_at_its_new_place_only() {
    let mut manager = pool(8, 1);
    run_prompt(&mut manager, 1, &tokens(1000, 4));
    run_prompt(&mut manager, 2, &tokens(0, 3));
    release(&mut manager, 1);
    manager.set_usable(4);
    let before = table(&manager, 2);
    assert_eq!(before, [4, 5, 6]);
    while manager.compact(8) > 0 {
        manager.check().unwrap();
    }
    let after = table(&manager, 2);
    assert!(after.iter().all(|&block| block < 4));
    assert_eq!(copies(&mut manager).len(), 3);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 4), &root()), 3);
    manager.set_usable(8);
    run_prompt(&mut manager, 4, &tokens(3000, 5));
    assert_eq!((manager.cached_prefix_under(&tokens(0, 4), &root()), table(&manager, 2)), (3, after));
}
