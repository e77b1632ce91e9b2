//! The number of threads that compute: one for each physical core that this process may use.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The directory in which Linux describes the processors.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Returns the number of physical cores that this process may use, by affinity (which a cgroup's cpuset sets) and by
/// the cgroup's quota. Two threads on one core share that core's multipliers and load units, so a second thread would
/// only slow down the first.
pub fn usable_cores() -> NonZeroUsize {
    let allowed = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match sched_getaffinity(None) {
        Ok(affinity) => {
            let processors = (0..CpuSet::MAX_CPU).filter(|&processor| affinity.is_set(processor));
            NonZeroUsize::new(count_cores(Path::new(PROCESSORS), processors))
                .map_or(allowed, |cores| cores.min(allowed))
        }
        Err(_) => allowed,
    }
}

/// Returns the number of cores that these logical processors belong to; a processor of unknown siblings counts as a
/// core.
fn count_cores(folder: &Path, processors: impl Iterator<Item = usize>) -> usize {
    let siblings = |processor: usize| {
        let topology = folder.join(format!("cpu{processor}/topology"));
        let listed = ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| std::fs::read_to_string(topology.join(name)).ok());
        listed.unwrap_or_else(|| format!("{processor}\n"))
    };
    processors.map(siblings).collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_count_once() {
        let folder = tempfile::tempdir().unwrap();
        for (processor, siblings) in [(0, "0,4\n"), (1, "1,5\n"), (4, "0,4\n"), (5, "1,5\n")] {
            let topology = folder.path().join(format!("cpu{processor}/topology"));
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("core_cpus_list"), siblings).unwrap();
        }
        let count = |processors: &[usize]| count_cores(folder.path(), processors.iter().copied());
        assert_eq!(count(&[0, 1, 4, 5]), 2);
        assert_eq!(count(&[0, 4]), 1);
        // Processor 7 has no topology file.
        assert_eq!(count(&[0, 4, 7]), 2);
    }

    #[test]
    fn this_machine_has_cores() {
        assert!(usable_cores() <= std::thread::available_parallelism().unwrap());
    }
}
