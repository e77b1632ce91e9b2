//! Swaps of the reference.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use crate::{SequenceState, SwapDirection, SwapId, SwapOutcome};

use super::{Block, Flight, Naive, Sequence, Slot};

impl Naive {
    /// Returns the number of blocks or slots in which a group has computed tokens.
    pub fn swap_cost(&self, group: &[u64]) -> usize {
        let mut places = BTreeSet::new();
        for sequence in group.iter().map(|id| &self.sequences[id]) {
            match sequence.slots.is_empty() {
                true => places.extend(self.computed(sequence).iter().map(|block| Rc::as_ptr(block).cast::<()>())),
                false => places.extend(sequence.slots.iter().map(Rc::as_ptr)),
            }
        }
        places.len()
    }

    /// Returns the number of computed tokens of resident sequences that the index would not find.
    pub fn recompute_cost(&self, group: &[u64]) -> usize {
        let sequences = group.iter().map(|id| &self.sequences[id]);
        let computed = sequences.flat_map(|sequence| {
            let ends = (self.block_size..).step_by(self.block_size).map(|end| end.min(sequence.computed));
            let blocks = self.computed(sequence).iter().zip(ends).enumerate().skip(sequence.published);
            blocks.map(|(index, (block, end))| (Rc::as_ptr(block), end - index * self.block_size))
        });
        computed.collect::<BTreeMap<_, _>>().values().sum()
    }

    /// Returns the number of blocks of a group that hold tokens, none of them computed.
    pub fn uncomputed(&self, group: &[u64]) -> usize {
        let sequences = group.iter().map(|id| &self.sequences[id]);
        sequences.map(|sequence| self.blocks_for(sequence.prints.len()) - self.blocks_for(sequence.computed)).sum()
    }

    /// Returns the number of blocks that only the group holds.
    pub fn blocks_exclusive(&self, group: &[u64]) -> usize {
        let blocks: Vec<_> = group.iter().flat_map(|id| &self.sequences[id].blocks).collect();
        let exclusive = blocks.iter().filter(|block| {
            let published = self.published.values().any(|other| Rc::ptr_eq(other, block));
            let holders = blocks.iter().filter(|other| Rc::ptr_eq(other, block)).count();
            Rc::strong_count(block) == holders + usize::from(published)
        });
        exclusive.map(|block| Rc::as_ptr(block)).collect::<BTreeSet<_>>().len()
    }

    fn computed<'s>(&self, sequence: &'s Sequence) -> &'s [Block] {
        &sequence.blocks[..self.blocks_for(sequence.computed)]
    }

    pub fn swap_out(&mut self, swap: SwapId, group: &[u64]) {
        let mut places: Vec<(Block, Slot)> = Vec::new();
        for id in group {
            let blocks = self.computed(&self.sequences[id]).to_vec();
            let sequence = self.sequences.get_mut(id).unwrap();
            for block in blocks {
                let known = places.iter().find(|(other, _)| Rc::ptr_eq(other, &block)).map(|(_, slot)| slot.clone());
                let slot = known.unwrap_or_else(|| {
                    places.push((block.clone(), Rc::new(())));
                    places.last().unwrap().1.clone()
                });
                sequence.slots.push(slot);
            }
            sequence.state = SequenceState::Leaving(swap);
        }
        let (blocks, slots) = places.into_iter().unzip();
        self.flights
            .insert(swap, Flight { direction: SwapDirection::Out, group: group.to_vec(), blocks, _slots: slots });
    }

    /// Returns the number of fresh blocks that a group needs to come back, and the number of blocks that are available
    /// for it.
    pub fn arrival(&self, group: &[u64]) -> (usize, usize) {
        let (mut fresh, mut revived) = (BTreeSet::new(), BTreeSet::new());
        for sequence in group.iter().map(|id| &self.sequences[id]) {
            let hits = self.arrival_hits(sequence);
            fresh.extend(sequence.slots[hits..].iter().map(Rc::as_ptr));
            let contents = (0..hits).map(|block| self.content(&sequence.prints, block));
            revived.extend(contents.filter(|content| self.idle.contains(content)));
        }
        (fresh.len() + self.uncomputed(group), self.available() - revived.len())
    }

    fn arrival_hits(&self, sequence: &Sequence) -> usize {
        let most = if sequence.publishing { sequence.computed / self.block_size } else { 0 };
        self.hits_of_most(&sequence.prints, most)
    }

    pub fn swap_in(&mut self, swap: SwapId, group: &[u64]) {
        let (need, _) = self.arrival(group);
        for id in group {
            let hits = self.arrival_hits(&self.sequences[id]);
            let contents: Vec<_> = (0..hits).map(|block| self.content(&self.sequences[id].prints, block)).collect();
            let blocks = contents.into_iter().map(|content| self.find(content)).collect();
            let sequence = self.sequences.get_mut(id).unwrap();
            (sequence.blocks, sequence.published, sequence.state) = (blocks, hits, SequenceState::Arriving(swap));
        }
        self.evict_for(need);
        let mut places: Vec<(Block, Slot)> = Vec::new();
        for id in group {
            let mut sequence = self.sequences.remove(id).unwrap();
            for index in sequence.published..sequence.slots.len() {
                let slot = sequence.slots[index].clone();
                let known = places.iter().find(|(_, other)| Rc::ptr_eq(other, &slot)).map(|(block, _)| block.clone());
                let block = known.unwrap_or_else(|| {
                    let prints = sequence.prints.chunks(self.block_size).nth(index).unwrap();
                    places.push((self.new_block(prints), slot));
                    places.last().unwrap().0.clone()
                });
                sequence.blocks.push(block);
            }
            for prints in sequence.prints.chunks(self.block_size).skip(sequence.slots.len()) {
                sequence.blocks.push(self.new_block(prints));
            }
            self.sequences.insert(*id, sequence);
        }
        let (blocks, slots) = places.into_iter().unzip();
        self.flights
            .insert(swap, Flight { direction: SwapDirection::In, group: group.to_vec(), blocks, _slots: slots });
    }

    /// Ends a swap, and returns the sequences of the group that were still waiting for it.
    pub fn finish_swap(&mut self, swap: SwapId, outcome: SwapOutcome) -> Vec<u64> {
        let Flight { direction, mut group, blocks, .. } = self.flights.remove(&swap).unwrap();
        blocks.into_iter().rev().for_each(|block| self.release(block));
        let waiting = match direction {
            SwapDirection::Out => SequenceState::Leaving(swap),
            SwapDirection::In => SequenceState::Arriving(swap),
        };
        group.retain(|id| self.sequences.get(id).is_some_and(|sequence| sequence.state == waiting));
        for &id in &group {
            let sequence = self.sequences.get_mut(&id).unwrap();
            match (outcome, direction) {
                (SwapOutcome::Failed, _) => self.free_sequence(id),
                (SwapOutcome::Done, SwapDirection::Out) => {
                    (sequence.state, sequence.published) = (SequenceState::Swapped, 0);
                    let blocks = std::mem::take(&mut sequence.blocks);
                    blocks.into_iter().rev().for_each(|block| self.release(block));
                }
                (SwapOutcome::Done, SwapDirection::In) => {
                    sequence.state = SequenceState::Resident;
                    sequence.slots.clear();
                    let computed = sequence.computed;
                    self.commit(id, computed);
                }
            }
        }
        group
    }
}
