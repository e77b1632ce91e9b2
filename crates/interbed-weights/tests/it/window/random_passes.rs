//! Random passes, faults, budgets, jumps and experts, with every invariant checked after every event.

use interbed_weights::window::{Acquired, Policy, Reach, ResidentConfig, RingConfig, UnitId, WindowConfig};

use super::chaos::Chaos;
use super::rng::Rng;

/// Returns a random window, and how many units may be in use or waited for at the same time.
fn random_window(rng: &mut Rng, ring: bool) -> (WindowConfig, usize) {
    let units = rng.between(1, 24) as usize;
    let largest = rng.between(1, 9);
    let unit_bytes: Vec<u64> = (0..units).map(|_| rng.between(1, largest)).collect();
    let mut order: Vec<UnitId> = (0..units as u32).map(UnitId).collect();
    if rng.once_in(3) {
        for place in (1..units).rev() {
            order.swap(place, rng.below(place + 1));
        }
    }
    if rng.once_in(3) {
        order.truncate(rng.below(units + 1));
    }
    let everything: u64 = unit_bytes.iter().sum();
    let slot = *unit_bytes.iter().max().expect("units");
    let (policy, least, concurrent) = if ring {
        let ring = random_ring(rng, order.len());
        let all = if ring.slots { units as u64 * slot } else { everything };
        (Policy::Ring(ring), all.min(2 * slot), 2)
    } else {
        let stream_slots = rng.between(1, 5) as usize;
        let config = ResidentConfig { stream_slots };
        (Policy::Resident(config), everything.min(slot * stream_slots as u64), stream_slots)
    };
    let budget = rng.between(least, everything.max(least) + slot);
    let load_attempts = rng.between(1, 3) as u32;
    (WindowConfig { unit_bytes, order, budget, policy, load_attempts }, concurrent)
}

fn random_ring(rng: &mut Rng, order_len: usize) -> RingConfig {
    let per_layer = rng.between(1, 3) as usize;
    let layers = (0..order_len).map(|position| (position / per_layer) as u32).collect();
    let mut ring = if rng.once_in(2) { RingConfig::host(layers) } else { RingConfig::device(layers) };
    let mut small = |most| rng.between(0, most) as usize;
    ring.reach = match ring.reach {
        Reach::Layers { .. } => {
            Reach::Layers { offset_layers: small(3), capacity_layers: small(6), distance_layers: small(6) }
        }
        Reach::Units { .. } => Reach::Units { pair: small(1) == 1, depth_layers: small(3), ahead_units: small(4) },
    };
    ring.layers_behind = small(3);
    ring.low_water_layers = small(5) + 1;
    ring.high_water_layers = ring.low_water_layers + 1 + small(4);
    ring.units_max = 2 + small(12);
    ring.in_flight_max = 1 + small(4);
    ring.queue_max = 1 + small(8);
    ring.warm_up_layers = small(4);
    ring.slots = small(1) == 1;
    ring
}

/// Runs a window for `steps` random steps; then everything must come to rest.
fn live(seed: u64, steps: usize, ring: bool) -> u64 {
    let mut rng = Rng(seed);
    let (config, concurrent) = random_window(&mut rng, ring);
    let order = config.order.clone();
    let on_demand: Vec<UnitId> =
        (0..config.unit_bytes.len() as u32).map(UnitId).filter(|unit| !order.contains(unit)).collect();
    let everything: u64 = config.unit_bytes.iter().sum();
    let unit_bytes = config.unit_bytes.clone();
    let faults = [0, 0, 3, 12][rng.below(4)];
    let mut chaos = Chaos::new(config);
    let mut in_use: Vec<UnitId> = Vec::new();
    let mut waiting: Vec<UnitId> = Vec::new();
    let mut pinned: Vec<UnitId> = Vec::new();
    let mut place = 0;
    if rng.once_in(2) {
        chaos.start();
    }
    for _ in 0..steps {
        match rng.below(100) {
            0..35 if in_use.len() + waiting.len() < concurrent || !waiting.is_empty() => {
                let again = !waiting.is_empty() && (in_use.len() + waiting.len() >= concurrent || rng.once_in(2));
                let unit = if again {
                    waiting[rng.below(waiting.len())]
                } else if order.is_empty() || (!on_demand.is_empty() && rng.once_in(3)) {
                    rng.pick(&on_demand).expect("some unit exists")
                } else {
                    if rng.once_in(20) {
                        place = rng.below(order.len());
                    }
                    place = (place + 1) % order.len();
                    order[place]
                };
                waiting.retain(|&other| other != unit);
                match chaos.acquire(unit) {
                    Acquired::Ready => in_use.push(unit),
                    Acquired::Pending => waiting.push(unit),
                    Acquired::Failed => {}
                }
            }
            35..55 if !in_use.is_empty() => chaos.release(in_use.swap_remove(rng.below(in_use.len()))),
            55..80 if !chaos.loads.is_empty() => {
                let index = rng.below(chaos.loads.len());
                if faults > 0 && rng.once_in(faults) {
                    chaos.fail(index, rng.once_in(3));
                } else {
                    chaos.arrive(index);
                }
            }
            80..92 if !chaos.evictions.is_empty() => chaos.gone(rng.below(chaos.evictions.len())),
            92..94 => {
                let least = chaos.window.least_budget();
                chaos.set_budget(rng.between(least, everything.max(least) + 3));
            }
            94 if !waiting.is_empty() => chaos.stop_waiting(waiting.swap_remove(rng.below(waiting.len()))),
            95..98 => {
                let from = if rng.once_in(4) { &order } else { &on_demand };
                if let Some(unit) = rng.pick(from) {
                    chaos.expect(unit);
                }
            }
            98 if rng.once_in(2) => {
                let unit = UnitId(rng.below(unit_bytes.len()) as u32);
                chaos.pin(unit);
                pinned.push(unit);
            }
            98..100 if !pinned.is_empty() => chaos.unpin(pinned.swap_remove(rng.below(pinned.len()))),
            _ => {}
        }
    }
    // Every wait ends while the other units are still in use.
    for unit in waiting {
        chaos.acquire_and_wait(unit);
        in_use.push(unit);
    }
    for unit in in_use {
        chaos.release(unit);
    }
    for unit in pinned {
        chaos.unpin(unit);
    }
    chaos.settle();
    // Residents that were given up are loaded when a pass asks for them; then only the rest is read, each unit once.
    chaos.pass(&on_demand);
    chaos.pass(&order);
    chaos.pass(&order);
    chaos.settle();
    if ring {
        return chaos.events;
    }
    let before = chaos.bytes_loaded;
    chaos.pass(&order);
    chaos.settle();
    let streamed: Vec<u64> =
        order.iter().filter(|unit| !chaos.window.is_resident(**unit)).map(|unit| unit_bytes[unit.index()]).collect();
    let expected = if streamed.len() <= concurrent { 0 } else { streamed.iter().sum() };
    assert_eq!(chaos.bytes_loaded - before, expected, "bytes of a pass");
    chaos.events
}

fn many_lives(ring: bool) {
    let mut events = 0;
    let mut seed = 0;
    while events < 1_000_000 {
        seed += 1;
        let outcome = std::panic::catch_unwind(|| live(seed, 500, ring));
        events += outcome.unwrap_or_else(|problem| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(problem)
        });
    }
}

#[test]
fn a_million_events_break_no_promise_of_the_resident_policy() {
    many_lives(false);
}

#[test]
fn a_million_events_break_no_promise_of_the_ring() {
    many_lives(true);
}
