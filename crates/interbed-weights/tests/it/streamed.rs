//! Streamed weights against the bytes of the files, with reads that fail, budgets that change and passes that jump.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_device::{Cpu, CpuDevice, KvPool, PassNeeds};
use interbed_io::testing::{Effect, Fault, FaultyFile, Which};
use interbed_io::{EngineKind, FileChange, IoError};
use interbed_kernels::{BlockGroups, DType, KvDType, KvLayout};
use interbed_weights::{
    Access, Bands, Catalog, ElasticWeights, EventKind, GroupSpec, Role, StreamConfig, StreamPlan, StreamPolicy,
    StreamedWeights, Sweep, TensorId, TensorMeta, TensorSpec, WeightError, WeightSource, open_direct, write_model,
};
use proptest::prelude::*;
use tempfile::TempDir;

const EIO: i32 = 5;
const GROUPS: usize = 5;
const BAND: usize = 9000;
const MICROSECOND: Duration = Duration::from_micros(1);

/// Returns the byte at `at` of tensor `tensor`, which is a hash of both numbers.
fn byte(tensor: usize, at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(tensor as u64 * 77).to_be_bytes()[0]
}

/// Returns a device that has executed all submissions.
fn processor() -> CpuDevice {
    let kv = KvPool::new(BlockGroups::new(KvLayout::new(1, KvDType::F32, []), 0)).unwrap();
    CpuDevice::new(Cpu::new(NonZeroUsize::MIN), &PassNeeds::default(), kv).unwrap()
}

/// A model of an embedding and groups of a vector, two matrices side by side and a matrix alone, in files that need not
/// be aligned.
struct Model {
    _dir: TempDir,
    catalog: Catalog,
    specs: Vec<GroupSpec>,
    metas: Vec<TensorMeta>,
    files: Vec<Arc<FaultyFile>>,
}

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut metas, mut specs) = (Vec::new(), Vec::new());
        let mut add = |name: String, shape: &[usize]| {
            metas.push(TensorMeta { name: name.clone(), dtype: DType::BF16, shape: shape.to_vec() });
            TensorSpec::new(name, shape)
        };
        let embedding = add("embedding".into(), &[40, 70]).by(Access::Rows);
        specs.push(GroupSpec { name: "embedding".into(), role: Role::FeedForward, layer: 0, tensors: vec![embedding] });
        for group in 0..GROUPS {
            let norm = add(format!("norm {group}"), &[70]);
            let gate = add(format!("gate {group}"), &[130 + group, 70]);
            let up = add(format!("up {group}"), &[130 + group, 70]).by(Access::SweepBeside);
            let down = add(format!("down {group}"), &[70, 131]);
            specs.push(GroupSpec {
                name: format!("group {group}"),
                role: Role::FeedForward,
                layer: 0,
                tensors: vec![norm, gate, up, down],
            });
        }
        write_model(dir.path(), &metas, 60_000, &mut |tensor, sink| {
            let len = metas[tensor].shape.iter().product::<usize>() * 2;
            sink(&(0..len).map(|at| byte(tensor, at)).collect::<Vec<_>>())
        })
        .unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let files = open_direct(&catalog).unwrap().into_iter().map(|file| Arc::new(FaultyFile::new(file))).collect();
        Self { _dir: dir, catalog, specs, metas, files }
    }

    fn plan(&self) -> StreamPlan {
        StreamPlan::new(&self.catalog, &self.specs, BAND).unwrap()
    }

    fn stream(&self, budget: u64, policy: StreamPolicy) -> Result<StreamedWeights, WeightError> {
        let config = StreamConfig {
            budget,
            engine: EngineKind::Pread,
            depth: 2,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy,
            timeline: true,
            host_tokens_max: 0,
            turns: None,
        };
        let files = self.files.iter().map(|file| file.clone() as _).collect();
        StreamedWeights::start(self.plan(), &self.catalog, files, config, &mut |_, _| {})
    }

    fn tensor(&self, group: usize, index: usize) -> usize {
        let name = &self.specs[group].tensors[index].name;
        self.metas.iter().position(|meta| meta.name == *name).unwrap()
    }

    /// Sweeps over a group as the forward pass does, and checks every byte.
    fn visit(&self, weights: &mut StreamedWeights, group: usize) -> Result<(), WeightError> {
        if group == 0 {
            weights.begin_pass(1)?;
            let wanted = [3, 39, 0, 3, 17];
            let embedding = self.tensor(0, 0);
            let found = weights.rows(TensorId { group: 0, index: 0 }, &wanted)?;
            assert_eq!(found.numbers.len(), wanted.len());
            for (&row, &number) in wanted.iter().zip(found.numbers) {
                let got = &found.table.matrix().bytes()[number as usize * 140..][..140];
                let want: Vec<u8> = (0..140).map(|byte_of| byte(embedding, row as usize * 140 + byte_of)).collect();
                assert_eq!(got, want, "row {row}");
            }
            return Ok(());
        }
        let norm = self.tensor(group, 0);
        let vector = weights.vector(TensorId { group, index: 0 });
        assert!(vector.matrix().bytes().iter().enumerate().all(|(at, &got)| got == byte(norm, at)));
        let (mut device, mut bands) = (processor(), Bands::new());
        for indices in [&[1, 2][..], &[3]] {
            let mut sweep = Sweep::new(indices.iter().map(|&index| TensorId { group, index }));
            let mut next_row = vec![0; indices.len()];
            loop {
                weights.bands(&mut device, &mut sweep, &mut bands)?;
                if bands.is_empty() {
                    break;
                }
                for (number, band) in bands.iter().enumerate() {
                    let tensor = self.tensor(group, indices[band.matrix]);
                    assert_eq!(band.rows.start, next_row[band.matrix], "rows ascend, and none is left out");
                    assert_eq!(number % indices.len(), band.matrix, "what is swept side by side comes in turns");
                    assert_eq!(band.rows.len(), band.weights.rows());
                    next_row[band.matrix] = band.rows.end;
                    let start = band.rows.start * band.weights.cols() * 2;
                    let matrix = band.weights.matrix();
                    assert!(matrix.bytes().iter().enumerate().all(|(at, &got)| got == byte(tensor, start + at)));
                }
                weights.release(&mut bands, &mut device, None).unwrap();
            }
            for (row, &index) in next_row.into_iter().zip(indices) {
                assert_eq!(row, self.specs[group].tensors[index].shape[0], "every row came");
            }
        }
        Ok(())
    }

    fn pass(&self, weights: &mut StreamedWeights) -> Result<(), WeightError> {
        (0..=GROUPS).try_for_each(|group| self.visit(weights, group))
    }

    fn fault(&self, file: usize, reads: Which, times: Option<u32>) {
        self.files[file].inject(Fault { reads, effect: Effect::Errno(EIO), times });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn bytes_are_those_of_the_files_whatever_happens(
        share in 0.0f64..1.2, ring in any::<bool>(),
        steps in prop::collection::vec((0usize..=GROUPS, 0u8..12, 0.0f64..1.2), 1..60),
    ) {
        let model = Model::new();
        let (least, all) = (model.plan().partition().least_budget(), model.plan().partition().band_memory());
        let budget = |share: f64| least + (all as f64 * share) as u64;
        let policy = if ring { StreamPolicy::Ring } else { StreamPolicy::Resident };
        let mut weights = model.stream(budget(share), policy).unwrap();
        let mut group = 0;
        for (jump, what, share) in steps {
            match what {
                // Mostly in order; sometimes a pass ends early or goes back, as with many rows of logits.
                0 => group = jump,
                1 => weights.set_budget(budget(share), &mut processor()).unwrap(),
                2 => model.fault(jump % model.files.len(), Which::All, Some(1 + jump as u32 % 4)),
                _ => group = (group + 1) % (GROUPS + 1),
            }
            match model.visit(&mut weights, group) {
                Ok(()) => {}
                Err(WeightError::Io(IoError::Read { source, .. })) => assert_eq!(source.raw_os_error(), Some(EIO)),
                Err(error) => panic!("{error}"),
            }
        }
        model.files.iter().for_each(|file| file.heal());
        for _ in 0..2 {
            // The first pass may meet the failure of an earlier read.
            let _ = model.pass(&mut weights);
        }
        model.pass(&mut weights).unwrap();
    }
}

#[test]
fn a_read_that_fails_while_weights_are_loaded_is_tried_again_too() {
    let model = Model::new();
    let budget = model.plan().partition().least_budget() + model.plan().partition().band_memory();
    model
        .files
        .iter()
        .for_each(|file| file.inject(Fault { reads: Which::All, effect: Effect::Errno(EIO), times: Some(2) }));
    let mut weights = model.stream(budget, StreamPolicy::Resident).unwrap();
    assert_eq!(weights.resident_bytes(), weights.monitor().swept_bytes());
    model.pass(&mut weights).unwrap();
    model.fault(0, Which::All, None);
    assert!(matches!(model.stream(budget, StreamPolicy::Resident), Err(WeightError::Io(_))));
}

#[test]
fn a_file_that_was_replaced_before_streaming_began_is_refused() {
    let model = Model::new();
    let path = interbed_io::DirectRead::path(model.files[0].as_ref()).to_owned();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let Err(WeightError::Io(IoError::Changed { path: named, change })) = open_direct(&model.catalog) else { panic!() };
    // The system may reuse the inode of the old file for the new one.
    assert_eq!(named, path);
    assert!(matches!(change, FileChange::Replaced | FileChange::Modified), "{change:?}");
}

#[test]
fn a_read_that_fails_is_tried_again() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    for file in 0..model.files.len() {
        model.fault(file, Which::All, Some(2));
    }
    model.pass(&mut weights).unwrap();
    assert!(weights.monitor().stats().reads_failed >= 2);
}

#[test]
fn a_read_that_keeps_failing_fails_the_pass_by_name_and_later_ones_work() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    model.pass(&mut weights).unwrap();
    let entry = model.catalog.get("down 2").unwrap();
    let range = entry.offset + 100..entry.offset + 101;
    model.fault(entry.file, Which::Touching(range.clone()), None);
    let error = model.pass(&mut weights).and_then(|()| model.pass(&mut weights)).unwrap_err();
    let WeightError::Io(IoError::Read { path, offset, wanted, ref source, .. }) = error else { panic!("{error}") };
    assert_eq!(
        (path.as_path(), source.raw_os_error()),
        (interbed_io::DirectRead::path(model.files[entry.file].as_ref()), Some(EIO))
    );
    assert!((offset..offset + wanted as u64).contains(&range.start), "{offset} + {wanted}");
    model.files[entry.file].heal();
    let _ = model.pass(&mut weights);
    model.pass(&mut weights).unwrap();
}

#[test]
fn a_file_that_changes_is_noticed_and_named() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    model.pass(&mut weights).unwrap();
    model.files[1].pretend_changed(Some(FileChange::Modified));
    let error = model.pass(&mut weights).unwrap_err().to_string();
    assert!(error.contains(&interbed_io::DirectRead::path(model.files[1].as_ref()).display().to_string()), "{error}");
    model.files[1].pretend_changed(None);
    model.pass(&mut weights).unwrap();
}

#[test]
fn a_truncated_file_is_an_error_and_never_data() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    let entry = model.catalog.get("gate 3").unwrap();
    let reads = Which::Touching(entry.offset..entry.offset + entry.bytes);
    model.files[entry.file].inject(Fault { reads, effect: Effect::EndAfter(100), times: None });
    let error = model.pass(&mut weights).and_then(|()| model.pass(&mut weights)).unwrap_err();
    assert!(matches!(error, WeightError::Io(IoError::Ended { .. })), "{error}");
}

#[test]
fn too_small_a_budget_is_refused() {
    let model = Model::new();
    let least = model.plan().partition().least_budget();
    model.stream(least, StreamPolicy::Resident).unwrap();
    assert!(matches!(model.stream(least - 1, StreamPolicy::Resident), Err(WeightError::Window(_))));
}

#[test]
fn who_stops_does_not_wait_for_the_pass() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    model.visit(&mut weights, 0).unwrap();
    weights.monitor().stop();
    assert!(matches!(model.visit(&mut weights, 1), Err(WeightError::Stopped)));
}

#[test]
fn times_and_bytes_are_counted() {
    let model = Model::new();
    let mut weights = model.stream(model.plan().partition().least_budget(), StreamPolicy::Resident).unwrap();
    let (before, begin) = (weights.monitor().stats(), Instant::now());
    for _ in 0..3 {
        model.pass(&mut weights).unwrap();
    }
    weights.settle();
    let events = weights.monitor().take_events();
    let read: u64 = events.iter().map(|event| event.bytes).sum();
    let stats = weights.monitor().stats().since(&before);
    assert_eq!(stats.passes, 3);
    assert!(read > 0 && stats.bytes_read > 0 && !stats.compute.is_zero() && !stats.io.is_zero());
    // Events are kept from the start, including reads before the first pass.
    assert_eq!(read, weights.monitor().stats().bytes_read);
    let of =
        |kind| events.iter().filter(|event| event.kind == kind).map(|event| event.end - event.start).sum::<Duration>();
    let (stalled, computed) = (of(EventKind::Stall), of(EventKind::Compute));
    let total = weights.monitor().stats();
    assert!(
        stalled.abs_diff(total.stall) < MICROSECOND * 1000 && computed.abs_diff(total.compute) < MICROSECOND * 1000
    );
    assert!(stats.stall + stats.compute <= begin.elapsed(), "one pass at a time");
}
