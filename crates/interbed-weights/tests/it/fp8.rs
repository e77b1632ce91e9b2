//! Tests of matrices in FP8 whose scales are tensors of their own: loaded, packed, and refused where they cannot be
//! streamed.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use interbed_io::WriteTarget;
use interbed_kernels::DType;
use interbed_weights::{
    Catalog, Coding, ElementType, GroupSpec, ResidentWeights, Role, StorePlan, StreamConfig, StreamPlan, StreamPolicy,
    StreamedWeights, TensorId, TensorSpec, WeightSource, open_direct, write_store,
};

const ROWS: usize = 130;
const COLS: usize = 132;

fn decoders() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures/decoders")
}

/// Writes a model with the matrix of the reference decoders as `a.weight`, and with one scale in bf16 for all as
/// `b.weight`.
fn write_model(dir: &Path, scales_shape: &str) {
    let (codes, scales) =
        (fs::read(decoders().join("fp8.codes")).unwrap(), fs::read(decoders().join("fp8.scales")).unwrap());
    let one = 0x3f00u16.to_le_bytes();
    let (first, second, third) = (codes.len(), 2 * codes.len(), 2 * codes.len() + scales.len());
    let header = format!(
        r#"{{"a.weight":{{"dtype":"F8_E4M3","shape":[{ROWS},{COLS}],"data_offsets":[0,{first}]}},
            "b.weight":{{"dtype":"F8_E4M3","shape":[{ROWS},{COLS}],"data_offsets":[{first},{second}]}},
            "a.weight_scale_inv":{{"dtype":"F32","shape":{scales_shape},"data_offsets":[{second},{third}]}},
            "b.weight_scale_inv":{{"dtype":"BF16","shape":[],"data_offsets":[{third},{}]}}}}"#,
        third + 2
    );
    let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &codes, &codes, &scales, &one];
    fs::write(dir.join("model.safetensors"), parts.concat()).unwrap();
}

fn specs() -> [GroupSpec; 1] {
    let tensors = ["a.weight", "b.weight"].map(|name| TensorSpec::new(name, [ROWS, COLS])).to_vec();
    [GroupSpec { name: "all".into(), role: Role::FeedForward, layer: 0, tensors }]
}

/// Returns the numbers of both matrices, in memory.
fn numbers(catalog: &Catalog) -> [Vec<f32>; 2] {
    let weights = ResidentWeights::load(catalog, &specs(), &mut |_, _| ()).unwrap();
    [0, 1].map(|index| {
        let matrix = weights.vector(TensorId { group: 0, index });
        assert_eq!(matrix.dtype(), DType::Fp8);
        let mut all = vec![0.0; ROWS * COLS];
        all.chunks_exact_mut(COLS).enumerate().for_each(|(row, out)| matrix.matrix().widen_row(row, out));
        all
    })
}

fn assert_reference(catalog: &Catalog) {
    let read = |name: &str| {
        let bytes = fs::read(decoders().join(name)).unwrap();
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect::<Vec<_>>()
    };
    let (want, of_code) = (read("fp8.f32"), read("e4m3.f32"));
    let halved: Vec<f32> = fs::read(decoders().join("fp8.codes"))
        .unwrap()
        .into_iter()
        .map(|code| of_code[usize::from(code)] * 0.5)
        .collect();
    for (got, want) in numbers(catalog).iter().zip([want, halved]) {
        assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()));
    }
}

#[test]
fn scales_are_joined_when_weights_are_loaded_and_packed() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), "[2,2]");
    let catalog = Catalog::open(dir.path()).unwrap();
    assert_eq!(catalog.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["a.weight", "b.weight"]);
    assert_reference(&catalog);

    let plan = StorePlan::new(&catalog, &specs(), "fp8", Vec::new(), &Coding::none()).unwrap();
    assert_eq!(plan.left_out(), (0, 0));
    let out = dir.path().join("fp8.interbed");
    write_store(&catalog, &plan, WriteTarget::open(&out).unwrap(), &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    let packed = Catalog::open(&out).unwrap();
    let entry = packed.get("a.weight").unwrap();
    assert_eq!((&entry.element_type, &entry.scales), (&ElementType::Known(DType::Fp8), &None));
    assert_reference(&packed);
    // Packed anew, it stays as it is.
    let plan = StorePlan::new(&packed, &specs(), "fp8", Vec::new(), &Coding::none()).unwrap();
    let again = dir.path().join("again.interbed");
    write_store(&packed, &plan, WriteTarget::open(&again).unwrap(), &mut |_, _, _| ControlFlow::Continue(())).unwrap();
    assert_reference(&Catalog::open(&again).unwrap());
}

#[test]
fn streaming_asks_for_a_packed_store() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), "[2,2]");
    let catalog = Catalog::open(dir.path()).unwrap();
    let plan = StreamPlan::new(&catalog, &specs(), 4096).unwrap();
    let config = StreamConfig {
        budget: plan.partition().full_budget(),
        engine: interbed_io::EngineKind::Pread,
        depth: 1,
        disk_bytes_per_s: 1e9,
        link_bytes_per_s: 0.0,
        policy: StreamPolicy::Ring,
        timeline: false,
        host_tokens_max: 0,
        turns: None,
    };
    let files = open_direct(&catalog).unwrap();
    let error = StreamedWeights::start(plan, &catalog, files, config, &mut |_, _| ()).err().unwrap().to_string();
    assert!(error.contains("a.weight") && error.contains("model.safetensors"), "{error}");
    assert!(error.contains("interbed pack"), "{error}");
}

#[test]
fn codes_without_their_scales_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), "[4,1]");
    let catalog = Catalog::open(dir.path()).unwrap();
    let error = ResidentWeights::load(&catalog, &specs(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("a.weight") && error.contains("weight_scale_inv"), "{error}");
}
