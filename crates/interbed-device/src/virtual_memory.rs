//! Ranges of addresses that get their memory piece by piece, and can have one piece of memory at several addresses.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

use crate::buffer::{HUGE_PAGE, page_size};
use crate::{AllocError, Bytes};

/// The accesses that mapped memory allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageAccess {
    /// Memory may be read: a write is a fault, and changes nobody's memory.
    Read,
    /// Memory may be read and written.
    Write,
}

/// A reserved range of addresses, and memory whose pieces appear at some of these addresses. Addresses and memory are
/// counted from 0, in bytes; pieces are whole pages. One thread may map memory that other threads use.
pub trait VirtualMemory: Send + Sync {
    /// Returns the number of bytes of a page: the smallest piece.
    fn page_size(&self) -> usize;

    /// Lets the memory from `from` on appear at the addresses `at`, in place of what was there, ready to be used
    /// without a fault.
    ///
    /// # Errors
    /// Fails if the system refuses; the former memory of the addresses may then be gone.
    ///
    /// # Panics
    /// Panics if `at` and `from` are not whole pages of the range and of the memory.
    fn map(&self, at: Range<usize>, from: usize, access: PageAccess) -> io::Result<()>;

    /// Changes the accesses that the memory at `at`, all of which is mapped, allows.
    ///
    /// # Errors
    /// Fails if the system refuses.
    ///
    /// # Panics
    /// Panics if `at` is not whole pages of the range.
    fn protect(&self, at: Range<usize>, access: PageAccess) -> io::Result<()>;

    /// Takes the memory away from the addresses `at`; the memory keeps its content.
    ///
    /// # Errors
    /// Fails if the system refuses.
    ///
    /// # Panics
    /// Panics if `at` is not whole pages of the range.
    fn unmap(&self, at: Range<usize>) -> io::Result<()>;
}

/// Memory of a file without a name, which is gone with the process, and a range of addresses. All of the memory stays
/// mapped at the beginning of the range.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    start: NonNull<u8>,
    /// Bytes of the range.
    len: usize,
    /// Bytes of memory.
    memory: usize,
    /// Whether each huge page of memory was asked for as one; empty if no huge pages are wanted.
    huge: Vec<AtomicBool>,
}

// SAFETY: the mapping belongs to it, and what changes it is safe to call from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates `memory` bytes, none of which is resident before it is written, in a range of `len` bytes, both rounded
    /// up to whole pages. If `huge`, the memory comes in huge pages if the system has them; such memory should be
    /// mapped and given back in multiples of huge pages.
    ///
    /// # Errors
    /// Fails if the system has no such memory, or no such range of addresses.
    pub fn new(memory: usize, len: usize, huge: bool) -> Result<Self, AllocError> {
        let refused = |source| AllocError::new(len, source);
        let pages = |bytes: usize| bytes.checked_next_multiple_of(page_size()).ok_or(refused(Errno::NOMEM));
        let (memory, len) = (pages(memory.max(1))?, pages(len.max(memory).max(1))?);
        let file = memfd_create("interbed-kv", MemfdFlags::CLOEXEC).map_err(refused)?;
        ftruncate(&file, memory as u64).map_err(refused)?;
        let room = len.checked_add(HUGE_PAGE).ok_or(refused(Errno::NOMEM))?;
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no memory in use.
        let whole = unsafe {
            mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let whole = whole.map_err(refused)?;
        // Huge pages of the memory lie at huge pages of the range.
        let before = whole.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let start = whole.wrapping_byte_add(before);
        for (unused, bytes) in [(whole, before), (start.wrapping_byte_add(len), HUGE_PAGE - before)] {
            if bytes > 0 {
                // SAFETY: whole pages of the mapping made above, which are not in use.
                let _ = unsafe { munmap(unused, bytes) };
            }
        }
        let start = NonNull::new(start.cast()).expect("the system never maps address 0 by itself");
        let pages = if huge { memory / HUGE_PAGE } else { 0 };
        let huge = (0..pages).map(|_| AtomicBool::new(false)).collect();
        let shared = Self { file, start, len, memory, huge };
        shared.put(0..memory, 0, PageAccess::Write, MapFlags::empty()).map_err(refused)?;
        Ok(shared)
    }

    /// Returns the address of all of the memory, which is the beginning of the range.
    pub fn memory(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes of the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes; a range always has some.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that are resident, as the system counts them.
    ///
    /// # Errors
    /// Fails if the system does not say.
    pub fn resident(&self) -> io::Result<Bytes> {
        Ok(Bytes(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512))
    }

    /// Gives the whole pages within `range` of the memory back to the system, wherever they are mapped. They read as
    /// zeros from now on.
    ///
    /// # Errors
    /// Fails if the system refused.
    ///
    /// # Panics
    /// Panics if the range is not within the memory.
    pub fn give_back(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.memory, "{range:?} is not within {} bytes", self.memory);
        let (start, end) = (range.start.next_multiple_of(page_size()), range.end / page_size() * page_size());
        if start < end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            self.huge_pages(start..end).iter().for_each(|is_huge| is_huge.store(false, Ordering::Relaxed));
            fallocate(&self.file, flags, start as u64, (end - start) as u64)?;
        }
        Ok(())
    }

    /// Returns the huge pages of the memory in which any byte of `range` lies.
    fn huge_pages(&self, range: Range<usize>) -> &[AtomicBool] {
        let end = range.end.div_ceil(HUGE_PAGE).min(self.huge.len());
        &self.huge[(range.start / HUGE_PAGE).min(end)..end]
    }

    /// Makes `range` of the memory resident, in huge pages if the system allows them.
    fn populate(&self, range: Range<usize>) {
        let first = range.start / HUGE_PAGE;
        for (page, is_huge) in (first..).zip(self.huge_pages(range.clone())) {
            if !is_huge.swap(true, Ordering::Relaxed) {
                // The system's settings for huge pages of shared memory are about those that nobody asks for. Without
                // one, small ones work too.
                // SAFETY: the page is of the mapping of the whole memory; its content does not change.
                let _ = unsafe { libc::madvise(self.at(page * HUGE_PAGE).cast(), HUGE_PAGE, libc::MADV_COLLAPSE) };
            }
        }
        // Where it fails, what maps it fails too, or takes its pages as they are used.
        // SAFETY: as above.
        let _ = unsafe { madvise(self.at(range.start).cast(), range.len(), Advice::LinuxPopulateWrite) };
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Checks that `at` can be changed.
    ///
    /// # Panics
    /// Panics if `at` is not made of whole pages of the range.
    fn check(&self, at: &Range<usize>) {
        let whole = at.start.is_multiple_of(page_size()) && at.end.is_multiple_of(page_size());
        // Where all of the memory is stays as it is.
        assert!(whole && at.start < at.end && at.end <= self.len, "{at:?} are no pages of {} bytes", self.len);
    }

    fn put(&self, at: Range<usize>, from: usize, access: PageAccess, flags: MapFlags) -> rustix::io::Result<()> {
        let protection = match access {
            PageAccess::Read => ProtFlags::READ,
            PageAccess::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE | flags;
        // SAFETY: the pages are of the range, which belongs to `self`. Whoever uses addresses of it has promised that
        // they stay mapped meanwhile.
        unsafe { mmap(self.at(at.start).cast(), at.len(), protection, flags, &self.file, from as u64) }?;
        Ok(())
    }
}

impl VirtualMemory for SharedMemory {
    fn page_size(&self) -> usize {
        page_size()
    }

    fn map(&self, at: Range<usize>, from: usize, access: PageAccess) -> io::Result<()> {
        self.check(&at);
        assert!(at.start >= self.memory, "the memory itself stays where it is");
        assert!(from.is_multiple_of(page_size()) && from <= self.memory && at.len() <= self.memory - from);
        self.populate(from..from + at.len());
        Ok(self.put(at, from, access, MapFlags::POPULATE)?)
    }

    fn protect(&self, at: Range<usize>, access: PageAccess) -> io::Result<()> {
        self.check(&at);
        assert!(at.start >= self.memory, "the memory itself stays writable");
        let flags = match access {
            PageAccess::Read => MprotectFlags::READ,
            PageAccess::Write => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the pages are of the range, behind the memory itself, so no reference into them exists; whoever
        // writes there has promised that they stay writable meanwhile.
        Ok(unsafe { mprotect(self.at(at.start).cast(), at.len(), flags) }?)
    }

    fn unmap(&self, at: Range<usize>) -> io::Result<()> {
        self.check(&at);
        assert!(at.start >= self.memory, "the memory itself stays where it is");
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `put`: reserved again, without memory.
        unsafe { mmap_anonymous(self.at(at.start).cast(), at.len(), ProtFlags::empty(), flags) }?;
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: unmaps the range that `new` has mapped; nothing that it was given to outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Returns how many mappings the system lets a process have at most, and how many this process has.
///
/// # Errors
/// Fails if the system does not say.
pub fn mappings() -> io::Result<Mappings> {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count")?;
    let most = most.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let used = std::fs::read_to_string("/proc/self/maps")?.lines().count();
    Ok(Mappings { most, used })
}

/// The number of mappings of this process, and the system's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mappings {
    /// The system's limit.
    pub most: usize,
    /// The mappings of this process.
    pub used: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(memory: &SharedMemory, at: Range<usize>) -> &[u8] {
        // SAFETY: the tests ask only for what they have mapped, and keep the slice for a moment.
        unsafe { std::slice::from_raw_parts(memory.at(at.start), at.len()) }
    }

    fn fill(memory: &SharedMemory, at: Range<usize>, value: u8) {
        // SAFETY: the tests ask only for what they have mapped to be written.
        unsafe { std::ptr::write_bytes(memory.at(at.start), value, at.len()) };
    }

    #[test]
    fn the_same_memory_appears_where_it_is_mapped_and_is_resident_once() {
        let (page, pages) = (page_size(), 64);
        let shared = SharedMemory::new(pages * page, 4 * pages * page, false).unwrap();
        assert_eq!(shared.resident().unwrap(), Bytes(0));
        for (slot, access) in [(1, PageAccess::Write), (2, PageAccess::Read), (3, PageAccess::Read)] {
            shared.map(slot * pages * page..(slot * pages + 8) * page, 8 * page, access).unwrap();
        }
        fill(&shared, pages * page..(pages + 8) * page, 7);
        for first in [8, pages, 2 * pages, 3 * pages] {
            assert!(bytes(&shared, first * page..(first + 8) * page).iter().all(|&byte| byte == 7));
        }
        assert_eq!(shared.resident().unwrap(), Bytes(8 * page as u64));

        // Elsewhere it goes on, after it was taken away from one place.
        shared.unmap(pages * page..(pages + 8) * page).unwrap();
        shared.map((pages + 1) * page..(pages + 2) * page, 9 * page, PageAccess::Write).unwrap();
        fill(&shared, (pages + 1) * page..(pages + 2) * page, 9);
        assert_eq!(bytes(&shared, 3 * pages * page..(3 * pages + 3) * page)[page], 9);

        shared.give_back(8 * page..16 * page).unwrap();
        assert_eq!(shared.resident().unwrap(), Bytes(0));
        assert!(bytes(&shared, 3 * pages * page..(3 * pages + 8) * page).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_in_huge_pages_is_given_back_in_them() {
        let page = HUGE_PAGE;
        let shared = SharedMemory::new(4 * page, 12 * page, true).unwrap();
        for round in 0..2 {
            shared.map(4 * page..6 * page, page, PageAccess::Write).unwrap();
            assert_eq!(shared.resident().unwrap(), Bytes(2 * page as u64));
            fill(&shared, 4 * page..6 * page, 3 + round);
            shared.map(8 * page..9 * page, 2 * page, PageAccess::Read).unwrap();
            assert!(bytes(&shared, 8 * page..9 * page).iter().all(|&byte| byte == 3 + round));
            shared.give_back(page..3 * page).unwrap();
            assert_eq!(shared.resident().unwrap(), Bytes(0));
            assert!(bytes(&shared, 8 * page..9 * page).iter().all(|&byte| byte == 0));
            shared.give_back(0..4 * page).unwrap();
        }
    }

    #[test]
    fn neighbours_are_one_mapping() {
        let (page, pages) = (page_size(), 32);
        let shared = SharedMemory::new(pages * page, 2 * pages * page, false).unwrap();
        let range = shared.start.as_ptr().addr()..shared.start.as_ptr().addr() + shared.len();
        let count = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            maps.lines().filter(|line| range.contains(&start(line))).count()
        };
        assert_eq!(count(), 2);
        for index in 0..8 {
            shared.map((pages + index) * page..(pages + index + 1) * page, index * page, PageAccess::Write).unwrap();
            assert_eq!(count(), 3);
        }
        shared.map((pages + 8) * page..(pages + 9) * page, 20 * page, PageAccess::Write).unwrap();
        assert_eq!(count(), 4);
        shared.protect(pages * page..(pages + 2) * page, PageAccess::Read).unwrap();
        assert_eq!(count(), 5);
        shared.unmap(pages * page..(pages + 9) * page).unwrap();
        assert_eq!(count(), 2);
    }

    /// Tests the fault in a process of its own, which the fault ends.
    #[test]
    fn a_write_to_what_is_mapped_for_reading_is_a_fault() {
        const CHILD: &str = "INTERBED_TEST_WRITES_TO_READ_ONLY";
        if std::env::var_os(CHILD).is_none() {
            let name = "virtual_memory::tests::a_write_to_what_is_mapped_for_reading_is_a_fault";
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture"])
                .env(CHILD, "1")
                .output()
                .unwrap();
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
            return;
        }
        let page = page_size();
        let shared = SharedMemory::new(4 * page, 8 * page, false).unwrap();
        shared.map(4 * page..5 * page, 0, PageAccess::Write).unwrap();
        fill(&shared, 4 * page..5 * page, 1);
        shared.protect(4 * page..5 * page, PageAccess::Read).unwrap();
        assert_eq!(bytes(&shared, 4 * page..4 * page + 1), [1]);
        fill(&shared, 4 * page..5 * page, 2);
    }

    #[test]
    fn what_the_system_does_not_have_is_refused() {
        assert!(SharedMemory::new(1 << 20, usize::MAX / 2, false).is_err());
        assert!(SharedMemory::new(usize::MAX - 5, usize::MAX, true).is_err());
        let Mappings { most, used } = mappings().unwrap();
        assert!(0 < used && used < most);
    }
}
