//! Loading groups into memory.

use std::sync::Arc;

use interbed_io::RandomAccessFile;
use interbed_kernels::DType;
use interbed_weights::{
    Catalog, GroupSpec, ResidentWeights, Role, TensorId, TensorSpec, WeightError, WeightSource, plan_bytes,
};

use crate::files::{MemoryFile, open, pattern, safetensors, write};

const HEADER: &str = r#"{"embedding":{"dtype":"BF16","shape":[8,4],"data_offsets":[0,64]},
    "norm":{"dtype":"F32","shape":[4],"data_offsets":[64,80]},
    "wide":{"dtype":"F16","shape":[3,7],"data_offsets":[80,122]},
    "ids":{"dtype":"I32","shape":[1],"data_offsets":[122,126]}}"#;

fn file() -> MemoryFile {
    MemoryFile::new(safetensors(HEADER, 126))
}

fn catalog() -> Catalog {
    Catalog::from_files(vec![file().shared()]).unwrap()
}

fn group(name: &str, tensors: &[(&str, &[usize])]) -> GroupSpec {
    let spec = |(name, shape): &(&str, &[usize])| TensorSpec::new(*name, *shape);
    GroupSpec { name: name.to_owned(), role: Role::FeedForward, layer: 0, tensors: tensors.iter().map(spec).collect() }
}

fn specs() -> Vec<GroupSpec> {
    vec![
        group("embedding", &[("embedding", &[8, 4])]),
        group("layer 0", &[("wide", &[3, 7]), ("norm", &[4])]),
        group("head", &[("norm", &[4]), ("embedding", &[8, 4])]),
    ]
}

fn load(catalog: &Catalog, specs: &[GroupSpec]) -> Result<ResidentWeights, WeightError> {
    ResidentWeights::load(catalog, specs, &mut |_, _| {})
}

#[test]
fn every_tensor_arrives_where_its_spec_says() {
    let data: Vec<u8> = pattern(126).collect();
    let mut steps = Vec::new();
    let weights = ResidentWeights::load(&catalog(), &specs(), &mut |done, total| steps.push((done, total))).unwrap();
    assert_eq!((steps.first(), steps.last()), (Some(&(0, 122)), Some(&(122, 122))), "shared tensors are read once");
    assert!(steps.is_sorted());
    let expect = |group: usize, index: usize, dtype, shape: &[usize], bytes: &[u8]| {
        let view = weights.vector(TensorId { group, index });
        let rows = if shape.len() == 1 { 1 } else { shape[0] };
        assert_eq!((view.dtype(), view.rows(), view.cols()), (dtype, rows, shape[shape.len() - 1]));
        assert_eq!(view.matrix().bytes(), bytes, "group {group}, tensor {index}");
        assert_eq!(view.matrix().bytes().as_ptr().addr() % 64, 0, "group {group}, tensor {index}");
    };
    expect(0, 0, DType::BF16, &[8, 4], &data[..64]);
    expect(1, 0, DType::F16, &[3, 7], &data[80..122]);
    expect(1, 1, DType::F32, &[4], &data[64..80]);
    expect(2, 0, DType::F32, &[4], &data[64..80]);
    expect(2, 1, DType::BF16, &[8, 4], &data[..64]);
    let at = |group, index| weights.vector(TensorId { group, index }).matrix().bytes().as_ptr();
    assert_eq!(at(0, 0), at(2, 1), "the tied head is the embedding");
}

#[test]
fn the_plan_is_what_is_taken() {
    let weights = load(&catalog(), &specs()).unwrap();
    assert_eq!(weights.bytes(), 2 * 4096, "two buffers of a page; the head shares all it has");
    assert_eq!(plan_bytes(&catalog(), &specs()).unwrap(), weights.bytes());
    assert_eq!(load(&catalog(), &[]).unwrap().bytes(), 0);
}

#[test]
fn tensors_larger_than_a_piece_are_put_together() {
    const ROWS: usize = 5 << 20; // 20 MiB in all: three pieces
    let header = format!(
        r#"{{"pad":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}},"big":{{"dtype":"F32","shape":[{ROWS}],"data_offsets":[3,{}]}}}}"#,
        3 + 4 * ROWS
    );
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", &safetensors(&header, 3 + 4 * ROWS));
    let catalog = Catalog::from_files(vec![open(&dir.path().join("model.safetensors"))]).unwrap();
    let weights = load(&catalog, &[group("all", &[("big", &[ROWS])])]).unwrap();
    let big = weights.vector(TensorId { group: 0, index: 0 });
    assert!(big.matrix().bytes().iter().copied().eq(pattern(3 + 4 * ROWS).skip(3)));
}

#[test]
fn what_does_not_fit_is_refused_before_loading() {
    let error = load(&catalog(), &[group("layer 7", &[("absent", &[4])])]).unwrap_err();
    assert!(matches!(&error, WeightError::MissingTensor { tensor, group } if tensor == "absent" && group == "layer 7"));
    let error = load(&catalog(), &[group("all", &[("wide", &[7, 3])])]).unwrap_err();
    assert!(
        matches!(&error, WeightError::ShapeMismatch { expected, found, .. } if expected == &[7, 3] && found == &[3, 7])
    );
    assert!(error.to_string().contains("wide") && error.to_string().contains("memory.safetensors"), "{error}");
    let error = load(&catalog(), &[group("all", &[("ids", &[1])])]).unwrap_err();
    assert!(matches!(&error, WeightError::UnsupportedDType { found, .. } if found == "I32"), "{error}");
}

#[test]
fn a_read_that_fails_or_a_file_that_shrank_ends_the_load() {
    let mut failing = file();
    failing.fails_from = Some(8 + HEADER.len() as u64 + 70);
    let files: Vec<Arc<dyn RandomAccessFile>> = vec![failing.shared()];
    let error = load(&Catalog::from_files(files).unwrap(), &specs()).unwrap_err();
    assert!(error.to_string().contains("on fire"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", &safetensors(HEADER, 126));
    let catalog = Catalog::open(dir.path()).unwrap();
    let handle = std::fs::OpenOptions::new().write(true).open(dir.path().join("model.safetensors")).unwrap();
    handle.set_len(8 + HEADER.len() as u64 + 40).unwrap();
    let error = load(&catalog, &specs()).unwrap_err();
    assert!(matches!(error, WeightError::Io(interbed_io::IoError::Ended { .. })), "{error}");
}
