//! KV blocks and streamed weights that share the memory of a device: it changes hands between passes.

use interbed_device::{Device, ReferenceDevice};
use interbed_io::EngineKind;
use interbed_kernels::KvDType;
use interbed_model::config::ModelConfig;
use interbed_model::{ForwardError, Model, layers};
use interbed_weights::{ElasticWeights, Partition, StreamConfig, StreamPlan, StreamPolicy, TieredWeights, open_direct};

use super::checked::Checked;
use super::{Forgetful, every, logits, model_of, reference, schedules, settings, try_model_over};
use crate::harness::{blocks_of, fixtures};

/// A dense model, and mixtures.
const MODELS: [&str; 3] = ["qwen2", "qwen2_moe", "gpt_oss"];

/// The blocks that the passes of [`logits`] use.
const BLOCKS_LEAST: usize = 8;

/// The blocks that there can be.
const BLOCKS: usize = 64;

fn partition_of(name: &str) -> StreamPlan {
    let dir = fixtures().join(name);
    let config = ModelConfig::from_dir(&dir).unwrap();
    let catalog = interbed_weights::Catalog::open(&dir).unwrap();
    StreamPlan::new(&catalog, &layers::group_specs(&config.blueprint), 2048).unwrap()
}

/// The weights' budgets on a device: the least, and with which all of them stay there.
fn limits(partition: &Partition) -> [u64; 2] {
    [partition.least_budget(), partition.full_budget()]
}

fn block_bytes(name: &str) -> u64 {
    let config = ModelConfig::from_dir(fixtures().join(name)).unwrap();
    blocks_of(&config.blueprint, KvDType::F32, 1).trunk().block_bytes() as u64
}

/// The bytes of all blocks beside the trunk.
fn beside_bytes(name: &str) -> u64 {
    let config = ModelConfig::from_dir(fixtures().join(name)).unwrap();
    let groups = blocks_of(&config.blueprint, KvDType::F32, BLOCKS);
    groups.groups().iter().skip(1).map(|group| (group.num_blocks() * group.block_bytes()) as u64).sum()
}

/// A device on which all weights fit beside the fewest blocks of the trunk, and all others.
fn device_of(name: &str, seed: u64) -> ReferenceDevice {
    let [_, full] = limits(partition_of(name).partition());
    reference(name, seed).with_memory(full + BLOCKS_LEAST as u64 * block_bytes(name) + beside_bytes(name))
}

/// Gives all blocks beside the trunk memory.
fn take_beside(device: &mut dyn Device) {
    let groups = device.block_groups().groups().iter().enumerate().skip(1);
    let all: Vec<_> = groups.map(|(group, of)| (group, of.numbers())).collect();
    for (group, numbers) in all {
        assert_eq!(device.reserve_blocks(group, numbers.len()).unwrap(), numbers.len());
        device.resize_blocks(&numbers.map(|number| number as u32).collect::<Vec<_>>(), &[]).unwrap();
    }
}

fn stream(name: &str, device: &mut dyn Device, policy: StreamPolicy, budget: u64) -> Result<Model, ForwardError> {
    let model = try_model_over(name, |catalog, _| {
        let plan = partition_of(name);
        let on_host = plan.partition().least_budget() + plan.partition().band_memory() / 3;
        let config = StreamConfig { engine: EngineKind::Pread, ..settings(on_host, policy, 0) };
        let files = open_direct(catalog).unwrap();
        let started = TieredWeights::start_on(device, budget, plan, catalog, files, config, &mut |_, _| {});
        Ok(Box::new(Checked(started?)))
    });
    Ok(model?)
}

fn elastic(model: &mut Model) -> &mut dyn ElasticWeights {
    model.weights().elastic().unwrap()
}

/// Lets blocks come or leave until there are `to` instead of `from`. Returns whether there was memory for those that
/// came.
fn resize(device: &mut dyn Device, from: usize, to: usize) -> bool {
    let (came, left): (Vec<u32>, Vec<u32>) = ((from as u32..to as u32).collect(), (to as u32..from as u32).collect());
    let reserved = device.reserve_blocks(0, came.len()).unwrap();
    reserved == came.len() && device.resize_blocks(&came, &left).is_ok()
}

#[test]
fn memory_changes_hands_between_passes_in_any_legal_order() {
    for (name, policy) in
        MODELS.into_iter().flat_map(|name| [StreamPolicy::Resident, StreamPolicy::Ring].map(|policy| (name, policy)))
    {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        let ([least, full], block) = (limits(partition_of(name).partition()), block_bytes(name));
        let total = full + BLOCKS_LEAST as u64 * block;
        for seed in 0..schedules(3) {
            let mut device = device_of(name, seed);
            let mut model = stream(name, &mut device, policy, full).unwrap();
            take_beside(&mut device);
            assert!(resize(&mut device, 0, BLOCKS_LEAST));
            let (mut blocks, mut random) = (BLOCKS_LEAST, seed + 1);
            for round in 0..8 {
                let what = format!("{name}, {policy:?}, seed {seed}, round {round}");
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let room = total - least;
                let wanted = (BLOCKS_LEAST + (random >> 33) as usize % BLOCKS).min((room / block) as usize).min(BLOCKS);
                // What leaves goes first, as the engine does it.
                if wanted < blocks {
                    resize(&mut device, blocks, wanted);
                    blocks = wanted;
                }
                let budget = (total - wanted as u64 * block).min(full);
                elastic(&mut model).set_budget(budget, &mut device).unwrap();
                let memory = elastic(&mut model).memory(&mut device);
                assert!(memory.held <= budget, "{what}: {memory:?} of {budget}");
                assert!(resize(&mut device, blocks, wanted), "{what}: {memory:?} of {budget}");
                blocks = wanted;
                assert_eq!(logits(&mut model, &mut device).unwrap(), want, "{what}");
                assert!(device.memory_used().unwrap() <= total + beside_bytes(name), "{what}");
            }
            let too_little = elastic(&mut model).least_budget() - 1;
            assert!(elastic(&mut model).set_budget(too_little, &mut device).is_err());
            assert_eq!(logits(&mut model, &mut device).unwrap(), want);
        }
    }
}

#[test]
fn every_wait_that_is_left_out_while_memory_changes_hands_is_found() {
    for name in MODELS {
        let want = logits(&mut model_of(name), &mut reference(name, 0)).unwrap();
        let ([least, full], block) = (limits(partition_of(name).partition()), block_bytes(name));
        let run = |seed: u64, forgotten| {
            let mut device = Forgetful { device: device_of(name, seed), waits: 0, forgotten, refused: 0 };
            let outcome = stream(name, &mut device, StreamPolicy::Resident, full).and_then(|mut model| {
                let (mut all, mut blocks) = (Vec::new(), 0);
                take_beside(&mut device);
                for budget in [full, least, (least + full) / 2] {
                    let wanted = BLOCKS_LEAST + ((full - budget) / block).min(20) as usize;
                    resize(&mut device, blocks.max(wanted), wanted);
                    elastic(&mut model).set_budget(budget, &mut device).map_err(ForwardError::from)?;
                    assert!(resize(&mut device, blocks.min(wanted), wanted));
                    blocks = wanted;
                    all.push(logits(&mut model, &mut device)?);
                }
                Ok(all)
            });
            (device, outcome)
        };
        let (device, outcome) = run(0, usize::MAX);
        assert!(outcome.unwrap().iter().all(|logits| *logits == want));
        let (mut found, mut tried) = (0, 0);
        // With an odd seed, copies read host memory in place.
        for (forgotten, seed) in (0..device.waits).step_by(every(39)).flat_map(|wait| [(wait, wait), (wait, wait + 1)])
        {
            tried += 1;
            let (device, outcome) = run(seed as u64, forgotten);
            found += usize::from(device.refused > 0 || outcome.is_err());
            // Otherwise a later wait of the same queue, or of the host, is one for all before it.
            let is_covered = outcome.is_err() || outcome.is_ok_and(|all| all.iter().all(|logits| *logits == want));
            assert!(is_covered, "{name}: wait {forgotten}");
        }
        println!("{name}: {found} of {tried} were found, {} waits", device.waits);
        assert!(found * 4 > tried, "{name}: {found} of {tried} were found");
    }
}
