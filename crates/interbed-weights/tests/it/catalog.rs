//! Directories, whole and incomplete.

use std::path::Path;
use std::sync::Arc;

use interbed_io::{ExactFile, RandomAccessFile};
use interbed_weights::{Catalog, IndexProblem, WeightError};

use crate::files::{safetensors, write};

const ONE: &str = r#"{"one":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
const TWO: &str = r#"{"two":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}}"#;

const ONE_AND_TWO: &str = concat!(
    r#"{"one":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
    r#""two":{"dtype":"F16","shape":[3],"data_offsets":[8,14]}}"#
);

/// Writes a directory with shards one.safetensors and two.safetensors under this index, and opens it.
fn sharded(index: &str) -> (tempfile::TempDir, Result<Catalog, WeightError>) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "one.safetensors", &safetensors(ONE, 8));
    write(dir.path(), "two.safetensors", &safetensors(TWO, 6));
    write(dir.path(), "model.safetensors.index.json", index.as_bytes());
    let catalog = Catalog::open(dir.path());
    (dir, catalog)
}

fn index_problem(index: &str) -> IndexProblem {
    match sharded(index).1 {
        Err(WeightError::Index { problem, file }) => {
            assert!(file.ends_with("model.safetensors.index.json"));
            problem
        }
        other => panic!("expected an index problem, got {other:?}"),
    }
}

#[test]
fn one_file_shards_or_loose_files() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", &safetensors(ONE, 8));
    let catalog = Catalog::open(dir.path()).unwrap();
    let entry = catalog.get("one").unwrap();
    assert_eq!((entry.file, entry.offset, entry.bytes), (0, 8 + ONE.len() as u64, 8));
    assert_eq!((catalog.bytes(), catalog.get("two")), (8, None));

    let (_dir, catalog) =
        sharded(r#"{"metadata":{"total_size":14},"weight_map":{"one":"one.safetensors","two":"two.safetensors"}}"#);
    let catalog = catalog.unwrap();
    assert_eq!(catalog.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["one", "two"]);
    assert!(catalog.path_of(catalog.get("two").unwrap()).ends_with("two.safetensors"));

    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "b.safetensors", &safetensors(TWO, 6));
    write(dir.path(), "a.safetensors", &safetensors(ONE, 8));
    assert_eq!(Catalog::open(dir.path()).unwrap().tensors().len(), 2);
    write(dir.path(), "c.safetensors", &safetensors(ONE, 8));
    let error = Catalog::open(dir.path()).unwrap_err();
    let (first, second) = ("a.safetensors", "c.safetensors");
    assert!(
        matches!(&error, WeightError::TensorInTwoFiles { tensor, first: a, second: c }
        if tensor == "one" && a.ends_with(first) && c.ends_with(second)),
        "{error}"
    );
}

#[test]
fn shards_that_are_open_are_taken_as_their_index_says() {
    let open = |dir: &Path, index: &str| {
        write(dir, "two.safetensors", &safetensors(ONE_AND_TWO, 14));
        write(dir, "model.safetensors.index.json", index.as_bytes());
        // In the order of their opening, not of the index.
        let files = ["two.safetensors", "one.safetensors"].map(|name| {
            let file = ExactFile::open(dir.join(name)).unwrap();
            Arc::new(file) as Arc<dyn RandomAccessFile>
        });
        Catalog::from_shards(&dir.join("model.safetensors.index.json"), files.into())
    };
    let (dir, _) = sharded("{}");
    // Of the tensor that both have, the index means one.
    let catalog = open(dir.path(), r#"{"weight_map":{"one":"one.safetensors","two":"two.safetensors"}}"#).unwrap();
    assert!(catalog.path_of(catalog.get("one").unwrap()).ends_with("one.safetensors"));
    assert!(catalog.path_of(catalog.get("two").unwrap()).ends_with("two.safetensors"));
    for (index, is_refused) in [
        (
            r#"{"weight_map":{"two":"one.safetensors"}}"#,
            (|problem| matches!(problem, IndexProblem::TensorNotInShard { .. })) as fn(&_) -> bool,
        ),
        (r#"{"weight_map":{"two":"three.safetensors"}}"#, |problem| {
            matches!(problem, IndexProblem::MissingShard { .. })
        }),
    ] {
        let error = open(dir.path(), index).unwrap_err();
        assert!(matches!(&error, WeightError::Index { problem, .. } if is_refused(problem)), "{error}");
    }
}

#[test]
fn a_directory_without_weights_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let error = Catalog::open(dir.path()).unwrap_err();
    assert!(matches!(error, WeightError::NoWeights { has_pickle: false, .. }), "{error}");
    write(dir.path(), "pytorch_model.bin", b"");
    assert!(Catalog::open(dir.path()).unwrap_err().to_string().contains("pickled"));
    assert!(matches!(Catalog::open(dir.path().join("absent")), Err(WeightError::Io(_))));
}

#[test]
fn a_missing_shard_or_tensor_is_named() {
    assert_eq!(
        index_problem(r#"{"weight_map":{"one":"one.safetensors","x":"three.safetensors"}}"#),
        IndexProblem::MissingShard { shard: "three.safetensors".to_owned() }
    );
    let (tensor, shard) = ("two".to_owned(), "one.safetensors".to_owned());
    assert_eq!(
        index_problem(r#"{"weight_map":{"one":"one.safetensors","two":"one.safetensors"}}"#),
        IndexProblem::TensorNotInShard { tensor, shard }
    );
}

#[test]
fn a_shard_stays_in_its_directory() {
    for shard in
        ["../one.safetensors", "/etc/passwd", "a/b", "", ".", "..", "./one.safetensors", "one.safetensors/", "a\\\\b"]
    {
        let problem = index_problem(&format!(r#"{{"weight_map":{{"one":"{shard}"}}}}"#));
        assert!(matches!(problem, IndexProblem::ShardOutsideDirectory { .. }), "{shard}: {problem}");
    }
}

#[test]
fn an_index_of_the_wrong_form_is_refused() {
    for index in ["", "{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"one":1}}"#, r#"{"weight_map":"#] {
        assert!(matches!(index_problem(index), IndexProblem::Json { .. }), "{index}");
    }
    let twice = r#"{"weight_map":{"one":"one.safetensors","one":"two.safetensors"}}"#;
    assert_eq!(index_problem(twice), IndexProblem::DuplicateName { tensor: "one".to_owned() });
}

#[test]
fn a_damaged_shard_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", &safetensors(ONE, 7));
    let message = Catalog::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("model.safetensors") && message.contains("one ends at 8"), "{message}");
}
