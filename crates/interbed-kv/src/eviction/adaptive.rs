//! Implements the default eviction policy, which learns after what times contents are used again, and evicts the
//! content of least expected use.

mod ages;
mod history;
mod least;
mod past;
mod rates;
mod table;

use super::{Content, EvictionPolicy, steps::step};
use crate::{BlockId, OwnerId};

use history::History;
use least::Least;
use past::Past;
use rates::Rates;

const NONE: u32 = u32::MAX;
/// Number of leaves that are compared at a time: all leaves of a small pool, or a random sample of the leaves of a
/// large pool.
const COMPARED: usize = 64;
/// Number of the compared leaves that are evicted before leaves are compared again. A parent that becomes a leaf is
/// evicted with its children if it is worth no more than they are.
const VICTIMS: usize = 2;
/// Maximum number of blocks that are due at a time; any others wait for a later comparison.
const DUE_MAX: usize = 8;
/// Number of sets of the history's sample that are counted per use. The number is so small that no single use takes
/// long, and so large that the counts are still recent when the estimate is made.
const COUNTED: usize = 8;
/// Maximum number of blocks of one chain that can be marked as returned together.
const RUN_MAX: usize = 64;

/// Evicts a leaf that is worth least among those compared: all leaves of a small pool, or a random sample of a large
/// one. For any time that a leaf could be kept, there is a chance that it is found again within that time. The worth of
/// a leaf is the best ratio of this chance to the time, over all such times.
///
/// Time is counted in uses of blocks. Chances are taken from what happened to contents of the same class. Classes
/// distinguish how many times and at what mean interval a content was found; if it was never found, how often the
/// content before it was found, and whether it was the end of its chain. A sample of all contents is followed over many
/// times the pool's size, whether they are still in the pool or not. The policy keeps contents that come back late but
/// surely, lets scans pass, keeps part of a loop that exceeds the pool, and adapts when habits change, since old counts
/// fade.
///
/// The policy takes 44 bytes a block: 20 for the block, 16 for recently evicted contents, and 8 for the sample, which
/// has at least 64 KiB. The counts of classes take 34 KiB more.
#[derive(Debug)]
pub struct Adaptive {
    /// Number of usable blocks when everything that depends on it was last set.
    scale: usize,
    records: Vec<Record>,  // [block]
    owners: Vec<OwnerId>,  // [block], empty before there was a second owner
    leaves: Vec<Vec<u32>>, // [owner]; cached ones, in no order
    cached: usize,
    history: History,
    rates: Rates,
    /// Number of uses of blocks so far, which wraps around: a content idle for 2^32 uses seems young again, which is
    /// harmless.
    clock: u32,
    estimated: u32,
    /// Number of uses from the last estimate to the next.
    estimate_after: u32,
    /// Owner whose leaf was evicted last. The blocks in `due` and in `least` are leaves of this owner.
    loser: OwnerId,
    /// Blocks to evict next: the least of the last comparison, and blocks that became leaves since. Those that are no
    /// leaves any more, or are worth more than `bound`, are skipped.
    due: Vec<u32>,
    bound: f32,
    /// Leaves that were worth least in the last comparison.
    least: Least,
    /// Blocks that were published last and whose contents the history did not know, each the child of the one before.
    run: Vec<u32>,
    random: u64,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Hash of the content, folded to 32 bits.
    hash: u32,
    used: u32,
    /// Index of the block in its owner's list in `leaves`, or `NONE`.
    position: u32,
    past: Past,
    /// Class of `past`; valid while the block is cached.
    class: u8,
    cached: bool,
}

impl Adaptive {
    /// Creates a policy for block ids below `num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        let record = Record { hash: 0, used: 0, position: NONE, past: Past::fresh(None), class: 0, cached: false };
        Self {
            scale: num_blocks,
            records: vec![record; num_blocks],
            owners: Vec::new(),
            leaves: vec![Vec::with_capacity(num_blocks)],
            cached: 0,
            history: History::new(num_blocks),
            rates: Rates::new(num_blocks),
            clock: 0,
            estimated: 0,
            estimate_after: estimate_after(num_blocks),
            loser: OwnerId(0),
            due: Vec::with_capacity(DUE_MAX),
            bound: 0.0,
            least: Least::new(),
            run: Vec::with_capacity(RUN_MAX),
            random: 1,
        }
    }

    /// Counts one more use. From time to time, the rates are estimated again from the uses so far.
    fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
        let passed = self.clock.wrapping_sub(self.estimated);
        let counting_after = self.estimate_after - self.history.num_sets().div_ceil(COUNTED) as u32;
        if passed < counting_after {
            return;
        }
        if passed == counting_after {
            self.history.begin_counting(self.clock);
        } else if (0..COUNTED).any(|_| self.history.count_times(self.clock, &mut self.rates)) {
            self.estimate();
        }
    }

    fn estimate(&mut self) {
        let passed = self.clock.wrapping_sub(self.estimated);
        // Half of what was counted fades within 16 pools' uses.
        let half_life = (16 * self.scale).max(1 << 15);
        self.rates.estimate((-(passed as f32) / half_life as f32).exp2());
        self.estimated = self.clock;
        // The first estimates come soon; later ones so rarely that they cost little per use.
        self.estimate_after = (2 * self.estimate_after).min((self.scale as u32).max(1 << 12));
    }

    fn worth(&self, block: u32) -> f32 {
        let Record { used, class, .. } = self.records[block as usize];
        self.rates.worth(class.into(), self.clock.wrapping_sub(used))
    }

    /// Returns a block that is due and is still worth no more than the bound.
    fn next_due(&mut self) -> Option<u32> {
        while let Some(block) = self.due.pop() {
            step();
            if self.is_losers_leaf(block) && self.worth(block) <= self.bound {
                return Some(block);
            }
        }
        None
    }

    /// Compares leaves of the loser; those that are worth least become due.
    fn compare(&mut self) {
        let mut least = Least::new();
        // The leaves that were nearly evicted the last time are compared again: the least of more and more leaves comes
        // close to the least of all.
        for block in self.least.blocks().filter(|&block| self.is_losers_leaf(block)) {
            least.offer(self.worth(block), block);
        }
        let owner = self.loser.0 as usize;
        let num_leaves = self.leaves.get(owner).map_or(0, Vec::len);
        for at in 0..num_leaves.min(COMPARED) {
            step();
            let at = if num_leaves <= COMPARED { at } else { self.random_below(num_leaves) };
            let block = self.leaves[owner][at];
            least.offer(self.worth(block), block);
        }
        self.due.clear();
        for rank in (0..VICTIMS).rev() {
            if let Some((worth, block)) = least.get(rank) {
                self.bound = if self.due.is_empty() { worth } else { self.bound };
                self.due.push(block);
            }
        }
        self.least = least;
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let leaves: usize = self.leaves.iter().map(Vec::capacity).sum();
        let of_blocks = self.records.capacity() * size_of::<Record>() + leaves * size_of::<u32>();
        let of_owners = self.owners.capacity() * size_of::<OwnerId>();
        of_owners + of_blocks + self.history.bytes() + self.rates.bytes()
    }

    fn random_below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.random >> 32) * end as u64) >> 32) as usize
    }

    fn is_losers_leaf(&self, block: u32) -> bool {
        self.records[block as usize].position != NONE && self.owner(BlockId(block)) == self.loser
    }

    fn owner(&self, block: BlockId) -> OwnerId {
        self.owners.get(block.index()).copied().unwrap_or_default()
    }

    /// Notes that `block` belongs to `owner`. As long as all blocks belong to one owner, nothing is kept.
    fn set_owner(&mut self, block: BlockId, owner: OwnerId) {
        if owner != OwnerId(0) && self.owners.is_empty() {
            self.owners.resize(self.records.len(), OwnerId(0));
        }
        if let Some(of) = self.owners.get_mut(block.index()) {
            *of = owner;
        }
        if owner.0 as usize >= self.leaves.len() {
            self.leaves.resize_with(owner.0 as usize + 1, Vec::new);
        }
    }

    fn set_leaf(&mut self, block: BlockId) {
        let leaves = &mut self.leaves[self.owners.get(block.index()).map_or(0, |owner| owner.0 as usize)];
        self.records[block.index()].position = leaves.len() as u32;
        leaves.push(block.0);
    }

    /// Marks `block` as no longer cached, if it was cached.
    fn set_held(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        self.cached -= usize::from(std::mem::take(&mut record.cached));
        let position = std::mem::replace(&mut record.position, NONE);
        if position != NONE {
            let owner = self.owner(block).0 as usize;
            let leaves = &mut self.leaves[owner];
            leaves.swap_remove(position as usize);
            if let Some(&moved) = leaves.get(position as usize) {
                self.records[moved as usize].position = position;
            }
        }
    }
}

impl EvictionPolicy for Adaptive {
    fn publish(&mut self, block: BlockId, content: Content) {
        self.tick();
        self.set_owner(block, content.owner);
        let hash = (content.hash.0 ^ content.hash.0 >> 32) as u32;
        let parent = content.parent.map(|parent| self.records[parent.index()].past);
        let before = self.history.returned(hash, self.clock, &mut self.rates);
        let returned = before.map(|(past, age)| past.used_after(age));
        let past = returned.unwrap_or(Past::fresh(parent));
        self.records[block.index()] = Record { hash, used: self.clock, position: NONE, past, class: 0, cached: false };
        // If a content was there before, so were all contents above it in its chain.
        if content.parent.map(|parent| parent.0) != self.run.last().copied() || self.run.len() == RUN_MAX {
            self.run.clear();
        }
        match returned {
            Some(past) => self.run.drain(..).for_each(|above| self.records[above as usize].past = past),
            None => self.run.push(block.0),
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.set_held(block);
        self.tick();
        let record = &mut self.records[block.index()];
        record.past = record.past.used_after(self.clock.wrapping_sub(record.used));
        record.used = self.clock;
        self.history.found(record.hash, self.clock, &mut self.rates);
    }

    fn insert(&mut self, block: BlockId, leaf: bool) {
        let num_blocks = self.scale as u32;
        let record = &mut self.records[block.index()];
        assert!(!record.cached, "{block} is cached already");
        record.cached = true;
        if leaf {
            record.past = record.past.at_the_end();
        }
        record.class = record.past.class(num_blocks) as u8;
        self.history.let_go(record.hash, record.past);
        self.cached += 1;
        if leaf {
            self.set_leaf(block);
        }
    }

    fn became_leaf(&mut self, block: BlockId) {
        self.set_leaf(block);
        if self.due.len() < DUE_MAX && self.owner(block) == self.loser {
            self.due.push(block.0);
        }
    }

    fn victim(&mut self, owner: OwnerId) -> Option<BlockId> {
        if owner != self.loser {
            self.loser = owner;
            self.due.clear();
            self.least = Least::new();
        }
        let block = self.next_due().or_else(|| {
            self.compare();
            // The least of the leaves just compared is evicted in any case.
            self.due.pop()
        })?;
        let Record { hash, used, past, .. } = self.records[block as usize];
        self.history.evicted(hash, used, past, self.clock);
        self.set_held(BlockId(block));
        Some(BlockId(block))
    }

    fn forget(&mut self, block: BlockId) {
        self.set_held(block);
        self.run.clear();
    }

    fn moved(&mut self, from: BlockId, to: BlockId) {
        self.records[to.index()] = self.records[from.index()];
        let position = std::mem::replace(&mut self.records[from.index()].position, NONE);
        self.records[from.index()].cached = false;
        let owner = self.owner(from);
        if let Some(of) = self.owners.get_mut(to.index()) {
            *of = owner;
        }
        if position != NONE {
            self.leaves[owner.0 as usize][position as usize] = to.0;
        }
        self.run.clear();
    }

    fn resize(&mut self, usable: usize) {
        // Counts are in shares of the old pool size, so counting starts anew once the size differs too much.
        if usable > 2 * self.scale || 2 * usable < self.scale {
            self.scale = usable;
            self.history.restart(usable, self.clock);
            self.rates = Rates::new(usable);
            (self.estimated, self.estimate_after) = (self.clock, estimate_after(usable));
            for record in self.records.iter_mut().filter(|record| record.cached) {
                record.class = record.past.class(usable as u32) as u8;
            }
            self.due.clear();
        }
    }

    fn class(&self, block: BlockId) -> u8 {
        self.records[block.index()].class
    }

    fn contains(&self, block: BlockId) -> bool {
        self.records[block.index()].cached
    }

    fn len(&self) -> usize {
        self.cached
    }
}

/// Returns the number of uses until the first estimate. Each later interval is twice as long as the one before, up to a
/// limit. An interval must be long enough to go through the sample.
fn estimate_after(num_blocks: usize) -> u32 {
    (num_blocks as u32 / 16).max(256)
}

#[cfg(test)]
mod tests {
    use super::{super::steps::counted, *};

    #[test]
    fn a_leaf_is_found_whatever_worths_are() {
        let mut policy = Adaptive::new(100);
        policy.rates.set_worths(f32::NAN);
        for block in (0..100).map(BlockId) {
            policy.publish(block, Content { hash: crate::BlockHash(block.0.into()), parent: None, owner: OwnerId(0) });
            policy.insert(block, true);
        }
        assert_eq!(std::iter::from_fn(|| policy.victim(OwnerId(0))).count(), 100);
    }

    #[test]
    fn no_call_goes_through_the_pool() {
        let num_blocks = 1 << 15;
        let mut policy = Adaptive::new(num_blocks);
        let (mut most, mut vacant) = (0, Vec::from_iter((0..num_blocks as u32).map(BlockId)));
        for number in 0..5 * num_blocks as u64 {
            let hash = crate::BlockHash((number % 50_000).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let steps = counted(|| {
                let block = vacant.pop().or_else(|| policy.victim(OwnerId(0))).expect("all are cached");
                policy.publish(block, Content { hash, parent: None, owner: OwnerId(0) });
                policy.insert(block, true);
            });
            most = most.max(steps);
        }
        println!("{most} steps at the most");
        assert!(most < 200, "{most}");
    }

    #[test]
    fn bookkeeping_takes_44_bytes_a_block() {
        assert_eq!(Adaptive::new(100_000).bytes() - Rates::new(1).bytes(), 44 * 100_000);
    }
}
