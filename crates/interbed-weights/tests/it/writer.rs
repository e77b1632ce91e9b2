//! Tests that what is written is what is read.

use interbed_kernels::DType;
use interbed_weights::{
    Catalog, ElementType, GroupSpec, ResidentWeights, Role, TensorId, TensorMeta, TensorSpec, WeightError,
    WeightSource, write_model,
};

fn metas() -> Vec<TensorMeta> {
    let meta = |name: &str, dtype, shape: &[usize]| TensorMeta { name: name.to_owned(), dtype, shape: shape.to_vec() };
    vec![
        meta("first", DType::F32, &[10, 10]),
        meta("second", DType::BF16, &[3]),
        meta("third", DType::F16, &[40, 5]),
        meta("nothing", DType::F16, &[0, 5]),
    ]
}

fn write(dir: &std::path::Path, shard_bytes: u64) -> Vec<String> {
    let metas = metas();
    let paths = write_model(dir, &metas, shard_bytes, &mut |index, sink| {
        let mut left = metas[index].bytes().unwrap() as usize;
        while left > 0 {
            let piece = left.min(77);
            sink(&vec![index as u8 + 1; piece])?;
            left -= piece;
        }
        Ok(())
    });
    paths.unwrap().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn shards_are_cut_and_read_back() {
    let cases: [(u64, &[&str]); 3] = [
        (u64::MAX, &["model.safetensors"]),
        (
            410,
            &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"],
        ),
        // A tensor that is larger than a shard gets one of its own.
        (
            1,
            &[
                "model-00001-of-00004.safetensors",
                "model-00002-of-00004.safetensors",
                "model-00003-of-00004.safetensors",
                "model-00004-of-00004.safetensors",
                "model.safetensors.index.json",
            ],
        ),
    ];
    for (shard_bytes, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let paths = write(dir.path(), shard_bytes);
        assert_eq!(paths, expected);
        let catalog = Catalog::open(dir.path()).unwrap();
        let spec = |meta: &TensorMeta| TensorSpec::new(meta.name.clone(), meta.shape.clone());
        let specs = [GroupSpec {
            name: "all".to_owned(),
            role: Role::FeedForward,
            layer: 0,
            tensors: metas().iter().map(spec).collect(),
        }];
        let weights = ResidentWeights::load(&catalog, &specs, &mut |_, _| {}).unwrap();
        for (index, meta) in metas().iter().enumerate() {
            let view = weights.vector(TensorId { group: 0, index });
            let elements: usize = meta.shape.iter().product();
            assert_eq!((view.dtype(), view.rows() * view.cols()), (meta.dtype, elements));
            assert_eq!(view.matrix().bytes().len() as u64, meta.bytes().unwrap());
            assert!(view.matrix().bytes().iter().all(|&byte| byte == index as u8 + 1));
        }
        let first = catalog.get("first").unwrap();
        assert_eq!(
            (first.offset, &first.element_type),
            (4096, &ElementType::Known(DType::F32)),
            "data starts on a page"
        );
    }
}

#[test]
fn a_producer_must_hand_over_exactly_what_was_declared() {
    for produced in [5usize, 7] {
        let dir = tempfile::tempdir().unwrap();
        let metas = [TensorMeta { name: "second".to_owned(), dtype: DType::BF16, shape: vec![3] }];
        let error = write_model(dir.path(), &metas, 100, &mut |_, sink| sink(&vec![0; produced])).unwrap_err();
        assert!(matches!(error, WeightError::WrongAmount { declared: 6, .. }), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing half-written stays");
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let metas = [TensorMeta { name: "huge".to_owned(), dtype: DType::F32, shape: vec![1 << 40, 1 << 40] }];
    let error = write_model(dir.path(), &metas, 100, &mut |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, WeightError::TooLarge { .. }), "{error}");
}
