//! Packed stores: what comes out is what went in, whatever happened in between.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use interbed_io::{TargetError, WriteTarget};
use interbed_kernels::{DType, Matrix};
use interbed_weights::{
    Catalog, Coding, Damage, ElementType, GroupSpec, Metadata, PAGE_BYTES, PackPhase, PackReport, Role, StorePlan,
    StoreProblem, TensorMeta, TensorSpec, WeightError, verify, write_gguf, write_model, write_store,
};

use crate::files::safetensors;

/// Returns the tensors of a model of two layers with a tied head, and one tensor that no pass reads.
fn tensors() -> Vec<TensorMeta> {
    let tensor =
        |name: &str, shape: &[usize]| TensorMeta { name: name.into(), dtype: DType::BF16, shape: shape.into() };
    vec![
        tensor("model.layers.1.up", &[40, 24]),
        tensor("model.embed_tokens.weight", &[700, 200]), // a large one
        tensor("model.layers.0.norm", &[24]),
        tensor("unread", &[3, 3]),
        tensor("model.layers.0.up", &[40, 24]),
        tensor("model.norm.weight", &[24]),
    ]
}

fn specs() -> Vec<GroupSpec> {
    let all = tensors();
    let group = |name: &str, tensors: &[&str]| GroupSpec {
        name: name.into(),
        role: Role::FeedForward,
        layer: 0,
        tensors: tensors
            .iter()
            .map(|name| all.iter().find(|tensor| tensor.name == *name).unwrap())
            .map(|tensor| TensorSpec::new(tensor.name.clone(), tensor.shape.clone()))
            .collect(),
    };
    vec![
        group("embedding", &["model.embed_tokens.weight"]),
        group("layer 0, ffn", &["model.layers.0.norm", "model.layers.0.up"]),
        group("layer 1, ffn", &["model.layers.1.up"]),
        group("head", &["model.norm.weight", "model.embed_tokens.weight"]),
    ]
}

/// Returns bytes that depend on the tensor and on where they lie.
fn content(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ index as u8).collect()
}

/// Writes the model in shards.
pub fn model(dir: &Path) -> Catalog {
    let tensors = tensors();
    write_model(dir, &tensors, 50_000, &mut |index, sink| sink(&content(index, tensors[index].bytes().unwrap())))
        .unwrap();
    let catalog = Catalog::open(dir).unwrap();
    assert!(catalog.files().len() > 1, "it is cut into shards");
    catalog
}

fn small_files() -> Vec<(String, Vec<u8>)> {
    vec![("config.json".into(), b"{}".to_vec()), ("tokenizer.json".into(), vec![b' '; 5000])]
}

fn plan(catalog: &Catalog) -> StorePlan {
    StorePlan::new(catalog, &specs(), "tiny", small_files(), &Coding::none()).unwrap()
}

/// Packs, and stops when `stop(phase, bytes done)` says so.
pub fn pack_until(
    catalog: &Catalog,
    out: &Path,
    stop: impl Fn(PackPhase, u64) -> bool,
) -> Result<PackReport, WeightError> {
    let target = loop {
        match WriteTarget::open(out) {
            // A program that another test is just starting shares the lock until it has become that program.
            Err(TargetError::Busy { .. }) => std::thread::yield_now(),
            opened => break opened?,
        }
    };
    write_store(catalog, &plan(catalog), target, &mut |phase, done, total| {
        assert!(done <= total);
        if stop(phase, done) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

pub fn pack(catalog: &Catalog, out: &Path) -> PackReport {
    pack_until(catalog, out, |_, _| false).unwrap()
}

fn read(catalog: &Catalog, name: &str) -> Vec<u8> {
    let entry = catalog.get(name).unwrap_or_else(|| panic!("{name} is there"));
    let mut bytes = vec![0; entry.bytes as usize];
    catalog.files()[entry.file].read_exact_at(&mut bytes, entry.offset).unwrap();
    bytes
}

/// Checks that the packed model has the tensors of `specs`, to the bit, where readers want them.
pub fn assert_same(packed: &Catalog, source: &Catalog) {
    for tensor in specs().iter().flat_map(|group| &group.tensors) {
        let (ours, theirs) = (packed.get(&tensor.name).unwrap(), source.get(&tensor.name).unwrap());
        assert_eq!((&ours.shape, &ours.element_type), (&theirs.shape, &theirs.element_type));
        assert_eq!(read(packed, &tensor.name), read(source, &tensor.name), "{}", tensor.name);
        let align = if ours.bytes >= 256 << 10 { PAGE_BYTES } else { 64 };
        assert_eq!(ours.offset % align, 0);
    }
}

pub fn damage(path: &Path) -> Vec<(String, Vec<String>)> {
    let checked = verify(&Catalog::open(path).unwrap(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let damaged = checked.into_iter().filter(|part| matches!(part.damage, Some(Damage::Differs { .. })));
    damaged.map(|part| (part.name, part.tensors)).collect()
}

pub fn store_problem(outcome: Result<impl std::fmt::Debug, WeightError>) -> StoreProblem {
    match outcome {
        Err(WeightError::Store { problem, .. }) => *problem,
        other => panic!("expected a problem of the store, got {other:?}"),
    }
}

pub fn names_in(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn shards_become_one_file_of_the_same_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let out = dir.path().join("whatever.name");
    let report = pack(&source, &out);
    assert_eq!((report.bytes, report.bytes_resumed), (fs::metadata(&out).unwrap().len(), 0));
    assert!(!names_in(dir.path()).iter().any(|name| name.contains("partial")));
    let packed = Catalog::open(&out).unwrap();
    assert_same(&packed, &source);
    assert_eq!(packed.get("unread"), None);
    assert_eq!(plan(&source).left_out(), (1, 18));
    let store = packed.store().unwrap();
    for (name, content) in small_files() {
        assert_eq!(store.read_file(&name).unwrap().as_deref(), Some(content.as_slice()));
    }
    assert_eq!(store.read_file("absent").unwrap(), None);
    let groups = &store.manifest().groups;
    let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["embedding", "layer 0, ffn", "layer 1, ffn", "head"], "in the order of a pass");
    assert_eq!(groups[3].tensors.len(), 1, "a tied head is stored once");
    assert!(groups.iter().all(|group| group.offset % PAGE_BYTES == 0));
    assert_eq!(damage(&out), []);

    // A store can be packed again, and what it holds stays the same.
    let again = dir.path().join("again.interbed");
    pack(&packed, &again);
    assert_same(&Catalog::open(&again).unwrap(), &source);
}

#[test]
fn a_gguf_model_takes_its_metadata_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors: Vec<_> = tensors().into_iter().filter(|tensor| tensor.name != "unread").collect();
    tensors.push(TensorMeta { name: "rope_freqs.weight".into(), dtype: DType::F32, shape: vec![12] });
    tensors[1].dtype = DType::Q8_0;
    tensors[1].shape = vec![700, 256];
    let mut specs = specs();
    for tensor in specs.iter_mut().flat_map(|group| &mut group.tensors).filter(|tensor| tensor.shape[0] == 700) {
        tensor.shape = vec![700, 256];
    }
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 2u32);
    let file = dir.path().join("model.gguf");
    let bytes = |index: usize| content(index, tensors[index].bytes().unwrap());
    write_gguf(&file, &metadata, &tensors, &mut |index, sink| sink(&bytes(index))).unwrap();
    let source = Catalog::open(&file).unwrap();
    let out = dir.path().join("out.interbed");
    let plan = StorePlan::new(&source, &specs, "tiny", Vec::new(), &Coding::none()).unwrap();
    write_store(&source, &plan, WriteTarget::open(&out).unwrap(), &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    let packed = Catalog::open(&out).unwrap();
    assert_eq!(packed.metadata(), source.metadata());
    assert_eq!(packed.tensors().len(), tensors.len(), "what no group names comes along too");
    for (index, tensor) in tensors.iter().enumerate() {
        assert_eq!(read(&packed, &tensor.name), bytes(index), "{}", tensor.name);
    }
    assert_eq!(damage(&out), []);
}

#[test]
fn a_flipped_bit_anywhere_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let out = dir.path().join("out.interbed");
    let report = pack(&source, &out);
    let whole = fs::read(&out).unwrap();
    let flip = |at: u64| {
        let mut bytes = whole.clone();
        bytes[at as usize] ^= 1;
        fs::write(&out, bytes).unwrap();
    };
    let data = report.manifest.regions().next().unwrap().offset;
    // Header and its zeros, its checksum, the manifest and its spaces.
    for at in [40, 2000, 4079, 4080, 4095, 4096, 5000, data - 1] {
        flip(at);
        assert!(matches!(store_problem(Catalog::open(&out)), StoreProblem::HeadChecksum { .. }), "byte {at}");
    }
    let groups = report.manifest.groups.iter();
    let tensors = groups.map(|g| (g.name.as_str(), g.tensors.iter().map(|t| t.name.clone()).collect::<Vec<_>>()));
    let tensors: std::collections::HashMap<_, _> = tensors.collect();
    for region in report.manifest.regions() {
        // First and last byte (mostly padding), and the middle.
        for at in [region.offset, region.offset + region.bytes / 2, region.offset + region.bytes - 1] {
            flip(at);
            let expected = tensors.get(region.name.as_str()).cloned().unwrap_or_default();
            assert_eq!(damage(&out), [(region.name.clone(), expected)], "byte {at}");
        }
    }
    flip(data);
    let read = Catalog::open(&out).unwrap().store().unwrap().read_file("config.json");
    assert!(matches!(store_problem(read), StoreProblem::RegionChecksum { .. }));
}

#[test]
fn what_was_cut_off_or_went_on_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.interbed");
    pack(&model(dir.path()), &out);
    let whole = fs::read(&out).unwrap();
    for len in [9, 4096, 5000, whole.len() - 1] {
        fs::write(&out, &whole[..len]).unwrap();
        let problem = store_problem(Catalog::open(&out));
        assert!(matches!(problem, StoreProblem::Truncated { .. }), "{len}: {problem}");
    }
    fs::write(&out, [whole.as_slice(), b"more"].concat()).unwrap();
    assert!(matches!(store_problem(Catalog::open(&out)), StoreProblem::TooLong { .. }));
}

#[test]
fn an_interrupted_run_is_continued_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let (once, out) = (dir.path().join("once.interbed"), dir.path().join("out.interbed"));
    let report = pack(&source, &once);
    let whole = fs::read(&once).unwrap();
    let partial = dir.path().join(".out.interbed.partial");
    let mut resumed = Vec::new();
    for region in report.manifest.regions() {
        let stopped = pack_until(&source, &out, |phase, done| phase == PackPhase::Writing && done > region.offset);
        if let Err(error) = stopped {
            assert_eq!(store_problem(Err::<(), _>(error)), StoreProblem::Stopped);
        }
        assert!(!out.exists() && partial.exists(), "no final name before the end");
        assert_eq!(store_problem(Catalog::open(&partial)), StoreProblem::Unfinished);
        let report = pack(&source, &out);
        resumed.push(report.bytes_resumed);
        assert_eq!(fs::read(&out).unwrap(), whole, "stopped in {}", region.name);
        assert!(!partial.exists());
        fs::remove_file(&out).unwrap();
        if region.name == "head" {
            break;
        }
    }
    assert!(resumed.is_sorted() && resumed.last().unwrap() > &0, "{resumed:?}");

    // What was left is looked at before it is believed.
    let stop = |phase, done| phase == PackPhase::Verifying && done > 0;
    pack_until(&source, &out, stop).unwrap_err();
    let mut bytes = fs::read(&partial).unwrap();
    let group = &report.manifest.groups[1];
    bytes[group.offset as usize] ^= 4;
    fs::write(&partial, bytes).unwrap();
    let again = pack(&source, &out);
    assert!(again.bytes_resumed > 0 && again.bytes_resumed < group.offset);
    assert_eq!(fs::read(&out).unwrap(), whole);

    // Stopped while it looks, too.
    fs::remove_file(&out).unwrap();
    pack_until(&source, &out, stop).unwrap_err();
    let stopped = pack_until(&source, &out, |phase, _| phase == PackPhase::Resuming);
    assert_eq!(store_problem(stopped), StoreProblem::Stopped);
    pack(&source, &out);
    assert_eq!(fs::read(&out).unwrap(), whole);

    // The remains of another model, or of unknown origin, are not taken for the beginning of this one.
    fs::remove_file(&out).unwrap();
    fs::write(&partial, vec![7; 3_000_000]).unwrap();
    assert_eq!(pack(&source, &out).bytes_resumed, 0);
    assert_eq!(fs::read(&out).unwrap(), whole);
}

#[test]
fn a_source_that_changes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let out = dir.path().join("out.interbed");
    let shard = source.files()[0].path().to_owned();
    let touch = || File::open(&shard).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(5)).unwrap();
    let outcome = pack_until(&source, &out, |phase, _| {
        if phase == PackPhase::Writing {
            touch();
        }
        false
    });
    assert_eq!(store_problem(outcome), StoreProblem::SourceChanged);
    assert!(!out.exists());
    let report = pack(&source, &out);
    assert_eq!(report.bytes_resumed, 0, "what was made of the file before is not used");
}

#[test]
fn one_process_writes_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.interbed");
    let first = WriteTarget::open(&out).unwrap();
    assert!(matches!(WriteTarget::open(&out), Err(TargetError::Busy { .. })));
    drop(first);
    WriteTarget::open(&out).unwrap();
    assert!(matches!(WriteTarget::open(dir.path()), Err(TargetError::Unsuitable { found: "a directory", .. })));
    assert!(matches!(WriteTarget::open("/dev/zero"), Err(TargetError::Unsuitable { .. })));
}

/// Writes a model of two matrices that are worth coding, one of noise, one of a width that cannot be coded, and a
/// vector.
fn codable(dir: &Path) -> (Catalog, Vec<GroupSpec>) {
    let shapes: [(&str, &[usize]); 5] =
        [("wide", &[30, 320]), ("tall", &[70_001, 64]), ("noise", &[40, 64]), ("odd", &[9, 72]), ("norm", &[64])];
    let tensors: Vec<_> =
        shapes.map(|(name, shape)| TensorMeta { name: name.into(), dtype: DType::BF16, shape: shape.into() }).into();
    write_model(dir, &tensors, 1 << 30, &mut |index, sink| {
        let mut bytes = content(index, tensors[index].bytes().unwrap());
        if index != 2 {
            // Exponents 120 to 127, but for one number in 50.
            for (i, number) in bytes.chunks_exact_mut(2).enumerate().filter(|(i, _)| i % 50 != 7) {
                let exponent = 120 + ((i as u16).wrapping_mul(0x9e37) >> 13);
                let bits = u16::from_le_bytes([number[0], number[1]]) & 0x807f | exponent << 7;
                number.copy_from_slice(&bits.to_le_bytes());
            }
        }
        sink(&bytes)
    })
    .unwrap();
    let spec = |name: &str, all: &[usize]| GroupSpec {
        name: name.into(),
        role: Role::FeedForward,
        layer: 0,
        tensors: all.iter().map(|&i| TensorSpec::new(shapes[i].0, shapes[i].1)).collect(),
    };
    (
        Catalog::open(dir).unwrap(),
        vec![spec("embedding", &[1]), spec("layer 0, ffn", &[4, 0, 2, 3]), spec("head", &[1])],
    )
}

/// Returns the rows of the matrix `name`, in f32, as the type in which it is stored has them.
fn widened(catalog: &Catalog, name: &str) -> Vec<u32> {
    let entry = catalog.get(name).unwrap();
    let ElementType::Known(dtype) = entry.element_type else { panic!("{name} has a type") };
    let (bytes, [rows, cols]) = (read(catalog, name), *entry.shape.as_array().unwrap());
    let (matrix, mut row) = (Matrix::new(dtype, rows, cols, &bytes), vec![0.0; cols]);
    let mut all = Vec::with_capacity(rows * cols);
    for index in 0..rows {
        matrix.widen_row(index, &mut row);
        all.extend(row.iter().map(|number| number.to_bits()));
    }
    all
}

#[test]
fn matrices_are_coded_where_that_is_worth_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, specs) = codable(dir.path());
    let mut told = Vec::new();
    let coding = Coding::measure(&source, &specs, &mut |done, total| {
        told.push((done, total));
        ControlFlow::Continue(())
    })
    .unwrap();
    // All that might be coded was read, each once.
    let candidates = 2 * (30 * 320 + 70_001 * 64 + 40 * 64);
    assert_eq!(told.last(), Some(&(candidates, candidates)));
    let plan = StorePlan::new(&source, &specs, "codable", Vec::new(), &coding).unwrap();
    let out = dir.path().join("coded.interbed");
    let pack_to = |out: &Path, catalog: &Catalog, plan: &StorePlan, stop_at: u64| {
        write_store(catalog, plan, WriteTarget::open(out)?, &mut |phase, done, _| {
            if phase == PackPhase::Writing && done >= stop_at {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    };
    // Interrupted once, behind the first group.
    let first = plan.manifest().groups[1].offset + 1;
    assert_eq!(store_problem(pack_to(&out, &source, &plan, first)), StoreProblem::Stopped);
    let report = pack_to(&out, &source, &plan, u64::MAX).unwrap();
    let plain = fs::metadata(dir.path().join("model.safetensors")).unwrap().len();
    assert!(report.bytes_resumed > 0 && report.bytes < plain * 4 / 5, "{} of {plain} bytes", report.bytes);
    let header = fs::read(&out).unwrap();
    assert_eq!(header[8..12], 2u32.to_le_bytes());
    assert_eq!(damage(&out), []);

    let packed = Catalog::open(&out).unwrap();
    let is_coded =
        |name: &str| matches!(packed.get(name).unwrap().element_type, ElementType::Known(DType::CodedBf16 { .. }));
    assert_eq!(["wide", "tall", "noise", "odd", "norm"].map(is_coded), [true, true, false, false, false]);
    for name in ["wide", "tall", "noise", "odd"] {
        assert!(widened(&packed, name) == widened(&source, name), "{name}");
    }
    assert_eq!(read(&packed, "norm"), read(&source, "norm"));

    // Packed anew, what is coded stays as it is.
    let again = dir.path().join("again.interbed");
    let coding = Coding::measure(&packed, &specs, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let plan = StorePlan::new(&packed, &specs, "codable", Vec::new(), &coding).unwrap();
    pack_to(&again, &packed, &plan, u64::MAX).unwrap();
    let again = Catalog::open(&again).unwrap();
    for name in ["wide", "tall", "noise", "odd", "norm"] {
        assert_eq!(again.get(name).unwrap().element_type, packed.get(name).unwrap().element_type);
        assert_eq!(read(&again, name), read(&packed, name), "{name}");
    }

    let stopped = Coding::measure(&source, &specs, &mut |_, _| ControlFlow::Break(()));
    assert_eq!(store_problem(stopped), StoreProblem::Stopped);
}

#[test]
fn what_was_measured_is_not_measured_again() {
    let dir = tempfile::tempdir().unwrap();
    let (source, specs) = codable(dir.path());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let plan = |coding: &Coding| StorePlan::new(&source, &specs, "codable", Vec::new(), coding).unwrap();
    let measured = plan(&Coding::measure(&source, &specs, go_on).unwrap());
    assert!(plan(&Coding::least(&source, &specs)).bytes() <= measured.bytes());
    let out = dir.path().join("coded.interbed");
    let left = |out: &Path| Coding::left_in(&WriteTarget::open(out).unwrap(), &source).unwrap();
    assert!(left(&out).is_none());
    let stop = &mut |phase, _, _| match phase {
        PackPhase::Writing => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = write_store(&source, &measured, WriteTarget::open(&out).unwrap(), stop);
    assert_eq!(store_problem(stopped), StoreProblem::Stopped);
    assert_eq!(plan(&left(&out).unwrap()).manifest(), measured.manifest());

    // Rows that need more patches than were measured are those of another file.
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len() - 4000;
    bytes[end / 2..end]
        .iter_mut()
        .zip((0u32..).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8))
        .for_each(|(to, new)| *to = new);
    std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(&path).unwrap(), &bytes, 0).unwrap();
    let target = WriteTarget::open(dir.path().join("changed.interbed")).unwrap();
    let changed = write_store(&source, &measured, target, &mut |_, _, _| ControlFlow::Continue(()));
    assert_eq!(store_problem(changed), StoreProblem::SourceChanged);
    assert!(left(&out).is_none());
}

/// Writes the model of the fixture, which is as small as a model can be.
fn fixture_model(dir: &Path) -> (Catalog, StorePlan) {
    let header = r#"{"embed":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"norm":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}}"#;
    let path = dir.join("model.safetensors");
    fs::write(&path, safetensors(header, 30)).unwrap();
    File::open(&path).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    let catalog = Catalog::open(dir).unwrap();
    let tensor = |name: &str, shape: &[usize]| TensorSpec::new(name, shape);
    let specs = [
        GroupSpec {
            name: "embedding".into(),
            role: Role::FeedForward,
            layer: 0,
            tensors: vec![tensor("embed", &[2, 3])],
        },
        GroupSpec {
            name: "head".into(),
            role: Role::FeedForward,
            layer: 0,
            tensors: vec![tensor("norm", &[3]), tensor("embed", &[2, 3])],
        },
    ];
    let files = vec![("config.json".into(), b"{\"a\": 1}".to_vec())];
    let plan = StorePlan::new(&catalog, &specs, "fixture", files, &Coding::none()).unwrap();
    (catalog, plan)
}

/// Returns the model of the second fixture. One row has a patch behind a long gap, which is a NaN, and a -0; the other
/// row has a single exponent and needs no patch.
fn second_fixture() -> Vec<u16> {
    let first = (0..320u16).map(|i| match i {
        300 => 0x7f8a,
        310 => 0x8000,
        _ => (i % 2) << 15 | (120 + i % 8) << 7 | i & 0x7f,
    });
    first.chain((0..320).map(|i| 125 << 7 | (i * 3) & 0x7f)).collect()
}

/// Reads a store that was written by version 2 of the format, which has coded matrices. The store is never written
/// again.
#[test]
fn a_store_of_version_2_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-2.interbed");
    let packed = Catalog::open(&path).unwrap();
    let coded = DType::CodedBf16 { patches: 3 };
    assert_eq!(packed.get("embed").unwrap().element_type, ElementType::Known(coded));
    let expected: Vec<u32> = second_fixture().into_iter().map(|bits| u32::from(bits) << 16).collect();
    assert_eq!(widened(&packed, "embed"), expected);
    assert_eq!(damage(&path), []);
}

/// Reads a store that was written by version 1 of the format. Later versions must still read this store, so it is never
/// written again.
#[test]
fn a_store_of_version_1_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1.interbed");
    let packed = Catalog::open(&path).unwrap();
    let pattern: Vec<u8> = (0..30).collect();
    assert_eq!((read(&packed, "embed"), read(&packed, "norm")), (pattern[..24].to_vec(), pattern[24..].to_vec()));
    assert_eq!(packed.store().unwrap().read_file("config.json").unwrap().unwrap(), b"{\"a\": 1}");
    assert_eq!(packed.store().unwrap().manifest().name, "fixture");
    assert_eq!(damage(&path), []);
}

/// Checks that the bytes of version 1 do not change unnoticed.
#[test]
fn version_1_is_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (catalog, plan) = fixture_model(dir.path());
    let out = dir.path().join("out.interbed");
    write_store(&catalog, &plan, WriteTarget::open(&out).unwrap(), &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1.interbed");
    if fs::read(&fixture).ok() != Some(fs::read(&out).unwrap()) {
        panic!("other bytes than {} were written; they are kept in {}", fixture.display(), dir.keep().display());
    }
}
