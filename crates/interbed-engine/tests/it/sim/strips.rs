//! Strips that are notes: what a pass asks for is looked up in them, and changes beside passes come as late as they
//! may.

use std::collections::VecDeque;
use std::ops::Range;

use interbed_device::StripStats;
use interbed_engine::StripMemory;
use interbed_kv::{Hiding, Mapped, Mapping, StripConfig};

/// The number of the first strip's first block: beyond all pools.
const FIRST: u32 = 1 << 20;

/// One change in this many is refused.
const REFUSED: u64 = 17;

const CONFIG: StripConfig =
    StripConfig { strips: 80, blocks: 600, mappings_max: 4_000, mapped_max: 4_000, hiding: Hiding::ALL };

pub struct SimStrips {
    /// The blocks, and whether they may be written. `[strip][index]`
    strips: Vec<Vec<Option<(u32, bool)>>>,
    beside: VecDeque<Mapping>,
    done: u64,
    refused: Vec<Mapping>,
    /// What the next pass may use: blocks of a strip, and the first that it may write.
    pinned: Vec<(Range<u32>, u32)>,
    random: u64,
    stats: StripStats,
}

impl Default for SimStrips {
    fn default() -> Self {
        Self {
            strips: vec![vec![None; CONFIG.blocks]; CONFIG.strips],
            beside: VecDeque::new(),
            done: 0,
            refused: Vec::new(),
            pinned: vec![(0..0, 0); CONFIG.strips],
            random: 1,
            stats: StripStats::default(),
        }
    }
}

impl SimStrips {
    /// The block of the pool that a pass finds under this number.
    pub fn block(&self, number: u32, to_write: bool) -> u32 {
        let Some(number) = number.checked_sub(FIRST) else { return number };
        let (strip, index) = (number as usize / CONFIG.blocks, number as usize % CONFIG.blocks);
        let (blocks, written) = &self.pinned[strip];
        assert!(blocks.contains(&(index as u32)) && (!to_write || index as u32 >= *written), "that is not pinned");
        let (block, writable) = self.strips[strip][index].expect("what is pinned is mapped");
        assert!(writable || !to_write, "a write to what is shared");
        block
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33).is_multiple_of(of)
    }

    fn make(&mut self, change: &Mapping) -> bool {
        let blocks = change.first..change.first + change.count;
        let pinned = &self.pinned[change.strip as usize].0;
        assert!(blocks.end <= pinned.start || pinned.end <= blocks.start, "a pass uses what changes");
        let is_refused = self.chance(REFUSED);
        for (offset, index) in (0..).zip(blocks) {
            let entry = &mut self.strips[change.strip as usize][index as usize];
            *entry = match change.to {
                _ if is_refused => None,
                Mapped::Read(block) => Some((block.0 + offset, false)),
                Mapped::Write(block) => Some((block.0 + offset, true)),
                Mapped::ReadOnly => Some((entry.expect("only what is there is protected").0, false)),
                Mapped::Nothing => None,
            };
        }
        !is_refused
    }

    fn make_one_beside(&mut self) {
        let change = self.beside.pop_front().expect("nothing is waited for that was not asked for");
        self.done += 1;
        if !self.make(&change) {
            self.refused.push(change);
        }
    }
}

impl StripMemory for SimStrips {
    fn config(&self) -> StripConfig {
        CONFIG
    }

    fn first_block(&mut self, strip: u32) -> u32 {
        FIRST + strip * CONFIG.blocks as u32
    }

    fn change_beside(&mut self, changes: &[Mapping]) {
        self.beside.extend(changes);
        self.stats.changes_beside += changes.len() as u64;
    }

    fn wait_for(&mut self, number: u64) -> Vec<Mapping> {
        while self.done < number || !self.beside.is_empty() && self.chance(3) {
            self.make_one_beside();
        }
        std::mem::take(&mut self.refused)
    }

    fn change(&mut self, change: &Mapping) -> bool {
        self.stats.changes += 1;
        self.make(change)
    }

    fn unpin(&mut self) {
        self.pinned.fill((0..0, 0));
    }

    fn pin(&mut self, strip: u32, blocks: Range<u32>, written: u32) {
        for index in blocks.clone() {
            let (_, writable) = self.strips[strip as usize][index as usize].expect("what a pass uses is mapped");
            assert!(writable || index < written, "what a pass writes may be written");
        }
        self.pinned[strip as usize] = (blocks, written);
    }

    fn stats(&mut self) -> StripStats {
        self.stats
    }
}
