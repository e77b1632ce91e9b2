//! A file on a slower disk.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{DirectRead, IoError};

/// A simulated disk with limited bandwidth and with latency. Several files can share the disk. Their reads share the
/// bandwidth, while the latencies of concurrent reads overlap.
#[derive(Debug)]
pub struct Throttle {
    bytes_per_s: f64,
    latency: Duration,
    began: Instant,
    /// The time at which all bytes requested so far will have been transferred, counted from `began`.
    busy_until: Mutex<Duration>,
}

/// A file that forwards reads to another file and delays each read as a slower disk would. It has no descriptor, so
/// engines must use [`DirectRead::read_aligned_at`].
pub struct ThrottledFile {
    inner: Arc<dyn DirectRead>,
    disk: Arc<Throttle>,
}

impl Throttle {
    /// Creates a disk with a bandwidth of `bytes_per_s` bytes per second that takes at least `latency` for each read.
    /// `bytes_per_s` must be greater than 0; infinity means no limit.
    pub fn new(bytes_per_s: f64, latency: Duration) -> Self {
        Self { bytes_per_s, latency, began: Instant::now(), busy_until: Mutex::default() }
    }

    /// Blocks until the disk would have read `bytes`.
    fn pass(&self, bytes: usize) {
        let finish = {
            let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            *busy_until = transferred(*busy_until, self.began.elapsed(), bytes, self.bytes_per_s);
            busy_until.saturating_add(self.latency)
        };
        std::thread::sleep(finish.saturating_sub(self.began.elapsed()));
    }
}

impl ThrottledFile {
    /// Puts a file on a simulated disk.
    pub fn new(inner: Arc<dyn DirectRead>, disk: Arc<Throttle>) -> Self {
        Self { inner, disk }
    }
}

impl DirectRead for ThrottledFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        self.inner.read_aligned_at(buf, offset, needed)?;
        self.disk.pass(buf.len());
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.inner.check_unchanged()
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
}

impl fmt::Debug for ThrottledFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThrottledFile({} on {:?})", self.path().display(), self.disk)
    }
}

/// Returns the time at which a disk that is busy until `busy_until` has transferred `bytes` bytes that are requested at
/// `now`.
fn transferred(busy_until: Duration, now: Duration, bytes: usize, bytes_per_s: f64) -> Duration {
    let takes = Duration::try_from_secs_f64(bytes as f64 / bytes_per_s).unwrap_or(Duration::ZERO);
    busy_until.max(now).saturating_add(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_one_after_the_other() {
        let ms = Duration::from_millis;
        let megabyte_per_s = 1e6;
        let first = transferred(ms(0), ms(5), 10_000, megabyte_per_s);
        assert_eq!(first, ms(15), "an idle disk begins at once");
        assert_eq!(transferred(first, ms(6), 10_000, megabyte_per_s), ms(25), "a busy one when it is free");
        assert_eq!(transferred(first, ms(40), 10_000, megabyte_per_s), ms(50));
        assert_eq!(transferred(first, ms(6), 10_000, f64::INFINITY), ms(15));
    }
}
