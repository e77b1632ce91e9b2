//! Blocks that are not stored yet, until they have been idle for long enough to be stored.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use interbed_kv::{BlockId, BlockKey};

/// The computed blocks that are not stored yet, each with the time at which the engine looks at it again. Blocks that
/// nobody has used for a while go to disk in this way, before they are evicted from memory in a hurry or lost with the
/// process.
pub(super) struct IdleBlocks {
    after: Duration,
    /// The most blocks that are listed. If there are more, the oldest are dropped: memory holds no more than `most`
    /// blocks, so theirs hold something else by now.
    most: usize,
    blocks: VecDeque<(Instant, BlockId, BlockKey)>,
    is_hurried: bool,
}

impl IdleBlocks {
    /// Lists blocks as due once `after` has passed since they were added. `most` is the number of blocks in memory, or
    /// 0 if no block is to be listed.
    pub(super) fn new(after: Duration, most: usize) -> Self {
        Self { after, most, blocks: VecDeque::new(), is_hurried: false }
    }

    /// Adds `blocks`, which become due when the idle time has passed after `now`.
    pub(super) fn add(&mut self, blocks: impl IntoIterator<Item = (BlockId, BlockKey)>, now: Instant) {
        let when = now + self.after;
        self.blocks.extend(blocks.into_iter().map(|(block, key)| (when, block, key)));
        let excess = self.blocks.len().saturating_sub(self.most);
        self.blocks.drain(..excess);
    }

    /// Returns the block that [`take`](Self::take) would take at `now`.
    pub(super) fn next(&self, now: Instant) -> Option<(BlockId, BlockKey)> {
        self.blocks.front().filter(|(when, ..)| *when <= now).map(|&(_, block, key)| (block, key))
    }

    /// Takes the next block that is due at `now`.
    pub(super) fn take(&mut self, now: Instant) -> Option<(BlockId, BlockKey)> {
        let (_, block, key) = self.blocks.pop_front_if(|(when, ..)| *when <= now)?;
        Some((block, key))
    }

    /// Makes all listed blocks due at `now`, and later additions due at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        (self.is_hurried, self.after) = (true, Duration::ZERO);
        self.blocks.iter_mut().for_each(|(when, ..)| *when = now);
    }

    pub(super) fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_looked_at_when_its_time_has_come() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let of = |number: u32| (BlockId(number), BlockKey::default());
        let mut idle = IdleBlocks::new(Duration::from_secs(60), 3);
        idle.add([of(1), of(2)], at(0));
        idle.add([of(3)], at(10));
        assert_eq!((idle.take(at(59)), idle.take(at(60)), idle.take(at(60))), (None, Some(of(1)), Some(of(2))));
        assert_eq!((idle.take(at(60)), idle.is_empty()), (None, false));
        // The oldest are forgotten first.
        idle.add((4..7).map(of), at(61));
        idle.hurry(at(61));
        idle.add([of(7)], at(61));
        let left: Vec<_> = std::iter::from_fn(|| idle.take(at(61))).collect();
        assert_eq!((left, idle.is_empty()), ([5, 6, 7].map(of).to_vec(), true));
    }
}
