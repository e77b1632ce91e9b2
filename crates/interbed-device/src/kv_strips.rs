//! Strips: ranges of addresses in which the blocks of one sequence lie side by side, wherever the blocks' memory is. A
//! planner decides which blocks lie in a strip; this module carries the decisions out, at once or beside the passes.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{PageAccess, VirtualMemory};

/// The number of strips, and their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripShape {
    /// The number of strips.
    pub count: usize,
    /// The number of blocks of each strip.
    pub blocks: usize,
}

/// A change of the content of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripChange {
    /// The strip.
    pub strip: u32,
    /// The first block of the strip that changes.
    pub first: u32,
    /// The number of blocks that change.
    pub count: u32,
    /// The new content of these blocks.
    pub to: StripContent,
}

/// The new content of a part of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripContent {
    /// Blocks of the pool that lie side by side, from the block with this number on, with this access.
    Blocks(u32, PageAccess),
    /// The blocks that the part has already, from now on only to be read.
    ReadOnly,
    /// No memory.
    Nothing,
}

/// Counts of what was done in strips.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StripStats {
    /// Changes that a pass waited for.
    pub changes: u64,
    /// Time that passes waited for changes, also for those made beside another pass.
    pub waited: Duration,
    /// Changes made beside passes.
    pub changes_beside: u64,
    /// Time that these took.
    pub time_beside: Duration,
    /// Changes that the system refused.
    pub refused: u64,
}

/// The content of one block of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Nothing,
    Block { writable: bool },
}

struct Strip {
    /// The state of the blocks that were ever used; the blocks after these have no memory.
    mapped: Vec<Mapped>,
    /// Blocks that a pass may use now, and that therefore must not change.
    pinned: Range<usize>,
}

/// The memory that changes are made to, and the changes that are left to be made beside passes.
struct Shared {
    memory: Arc<dyn VirtualMemory>,
    block_bytes: usize,
    /// Blocks of the pool that may be mapped.
    pool_blocks: usize,
    /// The number of the first strip's first block.
    first_block: usize,
    shape: StripShape,
    strips: Vec<Mutex<Strip>>,
    queue: Mutex<Queue>,
    /// There is something to do, or something was done.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<StripChange>,
    /// Jobs since the start.
    asked: u64,
    /// Jobs that were done or refused since the start.
    done: u64,
    refused: Vec<StripChange>,
    time: Duration,
    is_closed: bool,
}

/// The part of a strip that a pass may use: the pass may read the blocks from `first` to `end`, and also write the
/// blocks from `written` on.
#[derive(Debug, Clone, Copy, Default)]
struct Pinned {
    first: usize,
    written: usize,
    end: usize,
}

/// The strips behind a pool's blocks. The blocks of strips have numbers too, which begin after the numbers of all of
/// the pool's blocks and go on strip after strip.
pub struct KvStrips {
    shared: Arc<Shared>,
    /// The part of each strip that a pass may use.
    pinned: Vec<Pinned>,
    stats: StripStats,
    worker: Option<JoinHandle<()>>,
}

impl KvStrips {
    /// Creates strips of this shape for the first `pool_blocks` blocks of `memory`, of `block_bytes` bytes each. The
    /// strips' blocks have the numbers from `first_block` on, and block `n` has the addresses from `n * block_bytes`
    /// on.
    ///
    /// # Errors
    /// Fails if the system has no thread for the changes.
    ///
    /// # Panics
    /// Panics if a block is not made of whole pages, or if the numbers of strips are among those of the pool.
    pub fn new(
        memory: Arc<dyn VirtualMemory>,
        block_bytes: usize,
        pool_blocks: usize,
        first_block: usize,
        shape: StripShape,
    ) -> io::Result<Self> {
        assert!(first_block >= pool_blocks, "strips begin at {first_block}, among {pool_blocks} blocks");
        assert!(block_bytes.is_multiple_of(memory.page_size()), "blocks of {block_bytes} bytes are not whole pages");
        let strip = || Mutex::new(Strip { mapped: Vec::new(), pinned: 0..0 });
        let strips = (0..shape.count).map(|_| strip()).collect();
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { memory, block_bytes, pool_blocks, first_block, shape, strips, queue, changed });
        let worker = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("interbed-kv-strips".into()).spawn(move || shared.work())?
        };
        Ok(Self {
            shared,
            pinned: vec![Pinned::default(); shape.count],
            stats: StripStats::default(),
            worker: Some(worker),
        })
    }

    /// Returns the number of strips, and their length.
    pub fn shape(&self) -> StripShape {
        self.shared.shape
    }

    /// Returns the number of a strip's first block.
    pub fn first_block(&self, strip: u32) -> u32 {
        (self.shared.first_block + strip as usize * self.shared.shape.blocks) as u32
    }

    /// Makes changes beside passes, in this order, after the changes that were asked for before. None of the changes
    /// may concern what a pass uses.
    pub fn change_beside(&mut self, changes: impl IntoIterator<Item = StripChange>) {
        let mut queue = self.shared.queue();
        let before = queue.jobs.len();
        queue.jobs.extend(changes);
        let more = queue.jobs.len() - before;
        queue.asked += more as u64;
        if more > 0 {
            self.shared.changed.notify_all();
        }
    }

    /// Waits until all changes beside passes have been made.
    pub fn settle(&self) {
        drop(self.shared.wait(self.shared.queue(), |queue| queue.done < queue.asked));
    }

    /// Returns how many of the changes beside passes have been made or refused.
    pub fn done_beside(&self) -> u64 {
        self.shared.queue().done
    }

    /// Waits until the first `number` changes beside passes have been made, and takes the changes that were refused.
    pub fn wait_for(&mut self, number: u64) -> Vec<StripChange> {
        let mut queue = self.shared.queue();
        if queue.done < number {
            let began = Instant::now();
            queue = self.shared.wait(queue, |queue| queue.done < number);
            self.stats.waited += began.elapsed();
        }
        std::mem::take(&mut queue.refused)
    }

    /// Makes a change at once.
    ///
    /// # Errors
    /// Fails if the system refuses; the blocks may then have no memory.
    pub fn change(&mut self, change: &StripChange) -> io::Result<()> {
        let began = Instant::now();
        let outcome = self.shared.make(change);
        self.stats.waited += began.elapsed();
        self.stats.changes += 1;
        self.stats.refused += u64::from(outcome.is_err());
        outcome
    }

    /// Ends a pass's use of the strips. Between passes nothing is used of any strip.
    pub fn unpin(&mut self) {
        for (strip, pinned) in self.pinned.iter_mut().enumerate().filter(|(_, pinned)| pinned.end > 0) {
            *pinned = Pinned::default();
            self.shared.strip(strip).pinned = 0..0;
        }
    }

    /// Notes that the next pass uses these `blocks` of a strip, and writes the blocks from `written` on.
    ///
    /// # Panics
    /// Panics if some of the blocks have no memory, or if blocks that are written may only be read.
    pub fn pin(&mut self, strip: u32, blocks: Range<usize>, written: usize) {
        let mut state = self.shared.strip(strip as usize);
        let is_there = blocks.clone().all(|index| match state.mapped.get(index) {
            None | Some(Mapped::Nothing) => false,
            Some(&Mapped::Block { writable }) => writable || index < written,
        });
        assert!(is_there, "a pass needs blocks of strip {strip} that are not mapped for it");
        state.pinned = blocks.clone();
        self.pinned[strip as usize] = Pinned { first: blocks.start, written, end: blocks.end };
    }

    /// Checks that a pass may read the blocks with these numbers, and write the blocks from `written` on.
    ///
    /// # Panics
    /// Panics if a block belongs to no strip, is not pinned, or may not be used in that way.
    pub(crate) fn check(&self, blocks: Range<usize>, written: usize) {
        let shape = self.shared.shape;
        if blocks.is_empty() {
            return;
        }
        let first = blocks.start.checked_sub(self.shared.first_block).expect("only blocks of strips lie side by side");
        let (strip, first) = (first / shape.blocks, first % shape.blocks);
        let (end, written) = (first + blocks.len(), first + written.saturating_sub(blocks.start));
        let may = |pinned: &Pinned| pinned.first <= first && end <= pinned.end && pinned.written.min(end) <= written;
        let may = self.pinned.get(strip).is_some_and(may);
        assert!(may, "blocks {first} to {end} of strip {strip} are not there for this pass");
    }

    /// Returns the counts of what was done so far.
    pub fn stats(&self) -> StripStats {
        let queue = self.shared.queue();
        StripStats { changes_beside: queue.done, time_beside: queue.time, ..self.stats }
    }
}

impl std::fmt::Debug for KvStrips {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStrips").field("shape", &self.shared.shape).finish_non_exhaustive()
    }
}

impl Drop for KvStrips {
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.changed.notify_all();
        // It catches its panics.
        let _ = self.worker.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strip(&self, strip: usize) -> MutexGuard<'_, Strip> {
        self.strips[strip].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, condition: impl Fn(&Queue) -> bool) -> MutexGuard<'a, Queue> {
        self.changed.wait_while(queue, |queue| condition(queue)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the changes beside passes, in a thread of its own.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            queue = self.wait(queue, |queue| queue.jobs.is_empty() && !queue.is_closed);
            if queue.is_closed {
                return;
            }
            let Some(change) = queue.jobs.pop_front() else { continue };
            drop(queue);
            let began = Instant::now();
            // Whoever waits must not wait for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.make(&change)));
            let outcome = outcome.unwrap_or_else(|_| Err(io::Error::other("mapping KV panicked")));
            queue = self.queue();
            queue.time += began.elapsed();
            queue.done += 1;
            if outcome.is_err() {
                queue.refused.push(change);
            }
            self.changed.notify_all();
        }
    }

    fn make(&self, change: &StripChange) -> io::Result<()> {
        let StripChange { strip, first, count, to } = *change;
        let range = first as usize..first as usize + count as usize;
        let mut strip_state = self.strip(strip as usize);
        if range.start < strip_state.pinned.end && strip_state.pinned.start < range.end {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a pass uses these blocks"));
        }
        let bytes = self.block_bytes;
        let base = self.first_block + strip as usize * self.shape.blocks;
        let at = (base + range.start) * bytes..(base + range.end) * bytes;
        assert!(range.end <= self.shape.blocks, "a strip has {} blocks", self.shape.blocks);
        if strip_state.mapped.len() < range.end {
            strip_state.mapped.resize(range.end, Mapped::Nothing);
        }
        let mapped = &mut strip_state.mapped[range];
        let (outcome, content) = match to {
            StripContent::Blocks(block, access) => {
                let block = block as usize;
                assert!(block + count as usize <= self.pool_blocks, "blocks {block} and on are not in the pool");
                let writable = access == PageAccess::Write;
                (self.memory.map(at, block * bytes, access), Mapped::Block { writable })
            }
            StripContent::ReadOnly => {
                assert!(mapped.iter().all(|mapped| *mapped != Mapped::Nothing), "nothing is there to be read");
                (self.memory.protect(at, PageAccess::Read), Mapped::Block { writable: false })
            }
            StripContent::Nothing => (self.memory.unmap(at), Mapped::Nothing),
        };
        mapped.fill(if outcome.is_ok() { content } else { Mapped::Nothing });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Notes what is mapped, and refuses mappings while `refuse` is set.
    #[derive(Default)]
    struct Noted {
        calls: Mutex<Vec<String>>,
        refuse: Mutex<bool>,
    }

    impl Noted {
        fn note(&self, call: String) -> io::Result<()> {
            if *self.refuse.lock().unwrap() {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.calls.lock().unwrap().push(call);
            Ok(())
        }
    }

    impl VirtualMemory for Noted {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn map(&self, at: Range<usize>, from: usize, access: PageAccess) -> io::Result<()> {
            self.note(format!("map {}..{} {} {access:?}", at.start / PAGE, at.end / PAGE, from / PAGE))
        }

        fn protect(&self, at: Range<usize>, access: PageAccess) -> io::Result<()> {
            self.note(format!("protect {}..{} {access:?}", at.start / PAGE, at.end / PAGE))
        }

        fn unmap(&self, at: Range<usize>) -> io::Result<()> {
            self.note(format!("unmap {}..{}", at.start / PAGE, at.end / PAGE))
        }
    }

    fn strips() -> (Arc<Noted>, KvStrips) {
        let memory = Arc::new(Noted::default());
        let shape = StripShape { count: 3, blocks: 4 };
        let strips = KvStrips::new(Arc::clone(&memory) as Arc<dyn VirtualMemory>, 2 * PAGE, 10, 10, shape).unwrap();
        (memory, strips)
    }

    fn blocks(strip: u32, first: u32, count: u32, block: u32, access: PageAccess) -> StripChange {
        StripChange { strip, first, count, to: StripContent::Blocks(block, access) }
    }

    #[test]
    fn changes_are_made_in_order_at_the_addresses_of_their_strip() {
        let (memory, mut strips) = strips();
        strips.change(&blocks(1, 0, 2, 5, PageAccess::Read)).unwrap();
        strips.change_beside([blocks(1, 2, 1, 9, PageAccess::Write), blocks(2, 0, 1, 0, PageAccess::Write)]);
        assert!(strips.wait_for(2).is_empty());
        strips.change(&StripChange { strip: 2, first: 0, count: 1, to: StripContent::Nothing }).unwrap();
        strips.change(&StripChange { strip: 1, first: 0, count: 3, to: StripContent::ReadOnly }).unwrap();
        let expected =
            ["map 28..32 10 Read", "map 32..34 18 Write", "map 36..38 0 Write", "unmap 36..38", "protect 28..34 Read"];
        assert_eq!(*memory.calls.lock().unwrap(), expected);
        let stats = strips.stats();
        assert_eq!((stats.changes, stats.changes_beside, stats.refused), (3, 2, 0));
        assert_eq!((strips.first_block(0), strips.first_block(2)), (10, 18));
    }

    #[test]
    fn what_a_pass_uses_stays() {
        let (_, mut strips) = strips();
        strips.change(&blocks(0, 0, 2, 3, PageAccess::Read)).unwrap();
        strips.change(&blocks(0, 2, 2, 7, PageAccess::Write)).unwrap();
        strips.pin(0, 0..3, 2);
        strips.check(10..13, 12);
        let change = blocks(0, 2, 1, 1, PageAccess::Write);
        strips.change_beside([change, blocks(0, 3, 1, 1, PageAccess::Write)]);
        assert_eq!(strips.wait_for(2), [change]);
        assert!(strips.change(&change).is_err());
        strips.unpin();
        strips.change(&change).unwrap();
        let (_, mut strips) = self::strips();
        strips.change(&blocks(2, 0, 4, 3, PageAccess::Write)).unwrap();
        strips.pin(2, 1..4, 1);
        strips.check(19..22, 19);
    }

    #[test]
    fn what_is_not_there_is_not_used() {
        let refused = |act: &dyn Fn(&mut KvStrips)| {
            let (_, mut strips) = strips();
            strips.change(&blocks(1, 0, 2, 3, PageAccess::Read)).unwrap();
            strips.change(&blocks(1, 2, 1, 3, PageAccess::Write)).unwrap();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&mut strips))).is_err()
        };
        assert!(!refused(&|strips| strips.pin(1, 0..3, 2)));
        assert!(refused(&|strips| strips.pin(1, 0..4, 2)), "one too many");
        assert!(refused(&|strips| strips.pin(1, 0..3, 1)), "written where it may only be read");
        assert!(refused(&|strips| strips.check(14..15, 15)), "nothing is pinned");
        let pinned = |blocks: Range<usize>, written: usize| {
            refused(&|strips| {
                strips.pin(1, 0..3, 2);
                strips.check(blocks.clone(), written);
            })
        };
        assert!(!pinned(14..17, 16));
        assert!(!pinned(14..16, 16));
        assert!(pinned(14..18, 16) && pinned(14..17, 15) && pinned(13..15, 15) && pinned(3..4, 4));
    }

    #[test]
    fn a_change_that_makes_no_sense_keeps_nobody_waiting() {
        let (_, mut strips) = strips();
        let change = blocks(0, 0, 1, 10, PageAccess::Write);
        strips.change_beside([change, blocks(0, 1, 1, 3, PageAccess::Write)]);
        strips.settle();
        assert_eq!(strips.wait_for(2), [change]);
        strips.pin(0, 1..2, 1);
    }

    #[test]
    fn what_the_system_refuses_is_told_and_is_not_there() {
        let (memory, mut strips) = strips();
        strips.change(&blocks(0, 0, 1, 1, PageAccess::Write)).unwrap();
        *memory.refuse.lock().unwrap() = true;
        assert!(strips.change(&blocks(0, 0, 1, 2, PageAccess::Write)).is_err());
        let change = blocks(1, 0, 1, 2, PageAccess::Write);
        strips.change_beside([change]);
        assert_eq!(strips.wait_for(1), [change]);
        assert!(strips.wait_for(1).is_empty());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| strips.pin(0, 0..1, 1))).is_err());
        assert_eq!(strips.stats().refused, 1);
    }
}
