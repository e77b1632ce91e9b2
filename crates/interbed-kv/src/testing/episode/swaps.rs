//! An episode's swaps, and the checks after each step.

use std::collections::BTreeMap;

use crate::{AllocStatus, BlockUse, KvStats, SequenceId, SequenceState, SwapDirection, SwapOutcome};

use super::Episode;

impl Episode {
    pub(super) fn swap_out(&mut self) {
        let group = self.group(SequenceState::Resident);
        if group.is_empty() {
            return;
        }
        let ids: Vec<_> = group.iter().copied().map(SequenceId).collect();
        let resident = group.iter().all(|&id| self.state(id) == SequenceState::Resident);
        let (need, required) = (self.manager.swap_cost(&ids), self.manager.blocks_required(&ids));
        let (recompute, exclusive) = (self.manager.recompute_cost(&ids), self.manager.blocks_exclusive(&ids));
        let status = self.manager.can_swap_out(&ids);
        let before = self.manager.stats();
        let free = before.swap_slots_total - before.swap_slots_used;
        let result = self.manager.swap_out(&ids);
        assert_eq!(status == AllocStatus::Ok, result.is_ok(), "{result:?}");
        assert_eq!(result.is_ok(), resident && need <= free);
        assert_eq!(matches!(status, AllocStatus::Never { .. }), !resident || need > before.swap_slots_total);
        if let Some(naive) = &self.naive {
            assert_eq!(need, naive.swap_cost(&group));
            assert!(!resident || recompute == naive.recompute_cost(&group));
            assert_eq!((required, exclusive), (need + naive.uncomputed(&group), naive.blocks_exclusive(&group)));
        }
        let Ok(swap) = result else { return self.assert_unchanged_since(&before) };
        assert_eq!(swap.num_freed, exclusive);
        // Tokens that were not committed are lost.
        for id in &group {
            let sequence = self.running.get_mut(id).expect("it is running");
            sequence.computed = sequence.committed;
        }
        assert_eq!((swap.direction, swap.transfers.len(), swap.num_spared), (SwapDirection::Out, need, 0));
        if let Some(naive) = &mut self.naive {
            naive.swap_out(swap.id, &group);
        }
        self.device.flush(&mut self.manager);
        self.device.start(swap);
    }

    pub(super) fn swap_in(&mut self) {
        let group = self.group(SequenceState::Swapped);
        if group.is_empty() {
            return;
        }
        let ids: Vec<_> = group.iter().copied().map(SequenceId).collect();
        let swapped = group.iter().all(|&id| self.state(id) == SequenceState::Swapped);
        let (cost, required) = (self.manager.swap_cost(&ids), self.manager.blocks_required(&ids));
        let reserve = self.reserve();
        let status = self.manager.can_swap_in(&ids);
        let before = self.manager.stats();
        let result = self.manager.swap_in(&ids);
        let never = !swapped || required > self.config.num_blocks;
        assert_eq!(matches!(status, AllocStatus::Never { .. }), never);
        assert!(status != AllocStatus::Ok || result.is_ok(), "{result:?}");
        if let Some(naive) = self.naive.as_mut().filter(|_| swapped) {
            let (need, available) = naive.arrival(&group);
            assert_eq!(result.is_ok(), need <= available, "{result:?}");
            assert_eq!(status == AllocStatus::Ok, !never && need + reserve <= available);
        }
        let Ok(swap) = result else {
            self.assert_unchanged_since(&before);
            return if swapped {
                self.free()
            };
        };
        assert_eq!((swap.direction, swap.transfers.len()), (SwapDirection::In, cost - swap.num_spared));
        if let Some(naive) = &mut self.naive {
            assert_eq!(swap.transfers.len() + naive.uncomputed(&group), naive.arrival(&group).0);
            naive.swap_in(swap.id, &group);
        }
        self.device.flush(&mut self.manager);
        self.device.start(swap);
    }

    pub(super) fn go_on_with_swaps(&mut self) {
        let Some((swap, outcome)) = self.device.go_on(&mut self.rng) else { return };
        let concerned: Vec<_> = self.manager.finish_swap(swap, outcome).into_iter().map(|id| id.0).collect();
        if let Some(naive) = &mut self.naive {
            assert_eq!(concerned, naive.finish_swap(swap, outcome));
        }
        for id in concerned {
            match (outcome, self.manager.state(SequenceId(id))) {
                (SwapOutcome::Done, Some(SequenceState::Resident | SequenceState::Swapped)) => {}
                // Its KV is lost, and has to be computed again.
                (SwapOutcome::Failed, None) => drop(self.running.remove(&id)),
                (outcome, state) => panic!("sequence {id} is {state:?} after {outcome:?}"),
            }
        }
        // A report that comes twice must change nothing.
        assert!(self.manager.finish_swap(swap, outcome).is_empty());
    }

    /// Returns some sequences in ascending order, without duplicates. Now and then one of the sequences may not be in
    /// the wanted state.
    fn group(&mut self, state: SequenceState) -> Vec<u64> {
        let mut group: Vec<_> = self.running.keys().copied().filter(|&id| self.state(id) == state).collect();
        while !group.is_empty() && (group.len() > 3 || self.rng.once_in(2)) {
            group.remove(self.rng.below(group.len()));
        }
        if self.rng.once_in(16) {
            group.extend(self.pick());
            group.sort_unstable();
            group.dedup();
        }
        group
    }

    fn state(&self, id: u64) -> SequenceState {
        self.manager.state(SequenceId(id)).expect("a running sequence is known")
    }

    pub fn verify(&mut self) {
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        assert!(self.manager.sequences().map(|id| id.0).eq(self.running.keys().copied()));
        // Copies may be carried out later, but before anything is read.
        if self.rng.once_in(3) {
            self.device.flush(&mut self.manager);
            self.verify_content();
        }
        self.follower.follow(&mut self.manager);
        let stats = self.manager.stats();
        let present = stats.blocks_used + stats.blocks_cached + stats.blocks_free;
        assert_eq!(present + stats.blocks_withdrawn, self.config.num_blocks);
        assert!(present == self.manager.usable().max(stats.blocks_used));
        assert_eq!(stats.sequences, self.running.len());
        if let Some(naive) = &self.naive {
            assert_eq!((stats.blocks_free, stats.blocks_cached), (naive.free(), naive.cached()), "free and cached");
            assert_eq!(self.manager.present(), naive.present());
            assert_eq!((stats.slots_empty, stats.swap_slots_used), (naive.slots_empty(), naive.swap_slots_used()));
            assert_eq!((stats.evictions, stats.blocks_merged), (naive.evictions as u64, naive.merged as u64));
            assert_eq!(stats.copy_on_writes, naive.copy_on_writes as u64);
            for (&id, sequence) in &naive.sequences {
                assert_eq!(self.state(id), sequence.state);
            }
        }
        self.verify_map();
    }

    /// Checks that the map of blocks agrees with the tables and with the reference.
    fn verify_map(&self) {
        let number = |id: u64| self.running.keys().position(|&known| known == id).expect("a known sequence") as u16;
        let mut uses = Vec::new();
        self.manager.map(|id| number(id.0), &mut uses);
        let mut counts: BTreeMap<BlockUse, usize> = BTreeMap::new();
        uses.iter().for_each(|&block_use| *counts.entry(block_use).or_default() += 1);
        for &id in self.running.keys() {
            for block in self.manager.block_table(SequenceId(id)).into_iter().flatten() {
                let block_use = uses[block.index()];
                let is_first = block_use.owner() == Some(number(id));
                assert!(is_first || block_use.is_shared() && block_use.owner() < Some(number(id)), "{block}");
            }
        }
        let mut count = |block_use| counts.remove(&block_use).unwrap_or_default();
        let stats = self.manager.stats();
        let found = [BlockUse::FREE, BlockUse::CACHED, BlockUse::WITHDRAWN].map(&mut count);
        assert_eq!(found, [stats.blocks_free, stats.blocks_cached, stats.blocks_withdrawn]);
        if let Some(naive) = &self.naive {
            for ((owner, shared), blocks) in naive.held() {
                let owned = owner.map_or(BlockUse::MOVING, |owner| BlockUse::owned(number(owner)));
                assert_eq!(count(if shared { owned.shared() } else { owned }), blocks, "{owner:?} {shared}");
            }
            assert!(counts.is_empty(), "{counts:?} are known to the map alone");
        }
    }

    fn verify_content(&self) {
        for (&id, sequence) in &self.running {
            assert_eq!(self.manager.num_tokens(SequenceId(id)), Some(sequence.tokens.len()));
            let Some(table) = self.manager.block_table(SequenceId(id)) else { continue };
            assert!(table.len() >= sequence.tokens.len().div_ceil(self.config.block_size));
            for (at, print) in sequence.prints[..sequence.computed].iter().enumerate() {
                assert_eq!(self.device.read(table, at), *print, "sequence {id} reads another's KV at token {at}");
            }
        }
    }

    /// Frees all sequences, and checks that everything comes back, even with swaps in flight.
    pub fn finish(mut self) -> KvStats {
        for id in std::mem::take(&mut self.running).into_keys() {
            assert!(self.manager.free(SequenceId(id)));
            if let Some(naive) = &mut self.naive {
                naive.free_sequence(id);
            }
        }
        while self.device.num_swaps() > 0 {
            self.go_on_with_swaps();
        }
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        let stats = self.manager.stats();
        assert_eq!(stats.blocks_free + stats.blocks_cached, self.manager.usable());
        assert_eq!((stats.swap_slots_used, stats.slots_empty), (0, 0));
        self.manager.set_usable(self.config.num_blocks);
        self.device.flush(&mut self.manager);
        self.manager.reset_cache();
        self.manager.check().unwrap_or_else(|violation| panic!("{violation}"));
        let stats = self.manager.stats();
        assert_eq!(stats.blocks_free, self.config.num_blocks);
        stats
    }

    pub(super) fn assert_unchanged_since(&self, before: &KvStats) {
        let allocation_failures = self.manager.stats().allocation_failures;
        let before = KvStats { allocation_failures, ..*before };
        assert_eq!(self.manager.stats(), before, "a refusal changed something");
    }

    pub(super) fn pick(&mut self) -> Option<u64> {
        let chosen = self.rng.below(self.running.len().max(1));
        self.running.keys().nth(chosen).copied()
    }
}
