//! GGUF files, whole, cut into parts, and lying in every way.

use std::path::Path;
use std::sync::Arc;

use interbed_io::{ExactFile, RandomAccessFile};
use interbed_kernels::DType;
use interbed_weights::{
    Catalog, ElementType, GgufHeader, GgufProblem, GroupSpec, Metadata, MetadataValue, Number, Numbers, Role,
    TensorMeta, TensorSpec, Texts, WeightError, plan_bytes, read_gguf, write_gguf,
};
use proptest::prelude::*;

use crate::files::{MemoryFile, pattern, write};

/// A file built byte by byte.
#[derive(Clone)]
struct Builder {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data_len: usize,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Builder {
    fn new() -> Self {
        Self { version: 3, pairs: Vec::new(), tensors: Vec::new(), data_len: 0 }
    }

    fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.push([text(key).as_slice(), &kind.to_le_bytes(), value].concat());
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let mut bytes = text(name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    fn data(mut self, len: usize) -> Self {
        self.data_len = len;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        self.pairs.iter().chain(&self.tensors).for_each(|part| bytes.extend(part));
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(pattern(self.data_len));
        bytes
    }

    fn read(&self) -> Result<GgufHeader, WeightError> {
        read_gguf(&MemoryFile::new(self.bytes()))
    }

    fn problem(&self) -> GgufProblem {
        problem_of(self.bytes())
    }
}

fn problem_of(bytes: Vec<u8>) -> GgufProblem {
    match read_gguf(&MemoryFile::new(bytes)) {
        Err(WeightError::Gguf { problem, .. }) => problem,
        other => panic!("expected a problem, got {other:?}"),
    }
}

/// Returns a list as the format writes it.
fn list(kind: u32, len: u64, entries: &[u8]) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), &len.to_le_bytes(), entries].concat()
}

#[test]
fn a_good_file_is_read() {
    let file = Builder::new()
        .pair("general.architecture", 8, &text("llama"))
        .pair("llama.block_count", 4, &7u32.to_le_bytes())
        .pair("llama.eps", 6, &1e-5f32.to_le_bytes())
        .pair("a.flag", 7, &[1])
        .pair("a.words", 9, &list(8, 2, &[text("grün"), text("")].concat()))
        .pair("a.numbers", 9, &list(5, 2, &[(-1i32).to_le_bytes(), 5i32.to_le_bytes()].concat()))
        .pair("a.flags", 9, &list(7, 2, &[0, 1]))
        .pair("a.negative", 11, &(-3i64).to_le_bytes())
        // In another order than their bytes; the last of a type that has no size here.
        .tensor("blk.0.attn_q.weight", &[64, 3], 8, 32)
        .tensor("token_embd.weight", &[4, 2], 0, 0)
        .tensor("odd", &[256], 34, 256)
        .data(300);
    let header = file.read().unwrap();
    let metadata = &header.metadata;
    assert_eq!(metadata.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(metadata.count("llama.block_count"), Ok(Some(7)));
    assert_eq!(metadata.number("llama.eps"), Ok(Some(f64::from(1e-5f32))));
    assert_eq!(metadata.flag("a.flag"), Ok(Some(true)));
    assert_eq!(metadata.texts("a.words").unwrap().unwrap().iter().collect::<Vec<_>>(), ["grün", ""]);
    let numbers: Vec<_> = metadata.numbers("a.numbers").unwrap().unwrap().iter().collect();
    assert_eq!(numbers, [Number::I32(-1), Number::I32(5)]);
    assert_eq!(metadata.get("a.flags"), Some(&MetadataValue::Bools(vec![false, true])));
    assert_eq!(metadata.text("absent"), Ok(None));
    for wrong in [metadata.count("a.negative"), metadata.count("llama.eps"), metadata.count("a.flag")] {
        assert!(matches!(wrong, Err(GgufProblem::WrongType { .. })), "{wrong:?}");
    }
    assert!(metadata.text("a.flag").is_err() && metadata.texts("a.numbers").is_err());

    let start = file.bytes().len() as u64 - 300;
    let seen: Vec<_> = header
        .tensors
        .iter()
        .map(|record| (record.name.as_str(), record.shape.as_slice(), record.offset - start, record.bytes))
        .collect();
    let expected: [(&str, &[usize], u64, u64); 3] = [
        ("token_embd.weight", &[2, 4], 0, 32),
        ("blk.0.attn_q.weight", &[3, 64], 32, 3 * 2 * 34),
        ("odd", &[256], 256, 44),
    ];
    assert_eq!(seen, expected);
    assert_eq!(header.tensors[1].element_type, ElementType::Known(DType::Q8_0));
    assert_eq!(header.tensors[2].element_type, ElementType::Other("TQ1_0".to_owned()));
    assert_eq!(Builder { version: 2, ..file }.read().unwrap(), header);
}

#[test]
fn other_files_and_versions_are_refused_by_name() {
    let version = |version| Builder { version, ..Builder::new() }.problem();
    assert_eq!(version(1), GgufProblem::VersionOne);
    assert_eq!(version(3u32.swap_bytes()), GgufProblem::BigEndian);
    assert_eq!(version(2u32.swap_bytes()), GgufProblem::BigEndian);
    assert_eq!(version(4), GgufProblem::UnknownVersion { version: 4 });
    assert_eq!(version(0), GgufProblem::UnknownVersion { version: 0 });
    assert_eq!(problem_of(b"PK\x03\x04 and so on".to_vec()), GgufProblem::NotGguf { found: *b"PK\x03\x04" });
    assert!(matches!(problem_of(b"GG".to_vec()), GgufProblem::Truncated { wanted: 4, left: 2, .. }));
    assert!(matches!(problem_of(Vec::new()), GgufProblem::Truncated { left: 0, .. }));
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    let counts = |tensors: u64, pairs: u64| {
        problem_of([b"GGUF".as_slice(), &3u32.to_le_bytes(), &tensors.to_le_bytes(), &pairs.to_le_bytes()].concat())
    };
    assert!(matches!(counts(u64::MAX, 0), GgufProblem::TooMany { what: "tensors", .. }));
    assert!(matches!(counts(0, 1 << 40), GgufProblem::TooMany { what: "metadata pairs", .. }));
    assert!(matches!(counts(1000, 1000), GgufProblem::Truncated { .. }));
    for len in [100, 1 << 40, u64::MAX] {
        let mut file = Builder::new();
        file.pairs.push([len.to_le_bytes().as_slice(), b"key"].concat());
        assert!(matches!(file.problem(), GgufProblem::Truncated { .. }), "a key of {len}");
        let value = Builder::new().pair("k", 8, &[len.to_le_bytes().as_slice(), b"text"].concat());
        assert!(matches!(value.problem(), GgufProblem::Truncated { .. }), "a text of {len}");
        for kind in [0, 5, 7, 8, 12] {
            let found = Builder::new().pair("k", 9, &list(kind, len, b"abc")).problem();
            assert!(
                matches!(found, GgufProblem::Truncated { .. } | GgufProblem::TooMany { .. }),
                "a list of {len} of {kind}: {found:?}"
            );
        }
    }
    // A file that claims to be long does not make its lengths more honest.
    let mut file = MemoryFile::new(Builder::new().pair("k", 9, &list(0, 1 << 23, b"abc")).bytes());
    file.claimed_len = 1 << 40;
    assert!(matches!(read_gguf(&file), Err(WeightError::Io(_))));
    let mut file = MemoryFile::new(Builder::new().pair("k", 8, &(1u64 << 35).to_le_bytes()).data(2 << 20).bytes());
    file.claimed_len = 1 << 40;
    let error = read_gguf(&file).unwrap_err();
    assert!(matches!(&error, WeightError::Gguf { problem: GgufProblem::HeaderOverLimit { .. }, .. }), "{error}");
}

#[test]
fn metadata_of_the_wrong_form_is_refused() {
    let one = |key: &str, kind: u32, value: &[u8]| Builder::new().pair(key, kind, value).problem();
    assert_eq!(one("", 7, &[1]), GgufProblem::EmptyKey);
    assert_eq!(one("k", 7, &[2]), GgufProblem::NotBool { key: "k".into(), found: 2 });
    assert_eq!(one("k", 13, &[0; 64]), GgufProblem::UnknownValueType { key: "k".into(), kind: 13 });
    assert_eq!(one("k", 9, &list(99, 1, &[0; 64])), GgufProblem::UnknownValueType { key: "k".into(), kind: 99 });
    assert_eq!(one("k", 9, &list(9, 1, &list(0, 1, &[0]))), GgufProblem::NestedArray { key: "k".into() });
    let mut not_text = Builder::new();
    not_text.pairs.push([NOT_TEXT.as_slice(), &7u32.to_le_bytes(), &[1]].concat());
    assert!(matches!(not_text.problem(), GgufProblem::NotUtf8 { what: "a metadata key", .. }));
    let mut not_text = Builder::new();
    not_text.tensors.push(NOT_TEXT.to_vec());
    assert!(matches!(not_text.problem(), GgufProblem::NotUtf8 { what: "a tensor's name", .. }));
    let twice = Builder::new().pair("k", 7, &[1]).pair("k", 7, &[1]);
    assert_eq!(twice.problem(), GgufProblem::DuplicateKey { key: "k".into() });
    let aligned = |kind, value: &[u8]| Builder::new().pair("general.alignment", kind, value).problem();
    for value in [0u32, 3, 33, 1 << 31] {
        assert!(matches!(aligned(4, &value.to_le_bytes()), GgufProblem::Alignment { .. }), "{value}");
    }
    assert!(matches!(aligned(10, &32u64.to_le_bytes()), GgufProblem::Alignment { .. }));
    assert!(matches!(aligned(8, &text("32")), GgufProblem::Alignment { .. }));
}

/// Two bytes where a text should be, which are no UTF-8.
const NOT_TEXT: &[u8; 10] = b"\x02\0\0\0\0\0\0\0\xC3\x28";

#[test]
fn a_text_that_is_not_utf_8_is_refused_only_where_it_is_needed() {
    let words = [text("a").as_slice(), NOT_TEXT, &text("b")].concat();
    let file = Builder::new()
        .pair("general.name", 8, NOT_TEXT)
        .pair("general.tags", 9, &list(8, 3, &words))
        .pair("general.architecture", 8, &text("llama"))
        .tensor("token_embd.weight", &[4, 2], 0, 0)
        .data(32);
    let metadata = file.read().unwrap().metadata;
    assert_eq!(metadata.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(metadata.description("general.name").as_deref(), Some("\u{FFFD}("));
    assert_eq!(metadata.description("general.architecture").as_deref(), Some("llama"));
    assert_eq!((metadata.description("general.tags"), metadata.description("absent")), (None, None));
    for (problem, parts) in [
        (metadata.text("general.name").unwrap_err(), ["general.name", "a text that is not UTF-8"]),
        (metadata.texts("general.tags").unwrap_err(), ["general.tags", "3 texts that are not all UTF-8"]),
    ] {
        let message = problem.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    // What is written again is what was read.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("again.gguf");
    put(&path, &metadata, &[]).unwrap();
    assert_eq!(read_gguf(catalog_file(&path).as_ref()).unwrap().metadata, metadata);
    let cut = Builder::new().pair("k", 9, &list(8, 2, NOT_TEXT)).problem();
    assert!(matches!(cut, GgufProblem::Truncated { .. }), "{cut:?}");
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let one = |dims: &[u64], kind, offset| Builder::new().tensor("a", dims, kind, offset).data(256).problem();
    let name = || "a".to_owned();
    assert_eq!(one(&[], 0, 0), GgufProblem::Dimensions { tensor: name(), count: 0, limit: 4 });
    assert_eq!(one(&[1; 5], 0, 0), GgufProblem::Dimensions { tensor: name(), count: 5, limit: 4 });
    for dims in [&[0u64][..], &[4, 0], &[1 << 32, 1 << 32], &[u64::MAX, 2], &[1 << 62]] {
        assert_eq!(one(dims, 0, 0), GgufProblem::ImpossibleShape { tensor: name(), dims: dims.to_vec() });
    }
    let ragged = GgufProblem::RaggedRow { tensor: name(), cols: 16, dtype: "Q8_0", block_len: 32 };
    assert_eq!(one(&[16, 2], 8, 0), ragged, "two halves of a row are no block");
    assert_eq!(one(&[4], 0, 8), GgufProblem::Misaligned { tensor: name(), offset: 8, alignment: 32 });
    assert_eq!(one(&[4], 0, 256), GgufProblem::OutOfRange { tensor: name(), end: 256, data_len: 256 });
    assert_eq!(one(&[64], 0, 32), GgufProblem::OutOfRange { tensor: name(), end: 288, data_len: 256 });
    assert!(matches!(one(&[4], 0, u64::MAX - 31), GgufProblem::OutOfRange { .. }));
    assert_eq!(Builder::new().tensor("", &[4], 0, 0).data(16).problem(), GgufProblem::EmptyName);
    let twice = Builder::new().tensor("a", &[4], 0, 0).tensor("a", &[4], 0, 32).data(64);
    assert_eq!(twice.problem(), GgufProblem::DuplicateTensor { tensor: name() });
    for (second, kind) in [(0, 0), (32, 0), (0, 34)] {
        let file = Builder::new().tensor("a", &[16], kind, 0).tensor("b", &[4], 0, second).data(64);
        assert!(matches!(file.problem(), GgufProblem::Overlap { .. }), "{second}");
    }
    let empty = Builder::new().read().unwrap();
    assert!(empty.tensors.is_empty(), "the first part of a set may hold none");
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    metadata.set("n", 7u32);
    metadata.set("eps", 1e-6f32);
    metadata.set("flag", false);
    metadata.set("flags", MetadataValue::Bools(vec![true, false]));
    metadata.set("words", ["a", "", "Ġb"].into_iter().collect::<Texts>());
    metadata.set("types", Numbers::from_i32([1, -2, 3]));
    metadata.set("scores", Numbers::from_f32([0.5, -1.0]));
    for (key, number) in [
        ("u8", Number::U8(1)),
        ("i8", Number::I8(-1)),
        ("u16", Number::U16(2)),
        ("i16", Number::I16(-2)),
        ("i32", Number::I32(-3)),
        ("u64", Number::U64(u64::MAX)),
        ("i64", Number::I64(i64::MIN)),
        ("f64", Number::F64(0.1)),
    ] {
        metadata.set(key, MetadataValue::Number(number));
    }
    metadata
}

fn meta(name: &str, dtype: DType, shape: &[usize]) -> TensorMeta {
    TensorMeta { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn put(path: &Path, metadata: &Metadata, tensors: &[TensorMeta]) -> Result<(), WeightError> {
    write_gguf(path, metadata, tensors, &mut |index, sink| {
        let bytes: Vec<u8> = pattern(tensors[index].bytes().unwrap() as usize).collect();
        bytes.chunks(7).try_for_each(sink)
    })
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let names: Vec<String> =
        DType::ALL.iter().enumerate().map(|(i, _)| format!("model.layers.{i}.mlp.up_proj.weight")).collect();
    let mut tensors: Vec<_> =
        DType::ALL.iter().zip(&names).map(|(&dtype, name)| meta(name, dtype, &[3, 256])).collect();
    tensors.push(meta("rope_freqs.weight", DType::F32, &[5]));
    put(&path, &metadata(), &tensors).unwrap();
    for place in [path.as_path(), dir.path()] {
        let catalog = Catalog::open(place).unwrap();
        assert_eq!(catalog.metadata(), Some(&metadata()));
        assert_eq!(catalog.tensors().len(), tensors.len());
        for tensor in &tensors {
            let entry = catalog.get(&tensor.name).unwrap();
            assert_eq!((&entry.shape, entry.bytes), (&tensor.shape, tensor.bytes().unwrap()));
            assert_eq!(entry.element_type, ElementType::Known(tensor.dtype));
            let mut bytes = vec![0; entry.bytes as usize];
            catalog.files()[entry.file].read_exact_at(&mut bytes, entry.offset).unwrap();
            assert!(bytes.into_iter().eq(pattern(entry.bytes as usize)), "{}", tensor.name);
        }
        let numbers = catalog.read_f32("rope_freqs.weight", 5).unwrap().unwrap();
        assert_eq!((numbers.len(), numbers[0]), (5, f32::from_le_bytes([0, 1, 2, 3])));
        assert_eq!(catalog.read_f32("rope_freqs.weight", 4).unwrap(), None);
        assert!(catalog.read_f32(&names[1], 1 << 20).is_err(), "not F32");
    }
    let header = read_gguf(catalog_file(&path).as_ref()).unwrap();
    assert_eq!(header.tensors[2].name, "blk.2.ffn_up.weight");
    let ragged = [meta("a", DType::Q4_0, &[32, 16])];
    assert!(matches!(put(&path, &metadata(), &ragged), Err(WeightError::TooLarge { .. })));
    let short = write_gguf(&path, &metadata(), &tensors[..1], &mut |_, sink| sink(&[0; 5]));
    assert!(matches!(short, Err(WeightError::WrongAmount { produced: 5, .. })));
}

fn catalog_file(path: &Path) -> std::sync::Arc<dyn interbed_io::RandomAccessFile> {
    crate::files::open(path)
}

/// Writes a model in three parts, the first without tensors.
fn put_parts(dir: &Path) {
    for part in 0..3u32 {
        let mut metadata = if part == 0 { metadata() } else { Metadata::default() };
        metadata.set("split.no", MetadataValue::Number(Number::U16(part as u16)));
        metadata.set("split.count", MetadataValue::Number(Number::U16(3)));
        metadata.set("split.tensors.count", MetadataValue::Number(Number::I32(2)));
        let name = format!("model.layers.{part}.input_layernorm.weight");
        let tensors = if part == 0 { vec![] } else { vec![meta(&name, DType::F32, &[4])] };
        put(&dir.join(format!("m-{:05}-of-00003.gguf", part + 1)), &metadata, &tensors).unwrap();
    }
}

#[test]
fn parts_make_one_model_whichever_is_named() {
    let dir = tempfile::tempdir().unwrap();
    put_parts(dir.path());
    for name in ["", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf"] {
        let catalog = Catalog::open(dir.path().join(name)).unwrap();
        assert_eq!(catalog.files().len(), 3);
        assert_eq!(catalog.metadata().unwrap().count("n"), Ok(Some(7)));
        assert_eq!(catalog.get("model.layers.2.input_layernorm.weight").unwrap().file, 2);
    }
    let model = interbed_weights::model_name(&dir.path().join("m-00001-of-00003.gguf"));
    assert_eq!(model.as_deref(), Some("m"));
    assert_eq!(interbed_weights::model_name(Path::new("x/model.q4.gguf")).as_deref(), Some("model.q4"));
}

#[test]
fn parts_that_are_open_are_compared_too() {
    let dir = tempfile::tempdir().unwrap();
    put_parts(dir.path());
    let open = |parts: &[u32]| {
        let files = parts.iter().map(|part| {
            let file = ExactFile::open(dir.path().join(format!("m-{part:05}-of-00003.gguf"))).unwrap();
            Arc::new(file) as Arc<dyn RandomAccessFile>
        });
        Catalog::from_gguf_files(files.collect())
    };
    assert_eq!(open(&[1, 2, 3]).unwrap().files().len(), 3);
    for (parts, key) in [(&[1, 3, 2][..], "split.no"), (&[1, 2], "split.count"), (&[1], "split.count")] {
        let error = open(parts).unwrap_err();
        let WeightError::Gguf { problem: GgufProblem::PartMismatch { key: of, .. }, .. } = &error else {
            panic!("{parts:?}: {error}")
        };
        assert_eq!(*of, key, "{parts:?}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let problem = |dir: &Path, name: &str| match Catalog::open(dir.join(name)) {
        Err(WeightError::Gguf { problem, .. }) => problem,
        other => panic!("expected a problem, got {other:?}"),
    };
    let dir = tempfile::tempdir().unwrap();
    put_parts(dir.path());
    let part = |number: u32| dir.path().join(format!("m-{number:05}-of-00003.gguf"));
    std::fs::copy(part(1), dir.path().join("other.gguf")).unwrap();
    assert_eq!(problem(dir.path(), "other.gguf"), GgufProblem::PartName { count: 3 });
    assert!(matches!(problem(dir.path(), ""), GgufProblem::SeveralModels { count: 2, .. }));
    std::fs::remove_file(dir.path().join("other.gguf")).unwrap();
    // The second part in the third's place.
    std::fs::copy(part(2), part(3)).unwrap();
    assert_eq!(problem(dir.path(), ""), GgufProblem::PartMismatch { key: "split.no", expected: 2, found: 1 });
    std::fs::remove_file(part(3)).unwrap();
    let missing = GgufProblem::MissingPart { part: "m-00003-of-00003.gguf".into(), count: 3 };
    assert_eq!(problem(dir.path(), ""), missing);
    let mut metadata = Metadata::default();
    for (key, value) in [("split.no", 2u32), ("split.count", 3), ("split.tensors.count", 2)] {
        metadata.set(key, value);
    }
    put(&part(3), &metadata, &[]).unwrap();
    let count = GgufProblem::PartMismatch { key: "split.tensors.count", expected: 1, found: 2 };
    assert_eq!(problem(dir.path(), ""), count);
    // One name in two parts.
    put(&part(3), &metadata, &[meta("blk.1.attn_norm.weight", DType::F32, &[4])]).unwrap();
    assert!(matches!(Catalog::open(dir.path()), Err(WeightError::TensorInTwoFiles { .. })));
}

#[test]
fn what_lies_beside_a_model_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let with = |name: &str, pairs: &[(&str, &str)]| {
        let mut metadata = Metadata::default();
        pairs.iter().for_each(|&(key, value)| metadata.set(key, value));
        put(&dir.path().join(name), &metadata, &[]).unwrap();
    };
    with("mmproj-F16.gguf", &[("general.type", "mmproj"), ("general.architecture", "clip")]);
    let alone = Catalog::open(dir.path()).unwrap();
    assert_eq!(alone.metadata().unwrap().text("general.type"), Ok(Some("mmproj")), "so that messages can name it");
    put_parts(dir.path());
    with("adapter.gguf", &[("general.type", "adapter"), ("general.architecture", "llama")]);
    with("old-projector.gguf", &[("general.architecture", "clip")]);
    let catalog = Catalog::open(dir.path()).unwrap();
    assert_eq!((catalog.files().len(), catalog.tensors().len()), (3, 2));
    assert_eq!(catalog.left_alone(), ["adapter.gguf", "mmproj-F16.gguf", "old-projector.gguf"]);
    let of_file = Catalog::open(dir.path().join("m-00001-of-00003.gguf")).unwrap();
    assert!(of_file.left_alone().is_empty());
    // What says nothing may be a model.
    with("draft.gguf", &[("general.type", "model")]);
    write(dir.path(), "damaged.gguf", b"GGUF");
    let Err(WeightError::Gguf { problem, .. }) = Catalog::open(dir.path()) else { panic!("which of them?") };
    assert!(matches!(problem, GgufProblem::SeveralModels { count: 3, .. }), "{problem}");
}

#[test]
fn vectors_in_blocks_are_refused_when_loading_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    put(&path, &metadata(), &[meta("output_norm.weight", DType::Q8_0, &[64])]).unwrap();
    let tensors = vec![TensorSpec::new("model.norm.weight", [64])];
    let specs = [GroupSpec { name: "head".into(), role: Role::FeedForward, layer: 0, tensors }];
    let error = plan_bytes(&Catalog::open(&path).unwrap(), &specs).unwrap_err();
    assert!(matches!(&error, WeightError::UnsupportedDType { found, .. } if found == "Q8_0"), "{error}");
    // By the name that the file has for it.
    assert!(error.to_string().contains("tensor output_norm.weight (a vector"), "{error}");
}

#[test]
fn messages_call_tensors_as_the_file_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    put(&path, &metadata(), &[meta("blk.2.attn_q.weight", DType::F32, &[4, 4])]).unwrap();
    let catalog = Catalog::open(&path).unwrap();
    let refused = |name: &str, shape: &[usize]| {
        let tensors = vec![TensorSpec::new(name, shape)];
        let specs = [GroupSpec { name: "layer 2".into(), role: Role::Attention, layer: 2, tensors }];
        plan_bytes(&catalog, &specs).unwrap_err().to_string()
    };
    let wide = refused("model.layers.2.self_attn.q_proj.weight", &[4, 8]);
    assert!(wide.contains("tensor blk.2.attn_q.weight in"), "{wide}");
    let missing = refused("model.layers.2.mlp.up_proj.weight", &[4, 4]);
    assert!(missing.contains("tensor blk.2.ffn_up.weight (layer 2)"), "{missing}");
    assert_eq!(catalog.name_in_file("rope_freqs.weight"), "rope_freqs.weight");
}

#[test]
fn two_names_of_one_tensor_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = Builder::new().tensor("output.weight", &[4], 0, 0).tensor("lm_head.weight", &[4], 0, 32).data(48);
    write(dir.path(), "m.gguf", &file.bytes());
    let error = Catalog::open(dir.path().join("m.gguf")).unwrap_err();
    assert!(error.to_string().contains("output.weight occurs twice"), "{error}");
    assert!(matches!(Catalog::open(dir.path().join("none.gguf")), Err(WeightError::Io(_))));
}

/// Checks what every accepted header promises.
fn check_promises(bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    let Ok(header) = read_gguf(&MemoryFile::new(bytes)) else { return };
    let mut end = 0;
    for record in &header.tensors {
        assert!(record.offset >= end, "{record:?}");
        end = record.offset + record.bytes;
        assert!(end <= len && record.bytes > 0);
        if let ElementType::Known(dtype) = record.element_type {
            let row = dtype.row_bytes(*record.shape.last().unwrap()).unwrap();
            let rows: usize = record.shape[..record.shape.len() - 1].iter().product();
            assert_eq!((row * rows) as u64, record.bytes);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_promises([b"GGUF\x03\0\0\0".as_slice(), &bytes].concat());
        check_promises(bytes);
    }

    #[test]
    fn mutations_never_panic(changes in prop::collection::vec((0usize..600, any::<u8>()), 1..6), cut in 0usize..1200) {
        let file = Builder::new()
            .pair("general.architecture", 8, &text("llama"))
            .pair("general.alignment", 4, &32u32.to_le_bytes())
            .pair("words", 9, &list(8, 2, &[text("grün"), text("b")].concat()))
            .pair("numbers", 9, &list(6, 2, &[0; 8]))
            .pair("flags", 9, &list(7, 2, &[0, 1]))
            .tensor("blk.0.attn_q.weight", &[64, 3], 8, 32)
            .tensor("token_embd.weight", &[4, 2], 0, 0)
            .tensor("odd", &[256], 34, 256)
            .data(300);
        let mut bytes = file.bytes();
        check_promises(bytes.clone());
        for (position, value) in changes {
            let position = position % bytes.len();
            bytes[position] = value;
        }
        check_promises(bytes.clone());
        bytes.truncate(cut);
        check_promises(bytes);
    }
}
