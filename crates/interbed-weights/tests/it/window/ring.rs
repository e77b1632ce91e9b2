//! The window that slides with the pass, one property per test.

use interbed_weights::window::{
    Acquired, Credits, Phase, Policy, Reach, RingConfig, UnitId, UnitState, Window, WindowCommand, WindowConfig,
};

use super::chaos::Chaos;

/// Returns the configuration of 20 layers of attention and FFN, of one byte each.
fn config(ring: RingConfig, budget: u64) -> WindowConfig {
    let order = (0..40).map(UnitId).collect();
    WindowConfig { unit_bytes: vec![1; 40], order, budget, policy: Policy::Ring(ring), load_attempts: 2 }
}

fn layers() -> Vec<u32> {
    (0..40).map(|unit| unit / 2).collect()
}

fn loads(out: &[WindowCommand]) -> Vec<u32> {
    let load = |command: &WindowCommand| match command {
        WindowCommand::Load { unit, .. } => Some(unit.0),
        WindowCommand::Evict { .. } => None,
    };
    out.iter().filter_map(load).collect()
}

#[test]
fn defaults_suit_eighty_layers_on_a_gpu_of_16_gb() {
    let (host, device, credits) = (RingConfig::host(Vec::new()), RingConfig::device(Vec::new()), Credits::default());
    let reach = Reach::Layers { offset_layers: 6, capacity_layers: 50, distance_layers: 50 };
    assert_eq!((host.reach, host.layers_behind), (reach, 4));
    assert_eq!((host.high_water_layers, host.low_water_layers, host.in_flight_max), (65, 47, 10));
    let reach = Reach::Units { pair: true, depth_layers: 4, ahead_units: 6 };
    assert_eq!((device.reach, device.layers_behind), (reach, 2));
    assert_eq!((device.units_max, device.in_flight_max), (12, 16));
    assert_eq!((device.queue_max, device.warm_up_layers), (48, 8));
    // 8 × 1.2 is 9.6, which is rounded down to 9.
    assert_eq!((credits.base, credits.of(Phase::Prefill), credits.of(Phase::Decode)), (8, 16, 9));
}

#[test]
fn attention_asks_for_its_ffn_then_for_attention_ahead_then_for_what_follows() {
    let mut window = Window::new(config(RingConfig::device(layers()), 40)).expect("a valid window");
    let mut out = Vec::new();
    assert_eq!(window.acquire(UnitId(0), &mut out), Acquired::Pending);
    assert_eq!(loads(&out), [0, 1, 2, 4, 6, 8, 3, 5]);
}

#[test]
fn layers_are_asked_for_in_order_a_bounded_number_at_a_time() {
    let mut ring = RingConfig::host(layers());
    ring.reach = Reach::Layers { offset_layers: 1, capacity_layers: 3, distance_layers: 50 };
    (ring.in_flight_max, ring.queue_max) = (3, 2);
    let mut chaos = Chaos::new(config(ring, 40));
    chaos.start();
    let mut seen = Vec::new();
    while !chaos.loads.is_empty() {
        assert!(chaos.loads.len() <= 3);
        seen.push(chaos.loads[0].0.0);
        chaos.arrive(0);
    }
    // The current layer, the offset and the capacity.
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn requests_of_before_a_jump_are_dropped_when_their_turn_comes() {
    let mut ring = RingConfig::host(layers());
    ring.reach = Reach::Layers { offset_layers: 1, capacity_layers: 4, distance_layers: 50 };
    ring.in_flight_max = 1;
    let mut chaos = Chaos::new(config(ring, 40));
    chaos.start();
    assert_eq!(chaos.acquire(UnitId(20)), Acquired::Pending);
    let mut seen = Vec::new();
    while !chaos.loads.is_empty() {
        seen.push(chaos.loads[0].0.0);
        chaos.arrive(0);
    }
    // Unit 0 was in flight; of the other nine that were asked for at the start, none is loaded.
    assert_eq!(seen, [0, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
    assert_eq!(chaos.window.counters().requests_stale, 9);
}

#[test]
fn what_a_pass_leaves_goes_and_a_few_layers_behind_stay() {
    let mut ring = RingConfig::host(layers());
    ring.reach = Reach::Layers { offset_layers: 0, capacity_layers: 3, distance_layers: 50 };
    ring.layers_behind = 2;
    let mut chaos = Chaos::new(config(ring, 40));
    for unit in (0..40).chain(0..8).map(UnitId) {
        chaos.acquire_and_wait(unit);
        chaos.release(unit);
    }
    chaos.settle();
    // In layer 3: layers 1 and 2 behind, layers 4 and 5 ahead.
    let present: Vec<u32> = (0..40).filter(|unit| chaos.window.state(UnitId(*unit)) == UnitState::Present).collect();
    assert_eq!(present, (2..12).collect::<Vec<u32>>());
}

#[test]
fn the_farthest_goes_first_and_the_pinned_last() {
    let mut ring = RingConfig::device(layers());
    ring.reach = Reach::Units { pair: false, depth_layers: 19, ahead_units: 0 };
    (ring.layers_behind, ring.units_max) = (0, 4);
    let mut chaos = Chaos::new(config(ring, 40));
    // The attention of layers 0 to 3 fills the window; nothing nearer is asked for.
    chaos.acquire_and_wait(UnitId(0));
    chaos.settle();
    let evicted_for = |chaos: &mut Chaos, unit: u32| {
        assert_eq!(chaos.acquire(UnitId(unit)), Acquired::Pending);
        let evicted = chaos.evictions.clone();
        chaos.stop_waiting(UnitId(unit));
        chaos.settle();
        evicted
    };
    let present = |chaos: &Chaos| -> Vec<u32> {
        (0..40).filter(|unit| chaos.window.state(UnitId(*unit)) == UnitState::Present).collect()
    };
    assert_eq!(present(&chaos), [0, 2, 4, 6]);
    chaos.pin(UnitId(6));
    assert_eq!(evicted_for(&mut chaos, 1), [UnitId(4)]);
    assert!(present(&chaos).contains(&6));
}

#[test]
fn the_high_water_mark_bounds_layers_and_cleaning_goes_down_to_the_low_one() {
    let mut ring = RingConfig::host(layers());
    ring.reach = Reach::Layers { offset_layers: 0, capacity_layers: 12, distance_layers: 50 };
    ring.layers_behind = 0;
    (ring.high_water_layers, ring.low_water_layers) = (6, 4);
    let mut chaos = Chaos::new(config(ring, 40));
    chaos.start();
    chaos.settle();
    let present = |chaos: &Chaos| -> Vec<u32> {
        (0..40).filter(|unit| chaos.window.state(UnitId(*unit)) == UnitState::Present).collect()
    };
    assert_eq!(present(&chaos), (0..12).collect::<Vec<u32>>());
    // Two layers back: a unit that is waited for is not held back by the high water mark, but the layer after it is,
    // until the farthest three of seven have been evicted.
    assert_eq!(chaos.acquire(UnitId(36)), Acquired::Pending);
    assert_eq!(chaos.loads.iter().map(|load| load.0.0).collect::<Vec<u32>>(), [36, 37]);
    assert_eq!(chaos.evictions.iter().map(|unit| unit.0).collect::<Vec<u32>>(), [10, 11, 8, 9, 6, 7]);
    chaos.settle();
    assert_eq!(chaos.window.state(UnitId(38)), UnitState::Present);
}
