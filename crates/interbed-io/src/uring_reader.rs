//! Reads in the background through the kernel's io_uring queue, without threads of this process, if the kernel allows
//! it.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use crate::direct_read::check_request;
use crate::progress::Progress;
use crate::read_engine::front;
use crate::{IoError, ReadDone, ReadEngine, ReadRequest};

/// The display name of the engine.
pub(crate) const NAME: &str = "io_uring";
/// The deepest queue that is supported. Disks gain nothing from more.
const DEPTH_MAX: usize = 256;
/// The maximum number of bytes that one entry reads. The length field of an entry has 32 bits, and the kernel cuts
/// reads a page short of 2 GiB.
const ENTRY_BYTES_MAX: usize = 1 << 30;
/// The number of retries of a read if the kernel lacks resources for it, or interrupts it.
const RETRIES_MAX: u32 = 16;
/// The time to sleep if the kernel lacks resources and no read in flight will free some.
const PAUSE: Duration = Duration::from_millis(1);

/// A read engine that uses the kernel's io_uring. Completions are processed only in [`poll`](ReadEngine::poll) and
/// [`wait`](ReadEngine::wait). If a file has no [`direct_fd`](crate::DirectRead::direct_fd), these methods read it on
/// the calling thread.
pub struct UringReader<B> {
    /// The ring; `None` once the kernel has stopped accepting entries. All further reads then happen on the caller's
    /// thread.
    ring: Option<IoUring>,
    /// The reads whose entries are in the ring. The index is the entry's `user_data`.
    slots: Vec<Option<Box<Slot<B>>>>,
    waiting: VecDeque<ReadRequest<B>>,
    done: VecDeque<ReadDone<B>>,
}

/// A read whose entry is in the ring. The slot is boxed, and is not moved until the entry's completion has come. For a
/// buffer like `[u8; N]`, the memory that the kernel writes to is part of this struct.
struct Slot<B> {
    request: ReadRequest<B>,
    progress: Progress,
    started: Instant,
    /// The offset in the buffer at which the entry in flight begins to write.
    from: usize,
    retries: u32,
}

impl<B: AsMut<[u8]> + Send + 'static> UringReader<B> {
    /// Sets up a ring of `depth` entries. `depth` is limited to the range from 1 to 256.
    ///
    /// # Errors
    /// Fails with [`IoError::Engine`] if the kernel lacks io_uring, or if a container or a setting forbids it.
    pub fn new(depth: usize) -> Result<Self, IoError> {
        let fault = |source| IoError::Engine { engine: NAME, source };
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = IoUring::new(u32::try_from(depth).unwrap_or(1)).map_err(fault)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(fault)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(fault(io::ErrorKind::Unsupported.into()));
        }
        let slots = (0..depth).map(|_| None).collect();
        Ok(Self { ring: Some(ring), slots, waiting: VecDeque::new(), done: VecDeque::new() })
    }

    /// Moves waiting requests into the ring, in order, while there is room. Stops at a request that only the caller's
    /// thread can read.
    fn fill(&mut self) {
        while let Some(ring) = &mut self.ring
            && let Some(index) = self.slots.iter().position(Option::is_none)
            && let Some(request) = self.waiting.pop_front_if(|request| request.file.direct_fd().is_some())
        {
            let slot = Box::new(Slot::new(request));
            self.done.extend(push(ring, &mut self.slots[index], slot, index, false));
        }
        if let Some(ring) = &mut self.ring
            && !ring.submission().is_empty()
        {
            // Entries that the kernel cannot take now stay in the ring and are submitted with the next call.
            let _ = ring.submit();
        }
    }

    /// Takes completions from the kernel, and continues unfinished reads.
    fn reap(&mut self) {
        while let Some(ring) = &mut self.ring
            && let Some((index, outcome)) = next_completion(ring)
        {
            let Some(mut slot) = self.slots.get_mut(index).and_then(Option::take) else { continue };
            match slot.take_in(outcome) {
                Ok(on_a_kernel_thread) => {
                    self.done.extend(push(ring, &mut self.slots[index], slot, index, on_a_kernel_thread));
                }
                Err(error) => self.done.push_back(slot.ended(Err(error))),
            }
        }
        self.fill();
    }

    /// Reads the next waiting request on this thread if the ring cannot read it.
    fn read_here(&mut self) -> Option<ReadDone<B>> {
        let ring_is_gone = self.ring.is_none();
        let request = self.waiting.pop_front_if(|request| ring_is_gone || request.file.direct_fd().is_none())?;
        let done = request.read_here();
        self.fill();
        Some(done)
    }
}

impl<B: AsMut<[u8]> + Send + 'static> ReadEngine<B> for UringReader<B> {
    fn submit(&mut self, request: ReadRequest<B>) {
        self.waiting.push_back(request);
        self.fill();
    }

    fn poll(&mut self) -> Option<ReadDone<B>> {
        self.reap();
        self.done.pop_front().or_else(|| self.read_here())
    }

    fn wait(&mut self) -> Option<ReadDone<B>> {
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            if self.slots_taken() == 0 {
                // No read is in the ring, so `poll` has already returned or executed every read.
                return None;
            }
            self.sleep();
        }
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.slots_taken() + self.done.len()
    }

    fn name(&self) -> &'static str {
        NAME
    }
}

impl<B> UringReader<B> {
    /// Sleeps until the kernel has completed a read. If the kernel refuses entries and holds none, this gives up the
    /// ring.
    fn sleep(&mut self) {
        let mut refusals = 0;
        while let Some(ring) = &mut self.ring {
            match ring.submit_and_wait(1) {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !ring.completion().is_empty() {
                        return;
                    }
                    refusals += 1;
                    let unseen = ring.submission().len();
                    if self.slots_taken() == unseen && (refusals > RETRIES_MAX || !is_shortage(&error)) {
                        self.give_ring_up();
                        return;
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Drops a ring whose entries the kernel has never seen, so that no entry refers to memory any more. The reads are
    /// queued again.
    fn give_ring_up(&mut self) {
        self.ring = None;
        let mut unread: Vec<_> = self.slots.iter_mut().filter_map(Option::take).collect();
        unread.sort_by_key(|slot| Reverse(slot.started));
        for slot in unread {
            self.waiting.push_front(slot.request);
        }
    }

    /// Returns the number of reads whose entries are in the ring.
    fn slots_taken(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

impl<B> Drop for UringReader<B> {
    /// Waits until the kernel writes to no buffer any more, because no buffer may be freed earlier.
    fn drop(&mut self) {
        self.waiting.clear();
        while self.slots_taken() > 0 {
            self.sleep();
            while let Some((index, _)) = self.ring.as_mut().and_then(next_completion) {
                if let Some(slot) = self.slots.get_mut(index) {
                    *slot = None;
                }
            }
        }
    }
}

impl<B> Slot<B> {
    fn new(request: ReadRequest<B>) -> Self {
        let progress = Progress::new(request.len, request.offset, request.needed, request.file.len());
        Self { request, progress, started: Instant::now(), from: 0, retries: 0 }
    }

    /// Processes the result of an entry. Returns whether the next entry must run on a kernel thread, which can block
    /// where the caller's thread cannot. Returns the error if there will be no next entry.
    fn take_in(&mut self, outcome: io::Result<usize>) -> Result<bool, IoError> {
        match outcome {
            Ok(count) => {
                self.progress.advance(self.from, count);
                Ok(false)
            }
            Err(error) if self.retries < RETRIES_MAX && (is_shortage(&error) || is_interruption(&error)) => {
                self.retries += 1;
                Ok(is_shortage(&error))
            }
            Err(error) => Err(self.progress.failed(self.request.file.path(), error)),
        }
    }

    fn ended(self, result: Result<(), IoError>) -> ReadDone<B> {
        let Self { request, started, .. } = self;
        ReadDone { tag: request.tag, buffer: request.buffer, result, started, finished: Instant::now() }
    }
}

/// Puts the next entry of a read into the ring, and the read into its slot. Returns the read if it has ended.
fn push<B: AsMut<[u8]>>(
    ring: &mut IoUring,
    place: &mut Option<Box<Slot<B>>>,
    slot: Box<Slot<B>>,
    index: usize,
    on_a_kernel_thread: bool,
) -> Option<ReadDone<B>> {
    let slot = place.insert(slot);
    let result = match entry_of(slot) {
        Ok(Some(entry)) => {
            let flags = if on_a_kernel_thread { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
            let entry = entry.flags(flags).user_data(index as u64);
            // SAFETY: the entry writes to the buffer of a slot, and reads from a file, that stay where they are until
            // its completion has been taken: the slot is boxed, its place is emptied by completions only (`reap`,
            // `drop`) or after the ring that held the entry is gone without the kernel having seen it (`give_ring_up`),
            // and nothing touches the buffer in between. An engine that is leaked leaks its slots too.
            match unsafe { ring.submission().push(&entry) } {
                Ok(()) => return None,
                // Impossible: the ring has an entry for each slot.
                Err(_) => Err(slot.progress.failed(slot.request.file.path(), io::ErrorKind::ResourceBusy.into())),
            }
        }
        Ok(None) => slot.progress.finish(slot.request.file.path(), slot.request.file.len()),
        Err(error) => Err(error),
    };
    place.take().map(|slot| slot.ended(result))
}

/// Returns the entry for the rest of a read; `None` if nothing is left.
fn entry_of<B: AsMut<[u8]>>(slot: &mut Slot<B>) -> Result<Option<squeue::Entry>, IoError> {
    let Slot { request, progress, from, .. } = slot;
    let ReadRequest { file, offset, needed, len, buffer, .. } = request;
    let buf = front(buffer, *len, file.as_ref(), *offset, *needed)?;
    check_request(file.path(), buf, *offset, *needed)?;
    let Some(next) = progress.next() else { return Ok(None) };
    *from = next;
    let Some(fd) = file.direct_fd() else {
        return Err(progress.failed(file.path(), io::ErrorKind::Unsupported.into()));
    };
    let rest = &mut buf[next..];
    let count = u32::try_from(rest.len().min(ENTRY_BYTES_MAX)).unwrap_or(0);
    let entry = opcode::Read::new(types::Fd(fd.as_raw_fd()), rest.as_mut_ptr(), count);
    Ok(Some(entry.offset(*offset + next as u64).build()))
}

/// Returns the next completion, which is the slot's index with the number of bytes read or the system's error.
fn next_completion(ring: &mut IoUring) -> Option<(usize, io::Result<usize>)> {
    let entry = ring.completion().next()?;
    let result = entry.result();
    let outcome = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
    Some((usize::try_from(entry.user_data()).unwrap_or(usize::MAX), outcome))
}

/// Returns whether the error is a lack of a resource that will become available again.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::AGAIN, Errno::NOMEM, Errno::BUSY];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Returns whether a read was interrupted for a reason unrelated to the file. An exiting thread, for example, cancels
/// the reads that it submitted.
fn is_interruption(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| [Errno::INTR, Errno::CANCELED].contains(&errno))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{AlignedBuffer, DIRECT_ALIGN, DirectFile, DirectRead};

    fn request(file: &Arc<dyn DirectRead>, tag: u64) -> ReadRequest<AlignedBuffer> {
        let (file, len) = (Arc::clone(file), DIRECT_ALIGN);
        let buffer = AlignedBuffer::new_zeroed(len).unwrap();
        ReadRequest { tag, file, offset: tag * len as u64, needed: len, len, buffer }
    }

    fn file_of_blocks(count: u8) -> (tempfile::TempDir, Arc<dyn DirectRead>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let bytes: Vec<u8> = (0..count).flat_map(|block| [block; DIRECT_ALIGN]).collect();
        std::fs::write(&path, bytes).unwrap();
        let file = DirectFile::open(&path).unwrap();
        (dir, Arc::new(file))
    }

    #[test]
    fn reads_of_a_ring_that_is_given_up_are_done_in_their_order() {
        let (_dir, file) = file_of_blocks(5);
        let mut reader = match UringReader::new(3) {
            Ok(reader) => reader,
            Err(error) => return println!("not tested here: {error}"),
        };
        // Entries that never reach the kernel, as when it has no room for them.
        for (index, tag) in [(1, 0), (2, 1), (0, 2)] {
            let slot = Box::new(Slot::new(request(&file, tag)));
            let ring = reader.ring.as_mut().unwrap();
            assert!(push(ring, &mut reader.slots[index], slot, index, false).is_none());
        }
        reader.waiting.extend([3, 4].map(|tag| request(&file, tag)));
        assert_eq!((reader.slots_taken(), reader.in_flight()), (3, 5));
        reader.give_ring_up();
        assert_eq!((reader.slots_taken(), reader.in_flight()), (0, 5));
        for tag in 0..5 {
            let done = reader.wait().unwrap();
            done.result.unwrap();
            assert_eq!((done.tag, done.buffer.as_slice()[0]), (tag, tag as u8));
        }
        assert!(reader.wait().is_none());
        reader.submit(request(&file, 4));
        assert_eq!(reader.wait().unwrap().buffer.as_slice()[7], 4, "and so are those that come later");
    }

    #[test]
    fn shortages_and_interruptions_are_tried_again_but_not_for_ever() {
        let (_dir, file) = file_of_blocks(1);
        let error = |errno: Errno| Err(io::Error::from_raw_os_error(errno.raw_os_error()));
        for (errno, on_a_kernel_thread) in
            [(Errno::AGAIN, true), (Errno::NOMEM, true), (Errno::INTR, false), (Errno::CANCELED, false)]
        {
            let mut slot = Slot::new(request(&file, 0));
            for _ in 0..RETRIES_MAX {
                assert_eq!(slot.take_in(error(errno)).unwrap(), on_a_kernel_thread);
            }
            let failure = slot.take_in(error(errno)).unwrap_err();
            assert_eq!(failure.errno(), Some(errno.raw_os_error()), "{failure}");
        }
        let mut slot = Slot::new(request(&file, 0));
        assert!(!slot.take_in(Ok(100)).unwrap(), "short: it goes on");
        assert_eq!(slot.progress.next(), Some(0));
        let failure = slot.take_in(error(Errno::IO)).unwrap_err();
        assert!(matches!(failure, IoError::Read { got: 100, wanted: DIRECT_ALIGN, offset: 0, .. }), "{failure}");
    }
}
