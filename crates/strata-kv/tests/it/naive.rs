//! What the block manager should do, written down without block ids, lists or hashes: contents are known by a
//! fingerprint of the root and all tokens up to their end, and everything is counted afresh.

use std::collections::BTreeMap;

use strata_kv::KvConfig;

/// Fingerprint of a token's KV: of the chain's root and of all tokens up to this one.
pub type Print = u64;

#[derive(Default)]
pub struct Naive {
    /// Blocks that are there, and that should be.
    present: usize,
    usable: usize,
    block_size: usize,
    prefix_caching: bool,
    /// Findable contents, by the fingerprint of their last token, with their holders.
    published: BTreeMap<Print, usize>,
    /// Those without holders; the next to be evicted first.
    idle: Vec<Print>,
    /// Contents that a reset hid while they were held: (reset, content) with their holders.
    hidden: BTreeMap<(usize, Print), usize>,
    sequences: BTreeMap<u64, Held>,
    resets: usize,
    pub evictions: usize,
    pub merged: usize,
}

struct Held {
    prints: Vec<Print>,
    /// Leading blocks that are published, or were until reset number `hidden_by`.
    shared: usize,
    hidden_by: Option<usize>,
}

impl Naive {
    pub fn new(config: &KvConfig) -> Self {
        Self {
            present: config.num_blocks,
            usable: config.num_blocks,
            block_size: config.block_size,
            prefix_caching: config.prefix_caching,
            ..Self::default()
        }
    }

    fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    fn content(&self, prints: &[Print], block: usize) -> Print {
        prints[(block + 1) * self.block_size - 1]
    }

    fn private(&self) -> usize {
        self.sequences.values().map(|held| self.blocks_for(held.prints.len()) - held.shared).sum()
    }

    pub fn free(&self) -> usize {
        self.present - self.published.len() - self.hidden.len() - self.private()
    }

    pub fn cached(&self) -> usize {
        self.idle.len()
    }

    pub fn slots_empty(&self) -> usize {
        self.sequences
            .values()
            .map(|held| self.blocks_for(held.prints.len()) * self.block_size - held.prints.len())
            .sum()
    }

    /// Leading blocks that are findable; never the one with the last token.
    pub fn hits(&self, prints: &[Print]) -> usize {
        let most = prints.len().saturating_sub(1) / self.block_size;
        (0..most).take_while(|&block| self.published.contains_key(&self.content(prints, block))).count()
    }

    /// Fresh blocks that a prompt needs, and those that it could get.
    pub fn need_and_available(&self, prints: &[Print]) -> (usize, usize) {
        let hits = self.hits(prints);
        let revived = (0..hits).filter(|&block| self.published[&self.content(prints, block)] == 0).count();
        (self.blocks_for(prints.len()) - hits, self.free() + self.cached() - revived)
    }

    pub fn allocate(&mut self, id: u64, prints: &[Print]) {
        let hits = self.hits(prints);
        let (need, _) = self.need_and_available(prints);
        (0..hits).for_each(|block| self.hold(self.content(prints, block)));
        self.evict_for(need);
        self.sequences.insert(id, Held { prints: prints.to_vec(), shared: hits, hidden_by: None });
    }

    pub fn append_need(&self, id: u64, count: usize) -> usize {
        let length = self.sequences[&id].prints.len();
        self.blocks_for(length + count) - self.blocks_for(length)
    }

    pub fn append(&mut self, id: u64, prints: &[Print]) {
        self.evict_for(self.append_need(id, prints.len()));
        self.sequences.get_mut(&id).unwrap().prints.extend(prints);
    }

    pub fn commit(&mut self, id: u64, computed: usize) {
        let held = &self.sequences[&id];
        if !self.prefix_caching || held.hidden_by.is_some() {
            return;
        }
        let full = computed.min(held.prints.len()) / self.block_size;
        for block in held.shared..full {
            let content = self.content(&self.sequences[&id].prints, block);
            let known = self.published.contains_key(&content);
            self.merged += usize::from(known);
            self.published.entry(content).or_insert(0);
            self.hold(content);
            self.sequences.get_mut(&id).unwrap().shared += 1;
            self.withdraw_excess();
        }
    }

    pub fn release(&mut self, id: u64) {
        let held = self.sequences.remove(&id).unwrap();
        for block in (0..held.shared).rev() {
            let content = self.content(&held.prints, block);
            match held.hidden_by {
                None => {
                    let holders = self.published.get_mut(&content).unwrap();
                    *holders -= 1;
                    if *holders == 0 {
                        self.idle.push(content);
                    }
                }
                Some(reset) => {
                    let holders = self.hidden.get_mut(&(reset, content)).unwrap();
                    *holders -= 1;
                    if *holders == 0 {
                        self.hidden.remove(&(reset, content));
                    }
                }
            }
        }
        self.withdraw_excess();
    }

    pub fn set_usable(&mut self, usable: usize) {
        self.usable = usable;
        self.present = self.present.max(usable);
        self.withdraw_excess();
    }

    pub fn present(&self) -> usize {
        self.present
    }

    fn withdraw_excess(&mut self) {
        while self.present > self.usable && self.free() + self.cached() > 0 {
            self.evict_for(1);
            self.present -= 1;
        }
    }

    pub fn reset(&mut self) {
        self.resets += 1;
        self.idle.clear();
        for (content, holders) in std::mem::take(&mut self.published) {
            if holders > 0 {
                self.hidden.insert((self.resets, content), holders);
            }
        }
        for held in self.sequences.values_mut().filter(|held| held.hidden_by.is_none()) {
            held.hidden_by = Some(self.resets);
        }
    }

    fn hold(&mut self, content: Print) {
        *self.published.get_mut(&content).unwrap() += 1;
        self.idle.retain(|&idle| idle != content);
    }

    fn evict_for(&mut self, need: usize) {
        for _ in self.free()..need {
            let content = self.idle.remove(0);
            self.published.remove(&content);
            self.evictions += 1;
        }
    }
}
