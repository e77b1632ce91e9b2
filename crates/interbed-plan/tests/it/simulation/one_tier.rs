//! Tests of what can be predicted to the byte for one tier over a simulated disk.

use interbed_plan::simulation::{ChannelSpec, Faults, PassReport, SimulatedMachine, Simulation};
use interbed_weights::window::{Policy, ResidentConfig, UnitId, Window, WindowConfig};

const MIB: u64 = 1 << 20;

/// Returns the units of a small model in bands: 40 layers of a norm and some bands of 4 MiB and less, then a head.
fn bands() -> (Vec<u64>, Vec<UnitId>) {
    let layer = [16_384, 4 * MIB, 4 * MIB, 4 * MIB, MIB, 3 * MIB, 16_384, 4 * MIB, 4 * MIB, 2 * MIB];
    let mut bytes: Vec<u64> = layer.repeat(40);
    bytes.extend([4 * MIB; 30]);
    let order = (0..bytes.len() as u32).map(UnitId).collect();
    (bytes, order)
}

fn resident(unit_bytes: &[u64], order: &[UnitId], budget: u64, stream_slots: usize) -> WindowConfig {
    let policy = Policy::Resident(ResidentConfig { stream_slots });
    WindowConfig { unit_bytes: unit_bytes.to_vec(), order: order.to_vec(), budget, policy, load_attempts: 3 }
}

fn machine(disk_bytes_per_s: f64) -> SimulatedMachine {
    let disk = ChannelSpec { bytes_per_s: disk_bytes_per_s, latency_ns: 100_000, depth: 4 };
    SimulatedMachine { disk, link: None, faults: Faults::default(), seed: 1 }
}

/// Returns the reports of passes after warm-up, without the first pass.
fn passes(config: &WindowConfig, disk_bytes_per_s: f64, compute_ns: u64) -> (Vec<PassReport>, Simulation) {
    let window = Window::new(config.clone()).expect("a valid window");
    let mut simulation =
        Simulation::one_tier(window, config.unit_bytes.clone(), machine(disk_bytes_per_s)).expect("a valid machine");
    simulation.warm_up();
    let mut run = || simulation.run_pass(&config.order, |_| compute_ns).expect("no faults");
    run();
    let reports = (0..4).map(|_| run()).collect();
    (reports, simulation)
}

#[test]
fn a_pass_reads_what_does_not_stay_and_nothing_else() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    for percent in [2, 10, 25, 50, 75, 90, 97] {
        let config = resident(&bytes, &order, all * percent / 100, 5);
        let (reports, simulation) = passes(&config, 2e9, 1_000_000);
        let staying = simulation.host().resident_bytes();
        assert!(config.budget - staying < 6 * 4 * MIB, "{percent} %: only {staying} bytes stay of {}", config.budget);
        // The window is full whenever a pass begins, so each pass fetches exactly as much as the one before it used.
        let read: u64 = reports.iter().map(|report| report.host_bytes_loaded).sum();
        let slack = 5 * 4 * MIB;
        assert!(read.abs_diff(4 * (all - staying)) <= slack, "{percent} %: {read} for 4 × {}", all - staying);
    }
}

#[test]
fn a_disk_that_is_the_bound_never_rests_not_even_between_passes() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    let config = resident(&bytes, &order, all / 2, 8);
    let (reports, simulation) = passes(&config, 1e9, 100_000);
    let streamed = all - simulation.host().resident_bytes();
    for report in reports {
        let least = streamed as f64 / 1e9;
        assert!(report.seconds < least * 1.02, "{report:?}, {least} s of reading");
        assert!(report.read_seconds > report.seconds * 0.98, "the disk rests: {report:?}");
    }
}

#[test]
fn compute_that_is_the_bound_never_waits_not_even_between_passes() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    let config = resident(&bytes, &order, all / 2, 8);
    let (reports, _) = passes(&config, 4e9, 2_000_000);
    for report in reports {
        assert_eq!(report.stall_seconds, 0.0, "{report:?}");
        assert_eq!(report.overlap_efficiency(), 1.0);
        assert!(report.share_of_bound() > 0.999, "{report:?}");
    }
}

#[test]
fn what_fits_is_read_once_and_never_evicted() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    let (reports, simulation) = passes(&resident(&bytes, &order, all, 8), 1e9, 1_000);
    assert!(reports.iter().all(|report| report.host_bytes_loaded == 0 && report.stall_seconds == 0.0));
    let counters = simulation.host().counters();
    assert_eq!((counters.loads, counters.evictions), (bytes.len() as u64, 0));
}
