//! The operating system's figures for memory: the process's own use, the machine's, and the cgroup's limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory of this machine and process, in bytes, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// What a new program could use without swapping (`MemAvailable`).
    pub available: u64,
    /// Physical memory.
    pub total: u64,
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
            cgroup_limit: cgroup_limit(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default()),
            resident: kib_field(&status, "VmRSS:"),
        }
    }

    /// What this process may use in total when no budget is given: the lower of the cgroup's limit and the sum of what
    /// is available and what the process already uses.
    pub fn usable(&self) -> u64 {
        let available = self.available.saturating_add(self.resident);
        self.cgroup_limit.map_or(available, |limit| limit.min(available))
    }
}

/// The largest resident set that this process has had, in bytes.
pub fn peak_resident() -> u64 {
    kib_field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

fn kib_field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// Walks from the process's own cgroup up to the root, because the limit of any ancestor applies too. Lines of
/// `/proc/self/cgroup` are `0::/path` for version 2 and `N:memory:/path` for version 1.
fn cgroup_limit(membership: &str) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut folder = PathBuf::from(root).join(path.trim_start_matches('/'));
        while folder.starts_with(root) {
            least = [least, read_limit(&folder.join(file))].into_iter().flatten().min();
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
        let memory = HostMemory { available: 100, total: 200, cgroup_limit: Some(50), resident: 10 };
        assert_eq!(memory.usable(), 50);
        assert_eq!(HostMemory { cgroup_limit: None, ..memory }.usable(), 110);
    }
}
