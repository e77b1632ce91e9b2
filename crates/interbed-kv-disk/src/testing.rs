//! Keeps segments in memory that fail on purpose, and that lose what was not synced to the disk.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use interbed_io::{DIRECT_ALIGN, DirectRead, DirectWrite, IoError, SegmentWrite};
use interbed_kv::testing::Rng;

use crate::directory::SegmentSpace;

/// Rates at which a [`FaultySegments`] injects each kind of fault. For every operation, a random number decides whether
/// the fault is injected. A rate is the average number of operations out of 1,000 that get the fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Number of segment reads in 1,000 that report an error.
    pub read_error: u32,
    /// Number of reads in 1,000, of a segment or of the index, that return data with one bit flipped.
    pub read_flip: u32,
    /// Number of writes in 1,000 that write only the beginning of their data, or nothing, and report an error.
    pub write_error: u32,
    /// Number of writes in 1,000 that write only the beginning of their data, or nothing, but report success.
    pub write_torn: u32,
    /// Number of writes in 1,000 that leave one bit flipped in the range that they write to.
    pub write_flip: u32,
    /// Number of segment creations in 1,000 that report a full disk.
    pub create_error: u32,
    /// Number of syncs in 1,000 that report an error.
    pub sync_error: u32,
}

/// State that decides which operations fail.
#[derive(Debug)]
struct Faults {
    rates: FaultRates,
    random: Rng,
    injected: u64,
}

impl Faults {
    fn strikes(&mut self, rate: impl Fn(&FaultRates) -> u32) -> bool {
        let strikes = (self.random.below(1000) as u32) < rate(&self.rates);
        self.injected += u64::from(strikes);
        strikes
    }
}

type Shared = Arc<Mutex<Faults>>;

/// A disk that is simulated in memory. It holds a store's index and its segments, which stand for numbered files of a
/// fixed length. The disk injects faults at random, at the rates that [`set_rates`](Self::set_rates) sets.
#[derive(Debug)]
pub struct FaultySegments {
    segments: Mutex<HashMap<u32, Arc<Segment>>>,
    index: Mutex<Option<Vec<u8>>>,
    faults: Shared,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    len: u64,
    bytes: Mutex<Vec<u8>>,
    synced: Mutex<Vec<u8>>,
    faults: Shared,
}

impl FaultySegments {
    /// Creates an empty disk whose fault rates are all 0 until [`set_rates`](Self::set_rates) is called. `seed` seeds
    /// the random number generator that decides which operations get a fault.
    pub fn new(seed: u64) -> Self {
        let faults = Faults { rates: FaultRates::default(), random: Rng(seed), injected: 0 };
        Self { segments: Mutex::default(), index: Mutex::default(), faults: Arc::new(Mutex::new(faults)) }
    }

    /// Sets the fault rates for all later operations on this disk.
    pub fn set_rates(&self, rates: FaultRates) {
        lock(&self.faults).rates = rates;
    }

    /// Returns the number of faults that this disk has injected since it was created.
    pub fn injected(&self) -> u64 {
        lock(&self.faults).injected
    }

    /// Returns a copy of the disk in a state that a power failure could leave. The copy keeps the index and every
    /// segment. On average, half of the blocks of [`DIRECT_ALIGN`] bytes in the segments, chosen at random, lose what
    /// was written to them after their segment's last successful sync, or after its creation if no sync succeeded. All
    /// fault rates of the copy are 0.
    pub fn after_power_failure(&self) -> Self {
        let mut faults = lock(&self.faults);
        let survivor = Self::new(faults.random.below(usize::MAX) as u64);
        lock(&survivor.index).clone_from(&lock(&self.index));
        for (&number, segment) in lock(&self.segments).iter() {
            let (mut bytes, synced) = (lock(&segment.bytes).clone(), lock(&segment.synced));
            for (block, old) in bytes.chunks_mut(DIRECT_ALIGN).zip(synced.chunks(DIRECT_ALIGN)) {
                if faults.random.below(2) == 0 {
                    block.copy_from_slice(old);
                }
            }
            let segment = Segment {
                path: segment.path.clone(),
                len: segment.len,
                synced: Mutex::new(bytes.clone()),
                bytes: Mutex::new(bytes),
                faults: Arc::clone(&survivor.faults),
            };
            lock(&survivor.segments).insert(number, Arc::new(segment));
        }
        survivor
    }

    /// Calls `change` once for each segment, in ascending order of the segments' numbers. `change` receives the
    /// segment's number and its bytes, which it may alter.
    pub fn tamper(&self, mut change: impl FnMut(u32, &mut Vec<u8>)) {
        let segments = lock(&self.segments);
        let mut numbers: Vec<_> = segments.keys().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().for_each(|number| change(number, &mut lock(&segments[&number].bytes)));
    }

    /// Returns the sum of the lengths of all segments, in bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.segments).values().map(|segment| segment.len).sum()
    }
}

impl SegmentSpace for FaultySegments {
    fn existing(&self) -> Result<Vec<u32>, IoError> {
        Ok(lock(&self.segments).keys().copied().collect())
    }

    fn open(&self, segment: u32) -> Result<Arc<dyn SegmentWrite>, IoError> {
        let path = PathBuf::from(format!("segment-{segment}"));
        let missing = IoError::Open { path, source: io::ErrorKind::NotFound.into() };
        let found = lock(&self.segments).get(&segment).cloned().ok_or(missing)?;
        Ok(found)
    }

    fn create(&self, segment: u32, len: u64) -> Result<Arc<dyn SegmentWrite>, IoError> {
        if let Ok(there) = self.open(segment) {
            return Ok(there);
        }
        let path = PathBuf::from(format!("segment-{segment}"));
        if lock(&self.faults).strikes(|rates| rates.create_error) {
            let source = io::Error::from_raw_os_error(28);
            return Err(IoError::Write { path, action: "reserve room for", source });
        }
        let zeros = || Mutex::new(vec![0; len as usize]);
        let new = Segment { path, len, bytes: zeros(), synced: zeros(), faults: Arc::clone(&self.faults) };
        let new = Arc::new(new);
        lock(&self.segments).insert(segment, Arc::clone(&new));
        Ok(new)
    }

    fn remove(&self, segment: u32) -> Result<(), IoError> {
        lock(&self.segments).remove(&segment);
        Ok(())
    }

    fn take_index(&self) -> Option<Vec<u8>> {
        let mut index = lock(&self.index).take()?;
        let mut faults = lock(&self.faults);
        if faults.strikes(|rates| rates.read_flip) {
            let at = faults.random.below(index.len());
            index[at] ^= 1 << faults.random.below(8);
        }
        Some(index)
    }

    fn leave_index(&self, bytes: &[u8]) -> Result<(), IoError> {
        *lock(&self.index) = Some(bytes.to_vec());
        Ok(())
    }
}

impl DirectRead for Segment {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, _needed: usize) -> Result<(), IoError> {
        let mut faults = lock(&self.faults);
        if faults.strikes(|rates| rates.read_error) {
            let (path, source) = (self.path.clone(), io::Error::from_raw_os_error(5));
            return Err(IoError::Read { path, offset, wanted: buf.len(), got: 0, source });
        }
        let from = offset as usize;
        buf.copy_from_slice(&lock(&self.bytes)[from..from + buf.len()]);
        if faults.strikes(|rates| rates.read_flip) {
            let at = faults.random.below(buf.len());
            buf[at] ^= 1 << faults.random.below(8);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl DirectWrite for Segment {
    fn write_aligned_at(&self, buf: &[u8], offset: u64) -> Result<(), IoError> {
        let mut faults = lock(&self.faults);
        let (fails, tears) = (faults.strikes(|rates| rates.write_error), faults.strikes(|rates| rates.write_torn));
        let len = if fails || tears { faults.random.below(buf.len()) } else { buf.len() };
        let mut bytes = lock(&self.bytes);
        let from = offset as usize;
        bytes[from..from + len].copy_from_slice(&buf[..len]);
        if faults.strikes(|rates| rates.write_flip) {
            let at = from + faults.random.below(buf.len());
            bytes[at] ^= 1 << faults.random.below(8);
        }
        match fails {
            true => {
                let source = io::Error::from_raw_os_error(28);
                Err(IoError::Write { path: self.path.clone(), action: "write to", source })
            }
            false => Ok(()),
        }
    }
}

impl SegmentWrite for Segment {
    fn sync(&self) -> Result<(), IoError> {
        if lock(&self.faults).strikes(|rates| rates.sync_error) {
            let source = io::Error::from_raw_os_error(5);
            return Err(IoError::Write { path: self.path.clone(), action: "sync", source });
        }
        let bytes = lock(&self.bytes);
        lock(&self.synced).copy_from_slice(&bytes);
        Ok(())
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
