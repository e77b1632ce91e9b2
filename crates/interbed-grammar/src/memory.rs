//! The memory budget of compiled grammars, whose caches grow while answers are generated. All grammars share one
//! budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The part of the budget (1 / `FREE_PART`, one half) that is given to any grammar that asks. The rest is reserved for
/// grammars that use no more than an equal share of it.
const FREE_PART: usize = 2;

/// The memory budget of all grammars of a vocabulary.
#[derive(Debug)]
pub(crate) struct GrammarMemory {
    bytes: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    grammars: usize,
}

/// The memory that one grammar holds from the budget. Dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct Holding {
    memory: Arc<GrammarMemory>,
    bytes: Mutex<usize>,
}

impl GrammarMemory {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, taken: Mutex::default() })
    }

    /// Registers one more grammar, which holds no memory yet.
    pub(crate) fn hold(self: &Arc<Self>) -> Holding {
        lock(&self.taken).grammars += 1;
        Holding { memory: self.clone(), bytes: Mutex::default() }
    }
}

impl Holding {
    /// Raises the reservation to `bytes`, if it is smaller. Returns false if the budget does not allow that.
    pub(crate) fn grow_to(&self, bytes: usize) -> bool {
        let (mut own, mut taken) = (lock(&self.bytes), lock(&self.memory.taken));
        let more = bytes.saturating_sub(*own);
        if more == 0 {
            return true;
        }
        let (all, free) = (taken.bytes.saturating_add(more), self.memory.bytes / FREE_PART);
        let share = (self.memory.bytes - free) / taken.grammars.max(1);
        let granted = all <= free || (bytes <= share && all <= self.memory.bytes);
        if granted {
            (*own, taken.bytes) = (bytes, all);
        }
        granted
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut taken = lock(&self.memory.taken);
        taken.bytes -= *lock(&self.bytes);
        taken.grammars -= 1;
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_share_is_left_to_those_who_hold_little() {
        let memory = GrammarMemory::new(1000);
        let (greedy, modest) = (memory.hold(), memory.hold());
        assert!(greedy.grow_to(450) && !greedy.grow_to(600));
        assert!(modest.grow_to(200), "it has its share");
        assert!(!modest.grow_to(300));
        assert!(greedy.grow_to(100), "it has that already");
        drop(greedy);
        assert!(modest.grow_to(480));
        drop(modest);
        assert_eq!(lock(&memory.taken).bytes, 0);
        let all: Vec<_> = (0..50).map(|_| memory.hold()).collect();
        assert!(all.iter().all(|one| one.grow_to(10)), "each has a part");
        assert!(!all[0].grow_to(501));
    }
}
