//! Priorities for accesses to a disk that several users share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{ReadDone, ReadEngine, ReadRequest};

/// The urgency of a disk access, most urgent first. It depends on what is waiting for the access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A forward pass waits for the access and computes nothing meanwhile.
    Pass,
    /// A single sequence waits for the access, while other sequences continue.
    Sequence,
    /// Nothing waits for the access.
    Nobody,
}

impl Urgency {
    /// Returns the longest time that an access gives way each time. A pass that reads without a pause may thus delay
    /// the access, but cannot block it forever.
    const fn patience(self) -> Duration {
        match self {
            Urgency::Pass => Duration::ZERO,
            Urgency::Sequence => Duration::from_millis(10),
            Urgency::Nobody => Duration::from_millis(100),
        }
    }
}

/// Counts the urgent disk accesses that are in flight or about to begin, so that less urgent accesses can wait for
/// them.
#[derive(Debug, Default)]
pub struct DiskTurns {
    /// The number of announced accesses that have not ended, by urgency.
    begun: Mutex<[usize; 2]>,
    fewer: Condvar,
}

impl DiskTurns {
    /// Announces `count` accesses that are about to begin.
    pub fn begin(&self, urgency: Urgency, count: usize) {
        if let Some(begun) = self.lock().get_mut(urgency as usize) {
            *begun += count;
        }
    }

    /// Reports that one of the announced accesses has ended.
    pub fn end(&self, urgency: Urgency) {
        if let Some(begun) = self.lock().get_mut(urgency as usize) {
            *begun -= 1;
            if *begun == 0 {
                self.fewer.notify_all();
            }
        }
    }

    /// Waits until no access that is more urgent than `urgency` is in flight or announced. The wait has a fixed time
    /// limit, which depends on `urgency`. Returns `false` if the limit expires first.
    pub fn give_way(&self, urgency: Urgency) -> bool {
        let urgent = |begun: &mut [usize; 2]| begun.iter().take(urgency as usize).any(|&count| count > 0);
        let waited = self.fewer.wait_timeout_while(self.lock(), urgency.patience(), urgent);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Wraps a read engine so that its reads count as accesses with [`Urgency::Pass`].
    pub fn first<B: 'static>(self: &Arc<Self>, engine: Box<dyn ReadEngine<B>>) -> Box<dyn ReadEngine<B>> {
        Box::new(First { engine, turns: Arc::clone(self) })
    }

    fn lock(&self) -> MutexGuard<'_, [usize; 2]> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A read engine whose reads a pass waits for.
struct First<B> {
    engine: Box<dyn ReadEngine<B>>,
    turns: Arc<DiskTurns>,
}

impl<B> First<B> {
    fn ended(&self, done: Option<ReadDone<B>>) -> Option<ReadDone<B>> {
        done.iter().for_each(|_| self.turns.end(Urgency::Pass));
        done
    }
}

impl<B> ReadEngine<B> for First<B> {
    fn submit(&mut self, request: ReadRequest<B>) {
        self.turns.begin(Urgency::Pass, 1);
        self.engine.submit(request);
    }

    fn poll(&mut self) -> Option<ReadDone<B>> {
        let done = self.engine.poll();
        self.ended(done)
    }

    fn wait(&mut self) -> Option<ReadDone<B>> {
        let done = self.engine.wait();
        self.ended(done)
    }

    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    fn name(&self) -> &'static str {
        self.engine.name()
    }
}

impl<B> Drop for First<B> {
    fn drop(&mut self) {
        (0..self.engine.in_flight()).for_each(|_| self.turns.end(Urgency::Pass));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, DirectFile, DirectRead, EngineKind};

    #[test]
    fn who_is_less_urgent_gives_way_but_not_for_ever() {
        let turns = DiskTurns::default();
        assert!(turns.give_way(Urgency::Nobody), "nobody is there");
        turns.begin(Urgency::Sequence, 2);
        assert!(turns.give_way(Urgency::Pass) && turns.give_way(Urgency::Sequence));
        assert!(!turns.give_way(Urgency::Nobody));
        turns.end(Urgency::Sequence);
        assert!(!turns.give_way(Urgency::Nobody), "one is left");
        turns.begin(Urgency::Pass, 1);
        turns.end(Urgency::Sequence);
        assert!(!turns.give_way(Urgency::Sequence) && !turns.give_way(Urgency::Nobody));
        turns.end(Urgency::Pass);
        assert!(turns.give_way(Urgency::Sequence) && turns.give_way(Urgency::Nobody));
        // Accesses that nothing waits for delay no others.
        turns.begin(Urgency::Nobody, 1);
        assert!(turns.give_way(Urgency::Nobody));
        turns.end(Urgency::Nobody);
    }

    #[test]
    fn an_engine_that_goes_first_is_waited_for_until_its_reads_have_come() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 16).unwrap();
        let file: Arc<dyn DirectRead> = Arc::new(DirectFile::open(file.path()).unwrap());
        for kind in [EngineKind::Pread, EngineKind::Uring] {
            let turns = Arc::new(DiskTurns::default());
            let Ok(engine) = kind.start(2) else { continue };
            let mut engine = turns.first(engine);
            let read = |tag: u64| ReadRequest {
                tag,
                file: Arc::clone(&file),
                offset: tag << 12,
                needed: 4096,
                len: 4096,
                buffer: AlignedBuffer::new_zeroed(4096).unwrap(),
            };
            (0..5).for_each(|tag| engine.submit(read(tag)));
            // The reads count until their completions are taken.
            assert!(!turns.give_way(Urgency::Nobody));
            while engine.wait().is_some() {}
            assert!(turns.give_way(Urgency::Nobody));
            (0..5).for_each(|tag| engine.submit(read(tag)));
            drop(engine);
            assert!(turns.give_way(Urgency::Nobody), "whoever is gone is not waited for");
        }
    }
}
