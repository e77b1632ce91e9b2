//! Experts of streamed weights against the bytes of the files: under budgets that change, with reads that fail, in
//! visits that are given up.

use std::num::NonZeroUsize;
use std::sync::Arc;

use interbed_device::{Cpu, CpuDevice, KvPool, PassNeeds};
use interbed_io::EngineKind;
use interbed_io::testing::{Effect, Fault, FaultyFile, Which};
use interbed_kernels::{BlockGroups, DType, KvDType, KvLayout};
use interbed_weights::{
    Access, Catalog, ElasticWeights, GroupSpec, ResidentWeights, Role, StreamConfig, StreamPlan, StreamPolicy,
    StreamedWeights, TensorMeta, TensorSpec, WeightError, WeightSource, open_direct, write_model,
};
use proptest::prelude::*;
use tempfile::TempDir;

const EIO: i32 = 5;
const LAYERS: usize = 3;
// More than are under way at a time.
const EXPERTS: usize = 12;
const CHOSEN: u32 = 2;
const WIDTH: usize = 64;

fn byte(tensor: usize, at: usize) -> u8 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * tensor as u64).to_be_bytes()[0]
}

fn processor() -> CpuDevice {
    let kv = KvPool::new(BlockGroups::new(KvLayout::new(1, KvDType::F32, []), 0)).unwrap();
    CpuDevice::new(Cpu::new(NonZeroUsize::MIN), &PassNeeds::default(), kv).unwrap()
}

/// A model whose groups are experts of gate, up and down, as safetensors have them or, if they lie `apart`, with all
/// gates of a layer first, then all ups, then all downs. The last layer's are larger.
struct Mixture {
    _dir: TempDir,
    catalog: Catalog,
    specs: Vec<GroupSpec>,
    metas: Vec<TensorMeta>,
    files: Vec<Arc<FaultyFile>>,
}

impl Mixture {
    fn new(apart: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut metas, mut specs) = (Vec::new(), Vec::new());
        for layer in 0..LAYERS {
            let rows = if layer + 1 == LAYERS { 90 } else { 70 };
            let name = |expert: usize, matrix: &str| format!("l{layer}.e{expert}.{matrix}");
            let tensors = (0..EXPERTS).flat_map(|expert| {
                [("gate", [rows, WIDTH]), ("up", [rows, WIDTH]), ("down", [WIDTH, rows])].map(|(matrix, shape)| {
                    let access = Access::Expert { number: expert as u32, chosen: CHOSEN };
                    TensorSpec::new(name(expert, matrix), shape).by(access)
                })
            });
            let tensors: Vec<TensorSpec> = tensors.collect();
            let mut own: Vec<TensorMeta> = tensors
                .iter()
                .map(|spec| TensorMeta { name: spec.name.clone(), dtype: DType::BF16, shape: spec.shape.clone() })
                .collect();
            if apart {
                own.sort_by_key(|meta| ["gate", "up", "down"].iter().position(|of| meta.name.ends_with(of)));
            }
            metas.extend(own);
            specs.push(GroupSpec { name: format!("layer {layer}"), role: Role::FeedForward, layer, tensors });
        }
        write_model(dir.path(), &metas, 150_000, &mut |tensor, sink| {
            let len = metas[tensor].shape.iter().product::<usize>() * 2;
            sink(&(0..len).map(|at| byte(tensor, at)).collect::<Vec<_>>())
        })
        .unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let files = open_direct(&catalog).unwrap().into_iter().map(|file| Arc::new(FaultyFile::new(file))).collect();
        Self { _dir: dir, catalog, specs, metas, files }
    }

    fn plan(&self) -> StreamPlan {
        StreamPlan::new(&self.catalog, &self.specs, 4096).unwrap()
    }

    fn stream(&self, budget: u64) -> Result<StreamedWeights, WeightError> {
        let config = StreamConfig {
            budget,
            engine: EngineKind::Pread,
            depth: 3,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy: StreamPolicy::Resident,
            timeline: false,
            host_tokens_max: 0,
            turns: None,
        };
        let files = self.files.iter().map(|file| file.clone() as _).collect();
        StreamedWeights::start(self.plan(), &self.catalog, files, config, &mut |_, _| {})
    }

    /// Visits a group as the forward pass does, and checks every byte of every expert. `hold` experts are held at a
    /// time, and the other experts are released as they come. A visit may be given up after `give_up` experts.
    fn visit(
        &self,
        weights: &mut dyn WeightSource,
        group: usize,
        wanted: &[(u32, u32)],
        give_up: usize,
    ) -> Result<(), WeightError> {
        let mut device = processor();
        weights.visit(&mut device, group, wanted)?;
        let mut came = Vec::new();
        while let Some(expert) = weights.next_expert(&mut device)? {
            assert_eq!(expert.matrices.len(), 3);
            for (index, matrix) in expert.matrices.iter().enumerate() {
                let spec = &self.specs[group].tensors[expert.number as usize * 3 + index];
                let tensor = self.metas.iter().position(|meta| meta.name == spec.name).unwrap();
                assert_eq!([matrix.rows(), matrix.cols()], spec.shape[..]);
                let bytes = matrix.matrix();
                assert!(bytes.bytes().iter().enumerate().all(|(at, &got)| got == byte(tensor, at)), "{}", spec.name);
            }
            came.push(expert.number);
            weights.release_expert(expert, &mut device, None).unwrap();
            if came.len() > give_up {
                return Ok(());
            }
        }
        came.sort_unstable();
        assert_eq!(came, wanted.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), "each comes once");
        Ok(())
    }
}

fn wanted(mask: u32) -> Vec<(u32, u32)> {
    (0..EXPERTS as u32).filter(|expert| mask >> expert & 1 == 1).map(|expert| (expert, 1 + expert % 3)).collect()
}

#[test]
fn resident_experts_come_as_well() {
    let model = Mixture::new(true);
    let mut weights = ResidentWeights::load(&model.catalog, &model.specs, &mut |_, _| {}).unwrap();
    for mask in 1..1 << EXPERTS {
        model.visit(&mut weights, mask as usize % LAYERS, &wanted(mask), usize::MAX).unwrap();
    }
}

#[test]
fn what_stays_is_not_read_again() {
    for apart in [false, true] {
        let model = Mixture::new(apart);
        let full = model.plan().partition().full_budget();
        let mut weights = model.stream(full).unwrap();
        for round in 0..3 {
            for group in 0..LAYERS {
                model.visit(&mut weights, group, &wanted((1 << EXPERTS) - 1), usize::MAX).unwrap();
            }
            weights.settle();
            let figures = weights.arena().unwrap().figures();
            let (read, stats) = (LAYERS * EXPERTS, weights.monitor().stats());
            assert_eq!(figures.decode.misses + figures.chunks.misses, read as u64, "round {round}");
            // Reads end on whole pages.
            let bank = model.plan().partition().expert_bytes();
            let pages = read as u64 * 3 * 2 * 4096;
            assert!((bank..=bank + pages).contains(&stats.bytes_read), "{} of {bank}", stats.bytes_read);
        }
    }
}

#[test]
fn guesses_are_read_ahead_and_only_what_they_lack() {
    let model = Mixture::new(true);
    let mut weights = model.stream(model.plan().partition().full_budget()).unwrap();
    assert!(weights.looks_ahead(1));
    model.visit(&mut weights, 0, &wanted(0b11), usize::MAX).unwrap();
    let reads = |weights: &StreamedWeights| {
        let stats = weights.monitor().stats();
        (stats.experts_read, stats.experts_ahead, stats.experts_arriving)
    };
    for round in 0..2 {
        // What it has is not read again. What is not wanted, or never comes, changes nothing that is computed.
        weights.guess(1, &[(4, 0), (2, 0), (3, 1)]);
        weights.settle();
        weights.guess(1, &[(4, 0), (2, 0), (3, 1), (5, 9)]);
        weights.settle();
        assert_eq!(reads(&weights), (2 + round, 3, 0));
        model.visit(&mut weights, 1, &wanted(0b10_110), usize::MAX).unwrap();
        assert_eq!(reads(&weights), (3, 3, 0), "of 1, 2 and 4 only 1 was missing");
        let lacking = if round == 0 { 3 } else { 0 };
        assert_eq!(weights.arena().unwrap().lacking(), lacking, "what came because it was guessed is not what stayed");
    }
    weights.guess(2, &[(0, 0), (1, 0)]);
    model.visit(&mut weights, 2, &wanted(0b11), usize::MAX).unwrap();
    let (read, ahead, _) = reads(&weights);
    assert_eq!((read, ahead), (3, 5), "on its way or there, each is read once");
    weights.set_reads_ahead(false);
    assert!(!weights.looks_ahead(2));
    weights.guess(2, &[(5, 0)]);
    weights.settle();
    assert_eq!(reads(&weights).1, 5);
}

#[test]
fn less_than_two_slots_of_each_size_are_refused() {
    let model = Mixture::new(true);
    let least = model.plan().partition().least_budget();
    let mut weights = model.stream(least).unwrap();
    for group in 0..LAYERS {
        model.visit(&mut weights, group, &wanted((1 << EXPERTS) - 1), usize::MAX).unwrap();
    }
    let error = model.stream(least - 1).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("experts") && error.contains("least"), "{error}");
}

#[test]
fn a_read_that_keeps_failing_fails_its_visit_and_no_other() {
    let model = Mixture::new(true);
    let mut weights = model.stream(model.plan().partition().least_budget()).unwrap();
    let fail = |times| {
        let fault = Fault { reads: Which::All, effect: Effect::Errno(EIO), times };
        model.files.iter().for_each(|file| file.inject(fault.clone()));
    };
    // Tried again, all comes.
    fail(Some(2));
    model.visit(&mut weights, 0, &wanted(0b11), usize::MAX).unwrap();
    model.files.iter().for_each(|file| file.heal());
    fail(None);
    let error = model.visit(&mut weights, 1, &wanted(0b11), usize::MAX).unwrap_err();
    assert!(matches!(error, WeightError::Io(_)), "{error:?}");
    weights.settle();
    model.files.iter().for_each(|file| file.heal());
    for group in 0..LAYERS {
        model.visit(&mut weights, group, &wanted(0b111_111), usize::MAX).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Act {
    Visit { group: usize, mask: u32, give_up: usize },
    Guess { group: usize, guesses: Vec<(u32, u32)> },
    Budget(u64),
    Fail(usize),
    Pass,
}

fn act() -> impl Strategy<Value = Act> {
    let visit = (0..LAYERS, 1u32..1 << EXPERTS, prop_oneof![4 => Just(usize::MAX), 1 => 0usize..4]);
    let guesses = proptest::sample::subsequence((0..EXPERTS as u32).collect::<Vec<_>>(), 0..=EXPERTS).prop_shuffle();
    let ranked = guesses.prop_map(|experts| experts.into_iter().zip((0..).map(|at| at / 2)).collect());
    prop_oneof![
        6 => (0..LAYERS, ranked).prop_map(|(group, guesses)| Act::Guess { group, guesses }),
        8 => visit.prop_map(|(group, mask, give_up)| Act::Visit { group, mask, give_up }),
        2 => (0u64..=100).prop_map(Act::Budget),
        1 => (1usize..5).prop_map(Act::Fail),
        1 => Just(Act::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_expert_comes_whole_whatever_happens(apart: bool, acts in proptest::collection::vec(act(), 1..60)) {
        let model = Mixture::new(apart);
        let (least, full) = (model.plan().partition().least_budget(), model.plan().partition().full_budget());
        let mut weights = model.stream(least).unwrap();
        let (mut faults, mut failures) = (0, 0);
        for act in acts {
            match act {
                Act::Visit { group, mask, give_up } => {
                    let before = weights.arena().unwrap().figures();
                    match model.visit(&mut weights, group, &wanted(mask), give_up) {
                        Ok(()) => {}
                        Err(WeightError::Io(_)) => failures += 1,
                        Err(error) => panic!("{error}"),
                    }
                    let after = weights.arena().unwrap().figures();
                    let uses = |figures: interbed_weights::experts::ArenaFigures| {
                        figures.decode.token_uses + figures.chunks.token_uses
                    };
                    let tokens: u32 = wanted(mask).iter().map(|(_, tokens)| tokens).sum();
                    prop_assert_eq!(uses(after) - uses(before), u64::from(tokens));
                }
                // Some of a rank that no token has.
                Act::Guess { group, guesses } => weights.guess(group, &guesses),
                Act::Budget(percent) => {
                    let (budget, mut device) = (least + (full - least) * percent / 100, processor());
                    weights.set_budget(budget, &mut device).unwrap();
                    weights.settle();
                    weights.set_budget(budget, &mut device).unwrap();
                    let memory = weights.memory(&mut device);
                    prop_assert!(memory.held <= budget, "{memory:?}");
                }
                Act::Fail(times) => {
                    faults += times;
                    let file = &model.files[faults % model.files.len()];
                    file.inject(Fault { reads: Which::All, effect: Effect::Errno(EIO), times: Some(times as u32) });
                }
                Act::Pass => weights.begin_pass(1).unwrap(),
            }
            prop_assert_eq!(weights.arena().unwrap().check_invariants(), Ok(()));
        }
        prop_assert!(failures <= faults);
    }
}
