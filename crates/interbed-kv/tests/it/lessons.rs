//! Bugs that other block managers had, each as a test ("Block managers" in the project's lessons).

mod moves;

use interbed_kv::testing::OLDEST_LEAF;
use interbed_kv::{BlockError, BlockManager, ChainHasher, ChainRoot};

use crate::{UnderRoot, config, id, pool, release, root, run_prompt, table, tokens};

/// Returns a pool whose hashes have few bits, so that they collide.
fn colliding_pool(num_blocks: usize, block_size: usize, bits: u32) -> BlockManager {
    let config = config(num_blocks, block_size);
    let hasher = ChainHasher::truncated(config.seed, bits);
    BlockManager::with_parts(config, hasher, OLDEST_LEAF.build(num_blocks)).expect("a good configuration")
}

// nano-vllm#163: the index still led from the old hash to the block after its reuse.
#[test]
fn a_reused_block_is_not_found_by_its_old_content() {
    let mut manager = pool(2, 4);
    let old = tokens(0, 8);
    run_prompt(&mut manager, 1, &old);
    release(&mut manager, 1);
    assert_eq!(manager.cached_prefix_under(&old, &root()), 4);
    run_prompt(&mut manager, 2, &tokens(1000, 8));
    assert_eq!(manager.cached_prefix_under(&old, &root()), 0);
    release(&mut manager, 2);
    assert_eq!(run_prompt(&mut manager, 3, &old), 0);
}

#[test]
fn a_second_content_under_one_hash_does_not_replace_the_first() {
    let mut manager = colliding_pool(8, 2, 0);
    let (first, second) = (tokens(0, 5), tokens(1000, 5));
    run_prompt(&mut manager, 1, &first);
    run_prompt(&mut manager, 2, &second);
    assert_eq!(manager.cached_prefix_under(&first, &root()), 4);
    assert_eq!(manager.cached_prefix_under(&second, &root()), 4);
    release(&mut manager, 1);
    release(&mut manager, 2);
    assert_eq!(run_prompt(&mut manager, 3, &first), 4);
    assert_eq!(run_prompt(&mut manager, 4, &second), 4);
    assert_ne!(table(&manager, 3)[..2], table(&manager, 4)[..2]);
}

// vllm PR#54727: 64-bit hashes can be made to collide, so a hit is believed only if tokens and parent compare equal.
#[test]
fn colliding_hashes_never_serve_another_prompt() {
    for bits in [0, 1, 4] {
        let mut manager = colliding_pool(32, 1, bits);
        run_prompt(&mut manager, 1, &[1, 2, 3, 4]);
        // Equal tokens at equal depth, after another parent.
        assert_eq!(manager.cached_prefix_under(&[9, 2, 3, 4], &root()), 0, "{bits} bits");
        assert_eq!(manager.cached_prefix_under(&[1, 9, 3, 4], &root()), 1, "{bits} bits");
        assert_eq!(run_prompt(&mut manager, 2, &[9, 2, 3, 4, 5]), 0, "{bits} bits");
        assert_eq!(manager.cached_prefix_under(&[9, 2, 3, 4, 5], &root()), 4, "{bits} bits");
        assert_eq!(manager.cached_prefix_under(&[1, 2, 3, 4, 5], &root()), 4, "{bits} bits");
    }
}

#[test]
fn colliding_salts_never_serve_another_tenant() {
    let mut manager = colliding_pool(16, 2, 0);
    let prompt = tokens(0, 5);
    let roots = [
        ChainRoot::default(),
        ChainRoot::new(Some(""), 0),
        ChainRoot::new(Some("tenant"), 0),
        ChainRoot::new(Some("tenant"), 1),
    ];
    for (number, root) in roots.iter().enumerate() {
        let number = number as u64;
        assert_eq!(manager.cached_prefix_under(&prompt, root), 0);
        assert_eq!(manager.allocate_under(id(number), &prompt, root).unwrap().num_cached_tokens, 0);
        manager.commit(id(number), prompt.len());
        assert_eq!(manager.cached_prefix_under(&prompt, root), 4);
        manager.check().unwrap();
    }
}

// An index that collisions can make arbitrarily slow allows a denial of service.
#[test]
fn prompts_made_to_collide_stay_private_when_too_many() {
    let mut manager = colliding_pool(100, 1, 0);
    run_prompt(&mut manager, 1, &tokens(0, 41));
    let findable = manager.cached_prefix_under(&tokens(0, 41), &root());
    assert!((1..40).contains(&findable), "{findable}");
    // Nothing is lost: the next prompt is served, uncached, and all blocks come back.
    assert_eq!(run_prompt(&mut manager, 2, &tokens(1000, 41)), 0);
    release(&mut manager, 1);
    release(&mut manager, 2);
    let stats = manager.stats();
    assert_eq!((stats.blocks_cached, stats.blocks_free), (findable, 100 - findable));
}

// nano-vllm#144, vllm#9972: a zero-length query.
#[test]
fn a_fully_cached_prompt_recomputes_its_last_token() {
    for block_size in [1, 4, 16, 256] {
        let mut manager = pool(8, block_size);
        let prompt = tokens(0, 3 * block_size as u32);
        run_prompt(&mut manager, 1, &prompt);
        assert_eq!(manager.cached_prefix_under(&prompt, &root()), 2 * block_size);
        assert_eq!(run_prompt(&mut manager, 2, &prompt), 2 * block_size);
        // The recomputed block is merged with the one that was already there.
        assert_eq!(table(&manager, 1), table(&manager, 2));
        assert_eq!(manager.stats().blocks_merged, 1);
        assert_eq!(manager.stats().blocks_used, 3);
        // With one token more, all three blocks are shared.
        assert_eq!(manager.cached_prefix_under(&tokens(0, prompt.len() as u32 + 1), &root()), prompt.len());
    }
}

// nano-vllm#208, InfiniLM#515: two prompts of one batch shared blocks that had not been written.
#[test]
fn blocks_are_found_only_after_the_step_that_fills_them_has_retired() {
    let mut manager = pool(16, 4);
    let prompt = tokens(0, 13);
    for number in [1, 2] {
        assert_eq!(manager.allocate_under(id(number), &prompt, &root()).unwrap().num_cached_tokens, 0);
    }
    assert!(table(&manager, 1).iter().all(|block| !table(&manager, 2).contains(block)));
    // A chunk of the first prompt retires: only the full blocks in it can be found.
    manager.commit(id(1), 7);
    assert_eq!(manager.cached_prefix_under(&prompt, &root()), 4);
    manager.commit(id(1), 8);
    assert_eq!(manager.cached_prefix_under(&prompt, &root()), 8);
    manager.check().unwrap();
    // An append is a reservation, not a result.
    manager.append(id(1), &tokens(13, 8)).unwrap();
    manager.commit(id(1), 13);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 30), &root()), 12);
    manager.commit(id(1), 21);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 30), &root()), 20);
}

#[test]
fn prompts_of_one_batch_are_merged_when_both_have_computed() {
    let mut manager = pool(8, 4);
    let prompt = tokens(0, 10);
    manager.allocate_under(id(1), &prompt, &root()).unwrap();
    manager.allocate_under(id(2), &prompt, &root()).unwrap();
    manager.commit(id(2), 10);
    manager.commit(id(1), 10);
    manager.check().unwrap();
    assert_eq!(table(&manager, 1)[..2], table(&manager, 2)[..2]);
    assert_ne!(table(&manager, 1)[2], table(&manager, 2)[2]);
    assert_eq!(manager.stats().blocks_used, 4);
}

// nano-vllm#211, #233: tokens to schedule were counted before the hits were known.
#[test]
fn hits_are_known_before_allocation() {
    let mut manager = pool(16, 4);
    run_prompt(&mut manager, 1, &tokens(0, 9));
    for length in [1, 4, 5, 8, 9, 10, 13] {
        let prompt = tokens(0, length);
        let expect = manager.cached_prefix_under(&prompt, &root());
        assert_eq!(expect, (length as usize - 1) / 4 * 4 * usize::from(length < 9) + 8 * usize::from(length >= 9));
        let allocation = manager.allocate_under(id(2), &prompt, &root()).unwrap();
        assert_eq!(allocation.num_cached_tokens, expect);
        release(&mut manager, 2);
    }
}

// nano-vllm#217: the append at a block boundary was skipped when a preempted sequence came back.
#[test]
fn a_sequence_preempted_at_a_block_boundary_comes_back_with_room_to_append() {
    let mut manager = pool(8, 4);
    let mut sequence = tokens(0, 7);
    run_prompt(&mut manager, 1, &sequence);
    manager.append(id(1), &[7]).unwrap();
    sequence.push(7);
    manager.commit(id(1), 8);
    release(&mut manager, 1);
    assert_eq!(run_prompt(&mut manager, 1, &sequence), 4);
    assert_eq!(table(&manager, 1).len(), 2);
    assert!(manager.can_append(id(1), 1));
    manager.append(id(1), &[8]).unwrap();
    assert_eq!(table(&manager, 1).len(), 3);
    assert_eq!(manager.num_tokens(id(1)), Some(9));
    manager.check().unwrap();
}

#[test]
fn a_sequence_preempted_in_mid_prefill_leaves_only_what_it_computed() {
    let mut manager = pool(8, 4);
    manager.allocate_under(id(1), &tokens(0, 20), &root()).unwrap();
    manager.commit(id(1), 10);
    release(&mut manager, 1);
    let stats = manager.stats();
    assert_eq!((stats.blocks_cached, stats.blocks_free), (2, 6));
    assert_eq!(manager.cached_prefix_under(&tokens(0, 20), &root()), 8);
}

// The free list is a linked list in an array; elsewhere, `deque.remove` searched it.
#[test]
fn a_hit_revives_cached_blocks_from_the_middle_of_the_list() {
    let mut manager = pool(9, 1);
    for number in 0..3 {
        run_prompt(&mut manager, number, &tokens(1000 * number as u32, 3));
        release(&mut manager, number);
    }
    assert_eq!(manager.stats().blocks_cached, 9);
    assert_eq!(run_prompt(&mut manager, 4, &tokens(1000, 3)), 2);
    // The recomputed third block took the oldest leaf's place, and was merged again at once.
    let stats = manager.stats();
    assert_eq!((stats.blocks_used, stats.blocks_cached, stats.blocks_free, stats.evictions), (3, 5, 1, 1));
    assert_eq!(manager.cached_prefix_under(&tokens(2000, 3), &root()), 2);
}

// dynamo PR#13398, vllm#42571: decrementing all first and collecting afterwards queued a block twice.
#[test]
fn freeing_decrements_and_tests_blocks_one_by_one() {
    let mut manager = pool(6, 2);
    run_prompt(&mut manager, 1, &tokens(0, 5));
    for number in [2, 3] {
        assert_eq!(run_prompt(&mut manager, number, &tokens(0, 5)), 4);
    }
    for (number, used) in [(2, 4), (1, 3), (3, 0)] {
        release(&mut manager, number);
        assert_eq!(manager.stats().blocks_used, used);
    }
    let stats = manager.stats();
    assert_eq!((stats.blocks_cached, stats.blocks_free), (2, 4));
}

// vllm#42656: partial blocks are useless to others, so they are reused first; of full blocks, the deepest.
#[test]
fn partial_blocks_are_reused_first_then_full_ones_from_the_deepest_on() {
    let mut manager = pool(4, 2);
    run_prompt(&mut manager, 1, &tokens(0, 7));
    let held = table(&manager, 1);
    release(&mut manager, 1);
    assert_eq!(manager.stats().blocks_cached, 3);
    let mut reused = Vec::new();
    for number in 2..6 {
        manager.allocate_under(id(number), &[9000 + number as u32], &root()).unwrap();
        manager.check().unwrap();
        reused.extend(table(&manager, number));
    }
    assert_eq!(reused, [held[3], held[2], held[1], held[0]]);
}

#[test]
fn what_a_partial_block_leaves_is_reused_before_blocks_that_were_never_used() {
    let mut manager = pool(8, 4);
    manager.allocate_under(id(1), &tokens(0, 6), &root()).unwrap();
    manager.commit(id(1), 6);
    let held = table(&manager, 1);
    release(&mut manager, 1);
    manager.allocate_under(id(2), &tokens(1000, 5), &root()).unwrap();
    assert_eq!(table(&manager, 2)[0], held[1]);
    assert!(!held.contains(&table(&manager, 2)[1]));
}

// InfiniLM evicted in the order of a set, which stranded the children of evicted blocks.
#[test]
fn leaves_are_evicted_before_their_parents() {
    let mut manager = pool(6, 1);
    run_prompt(&mut manager, 1, &[1, 2, 3]);
    run_prompt(&mut manager, 2, &[1, 2, 4, 5]);
    // One sequence releases the trunk first, the other later; the trunk must outlive both branches.
    release(&mut manager, 1);
    release(&mut manager, 2);
    let findable = |manager: &BlockManager| {
        (manager.cached_prefix_under(&[1, 2, 3, 0], &root()), manager.cached_prefix_under(&[1, 2, 4, 5, 0], &root()))
    };
    let mut seen = vec![findable(&manager)];
    for number in 3..9 {
        manager.allocate_under(id(number), &[100 + number as u32], &root()).unwrap();
        manager.check().unwrap();
        seen.push(findable(&manager));
    }
    assert_eq!(seen, [(3, 4), (3, 4), (2, 4), (2, 3), (2, 2), (1, 1), (0, 0)]);
}

// vllm#44701 mixed two strings into one hash without saying where one ends.
#[test]
fn roots_differ_by_field_not_by_bytes() {
    let hasher = ChainHasher::new(5);
    let eight = u64::from_le_bytes(*b"abcdefgh");
    let roots = [
        ChainRoot::new(None, 0),
        ChainRoot::new(Some(""), 0),
        ChainRoot::new(None, eight),
        ChainRoot::new(Some("abcdefgh"), 0),
        ChainRoot::new(Some("abcdefgh"), eight),
        ChainRoot::new(Some("abcdefghabcdefgh"), 0),
        ChainRoot::new(Some("a"), 0),
        ChainRoot::new(Some("a\0"), 0),
    ];
    for (index, root) in roots.iter().enumerate() {
        for other in &roots[..index] {
            assert_ne!(root, other);
            assert_ne!(hasher.root(root), hasher.root(other), "{root:?} {other:?}");
        }
    }
    assert_eq!(ChainRoot::new(Some("a"), 7), ChainRoot::new(Some("a"), 7));
}

// sglang#37160: the salt must reach every look-up.
#[test]
fn tenants_share_neither_blocks_nor_the_timing_of_hits() {
    let mut manager = pool(16, 4);
    let (alice, bob) = (ChainRoot::new(Some("alice"), 0), ChainRoot::new(Some("bob"), 0));
    let prompt = tokens(0, 9);
    manager.allocate_under(id(1), &prompt, &alice).unwrap();
    manager.commit(id(1), 9);
    manager.free(id(1));
    for other in [&bob, &root(), &ChainRoot::new(Some("alice"), 1)] {
        assert_eq!(manager.cached_prefix_under(&prompt, other), 0);
    }
    assert_eq!(manager.cached_prefix_under(&prompt, &alice), 8);
    manager.check().unwrap();
}

// LMCache#4185: a completion for a request that no longer exists.
#[test]
fn late_completions_are_harmless() {
    let mut manager = pool(4, 2);
    manager.allocate_under(id(1), &tokens(0, 6), &root()).unwrap();
    release(&mut manager, 1);
    let before = manager.stats();
    manager.commit(id(1), 6);
    assert!(!manager.free(id(1)));
    assert_eq!(manager.append(id(1), &[1]), Err(BlockError::NotHeld(id(1))));
    assert_eq!(manager.stats(), before);
    assert_eq!(manager.cached_prefix_under(&tokens(0, 6), &root()), 0);
    manager.check().unwrap();
}

// Log-probabilities of a prompt need every token computed; such a sequence must not evict what others can use.
#[test]
fn an_unshared_sequence_neither_finds_nor_publishes() {
    let mut manager = pool(8, 4);
    let prompt = tokens(0, 9);
    run_prompt(&mut manager, 1, &prompt);
    release(&mut manager, 1);
    let cached = manager.stats().blocks_cached;
    assert_eq!(manager.cached_prefix_under(&prompt, &ChainRoot::unshared()), 0);
    assert_eq!(manager.allocate_under(id(2), &prompt, &ChainRoot::unshared()).unwrap().num_cached_tokens, 0);
    manager.commit(id(2), 9);
    manager.check().unwrap();
    manager.free(id(2));
    manager.check().unwrap();
    assert_eq!((manager.stats().blocks_cached, manager.stats().blocks_free), (cached, 8 - cached));
}
