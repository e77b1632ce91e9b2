//! The operating system's figures for memory: the process's own use, the machine's, and the cgroup's limit.

use std::fs;
use std::path::Path;

/// Memory of this machine and process, in bytes, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// Memory that a new program could use without swapping (`MemAvailable`), in bytes.
    pub available: u64,
    /// Physical memory, in bytes.
    pub total: u64,
    /// Swap space of the system, which is no memory to compute with.
    pub swap: u64,
    /// The lowest memory limit of this process's cgroup and its ancestors, if any is set.
    pub cgroup_limit: Option<u64>,
    /// Resident set of this process.
    pub resident: u64,
}

impl HostMemory {
    /// Reads the figures from `/proc` and `/sys/fs/cgroup`. A figure that cannot be read counts as 0, and a limit that
    /// cannot be read as absent.
    pub fn read() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            available: kib_field(&meminfo, "MemAvailable:"),
            total: kib_field(&meminfo, "MemTotal:"),
            swap: kib_field(&meminfo, "SwapTotal:"),
            cgroup_limit: cgroup_limit(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/")),
            resident: kib_field(&status, "VmRSS:"),
        }
    }

    /// Returns the number of bytes that this process can have in memory at most: the machine's memory, or the cgroup's
    /// limit if that is less. Returns `None` if the system does not say.
    pub fn most(&self) -> Option<u64> {
        let most = self.cgroup_limit.unwrap_or(u64::MAX).min(if self.total == 0 { u64::MAX } else { self.total });
        (most < u64::MAX).then_some(most)
    }

    /// Returns the number of bytes that this process may use in total when no budget is given: the lower of the
    /// cgroup's limit and the sum of the available memory and the memory that the process already uses.
    pub fn usable(&self) -> u64 {
        let available = self.available.saturating_add(self.resident);
        self.cgroup_limit.map_or(available, |limit| limit.min(available))
    }
}

/// Returns the largest resident set that this process has had, in bytes.
pub fn peak_resident() -> u64 {
    kib_field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

/// Returns memory to the system that the program has freed and the allocator has kept for later allocations: hundreds
/// of megabytes after a large structure was freed. Does nothing where the C library has no function for this.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointer and touches only what is free, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets threads share a few heaps, where the C library would give each thread a heap of its own, whose freed memory
/// other threads cannot use. Must be called before the process starts threads.
pub fn share_heaps() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointer; sets a number that the allocator reads when it makes a heap.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Heaps that threads share.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: libc::c_int = 4;

/// Returns whether the system takes huge pages for any memory without being asked. Memory that was given back in small
/// pieces may then become resident again, when the system joins the pages around it into a huge page.
pub fn huge_pages_unasked() -> bool {
    is_always(&fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default())
}

/// Returns whether the setting in force, which stands in brackets, is `always`.
fn is_always(setting: &str) -> bool {
    setting.contains("[always]")
}

fn kib_field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// Walks from the process's own cgroup up to the root, because the limit of any ancestor applies too. Lines of
/// `/proc/self/cgroup` are `0::/path` for version 2 and `N:memory:/path` for version 1. `mount` is the system's root.
fn cgroup_limit(membership: &str, mount: &Path) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        // Beyond `high` a process is slowed down until it gives memory back, which is no way to compute.
        let (root, files): (_, &[&str]) = if controllers.is_empty() {
            ("/sys/fs/cgroup", &["memory.max", "memory.high"])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
        } else {
            continue;
        };
        let mut folder = mount.join(root.trim_start_matches('/')).join(path.trim_start_matches('/'));
        let root = mount.join(root.trim_start_matches('/'));
        while folder.starts_with(&root) {
            least = files.iter().map(|file| read_limit(&folder.join(file))).chain([least]).flatten().min();
            if !folder.pop() {
                break;
            }
        }
    }
    // Version 1 writes a number near 2^63 for "no limit".
    least.filter(|&limit| limit < 1 << 60)
}

fn read_limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        assert_eq!(kib_field("MemTotal:  24 kB\nMemAvailable:   7 kB\n", "MemAvailable:"), 7 * 1024);
        assert_eq!(kib_field("", "MemAvailable:"), 0);
        assert_eq!(kib_field("VmRSS: many kB", "VmRSS:"), 0);
    }

    #[test]
    fn this_process_is_seen() {
        let memory = HostMemory::read();
        assert!(memory.resident > 0 && memory.total > memory.resident && memory.usable() > 0);
        assert!(peak_resident() >= memory.resident / 2);
    }

    #[test]
    fn the_least_limit_wins() {
        let memory = HostMemory { available: 100, total: 200, swap: 900, cgroup_limit: Some(50), resident: 10 };
        assert_eq!((memory.usable(), memory.most()), (50, Some(50)));
        assert_eq!(HostMemory { cgroup_limit: None, ..memory }.usable(), 110);
        // Swap is no memory, a limit above the machine's is none, and what cannot be read says nothing.
        assert_eq!(HostMemory { cgroup_limit: None, ..memory }.most(), Some(200));
        assert_eq!(HostMemory { cgroup_limit: Some(300), ..memory }.most(), Some(200));
        assert_eq!(HostMemory { cgroup_limit: None, total: 0, ..memory }.most(), None);
    }

    #[test]
    fn limits_of_cgroups_are_found_on_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |membership: &str| cgroup_limit(membership, root.path());
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        write("sys/fs/cgroup/a/memory.max", "5000\n");
        assert_eq!(limit("0::/a/b\n"), Some(5000));
        write("sys/fs/cgroup/a/b/memory.high", "4000\n");
        assert_eq!(limit("0::/a/b\n"), Some(4000));
        write("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "3000\n");
        assert_eq!(limit("5:devices:/\n4:cpu,memory:/c\n0::/a/b\n"), Some(3000));
        write("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:memory:/c\n"), None);
    }

    #[test]
    fn the_setting_in_force_is_the_one_in_brackets() {
        assert!(is_always("[always] madvise never\n"));
        assert!(!is_always("always [madvise] never\n") && !is_always("always madvise [never]\n") && !is_always(""));
    }

    #[test]
    fn what_was_freed_goes_back() {
        // Small pieces stay with the allocator when they are freed, as long as one above them is in use.
        let mut pieces: Vec<Box<[u8; 64]>> = (0..1 << 20).map(|_| Box::new([1; 64])).collect();
        let last = pieces.pop();
        drop(pieces);
        let before = HostMemory::read().resident;
        give_back_freed();
        let after = HostMemory::read().resident;
        if cfg!(all(target_os = "linux", target_env = "gnu")) {
            assert!(after + (32 << 20) < before, "{after} of {before} bytes are left");
        }
        assert!(last.is_some());
    }
}
