//! Properties that hold to the byte.

use interbed_weights::window::{
    Acquired, Policy, ResidentConfig, RingConfig, UnitId, Window, WindowCommand, WindowConfig, WindowError,
};

use super::chaos::Chaos;

const MIB: u64 = 1 << 20;

/// Returns the units of a small model in bands: 40 layers of norms and bands of at most 4 MiB, then a head.
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

#[test]
fn a_pass_reads_what_does_not_stay_and_nothing_else() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    for percent in [2, 10, 25, 50, 75, 90, 97] {
        let config = resident(&bytes, &order, all * percent / 100, 5);
        let budget = config.budget;
        let mut chaos = Chaos::new(config);
        let staying = chaos.window.resident_bytes();
        assert!(budget - staying < 6 * 4 * MIB, "{percent} %: only {staying} bytes stay of {budget}");
        chaos.start();
        chaos.settle();
        for _ in 0..3 {
            let before = chaos.bytes_loaded;
            chaos.pass(&order);
            chaos.settle();
            assert_eq!(chaos.bytes_loaded - before, all - staying, "{percent} %");
        }
    }
}

#[test]
fn a_ring_reads_everything_in_every_pass() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    let layers: Vec<u32> = (0..order.len() as u32).map(|position| position / 10).collect();
    let mut ring = RingConfig::host(layers);
    (ring.high_water_layers, ring.low_water_layers) = (40, 20);
    ring.reach = interbed_weights::window::Reach::Layers { offset_layers: 3, capacity_layers: 20, distance_layers: 20 };
    let config = WindowConfig {
        unit_bytes: bytes,
        order: order.clone(),
        budget: all * 3 / 4,
        policy: Policy::Ring(ring),
        load_attempts: 1,
    };
    let mut chaos = Chaos::new(config);
    chaos.start();
    chaos.settle();
    chaos.pass(&order);
    chaos.settle();
    for _ in 0..3 {
        let before = chaos.bytes_loaded;
        chaos.pass(&order);
        chaos.settle();
        assert_eq!(chaos.bytes_loaded - before, all);
    }
}

#[test]
fn residents_are_never_a_unit_off_the_even_line() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    for percent in [5, 30, 61, 80] {
        let window = Window::new(resident(&bytes, &order, all * percent / 100, 4)).expect("a valid window");
        let (mut passed, mut staying) = (0, 0);
        let room = all * percent / 100 - 4 * 4 * MIB;
        for unit in &order {
            passed += bytes[unit.index()];
            staying += if window.is_resident(*unit) { bytes[unit.index()] } else { 0 };
            let line = (u128::from(room) * u128::from(passed) / u128::from(all)) as u64;
            assert!(line.abs_diff(staying) <= 4 * MIB, "{percent} %, {unit:?}: {staying} bytes, the line is at {line}");
        }
    }
}

#[test]
fn a_new_budget_moves_no_more_than_the_difference() {
    let (bytes, order) = bands();
    let all: u64 = bytes.iter().sum();
    let mut chaos = Chaos::new(resident(&bytes, &order, all / 2, 5));
    chaos.start();
    chaos.settle();
    let mut budget = all / 2;
    for percent in [49, 40, 45, 80, 55, 50] {
        let (staying, loaded) = (chaos.window.resident_bytes(), chaos.bytes_loaded);
        let kept: Vec<UnitId> = order.iter().copied().filter(|unit| chaos.window.is_resident(*unit)).collect();
        chaos.set_budget(all * percent / 100);
        chaos.settle();
        let difference = (all * percent / 100).abs_diff(budget);
        budget = all * percent / 100;
        let now = chaos.window.resident_bytes();
        assert!(now.abs_diff(staying) <= difference + 4 * MIB, "{staying} bytes stayed, now {now}");
        let changed = kept.iter().filter(|unit| !chaos.window.is_resident(**unit)).count();
        if now >= staying {
            assert_eq!(changed, 0, "a larger budget sent units away");
        }
        // Slots were emptied at most once.
        assert!(chaos.bytes_loaded - loaded <= now.saturating_sub(staying) + 10 * 4 * MIB);
    }
}

/// Loads of the last pass over `units` equal units with room for `room`, by a policy that picks the victim.
fn naive_loads(units: usize, room: usize, passes: usize, victim: impl Fn(&[usize], usize) -> usize) -> f64 {
    let mut held: Vec<usize> = Vec::new();
    let mut loads = 0;
    for step in 0..units * passes {
        let unit = step % units;
        if let Some(place) = held.iter().position(|&other| other == unit) {
            // Kept in the order of use, for the policy that evicts the least recently used.
            held.remove(place);
        } else {
            loads += usize::from(step >= units);
            if held.len() == room {
                held.remove(victim(&held, unit));
            }
        }
        held.push(unit);
    }
    loads as f64 / (passes - 1) as f64
}

#[test]
fn the_fixed_subset_is_within_its_slots_of_belady_and_far_from_least_recently_used() {
    for (units, room, slots) in [(12, 6, 1), (12, 6, 2), (20, 15, 2), (30, 8, 3), (24, 23, 1)] {
        let farthest = |held: &[usize], now: usize| {
            let next_use = |unit: usize| (unit + units - now - 1) % units;
            (0..held.len()).max_by_key(|&place| next_use(held[place])).expect("something is held")
        };
        let belady = naive_loads(units, room, units * 10, farthest);
        let least_recent = naive_loads(units, room, 20, |_, _| 0);
        let order: Vec<UnitId> = (0..units as u32).map(UnitId).collect();
        let mut chaos = Chaos::new(resident(&vec![1; units], &order, room as u64, slots));
        chaos.start();
        chaos.settle();
        let before = chaos.bytes_loaded;
        chaos.pass(&order);
        chaos.settle();
        let ours = (chaos.bytes_loaded - before) as f64;
        assert_eq!(ours, (units - room + slots) as f64);
        assert!(ours <= belady + slots as f64, "{units} units in {room}: {ours} loads, Belady {belady}");
        assert_eq!(least_recent, units as f64);
    }
}

#[test]
fn a_load_that_keeps_failing_fails_who_waits_and_is_tried_anew_by_the_next() {
    let order: Vec<UnitId> = (0..4).map(UnitId).collect();
    let mut window = Window::new(resident(&[1; 4], &order, 2, 1)).expect("a valid window");
    let mut out = Vec::new();
    for round in 1..=2 {
        assert_eq!(window.acquire(UnitId(2), &mut out), Acquired::Pending);
        let mut tries = 0;
        while !window.is_answered(UnitId(2)) {
            let failing: Vec<(UnitId, u64)> = out
                .drain(..)
                .filter_map(|command| match command {
                    WindowCommand::Load { unit, ticket, .. } => Some((unit, ticket)),
                    WindowCommand::Evict { .. } => None,
                })
                .collect();
            for (unit, ticket) in failing {
                tries += u32::from(unit == UnitId(2));
                assert!(window.load_failed(unit, ticket, &mut out));
            }
        }
        assert_eq!(tries, 3, "round {round}");
        assert_eq!(window.acquire(UnitId(2), &mut out), Acquired::Failed);
        out.clear();
    }
    assert_eq!(window.counters().waits_failed, 2);
}

#[test]
fn bad_configurations_are_refused_with_what_would_work() {
    let order: Vec<UnitId> = (0..3).map(UnitId).collect();
    let check = |config: WindowConfig, expected: &str| {
        let error = Window::new(config).expect_err("refused");
        assert_eq!(error.to_string(), expected);
        error
    };
    let small = check(
        resident(&[4, 8, 8], &order, 15, 2),
        "a window of 15 bytes is too small for its units: the least that works is 16 bytes",
    );
    let WindowError::BudgetTooSmall { least, .. } = small else { panic!("{small:?}") };
    assert!(Window::new(resident(&[4, 8, 8], &order, least, 2)).is_ok());
    check(resident(&[4, 0, 8], &order, 99, 2), "unit 1 has no bytes: leave it out");
    check(resident(&[4, 8], &order, 99, 2), "the order names unit 2, but there are 2 units");
    check(
        resident(&[4, 8, 8], &[UnitId(1), UnitId(1)], 99, 2),
        "the order names unit 1 twice: make it two units, or name it once",
    );
    check(resident(&[4, 8, 8], &order, 99, 0), "the number of stream slots is 0: it must be at least 1");
    check(
        resident(&[u64::MAX / 2, u64::MAX / 2, u64::MAX / 2], &order, u64::MAX, 1),
        "3 units or their bytes are too many to be counted: use larger units",
    );
    let mut ring = RingConfig::device(vec![0, 0]);
    let of_ring = |ring: RingConfig| WindowConfig { policy: Policy::Ring(ring), ..resident(&[1; 3], &order, 3, 1) };
    check(of_ring(ring.clone()), "ring settings contradict each other: 2 positions have layers, the order has 3");
    ring.layers.clear();
    ring.units_max = 1;
    check(of_ring(ring), "ring settings contradict each other: 1 units at most, but one is used while the next comes");
}
