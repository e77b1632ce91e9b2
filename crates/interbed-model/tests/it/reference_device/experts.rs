//! Experts of mixtures that are streamed to a device with its own memory.

use std::ops::Range;
use std::sync::Arc;

use interbed_device::{Device, DeviceError};
use interbed_io::DirectRead;
use interbed_io::testing::{Effect, Fault, FaultyFile, Which};
use interbed_model::config::ModelConfig;
use interbed_model::{ForwardError, Model, layers};
use interbed_weights::{Catalog, Partition, StreamPlan, StreamPolicy, TieredWeights, WeightError, open_direct};

use super::checked::Checked;
use super::{Forgetful, MIXTURES, Refusing, every, logits, model_of, reference, schedules, settings, try_model_over};
use crate::harness::fixtures;

const EIO: i32 = 5;

/// Shares of the experts that host and device have room for beside all bands; `None` is the least that works.
type Room = [Option<f64>; 2];

const ROOMS: [Room; 5] = [[None, None], [None, Some(0.6)], [Some(0.4), None], [Some(0.3), Some(0.3)], [Some(1.0); 2]];

fn budgets(partition: &Partition, room: Room) -> [u64; 2] {
    let (classes, shape) = partition.experts().expect("a mixture");
    let beside = partition.fixed_bytes() + partition.band_memory();
    // On the device, nothing is rounded up to pages.
    let on_device = classes.packed_bytes(partition.banks()).iter().sum::<u64>() * shape.experts() as u64;
    let with = |share: Option<f64>, all: u64| {
        share.map_or(partition.least_budget(), |share| beside + (all as f64 * share) as u64)
    };
    [with(room[0], shape.bank_bytes()), with(room[1], on_device)]
}

/// A mixture in bands of 2 KiB, of which there are few, so that most copies are of experts.
fn try_mixture(name: &str, device: &mut dyn Device, policy: StreamPolicy, room: Room) -> Result<Model, WeightError> {
    try_mixture_of(name, device, policy, room, |files| files)
}

/// A mixture that is read from what `through` makes of its files.
fn try_mixture_of(
    name: &str,
    device: &mut dyn Device,
    policy: StreamPolicy,
    room: Room,
    through: impl FnOnce(Vec<Arc<dyn DirectRead>>) -> Vec<Arc<dyn DirectRead>>,
) -> Result<Model, WeightError> {
    try_model_over(name, |catalog, config| {
        let plan = StreamPlan::new(catalog, &layers::group_specs(&config.blueprint), 2048).unwrap();
        let [on_host, on_device] = budgets(plan.partition(), room);
        let (files, settings) = (through(open_direct(catalog).unwrap()), settings(on_host, policy, 0));
        let started = TieredWeights::start_on(device, on_device, plan, catalog, files, settings, &mut |_, _| {});
        Ok(Box::new(Checked(started?)))
    })
}

#[test]
fn experts_on_a_device_give_the_same_logits_in_any_legal_order() {
    for name in MIXTURES {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        for (room, policy) in
            ROOMS.into_iter().flat_map(|room| [StreamPolicy::Resident, StreamPolicy::Ring].map(|policy| (room, policy)))
        {
            for seed in 0..schedules(2) {
                let mut device = reference(name, seed);
                let mut model = try_mixture(name, &mut device, policy, room).unwrap();
                // The second time, the device holds what the first time has left there.
                for round in 0..2 {
                    let got = logits(&mut model, &mut device).unwrap();
                    assert_eq!(got, want, "{name}, {policy:?}, {room:?}, seed {seed}, round {round}");
                }
            }
        }
    }
}

#[test]
fn every_wait_for_an_expert_that_is_left_out_is_found() {
    for (name, room) in [(MIXTURES[0], ROOMS[0]), (MIXTURES[1], ROOMS[1]), (MIXTURES[2], ROOMS[2])] {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        let run = |seed: u64, forgotten| {
            let mut device = Forgetful { device: reference(name, seed), waits: 0, forgotten, refused: 0 };
            let outcome = try_mixture(name, &mut device, StreamPolicy::Resident, room)
                .map_err(ForwardError::from)
                .and_then(|mut model| logits(&mut model, &mut device));
            (device, outcome)
        };
        let count = run(0, usize::MAX).0.waits;
        let (mut found, mut tried) = (0, 0);
        // With an odd seed, copies read host memory in place.
        for (forgotten, seed) in (0..count).step_by(every(9)).flat_map(|wait| [(wait, wait), (wait, wait + 1)]) {
            tried += 1;
            let (device, outcome) = run(seed as u64, forgotten);
            found += usize::from(device.refused > 0 || outcome.is_err());
            // Otherwise a later wait of the same queue, or of the host, is one for all before it.
            let is_covered = outcome.is_err() || outcome.is_ok_and(|logits| logits == want);
            assert!(is_covered, "{name}, {room:?}: wait {forgotten} of {count}");
        }
        println!("{name}, {room:?}: {found} of {tried} were found, {count} waits");
        assert!(found * 4 > tried, "{name}, {room:?}: {found} of {tried} were found");
    }
}

#[test]
fn copies_of_experts_that_a_device_refuses_fail_a_pass_and_change_no_other() {
    let name = MIXTURES[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    let (mut failed, mut done) = (0, 0);
    for (seed, one_in) in [(1, 3), (2, 50), (3, 400), (4, 1500)] {
        let mut device = Refusing { device: reference(name, seed), random: seed, one_in: 0, allocations: usize::MAX };
        // All bands stay on the device, so that only experts are refused.
        let mut model = try_mixture(name, &mut device, StreamPolicy::Resident, [None, Some(0.3)]).unwrap();
        device.one_in = one_in;
        for _ in 0..12 {
            match logits(&mut model, &mut device) {
                Ok(got) => {
                    assert_eq!(got, want, "seed {seed}");
                    done += 1;
                }
                Err(ForwardError::Weights(WeightError::Device(DeviceError::NoMemory))) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        device.one_in = 0;
        assert_eq!(logits(&mut model, &mut device).unwrap(), want, "seed {seed}, in the end");
    }
    assert!(failed > 0 && done > 0, "{failed} failed, {done} did not");
}

#[test]
fn a_device_with_less_memory_than_it_was_said_to_have_holds_fewer_experts() {
    for name in MIXTURES {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        let room = [None, Some(1.0)];
        let start = |allocations, seed| {
            let mut device = Refusing { device: reference(name, seed), random: 0, one_in: 0, allocations };
            let started = try_mixture(name, &mut device, StreamPolicy::Resident, room);
            (device, started)
        };
        let taken = usize::MAX - start(usize::MAX, 0).0.allocations;
        let (mut smaller, mut refused) = (0, 0);
        // The last allocations are those of experts.
        for allocations in taken.saturating_sub(10)..taken {
            let (mut device, started) = start(allocations, allocations as u64);
            match started {
                Ok(mut model) => {
                    assert_eq!(logits(&mut model, &mut device).unwrap(), want, "{name}, {allocations} of {taken}");
                    smaller += 1;
                }
                Err(WeightError::Device(DeviceError::Full)) => refused += 1,
                Err(error) => panic!("{name}, {allocations} of {taken}: {error}"),
            }
        }
        assert!(smaller > 4, "{name}: {smaller} started, {refused} did not");
    }
}

/// The range of the file's bytes in which all experts lie.
fn expert_bytes(name: &str) -> Range<u64> {
    let dir = fixtures().join(name);
    let config = ModelConfig::from_dir(&dir).unwrap();
    let catalog = Catalog::open(&dir).unwrap();
    let plan = StreamPlan::new(&catalog, &layers::group_specs(&config.blueprint), 2048).unwrap();
    let reads: Vec<_> =
        plan.partition().banks().iter().flat_map(|bank| &bank.slabs).flat_map(|slab| slab.reads.clone()).collect();
    let starts = reads.iter().map(|read| read.offset).min();
    let ends = reads.iter().map(|read| read.offset + read.needed as u64).max();
    starts.expect("a mixture")..ends.expect("a mixture")
}

#[test]
fn a_read_that_fails_fails_its_pass_and_no_other() {
    let name = MIXTURES[0];
    let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
    for (seed, room) in (0..).zip(ROOMS).take(4) {
        let (mut device, mut faulty) = (reference(name, seed), Vec::new());
        let mut model = try_mixture_of(name, &mut device, StreamPolicy::Resident, room, |files| {
            faulty.extend(files.into_iter().map(|file| Arc::new(FaultyFile::new(file))));
            faulty.iter().map(|file| file.clone() as _).collect()
        })
        .unwrap();
        let experts = expert_bytes(name);
        let fail = |times| {
            let fault = Fault { reads: Which::Touching(experts.clone()), effect: Effect::Errno(EIO), times };
            faulty.iter().for_each(|file| file.inject(fault.clone()));
        };
        // Tried again, all comes.
        fail(Some(2));
        assert_eq!(logits(&mut model, &mut device).unwrap(), want, "{room:?}");
        fail(None);
        let failed = logits(&mut model, &mut device);
        assert!(matches!(failed, Err(ForwardError::Weights(WeightError::Io(_)))), "{room:?}: {failed:?}");
        faulty.iter().for_each(|file| file.heal());
        assert_eq!(logits(&mut model, &mut device).unwrap(), want, "{room:?}, in the end");
    }
}
