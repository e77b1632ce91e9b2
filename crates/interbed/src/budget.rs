//! The memory budget: the `--memory` option, or a share of the memory that is available.

use anyhow::Result;
use interbed_device::{Bytes, HostMemory};

use crate::failure::Advised;
use crate::options::LimitOptions;

/// Returns the memory budget: the value of `--memory`, or [`default_budget`] if that option is not given.
///
/// # Errors
/// Fails if `--memory` is more than this process can ever have, and `--overcommit` is not given.
pub fn budget(limits: &LimitOptions) -> Result<Bytes> {
    let Some(asked) = limits.memory else { return Ok(default_budget()) };
    let memory = HostMemory::read();
    if !limits.overcommit {
        check_budget(asked, &memory)?;
    }
    let available = memory.available.saturating_add(memory.resident);
    if asked.0 > available {
        tracing::warn!(
            "--memory is {asked}, but other programs leave {} of this machine's {}: if they do not give some back, the \
             system may swap or end a program; give less --memory, or end others first",
            Bytes(available),
            Bytes(memory.total)
        );
    }
    Ok(asked)
}

/// Refuses a budget that is larger than the memory which this process can ever have.
fn check_budget(asked: Bytes, memory: &HostMemory) -> Result<()> {
    let Some(most) = memory.most().filter(|&most| asked.0 > most) else { return Ok(()) };
    let source = match memory.cgroup_limit {
        Some(limit) if limit == most => format!("the memory limit of this process (its cgroup's) is {}", Bytes(limit)),
        _ => format!("this machine has {}", Bytes(memory.total)),
    };
    let swap = match memory.swap {
        0 => String::new(),
        swap => {
            format!("; swap space ({}) does not count, for it is slower than Interbed's own streaming", Bytes(swap))
        }
    };
    // The advice leaves a tenth to the rest of the machine.
    let advice = (most / 10 * 9) >> 20;
    Err(Advised::input(
        format!("--memory is {asked}, but {source}{swap}"),
        format!(
            "give --memory {advice}M or less (weights that do not fit are streamed from disk), leave it out to take \
             what is available, or insist with --overcommit; `interbed plan` and `interbed info` judge any --memory"
        ),
    ))
}

/// Returns the default memory budget: 90 % of the available memory, or 97 % of the cgroup's memory limit if that is
/// less.
pub fn default_budget() -> Bytes {
    let memory = HostMemory::read();
    // Other programs need some memory, too. A cgroup's limit is for this process alone, except for page tables and
    // kernel buffers that count towards it.
    let available = memory.available.saturating_add(memory.resident) / 10 * 9;
    Bytes(memory.cgroup_limit.map_or(available, |limit| (limit / 100 * 97).min(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_budget_beyond_the_machine_is_refused_with_its_figures() {
        let here = HostMemory { available: 9 * GIB, total: 24 * GIB, swap: 0, cgroup_limit: None, resident: 0 };
        let refused = |asked: u64, memory: &HostMemory| {
            check_budget(Bytes(asked), memory).err().and_then(|error| crate::failure::message(&error))
        };
        // Memory that other programs use may soon be free.
        assert_eq!(refused(24 * GIB, &here), None);
        let text = refused(100 * GIB, &here).unwrap();
        for part in ["100.0 GiB", "this machine has 24.0 GiB", "--memory 22118M", "--overcommit"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("swap"), "{text}");
        let text = refused(25 * GIB, &HostMemory { swap: 32 * GIB, ..here }).unwrap();
        assert!(text.contains("swap space (32.0 GiB)"), "{text}");
        let caged = HostMemory { cgroup_limit: Some(4 * GIB), ..here };
        assert_eq!(refused(4 * GIB, &caged), None);
        let text = refused(5 * GIB, &caged).unwrap();
        assert!(text.contains("cgroup") && text.contains("4.00 GiB") && text.contains("--memory 3686M"), "{text}");
        assert_eq!(refused(u64::MAX, &HostMemory { total: 0, ..here }), None, "nothing is known");
    }
}
