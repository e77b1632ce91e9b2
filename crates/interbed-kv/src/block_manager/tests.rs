//! Tests of what stays unchanged when KV moves. These tests look at contents, which callers of the manager never see.

use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::{
    contents::ContentId,
    eviction::EvictionKind,
    hash::BlockHash,
    testing::Rng,
    transfer::{Swap, SwapDirection, SwapOutcome},
};

const BLOCK: usize = 2;

fn manager(num_blocks: usize, eviction: EvictionKind) -> BlockManager {
    let config =
        KvConfig { num_blocks, num_swap_blocks: num_blocks, block_size: BLOCK, eviction, ..KvConfig::default() };
    BlockManager::new(config).expect("a good configuration")
}

fn begin(manager: &mut BlockManager, id: u64, tokens: &[TokenId]) -> bool {
    let hashes = manager.hash_prefix(&ChainRoot::default(), tokens);
    manager.allocate(SequenceId(id), tokens, &hashes).is_ok()
}

/// Returns the contents of each sequence, in memory and below.
fn contents(manager: &BlockManager) -> BTreeMap<SequenceId, (Vec<ContentId>, Vec<ContentId>)> {
    let of_table = |table: &Table| {
        let blocks = table.blocks().iter().map(|&block| manager.cache.content(block)).collect();
        (blocks, table.slots().iter().map(|&slot| manager.cache.content_below(slot)).collect())
    };
    manager.tables.iter().map(|(id, table)| (id, of_table(table))).collect()
}

fn findable(manager: &BlockManager) -> HashSet<(ContentId, Option<BlockHash>)> {
    manager.cache.findable().into_iter().collect()
}

/// Runs random operations, and compares contents before and after each compaction and each end of a swap.
struct Load {
    random: Rng,
    manager: BlockManager,
    swaps: Vec<Swap>,
    moves: usize,
    failures: usize,
}

impl Load {
    fn step(&mut self, number: u64) {
        let id = self.random.below(6) as u64;
        let sequence = SequenceId(id);
        match self.random.below(22) {
            0..5 => {
                let family = self.random.below(2);
                let tokens: Vec<_> = (0..1 + self.random.below(9)).map(|at| (family * at) as TokenId).collect();
                begin(&mut self.manager, id, &tokens);
            }
            5..8 => drop(self.manager.append(sequence, &[self.random.below(3) as TokenId])),
            8..12 => self.manager.commit(sequence, usize::MAX),
            12 => drop(self.manager.fork(sequence, SequenceId(6 + number % 4))),
            13 => drop(self.manager.free(SequenceId(self.random.below(10) as u64))),
            14 => self.swaps.extend(self.manager.swap_out(&[sequence])),
            15 => self.swaps.extend(self.manager.swap_in(&[sequence])),
            16 | 17 if !self.swaps.is_empty() => self.end_swap(),
            18 => self.manager.set_usable(4 + self.random.below(12)),
            19 => self.compact(),
            20 | 21 => self.foresee(),
            _ => {}
        }
        self.manager.check().unwrap_or_else(|violation| panic!("step {number}: {violation}"));
    }

    /// Checks that the blocks that are foreseen are the blocks that are given.
    fn foresee(&mut self) {
        let (family, id) = (self.random.below(2), 10);
        let tokens: Vec<_> = (0..1 + self.random.below(9)).map(|at| (family * at) as TokenId).collect();
        let hashes = self.manager.hash_prefix(&ChainRoot::default(), &tokens);
        let Foreseen { blocks, found } = self.manager.foresee(&tokens, &hashes);
        if self.random.below(3) == 0 && begin(&mut self.manager, id, &tokens) {
            let table = self.manager.block_table(SequenceId(id)).expect("it was given blocks");
            assert_eq!(table[..blocks.len()], blocks);
            assert!(found <= blocks.len());
            self.manager.free(SequenceId(id));
        }
    }

    fn compact(&mut self) {
        let before = (contents(&self.manager), findable(&self.manager), self.manager.stats());
        self.moves += self.manager.compact(1 + self.random.below(8));
        let after = (contents(&self.manager), findable(&self.manager), self.manager.stats());
        assert_eq!(after.0, before.0, "a move changed a content");
        let evicted = (after.2.evictions - before.2.evictions) as usize;
        assert!(after.1.is_subset(&before.1) && after.1.len() + evicted == before.1.len());
    }

    fn end_swap(&mut self) {
        let swap = self.swaps.swap_remove(self.random.below(self.swaps.len()));
        let fails = self.random.below(3) == 0;
        let before = (contents(&self.manager), findable(&self.manager));
        let outcome = if fails { SwapOutcome::Failed } else { SwapOutcome::Done };
        let group = self.manager.finish_swap(swap.id, outcome);
        let after = (contents(&self.manager), findable(&self.manager));
        for (id, contents) in &before.0 {
            let lost = fails && group.contains(id);
            assert_eq!(after.0.contains_key(id), !lost, "{id} waits for another swap, or for none");
            if !group.contains(id) {
                assert_eq!(&after.0[id], contents, "{id} has nothing to do with this swap");
            } else if !fails && swap.direction == SwapDirection::Out {
                assert_eq!(after.0[id].1, contents.1, "what is below is what was in memory");
            }
        }
        // What could be found in memory is still there, unless more blocks are present than may be used.
        if self.manager.stats().blocks_withdrawn == 0 {
            assert!(before.1.is_subset(&after.1), "a swap that has ended took what it had nothing to do with");
        }
        assert!(!fails || after.1.is_subset(&before.1), "a failed swap has published something");
        self.failures += usize::from(fails);
    }
}

#[test]
fn moves_and_swaps_change_locations_and_no_content() {
    for seed in 0..24 {
        let eviction = EvictionKind::ADAPTIVE;
        let mut load =
            Load { random: Rng(seed), manager: manager(16, eviction), swaps: Vec::new(), moves: 0, failures: 0 };
        (0..4000).for_each(|number| load.step(number));
        assert!(load.moves > 0 && load.failures > 0);
    }
}

#[test]
fn what_is_kept_for_the_next_is_taken_by_others_only_when_nothing_else_is_free() {
    let mut manager = manager(6, EvictionKind::ADAPTIVE);
    let tokens = [1, 2, 3, 4, 5];
    let hashes = manager.hash_prefix(&ChainRoot::default(), &tokens);
    let foreseen = manager.foresee(&tokens, &hashes);
    assert_eq!((foreseen.blocks.len(), foreseen.found), (3, 0));
    // Three others grow, each by a block.
    let blocks_of = |manager: &BlockManager, id| manager.block_table(SequenceId(id)).unwrap().to_vec();
    manager.tables.insert(SequenceId(7), Table::new(ChainRoot::default(), false, Vec::new(), 0, 0, BLOCK));
    manager.append(SequenceId(7), &[1, 2, 3, 4, 5]).unwrap();
    assert!(blocks_of(&manager, 7).iter().all(|block| !foreseen.blocks.contains(block)));
    assert_eq!(manager.foresee(&tokens, &hashes), foreseen);
    manager.append(SequenceId(7), &[6, 7]).unwrap();
    assert_eq!(blocks_of(&manager, 7)[3], foreseen.blocks[2], "the last first");
    manager.free(SequenceId(7));
    assert!(begin(&mut manager, 1, &tokens));
    assert_eq!(blocks_of(&manager, 1)[..2], foreseen.blocks[..2]);
    manager.check().unwrap();
}

#[test]
fn a_content_keeps_its_name_on_the_way_down_and_up() {
    let mut manager = manager(4, EvictionKind::ADAPTIVE);
    assert!(begin(&mut manager, 1, &[1, 2, 3, 4, 5]));
    manager.commit(SequenceId(1), 5);
    let before = contents(&manager)[&SequenceId(1)].0.clone();
    let out = manager.swap_out(&[SequenceId(1)]).unwrap();
    manager.finish_swap(out.id, SwapOutcome::Done);
    // Another needs all blocks.
    assert!(begin(&mut manager, 2, &[9; 8]));
    manager.free(SequenceId(2));
    assert_eq!(contents(&manager)[&SequenceId(1)], (vec![], before.clone()));
    let back = manager.swap_in(&[SequenceId(1)]).unwrap();
    assert_eq!(contents(&manager)[&SequenceId(1)], (before.clone(), before.clone()), "on its way, it has both");
    manager.finish_swap(back.id, SwapOutcome::Done);
    assert_eq!(contents(&manager)[&SequenceId(1)], (before, vec![]));
    manager.check().unwrap();
}

#[test]
fn what_is_below_does_not_change_when_its_block_is_written() {
    let mut manager = manager(8, EvictionKind::ADAPTIVE);
    let [first, second] = [1, 2].map(SequenceId);
    assert!(begin(&mut manager, 1, &[1, 2, 3]));
    manager.commit(first, 3);
    manager.fork(first, second).unwrap();
    let out = manager.swap_out(&[second]).unwrap();
    manager.finish_swap(out.id, SwapOutcome::Done);
    // The last that holds the partial block writes in place; what the other has below is as it was.
    manager.append(first, &[7]).unwrap();
    manager.commit(first, 4);
    manager.check().unwrap();
    let mut copies = Vec::new();
    manager.take_copies(&mut copies);
    assert_eq!(copies, []);
    let back = manager.swap_in(&[second]).unwrap();
    manager.finish_swap(back.id, SwapOutcome::Done);
    manager.append(second, &[8]).unwrap();
    manager.commit(second, 4);
    manager.check().unwrap();
    let found = |tokens: &[TokenId]| {
        manager.look_up(tokens, &manager.hash_prefix(&ChainRoot::default(), tokens)).num_cached_tokens
    };
    assert_eq!([found(&[1, 2, 3, 7, 0]), found(&[1, 2, 3, 8, 0])], [4, 4]);
}

/// Computes a request of `tenant` and ends it. Returns how many of its tokens were cached.
fn request(manager: &mut BlockManager, tenant: Option<u128>, tokens: &[TokenId]) -> usize {
    let hashes = manager.hash_prefix(&ChainRoot::default().of_tenant(tenant), tokens);
    let allocation = manager.allocate(SequenceId(9), tokens, &hashes).expect("room");
    manager.commit(SequenceId(9), tokens.len());
    manager.free(SequenceId(9));
    manager.check().expect("all invariants");
    allocation.num_cached_tokens
}

#[test]
fn what_one_tenant_has_cached_others_do_not_evict_within_its_share() {
    let config = KvConfig { num_blocks: 64, block_size: 4, ..KvConfig::default() };
    let mut manager = BlockManager::new(config).expect("a good configuration");
    let (a, b, c) = (Some(1), Some(2), Some(3));
    let prompt = |number: u32, length: u32| (0..length).map(|at| 1000 * number + at).collect::<Vec<_>>();
    let own = prompt(0, 121);
    assert_eq!([request(&mut manager, a, &own), request(&mut manager, a, &own)], [0, 120]);
    // Seventy prompts of another fill the pool some twenty times.
    for number in 1..71 {
        request(&mut manager, b, &prompt(number, 80));
    }
    assert_eq!(request(&mut manager, a, &own), 120, "all of it is within half of the pool");
    // What that leaves is the other's.
    assert_eq!(manager.cache.cached_of(&[a, b]), [30, 33]);
    // One that wants more than its share takes it from itself, once the other is down to its own.
    for number in 100..140 {
        request(&mut manager, a, &prompt(number, 80));
    }
    assert_eq!(manager.cache.cached_of(&[a, b]), [32, 32]);
    let kept = |tenant| manager.blocks_kept_from(&ChainRoot::default().of_tenant(tenant));
    assert_eq!([a, b].map(kept), [32, 32]);
    // A third tenant would get a third, and gets it.
    assert_eq!(kept(c), 42);
    for number in 0..40 {
        request(&mut manager, c, &prompt(number, 40));
    }
    assert!(manager.cache.cached_of(&[a, b, c]).iter().all(|&blocks| (20..=22).contains(&blocks)));
}

#[test]
fn one_tenant_alone_loses_what_it_always_lost() {
    // The same requests with one tenant, and with none, find the same.
    let found = |tenant: Option<u128>| {
        let config = KvConfig { num_blocks: 40, block_size: 2, ..KvConfig::default() };
        let mut manager = BlockManager::new(config).expect("a good configuration");
        let mut rng = crate::testing::Rng(5);
        let prompt = |number: usize| (0..30).map(|at| (100 * number + at) as TokenId).collect::<Vec<_>>();
        (0..500).map(|_| request(&mut manager, tenant, &prompt(rng.below(6)))).collect::<Vec<_>>()
    };
    assert_eq!(found(None), found(Some(7)));
}
