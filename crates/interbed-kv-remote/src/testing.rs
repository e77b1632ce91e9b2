//! A store in memory that fails on purpose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use interbed_kv::testing::Rng;

use crate::blob_store::{BlobStore, StoreFuture};

/// The faults that a [`FaultyStore`] injects. Each field of type `u32` is a rate: on average, the fault affects that
/// many of 1,000 reads or writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreFaults {
    /// The number of reads in 1,000 that report an error.
    pub read_error: u32,
    /// The number of reads in 1,000 that return the object with one bit flipped.
    pub read_flip: u32,
    /// The number of reads in 1,000 that return a randomly chosen object instead of the requested one.
    pub read_other: u32,
    /// The number of reads in 1,000 that the store never answers.
    pub read_silent: u32,
    /// The maximum number of reads that the store answers, counted since the store was created. The store never answers
    /// any further read. `None` for no limit.
    pub reads_answered: Option<u64>,
    /// The number of writes in 1,000 that the store never answers.
    pub write_silent: u32,
    /// The number of writes in 1,000 that report an error. Such a write may still have stored the object.
    pub write_error: u32,
    /// The number of writes in 1,000 that panic, as if the store's library had a bug.
    pub write_panic: u32,
    /// The number of writes in 1,000 that cut off the end of the object and store only the rest.
    pub write_torn: u32,
    /// The number of writes in 1,000 that do not store the object. Such a write still reports success, unless
    /// `write_error` also affects it.
    pub forgotten: u32,
    /// The time from the start of a read or write until the store executes it and answers.
    pub delay: Duration,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Vec<u8>>,
    faults: StoreFaults,
    random: Rng,
    reads: u64,
    writes: u64,
}

/// A [`BlobStore`] in memory that fails on purpose, for tests. Clones share the same objects and faults.
#[derive(Debug, Clone, Default)]
pub struct FaultyStore(Arc<Mutex<State>>);

impl FaultyStore {
    /// Creates an empty store, which injects no faults until [`set_faults`](Self::set_faults) is called. `seed` seeds
    /// the random number generator that chooses the reads and writes that fail.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { random: Rng(seed), ..State::default() })))
    }

    /// Sets the faults that the store injects from now on.
    pub fn set_faults(&self, faults: StoreFaults) {
        self.lock().faults = faults;
    }

    /// Returns the number of objects in the store.
    pub fn num_objects(&self) -> usize {
        self.lock().objects.len()
    }

    /// Returns the number of reads and the number of writes since the store was created. Does not count reads that
    /// [`read_silent`](StoreFaults::read_silent) affects, or writes that [`write_silent`](StoreFaults::write_silent) or
    /// [`write_panic`](StoreFaults::write_panic) affects.
    pub fn asked(&self) -> (u64, u64) {
        let state = self.lock();
        (state.reads, state.writes)
    }

    /// Calls `change` for each object, with the object's name and its bytes. `change` may alter the bytes.
    pub fn tamper(&self, mut change: impl FnMut(&str, &mut Vec<u8>)) {
        self.lock().objects.iter_mut().for_each(|(name, object)| change(name, object));
    }

    /// Removes all objects from the store.
    pub fn clear(&self) {
        self.lock().objects.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn strikes(&mut self, rate: impl Fn(&StoreFaults) -> u32) -> bool {
        (self.random.below(1000) as u32) < rate(&self.faults)
    }

    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        if self.strikes(|faults| faults.read_error) {
            return Err("the store has failed".into());
        }
        let mut object = match self.strikes(|faults| faults.read_other) {
            true => {
                let other = self.random.below(self.objects.len().max(1));
                self.objects.values().nth(other).cloned()
            }
            false => self.objects.get(name).cloned(),
        };
        if let Some(object) = object.as_mut().filter(|object| !object.is_empty())
            && self.strikes(|faults| faults.read_flip)
        {
            let at = self.random.below(object.len());
            object[at] ^= 1 << self.random.below(8);
        }
        Ok(object)
    }

    fn write(&mut self, name: &str, mut object: Vec<u8>) -> Result<(), String> {
        self.writes += 1;
        let (fails, tears) = (self.strikes(|faults| faults.write_error), self.strikes(|faults| faults.write_torn));
        if tears {
            object.truncate(self.random.below(object.len()));
        }
        if !self.strikes(|faults| faults.forgotten) && (!fails || self.random.below(2) == 0) {
            self.objects.insert(name.to_owned(), object);
        }
        if fails { Err("the store has failed".into()) } else { Ok(()) }
    }

    /// Returns how long the answer to a read takes; `None` if it never comes.
    fn read_delay(&mut self) -> Option<Duration> {
        let delay = self.delay(|faults| faults.read_silent)?;
        self.reads += 1;
        self.faults.reads_answered.is_none_or(|most| self.reads <= most).then_some(delay)
    }

    /// Returns how long an answer takes; `None` if it never comes.
    fn delay(&mut self, silent: impl Fn(&StoreFaults) -> u32) -> Option<Duration> {
        (!self.strikes(silent)).then_some(self.faults.delay)
    }
}

/// Waits for an answer that may never come.
async fn answer(delay: Option<Duration>) {
    match delay {
        Some(Duration::ZERO) => {}
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}

impl BlobStore for FaultyStore {
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let delay = self.lock().read_delay();
            answer(delay).await;
            let mut object = self.lock().read(name)?;
            object.iter_mut().for_each(|object| drop(object.drain(..object.len().saturating_sub(most))));
            Ok(object)
        })
    }

    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let delay = self.lock().delay(|faults| faults.write_silent);
            answer(delay).await;
            let panics = self.lock().strikes(|faults| faults.write_panic);
            assert!(!panics, "a bug, on purpose");
            self.lock().write(name, object)
        })
    }
}
