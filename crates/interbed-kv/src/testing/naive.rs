//! A naive block manager, without block ids, free lists, chain hashes, or reference counts other than those of `Rc`. A
//! block is a shared value, found by the fingerprint of the root and all tokens up to the block's end, and everything
//! is counted from scratch.

mod swaps;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::{Rc, Weak},
};

use crate::{KvConfig, SequenceState, SwapDirection, SwapId};

/// The fingerprint of a token's KV, which depends on the chain's root and all tokens up to this one.
pub(super) type Print = u64;

/// The fingerprints of the tokens in one block. Two blocks are the same if they have the same address.
type Block = Rc<RefCell<Vec<Print>>>;
type Slot = Rc<()>;

pub(super) struct Naive {
    /// Number of present blocks, and number of usable ones.
    present: usize,
    usable: usize,
    block_size: usize,
    prefix_caching: bool,
    /// All blocks with content, and some that no longer exist.
    blocks: Vec<Weak<RefCell<Vec<Print>>>>,
    /// The findable blocks, by the fingerprint of their last token.
    published: BTreeMap<Print, Block>,
    /// The published blocks that neither a sequence nor a swap in flight holds; the front is evicted next.
    idle: Vec<Print>,
    pub sequences: BTreeMap<u64, Sequence>,
    flights: BTreeMap<SwapId, Flight>,
    pub evictions: usize,
    pub merged: usize,
    pub copy_on_writes: usize,
}

pub(super) struct Sequence {
    pub state: SequenceState,
    prints: Vec<Print>,
    blocks: Vec<Block>,
    slots: Vec<Slot>,
    computed: usize,
    /// The number of leading blocks of this table that were found published, or that this sequence has published.
    published: usize,
    publishing: bool,
}

struct Flight {
    direction: SwapDirection,
    group: Vec<u64>,
    blocks: Vec<Block>,
    _slots: Vec<Slot>,
}

impl Naive {
    pub fn new(config: &KvConfig) -> Self {
        Self {
            present: config.num_blocks,
            usable: config.num_blocks,
            block_size: config.block_size,
            prefix_caching: config.prefix_caching,
            blocks: Vec::new(),
            published: BTreeMap::new(),
            idle: Vec::new(),
            sequences: BTreeMap::new(),
            flights: BTreeMap::new(),
            evictions: 0,
            merged: 0,
            copy_on_writes: 0,
        }
    }

    fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    fn content(&self, prints: &[Print], block: usize) -> Print {
        prints[(block + 1) * self.block_size - 1]
    }

    fn new_block(&mut self, prints: &[Print]) -> Block {
        self.blocks.retain(|block| block.strong_count() > 0);
        let block = Rc::new(RefCell::new(prints.to_vec()));
        self.blocks.push(Rc::downgrade(&block));
        block
    }

    pub fn free(&self) -> usize {
        self.present - self.blocks.iter().filter(|block| block.strong_count() > 0).count()
    }

    pub fn cached(&self) -> usize {
        self.idle.len()
    }

    pub fn available(&self) -> usize {
        self.free() + self.cached()
    }

    pub fn slots_empty(&self) -> usize {
        let blocks = self.blocks.iter().filter_map(Weak::upgrade);
        // Idle blocks are full.
        blocks.map(|block| self.block_size - block.borrow().len()).sum()
    }

    pub fn swap_slots_used(&self) -> usize {
        let sequences = self.sequences.values().flat_map(|sequence| &sequence.slots);
        let flights = self.flights.values().flat_map(|flight| &flight._slots);
        sequences.chain(flights).map(Rc::as_ptr).collect::<BTreeSet<_>>().len()
    }

    /// Returns how many blocks are held by which sequences. The key is the lowest id of a sequence that holds the
    /// block, if any does, and whether other sequences hold it too.
    pub fn held(&self) -> BTreeMap<(Option<u64>, bool), usize> {
        let mut holders: BTreeMap<*const _, Vec<u64>> = BTreeMap::new();
        self.flights.values().flat_map(|flight| &flight.blocks).for_each(|block| {
            holders.entry(Rc::as_ptr(block)).or_default();
        });
        for (&id, sequence) in &self.sequences {
            sequence.blocks.iter().for_each(|block| holders.entry(Rc::as_ptr(block)).or_default().push(id));
        }
        let mut held = BTreeMap::new();
        for ids in holders.into_values() {
            *held.entry((ids.iter().min().copied(), ids.len() > 1)).or_default() += 1;
        }
        held
    }

    /// Returns the number of leading blocks that can be found. The block with the last token is never among them.
    pub fn hits(&self, prints: &[Print]) -> usize {
        self.hits_of_most(prints, prints.len().saturating_sub(1) / self.block_size)
    }

    fn hits_of_most(&self, prints: &[Print], most: usize) -> usize {
        (0..most).take_while(|&block| self.published.contains_key(&self.content(prints, block))).count()
    }

    /// Returns the number of fresh blocks that a prompt needs, and the number of blocks that are available for it.
    pub fn need_and_available(&self, prints: &[Print]) -> (usize, usize) {
        let hits = self.hits(prints);
        let revived = (0..hits).filter(|&block| self.idle.contains(&self.content(prints, block))).count();
        (self.blocks_for(prints.len()) - hits, self.available() - revived)
    }

    pub fn allocate(&mut self, id: u64, prints: &[Print]) {
        let published = self.hits(prints);
        let mut blocks: Vec<_> = (0..published).map(|block| self.find(self.content(prints, block))).collect();
        self.evict_for(self.blocks_for(prints.len()) - published);
        for prints in prints[published * self.block_size..].chunks(self.block_size) {
            blocks.push(self.new_block(prints));
        }
        let sequence = Sequence {
            state: SequenceState::Resident,
            prints: prints.to_vec(),
            blocks,
            slots: Vec::new(),
            computed: published * self.block_size,
            published,
            publishing: self.prefix_caching,
        };
        self.sequences.insert(id, sequence);
    }

    pub fn append_need(&self, id: u64, count: usize) -> usize {
        let sequence = &self.sequences[&id];
        let length = sequence.prints.len();
        let partial = count > 0 && !length.is_multiple_of(self.block_size);
        // This sequence is one of the holders.
        let copies = partial && Rc::strong_count(&sequence.blocks[length / self.block_size]) > 1;
        self.blocks_for(length + count).saturating_sub(sequence.blocks.len()) + usize::from(copies)
    }

    pub fn append(&mut self, id: u64, prints: &[Print]) {
        self.ensure(id, prints.len());
        let sequence = self.sequences.get_mut(&id).unwrap();
        for &print in prints {
            sequence.blocks[sequence.prints.len() / self.block_size].borrow_mut().push(print);
            sequence.prints.push(print);
        }
    }

    pub fn ensure(&mut self, id: u64, count: usize) {
        self.evict_for(self.append_need(id, count));
        let mut sequence = self.sequences.remove(&id).unwrap();
        let length = sequence.prints.len();
        if count > 0 && !length.is_multiple_of(self.block_size) {
            let partial = &mut sequence.blocks[length / self.block_size];
            if Rc::strong_count(partial) > 1 {
                let prints = partial.borrow().clone();
                *partial = self.new_block(&prints);
                self.copy_on_writes += 1;
            }
        }
        while sequence.blocks.len() < self.blocks_for(length + count) {
            sequence.blocks.push(self.new_block(&[]));
        }
        self.sequences.insert(id, sequence);
    }

    pub fn fork(&mut self, parent: u64, child: u64) {
        let parent = &self.sequences[&parent];
        let filled = self.blocks_for(parent.prints.len());
        let forked = Sequence {
            prints: parent.prints.clone(),
            blocks: parent.blocks[..filled].to_vec(),
            slots: Vec::new(),
            ..*parent
        };
        self.sequences.insert(child, forked);
    }

    pub fn commit(&mut self, id: u64, computed: usize) {
        let sequence = self.sequences.get_mut(&id).unwrap();
        if sequence.state != SequenceState::Resident {
            return;
        }
        sequence.computed = sequence.computed.max(computed.min(sequence.prints.len()));
        let (full, publishing) = (sequence.computed / self.block_size, sequence.publishing);
        while publishing && self.sequences[&id].published < full {
            let sequence = &self.sequences[&id];
            let (index, own) = (sequence.published, sequence.blocks[sequence.published].clone());
            let content = self.content(&sequence.prints, index);
            let other = self.published.get(&content).is_some_and(|other| !Rc::ptr_eq(other, &own));
            // One reference is this sequence's, one is `own`.
            if other && Rc::strong_count(&own) > 2 {
                return;
            }
            let canonical = match self.published.contains_key(&content) {
                true => self.find(content),
                false => self.published.entry(content).or_insert(own.clone()).clone(),
            };
            self.merged += usize::from(!Rc::ptr_eq(&canonical, &own));
            let sequence = self.sequences.get_mut(&id).unwrap();
            sequence.blocks[index] = canonical;
            sequence.published += 1;
            self.release(own);
        }
    }

    pub fn free_sequence(&mut self, id: u64) {
        let sequence = self.sequences.remove(&id).unwrap();
        sequence.blocks.into_iter().rev().for_each(|block| self.release(block));
    }

    pub fn set_usable(&mut self, usable: usize) {
        self.usable = usable;
        self.present = self.present.max(usable);
        self.withdraw_excess();
    }

    /// Evicts `count` idle blocks, which become free.
    pub fn evict(&mut self, count: usize) {
        self.evict_for(self.free() + count);
    }

    pub fn present(&self) -> usize {
        self.present
    }

    pub fn reset(&mut self) {
        self.published.clear();
        self.idle.clear();
        for sequence in self.sequences.values_mut() {
            (sequence.published, sequence.publishing) = (0, false);
        }
    }

    fn find(&mut self, content: Print) -> Block {
        self.idle.retain(|&idle| idle != content);
        self.published[&content].clone()
    }

    fn release(&mut self, block: Block) {
        let content = block.borrow().last().copied();
        drop(block);
        // At this point, only the index may still hold the block.
        if let Some(content) = content
            && self.published.get(&content).is_some_and(|block| Rc::strong_count(block) == 1)
            && !self.idle.contains(&content)
        {
            self.idle.push(content);
        }
        self.withdraw_excess();
    }

    fn withdraw_excess(&mut self) {
        while self.present > self.usable && self.available() > 0 {
            self.evict_for(1);
            self.present -= 1;
        }
    }

    fn evict_for(&mut self, need: usize) {
        for _ in self.free()..need {
            let content = self.idle.remove(0);
            self.published.remove(&content);
            self.evictions += 1;
        }
    }
}
