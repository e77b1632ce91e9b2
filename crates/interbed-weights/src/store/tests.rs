//! Tests of damaged and forged headers and manifests.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::checksum::Checksum;
use super::error::StoreProblem;
use super::format::*;
use super::reader::{InMemory, Store};
use crate::error::WeightError;

const MAGIC: [u8; 8] = *b"\x89INTBED\n";
/// Number of bytes of header and manifest, which have a page each.
const DATA: u64 = 2 * PAGE_BYTES;

/// Manifest of two small files, a group of one tensor and a group of two, with a page each: four pages of data.
fn manifest() -> Manifest {
    let tensor = |name: &str, dtype: &str, shape: &[u64], offset, bytes| StoredTensor {
        name: name.into(),
        dtype: dtype.into(),
        patches: None,
        shape: shape.into(),
        offset,
        bytes,
    };
    let checksum = Checksum(7);
    let file = |name: &str, offset, bytes| StoredFile { name: name.into(), offset, bytes, checksum };
    Manifest {
        name: "tiny".into(),
        source: Source { format: "safetensors".into(), files: Vec::new() },
        files: vec![file("config.json", DATA, 100), file("tokenizer.json", DATA + 4096, 4096)],
        groups: vec![
            StoredGroup {
                name: "embedding".into(),
                offset: DATA + 8192,
                bytes: 4096,
                checksum,
                tensors: vec![tensor("embed", "BF16", &[8, 16], DATA + 8192, 256)],
            },
            StoredGroup {
                name: "layer 0, attention".into(),
                offset: DATA + 12_288,
                bytes: 4096,
                checksum,
                tensors: vec![
                    tensor("norm", "F32", &[16], DATA + 12_288, 64),
                    tensor("query", "Q8_0", &[2, 32], DATA + 12_352, 68),
                ],
            },
        ],
    }
}

const TOTAL: u64 = DATA + 4 * PAGE_BYTES;

/// Returns a store with these contents whose header says `total` and whose checksums are right, as a forger would make
/// it.
fn forged(manifest: &[u8], total: u64, version: u32) -> Vec<u8> {
    let mut text = manifest.to_vec();
    text.resize(text.len().next_multiple_of(PAGE_BYTES as usize), b' ');
    let mut bytes = seal(&text, total, MAGIC, version);
    bytes.resize(bytes.len().max(TOTAL as usize), 0);
    bytes
}

fn json(manifest: &Manifest) -> Vec<u8> {
    serde_json::to_vec(manifest).unwrap()
}

fn open(content: Vec<u8>) -> Result<Store, WeightError> {
    Store::open(Arc::new(InMemory { path: Path::new("memory.interbed"), content }))
}

fn problem(content: Vec<u8>) -> StoreProblem {
    match open(content) {
        Err(WeightError::Store { problem, .. }) => *problem,
        other => panic!("expected a problem, got {other:?}"),
    }
}

fn problem_with(change: impl FnOnce(&mut Manifest)) -> StoreProblem {
    let mut changed = manifest();
    change(&mut changed);
    problem(forged(&json(&changed), TOTAL, STORE_VERSION))
}

#[test]
fn what_is_in_order_is_opened() {
    let store = open(forged(&json(&manifest()), TOTAL, STORE_VERSION)).unwrap();
    assert_eq!((store.manifest(), store.bytes()), (&manifest(), TOTAL));
    assert_eq!(store.tensors().len(), 3);
}

#[test]
fn fields_of_tomorrow_are_passed_over_and_versions_are_not() {
    let mut value = serde_json::to_value(manifest()).unwrap();
    value["mood"] = "sunny".into();
    value["groups"][0]["tensors"][0]["colour"] = "red".into();
    open(forged(value.to_string().as_bytes(), TOTAL, STORE_VERSION)).unwrap();
    let newer = problem(forged(b"{}", TOTAL, STORE_VERSION + 1));
    assert_eq!(newer, StoreProblem::NewerVersion { found: 3, known: 2 });
    assert!(newer.to_string().contains("update Interbed"), "{newer}");
    assert_eq!(problem(forged(&json(&manifest()), TOTAL, 0)), StoreProblem::NoVersion);
}

#[test]
fn headers_that_cannot_be() {
    let good = forged(&json(&manifest()), TOTAL, STORE_VERSION);
    let with = |at: usize, number: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        problem(bytes)
    };
    assert!(matches!(with(0, 5), StoreProblem::NotAStore { .. }));
    assert!(matches!(with(0, u64::from_le_bytes(*b"\x89INTPART")), StoreProblem::Unfinished));
    assert!(matches!(with(16, u64::MAX), StoreProblem::ManifestOverLimit { .. }));
    for manifest_bytes in [0, 1, 4095, 4097] {
        assert!(matches!(with(16, manifest_bytes), StoreProblem::HeaderSizes { .. }));
    }
    assert!(matches!(with(16, 8192), StoreProblem::HeadChecksum { .. }));
    // A manifest that would lie beyond the end is never read.
    assert!(matches!(with(16, 1 << 20), StoreProblem::HeaderSizes { .. }));
    for total in [0, 4096, TOTAL + 1, u64::MAX] {
        assert!(matches!(with(24, total), StoreProblem::HeaderSizes { .. }), "{total}");
    }
    for len in [0, 1, 8, 4095, 4096, 8191] {
        assert!(matches!(problem(good[..len].to_vec()), StoreProblem::Truncated { .. }), "{len}");
    }
    assert!(matches!(problem(good[..TOTAL as usize - 1].to_vec()), StoreProblem::Truncated { .. }));
    let longer = [good.as_slice(), &[0]].concat();
    assert_eq!(problem(longer), StoreProblem::TooLong { expected: TOTAL, found: TOTAL + 1 });
    for at in 8..DATA as usize {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        // Every byte is covered by the checksum; some are checked on their own before that.
        assert!(open(bytes).is_err(), "byte {at}");
    }
}

#[test]
fn manifests_that_lie() {
    use StoreProblem as P;
    let groups = |m: &mut Manifest| m.groups[1].tensors.clone();
    assert!(matches!(problem(forged(b"{", TOTAL, 1)), P::Json { .. }));
    assert!(matches!(problem(forged(b"[]", TOTAL, 1)), P::Json { .. }));
    assert!(matches!(problem_with(|m| m.files[1].name = "config.json".into()), P::DuplicateName { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].tensors[0].name = "embed".into()), P::DuplicateName { .. }));
    for name in ["", "..", "a/b", "/etc/passwd", "a\\b", "a\0"] {
        assert!(matches!(problem_with(|m| m.files[0].name = name.into()), P::FileName { .. }), "{name:?}");
    }
    assert!(matches!(problem_with(|m| m.files[0].bytes = u64::MAX), P::FileOverLimit { .. }));
    assert!(matches!(problem_with(|m| m.files[0].bytes = 5000), P::Misplaced { .. }));
    assert!(matches!(problem_with(|m| m.files[0].offset = 0), P::Misplaced { .. }));
    assert!(matches!(problem_with(|m| m.groups[0].offset += 4096), P::Misplaced { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].offset -= 4096), P::Misplaced { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].bytes = 4095), P::RegionSize { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].bytes = !4095), P::RegionSize { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].bytes = 8192), P::RegionSize { .. }));
    assert!(matches!(problem_with(|m| drop(m.groups.pop())), P::Hole { .. }));
    assert!(matches!(problem_with(|m| m.groups[0].tensors[0].dtype = "F7".into()), P::UnknownDType { .. }));
    // Only coded matrices have patches, and only whole blocks are coded.
    assert!(matches!(problem_with(|m| m.groups[0].tensors[0].patches = Some(3)), P::Patches { .. }));
    assert!(matches!(problem_with(|m| m.groups[0].tensors[0].dtype = "coded BF16".into()), P::Patches { .. }));
    let coded = |m: &mut Manifest, shape: &[u64]| {
        let tensor = &mut m.groups[0].tensors[0];
        (tensor.dtype, tensor.patches, tensor.shape) = ("coded BF16".into(), Some(3), shape.into());
    };
    assert!(matches!(problem_with(|m| coded(m, &[8, 16])), P::ImpossibleShape { .. }));
    assert!(matches!(problem_with(|m| coded(m, &[2, 64])), P::WrongSize { expected: 204, found: 256, .. }));
    assert!(matches!(problem_with(|m| coded(m, &[u64::MAX / 64, 64])), P::ImpossibleShape { .. }));
    for shape in [vec![u64::MAX, 2], vec![1 << 32, 1 << 32, 2], vec![u64::MAX, 0, u64::MAX]] {
        let shown = format!("{shape:?}");
        let found = problem_with(|m| m.groups[0].tensors[0].shape = shape);
        assert!(matches!(found, P::ImpossibleShape { .. } | P::WrongSize { .. }), "{shown}: {found}");
    }
    // A row that is not a whole number of blocks.
    assert!(matches!(problem_with(|m| m.groups[1].tensors[1].shape = vec![4, 16]), P::ImpossibleShape { .. }));
    assert!(matches!(problem_with(|m| m.groups[0].tensors[0].bytes = 255), P::WrongSize { .. }));
    for offset in [0, DATA, DATA + 8192 + 32, DATA + 8192 + 3904, DATA + 12_288, u64::MAX - 63] {
        let found = problem_with(|m| m.groups[0].tensors[0].offset = offset);
        assert!(matches!(found, P::TensorPlace { .. }), "{offset}: {found}");
    }
    // Two tensors at the same place, and two in the wrong order.
    assert!(matches!(problem_with(|m| m.groups[1].tensors[1].offset = groups(m)[0].offset), P::TensorPlace { .. }));
    assert!(matches!(problem_with(|m| m.groups[1].tensors.swap(0, 1)), P::TensorPlace { .. }));
}

/// Returns all numbers of a JSON value, in order.
fn numbers(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Number(_) => vec![value],
        Value::Array(values) => values.iter_mut().flat_map(numbers).collect(),
        Value::Object(map) => map.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

proptest! {
    /// Whatever numbers a manifest holds, the manifest is refused, or all its regions and tensors lie inside the store
    /// without overlap.
    #[test]
    fn no_number_leads_outside(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u64>(),
            0..TOTAL * 2,
            (0..16u64).prop_map(|page| page * PAGE_BYTES),
            (0..64u64).prop_map(|shift| u64::MAX << shift),
        ]), 1..4),
        total in prop_oneof![Just(TOTAL), any::<u64>(), (0..8u64).prop_map(|page| page * PAGE_BYTES)],
    ) {
        let mut value = serde_json::to_value(manifest()).unwrap();
        for (index, number) in changes {
            let mut numbers = numbers(&mut value);
            let chosen = index.index(numbers.len());
            *numbers[chosen] = number.into();
        }
        let bytes = forged(value.to_string().as_bytes(), total, STORE_VERSION);
        let len = bytes.len() as u64;
        match open(bytes) {
            Ok(store) => {
                let mut end = DATA;
                for region in store.manifest().regions() {
                    prop_assert_eq!(region.offset, end);
                    end += region.bytes;
                }
                prop_assert_eq!(end, len);
                let mut end = DATA;
                for tensor in store.tensors() {
                    prop_assert!(tensor.offset >= end && tensor.offset % 64 == 0);
                    end = tensor.offset + tensor.bytes;
                }
                prop_assert!(end <= len);
                // The checksums of the small files are wrong here; their bounds were accepted.
                for file in &store.manifest().files {
                    let refused = matches!(store.read_file(&file.name), Err(WeightError::Store { .. }));
                    prop_assert!(refused, "{}", file.name);
                }
            }
            Err(WeightError::Store { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
