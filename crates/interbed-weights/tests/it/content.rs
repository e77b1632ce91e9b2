//! The hash of what was read: the same by whatever way, and another whenever any byte is another.

use std::path::Path;
use std::sync::Arc;

use interbed_io::EngineKind;
use interbed_kernels::DType;
use interbed_weights::{
    Access, Catalog, ContentHash, GroupSpec, ResidentWeights, Role, StreamConfig, StreamPlan, StreamPolicy,
    StreamedWeights, TensorMeta, TensorSpec, WeightSource, open_direct, write_model,
};
use tempfile::TempDir;

/// The hash of each tensor, by name.
type Told = Vec<(String, String, u128)>;

fn told(hash: &ContentHash) -> Option<Told> {
    let own = |(name, described, sum): (&str, &str, u128)| (name.to_owned(), described.to_owned(), sum);
    hash.tensors().map(|tensors| tensors.map(own).collect())
}

/// Returns specs of an embedding and of two layers, each with a norm and two matrices side by side.
fn specs() -> Vec<GroupSpec> {
    let group = |name: &str, tensors| GroupSpec { name: name.into(), role: Role::FeedForward, layer: 0, tensors };
    let layer = |number: usize| {
        let tensors = vec![
            TensorSpec::new(format!("norm {number}"), [70]),
            TensorSpec::new(format!("gate {number}"), [130, 70]),
            TensorSpec::new(format!("up {number}"), [130, 70]).by(Access::SweepBeside),
        ];
        group(&format!("layer {number}"), tensors)
    };
    let embedding = vec![TensorSpec::new("embedding", [300, 70]).by(Access::Rows)];
    vec![group("embedding", embedding), layer(0), layer(1)]
}

fn metas() -> Vec<TensorMeta> {
    let of = |spec: &TensorSpec| TensorMeta { name: spec.name.clone(), dtype: DType::BF16, shape: spec.shape.clone() };
    let mut metas: Vec<_> = specs().iter().flat_map(|group| &group.tensors).map(of).collect();
    metas.push(TensorMeta { name: "tower".into(), dtype: DType::BF16, shape: vec![30, 70] });
    metas
}

fn model(shard_bytes: u64) -> TempDir {
    model_of(metas(), shard_bytes)
}

fn model_of(metas: Vec<TensorMeta>, shard_bytes: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &metas, shard_bytes, &mut |tensor, sink| {
        let len = metas[tensor].shape.iter().product::<usize>() * 2;
        sink(&(0..len).map(|at| (at * at + 31 * tensor + at / 7) as u8).collect::<Vec<_>>())
    })
    .unwrap();
    dir
}

/// Hashes a model by reading all that nobody else reads.
fn alone(dir: &Path) -> Told {
    let mut catalog = Catalog::open(dir).unwrap();
    let hash = catalog.hash_content(&specs());
    assert!(told(&hash).is_none());
    while hash.read_next(&mut Vec::new()).unwrap() {}
    told(&hash).unwrap()
}

#[test]
fn weights_are_what_they_are_however_they_are_read() {
    let dir = model(20_000);
    let want = alone(dir.path());
    assert_eq!(want.len(), 7, "of those that the specs name");
    assert_eq!(alone(model(1 << 20).path()), want, "in one file");
    // In one read of each file, which is longer than what is hashed at a time.
    let shapes: [(&str, &[usize]); 3] = [("long", &[3, 200_000]), ("short", &[9]), ("rows", &[5000, 70])];
    let meta =
        |&(name, shape): &(&str, &[usize])| TensorMeta { name: name.into(), dtype: DType::BF16, shape: shape.to_vec() };
    let wide = model_of(shapes.iter().map(meta).collect(), 1 << 30);
    let tensors = shapes.iter().map(|&(name, shape)| TensorSpec::new(name, shape)).collect();
    let group = GroupSpec { name: "wide".into(), role: Role::FeedForward, layer: 0, tensors };
    let sums = [true, false].map(|at_once| {
        let mut catalog = Catalog::open(wide.path()).unwrap();
        let hash = catalog.hash_content(std::slice::from_ref(&group));
        if at_once {
            let mut bytes = vec![0; catalog.files()[0].len() as usize];
            catalog.files()[0].read_exact_at(&mut bytes, 0).unwrap();
        }
        while !at_once && hash.read_next(&mut Vec::new()).unwrap() {}
        told(&hash).expect("all was read")
    });
    assert_eq!(sums[0], sums[1]);
    // As they are loaded, nothing is left to be read.
    let mut catalog = Catalog::open(dir.path()).unwrap();
    let hash = catalog.hash_content(&specs());
    ResidentWeights::load(&catalog, &specs(), &mut |_, _| ()).unwrap();
    assert_eq!(told(&hash), Some(want.clone()));
    // Streamed, in bands of several sizes.
    for (band, is_ample) in [(4096, false), (9000, false), (9000, true), (1 << 20, true)] {
        let mut catalog = Catalog::open(dir.path()).unwrap();
        let hash = catalog.hash_content(&specs());
        let plan = StreamPlan::new(&catalog, &specs(), band).unwrap();
        let least = plan.partition().least_budget();
        let config = StreamConfig {
            budget: if is_ample { 1 << 20 } else { least },
            engine: EngineKind::Pread,
            depth: 2,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy: StreamPolicy::Resident,
            timeline: false,
            host_tokens_max: 0,
            turns: None,
        };
        let files = open_direct(&catalog).unwrap();
        let mut weights = StreamedWeights::start(plan, &catalog, files, config, &mut |_, _| ()).unwrap();
        weights.begin_pass(1).unwrap();
        assert!(told(&hash).is_none(), "nobody has read the whole embedding");
        while hash.read_next(&mut Vec::new()).unwrap() {}
        assert_eq!(told(&hash), Some(want.clone()), "{band}");
    }
}

#[test]
fn each_byte_is_hashed_once_by_however_many_threads() {
    let dir = model(20_000);
    let want = alone(dir.path());
    for seed in 0..20u64 {
        let mut catalog = Catalog::open(dir.path()).unwrap();
        let hash = catalog.hash_content(&specs());
        let read = |thread: u64| {
            let mut state = seed * 8 + thread + 1;
            let mut random = |end: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % end
            };
            for _ in 0..40 {
                let file = &catalog.files()[random(catalog.files().len() as u64) as usize];
                let begin = random(file.len());
                let mut bytes = vec![0; random(file.len() - begin + 1) as usize];
                file.read_exact_at(&mut bytes, begin).unwrap();
            }
            while hash.read_next(&mut Vec::new()).unwrap() {}
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || read(thread)))));
        assert_eq!(told(&hash), Some(want.clone()), "seed {seed}");
    }
}

#[test]
fn any_other_byte_and_any_other_order_is_another_content() {
    let dir = model(1 << 20);
    let path = dir.path().join("model.safetensors");
    let (want, bytes) = (alone(dir.path()), std::fs::read(&path).unwrap());
    let catalog = Catalog::open(dir.path()).unwrap();
    let changed = |told: &Told| -> Vec<String> {
        told.iter().zip(&want).filter(|(now, then)| now != then).map(|(now, _)| now.0.clone()).collect()
    };
    for (name, entry) in catalog.tensors() {
        let (begin, len) = (entry.offset as usize, entry.bytes as usize);
        let expected = if name == "tower" { vec![] } else { vec![name.to_owned()] };
        // First and last byte, on both sides of a row's end, and in the middle.
        for at in [0, 139, 140, len / 2 + 1, len - 1].into_iter().filter(|&at| at < len) {
            let mut other = bytes.clone();
            other[begin + at] ^= 1 << (at % 8);
            std::fs::write(&path, &other).unwrap();
            assert_eq!(changed(&alone(dir.path())), expected, "byte {at} of {name}");
        }
        if name == "embedding" {
            // Rows that change places, and all of them moved on.
            for turn in [
                |rows: &mut [u8]| rows.rotate_left(140),
                |rows: &mut [u8]| {
                    let (a, b) = rows.split_at_mut(5 * 140);
                    a[..140].swap_with_slice(&mut b[..140]);
                },
            ] {
                let mut other = bytes.clone();
                turn(&mut other[begin..begin + len]);
                std::fs::write(&path, &other).unwrap();
                assert_eq!(changed(&alone(dir.path())), expected);
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_not_known_and_can_be_tried_again() {
    let dir = model(1 << 20);
    let path = dir.path().join("model.safetensors");
    let (want, bytes) = (alone(dir.path()), std::fs::read(&path).unwrap());
    let mut catalog = Catalog::open(dir.path()).unwrap();
    let hash = catalog.hash_content(&specs());
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64 / 2).unwrap();
    let mut outcome = Ok(true);
    while let Ok(true) = outcome {
        outcome = hash.read_next(&mut Vec::new());
    }
    assert!(outcome.is_err() && told(&hash).is_none());
    std::fs::write(&path, &bytes).unwrap();
    while hash.read_next(&mut Vec::new()).unwrap() {}
    assert_eq!(told(&Arc::clone(&hash)), Some(want));
}
