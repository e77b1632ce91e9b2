//! Tests of a device window over a host window, on a disk and a link.

use interbed_plan::simulation::{ChannelSpec, Faults, SimulatedMachine, Simulation, SimulationError};
use interbed_weights::window::{Credits, Policy, ResidentConfig, RingConfig, TierConfig, Tiers, TiersConfig, UnitId};

const GB: f64 = 1e9;

/// Simulates a model of 80 layers of 1.711 GB, each cut into this many units, on 85 GB of host and 9 GB of device
/// memory.
fn large_machine(
    units_per_layer: u32,
    host: Policy,
    device: Policy,
    faults: Faults,
    seed: u64,
) -> (Simulation, Vec<UnitId>) {
    let unit_bytes = vec![(1.711 * GB) as u64 / u64::from(units_per_layer); 80 * units_per_layer as usize];
    let order: Vec<UnitId> = (0..unit_bytes.len() as u32).map(UnitId).collect();
    let tiers = Tiers::new(TiersConfig {
        unit_bytes: unit_bytes.clone(),
        order: order.clone(),
        host: TierConfig { budget: (85.0 * GB) as u64, policy: host },
        device: TierConfig { budget: (9.0 * GB) as u64, policy: device },
        load_attempts: 3,
        credits: Credits::default(),
    })
    .expect("valid tiers");
    let machine = SimulatedMachine {
        disk: ChannelSpec { bytes_per_s: 4.45 * GB, latency_ns: 100_000, depth: 8 },
        link: Some(ChannelSpec { bytes_per_s: 41.5 * GB, latency_ns: 10_000, depth: 16 }),
        faults,
        seed,
    };
    (Simulation::two_tiers(tiers, unit_bytes, machine).expect("a valid machine"), order)
}

fn resident() -> Policy {
    Policy::Resident(ResidentConfig { stream_slots: 8 })
}

#[test]
fn a_machine_takes_what_the_bound_says() {
    let (mut simulation, order) = large_machine(16, resident(), resident(), Faults::default(), 1);
    simulation.warm_up();
    simulation.run_pass(&order, |_| 100_000).expect("no faults");
    let report = simulation.run_pass(&order, |_| 100_000).expect("no faults");
    // (136.9 - 85 - 9) GB over 4.45 GB/s: 9.6 s.
    assert!((report.bound_seconds - 9.63).abs() < 0.05, "{report:?}");
    assert!(report.share_of_bound() > 0.95, "{report:?}");
    assert!(report.overlap_efficiency() >= 0.0 && report.read_seconds > 0.97 * report.seconds, "{report:?}");
}

#[test]
fn two_rings_read_the_whole_model_for_each_token() {
    let layers: Vec<u32> = (0..160).map(|unit| unit / 2).collect();
    let (host, device) = (RingConfig::host(layers.clone()), RingConfig::device(layers));
    let (mut simulation, order) = large_machine(2, Policy::Ring(host), Policy::Ring(device), Faults::default(), 1);
    simulation.warm_up();
    simulation.run_pass(&order, |_| 100_000).expect("no faults");
    let report = simulation.run_pass(&order, |_| 100_000).expect("no faults");
    // 136.9 GB over 4.45 GB/s: 30.8 s, of which the budgets would allow 9.6.
    assert!((report.seconds - 30.8).abs() < 0.4, "{report:?}");
    assert!((report.host_bytes_loaded as f64 / GB - 136.9).abs() < 1.8, "{report:?}");
    assert!((report.share_of_bound() - 9.63 / 30.8).abs() < 0.01, "{report:?}");
}

#[test]
fn a_faulty_machine_gives_the_same_run_again_and_passes_survive() {
    let faults =
        Faults { jitter_ns: 30_000_000, eviction_ns: 1_000_000, failed_loads: 0.02, failed_allocations: 0.001 };
    let run = |seed| {
        let (mut simulation, order) = large_machine(16, resident(), resident(), faults, seed);
        simulation.record_timeline();
        simulation.warm_up();
        let mut failed = 0;
        for _ in 0..5 {
            match simulation.run_pass(&order, |_| 100_000) {
                Ok(report) => assert!(report.share_of_bound() > 0.3, "{report:?}"),
                Err(SimulationError::Failed { .. }) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (simulation.num_events(), simulation.now_ns(), failed, simulation.take_timeline())
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert!(first.3.iter().all(|event| event.start_ns <= event.end_ns));
    assert_ne!(first.1, run(8).1);
}
