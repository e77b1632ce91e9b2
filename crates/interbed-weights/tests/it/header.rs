//! Every way in which a header can lie.

use interbed_kernels::DType;
use interbed_weights::{ElementType, HEADER_BYTES_MAX, HeaderProblem, TensorRecord, WeightError, read_header};
use proptest::prelude::*;

use crate::files::{MemoryFile, safetensors};

fn read(bytes: Vec<u8>) -> Result<Vec<TensorRecord>, WeightError> {
    read_header(&MemoryFile::new(bytes))
}

/// Returns the problem of a file with this header and `data_len` bytes of tensors.
fn problem(header: &str, data_len: usize) -> HeaderProblem {
    match read(safetensors(header, data_len)) {
        Err(WeightError::Header { problem, .. }) => problem,
        other => panic!("expected a header problem, got {other:?}"),
    }
}

#[test]
fn a_good_header_is_read_in_the_order_of_its_bytes() {
    let header = r#"{"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"F16","shape":[3,0],"data_offsets":[4,4]},
        "odd":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}}   "#;
    let records = read(safetensors(header, 20)).unwrap();
    let start = 8 + header.len() as u64;
    let record = |name: &str, element_type, shape: &[usize], begin: u64, bytes| TensorRecord {
        name: name.to_owned(),
        element_type,
        shape: shape.to_vec(),
        offset: start + begin,
        bytes,
    };
    let expected = [
        record("a", ElementType::Known(DType::F32), &[], 0, 4),
        record("empty", ElementType::Known(DType::F16), &[3, 0], 4, 0),
        record("b", ElementType::Known(DType::BF16), &[2, 2], 4, 8),
        record("odd", ElementType::Other("I64".to_owned()), &[1], 12, 8),
    ];
    assert_eq!(records, expected);
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    let lengths = |bytes: Vec<u8>| match read(bytes) {
        Err(WeightError::Header { problem, .. }) => problem,
        other => panic!("expected a header problem, got {other:?}"),
    };
    assert_eq!(lengths(vec![0; 5]), HeaderProblem::TooShort { file_len: 5 });
    for header_len in [3u64, 1 << 40, u64::MAX] {
        let bytes = [header_len.to_le_bytes().as_slice(), b"{}"].concat();
        assert_eq!(lengths(bytes), HeaderProblem::HeaderBeyondFile { header_len, available: 2 });
    }
    let mut file = MemoryFile::new((HEADER_BYTES_MAX + 1).to_le_bytes().to_vec());
    file.claimed_len = 1 << 50;
    let error = read_header(&file).unwrap_err();
    assert!(error.to_string().contains("the limit is 100000000"), "{error}");
}

#[test]
fn a_file_that_shrank_after_opening_is_an_error_of_reading() {
    let mut file = MemoryFile::new(safetensors(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4));
    file.bytes.truncate(20);
    assert!(matches!(read_header(&file), Err(WeightError::Io(_))));
}

#[test]
fn headers_of_the_wrong_form_are_refused() {
    let bad = [
        "",
        "{",
        "[]",
        "null",
        "{}}",
        r#"{"a":1}"#,
        r#"{"a":{}}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"__metadata__":{"format":1}}"#,
    ];
    for header in bad {
        assert!(matches!(problem(header, 4), HeaderProblem::Json { .. }), "{header}");
    }
    assert!(matches!(read([&4u64.to_le_bytes()[..], b"\xff\xfe{}"].concat()), Err(WeightError::Header { .. })));
    let nested = format!(r#"{{"a":{}"#, "[".repeat(100_000));
    assert!(matches!(problem(&nested, 0), HeaderProblem::Json { .. }));
}

#[test]
fn tensors_that_do_not_fit_the_file_are_refused() {
    let tensor = "a".to_owned();
    let one = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    assert_eq!(
        problem(&one("F32", "[1]", 8, 4), 8),
        HeaderProblem::BackwardOffsets { tensor: tensor.clone(), begin: 8, end: 4 }
    );
    assert_eq!(
        problem(&one("F32", "[2]", 0, 8), 4),
        HeaderProblem::OutOfRange { tensor: tensor.clone(), end: 8, data_len: 4 }
    );
    let wrapped = [u64::MAX, u64::MAX];
    assert!(matches!(problem(&one("F32", "[1]", wrapped[0], wrapped[1]), 4), HeaderProblem::OutOfRange { .. }));
    // 2^62 * 4 wraps to 0, and 2^32 * 2^32 does too: sizes that a careless product finds fitting.
    for shape in ["[4611686018427387904]", "[4294967296,4294967296]", "[18446744073709551615,2]"] {
        assert!(matches!(problem(&one("F32", shape, 0, 0), 0), HeaderProblem::ImpossibleShape { .. }), "{shape}");
    }
    assert_eq!(
        problem(&one("F16", "[3]", 0, 8), 8),
        HeaderProblem::WrongSize { tensor, shape: vec![3], dtype: "F16".to_owned(), expected: 6, found: 8 }
    );
    assert!(matches!(problem(&one("I64", "[1]", 0, 4), 4), HeaderProblem::WrongSize { expected: 8, .. }));
}

#[test]
fn tensors_must_cover_the_file_once_and_wholly() {
    let two = |a: (u64, u64), b: (u64, u64)| {
        let one = |(begin, end): (u64, u64)| {
            format!(r#"{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
        };
        format!(r#"{{"a":{},"b":{}}}"#, one(a), one(b))
    };
    assert!(read(safetensors(&two((4, 8), (0, 4)), 8)).is_ok());
    let (first, second) = ("a".to_owned(), "b".to_owned());
    assert_eq!(
        problem(&two((0, 5), (4, 8)), 8),
        HeaderProblem::Overlap { first, second, first_end: 5, second_begin: 4 }
    );
    assert!(matches!(problem(&two((0, 8), (2, 4)), 8), HeaderProblem::Overlap { .. }));
    assert_eq!(problem(&two((0, 4), (5, 8)), 8), HeaderProblem::Hole { from: 4, to: 5 });
    assert_eq!(problem(&two((1, 4), (4, 8)), 8), HeaderProblem::Hole { from: 0, to: 1 });
    assert_eq!(problem(&two((0, 4), (4, 8)), 11), HeaderProblem::Hole { from: 8, to: 11 });
    assert_eq!(problem("{}", 1), HeaderProblem::Hole { from: 0, to: 1 });
    let twice =
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(problem(twice, 2), HeaderProblem::DuplicateName { tensor: "a".to_owned() });
}

#[test]
fn a_type_from_the_future_is_listed() {
    let header = r#"{"a":{"dtype":"F3_NEW","shape":[8],"data_offsets":[0,3]}}"#;
    assert_eq!(read(safetensors(header, 3)).unwrap()[0].element_type, ElementType::Other("F3_NEW".to_owned()));
}

/// Checks what every accepted header promises.
fn check_promises(file: &MemoryFile) {
    if let Ok(records) = read_header(file) {
        let mut end = records.first().map_or(file.claimed_len, |record| record.offset);
        for record in &records {
            assert_eq!(record.offset, end, "{record:?}");
            end = record.offset + record.bytes;
            if let ElementType::Known(dtype) = record.element_type {
                assert_eq!(record.shape.iter().product::<usize>() as u64 * dtype.block_bytes() as u64, record.bytes);
            }
        }
        assert_eq!(end, file.claimed_len);
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_promises(&MemoryFile::new(bytes));
    }

    #[test]
    fn random_headers_never_panic(text in r#"\{("[ab]":\{"dtype":"(F32|F16|U8|X)","shape":\[[0-9]{0,20}(,[0-9]{1,20})?\],"data_offsets":\[[0-9]{1,20},[0-9]{1,20}\]\},?){0,3}\}"#, data in 0usize..40) {
        check_promises(&MemoryFile::new(safetensors(&text, data)));
    }

    #[test]
    fn mutated_headers_never_panic(position in 0usize..150, value in any::<u8>(), cut in 0usize..200) {
        let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}"#;
        let mut bytes = safetensors(header, 24);
        check_promises(&MemoryFile::new(bytes.clone()));
        if let Some(byte) = bytes.get_mut(position) {
            *byte = value;
        }
        check_promises(&MemoryFile::new(bytes.clone()));
        bytes.truncate(cut);
        check_promises(&MemoryFile::new(bytes));
    }
}
