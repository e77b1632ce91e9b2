//! Quantised models whose products a GPU computes in integers: the processor's logits, which rounds activations alike.

use half::f16;
use interbed_kernels::{DType, Level};
use interbed_model::gguf::GgufModel;
use interbed_model::synth::{SynthSpec, synthesize};
use interbed_weights::{ElementType, TensorMeta, write_gguf};

use super::*;
use crate::harness::Harness;

/// Every quantised type that GPUs compute.
fn types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| !dtype.is_plain() && (interbed_device::DEVICE_KINDS[0].computes)(*dtype))
}

/// Where the half floats of a block are.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::Mxfp4 => &[],
        _ => &[0],
    }
}

/// A GGUF file of a small model in Q4_K, with random weights.
pub(super) fn synthesised(dir: &std::path::Path) -> Catalog {
    // The smallest shape in which every matrix has whole blocks of 256.
    let config_json = serde_json::json!({"model_type": "llama", "vocab_size": 512, "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": true, "rope_theta": 500.0});
    let spec = SynthSpec {
        config_json: config_json.to_string(),
        num_layers: None,
        dtype: Some(DType::Q4K),
        seed: 5,
        router_skew: 0.0,
        shard_bytes: u64::MAX,
        gguf: true,
    };
    synthesize(&spec, &dir.join("synthesised"), &mut |_, _| {}).unwrap();
    Catalog::open(dir.join("synthesised")).unwrap()
}

/// The same model with random blocks of another type.
fn of_type(model: &Catalog, dtype: DType, dir: &std::path::Path) -> Catalog {
    let known = |element: &ElementType| match *element {
        ElementType::Known(dtype) => dtype,
        _ => panic!("synthetic models have known types"),
    };
    let is_quantised = |element: &ElementType| !known(element).is_plain();
    let tensors: Vec<TensorMeta> = model
        .tensors()
        .map(|(name, entry)| TensorMeta {
            name: name.to_owned(),
            dtype: if is_quantised(&entry.element_type) { dtype } else { known(&entry.element_type) },
            shape: entry.shape.clone(),
        })
        .collect();
    let mut state = 77u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let path = dir.join(format!("{dtype}.gguf"));
    write_gguf(&path, model.metadata().unwrap(), &tensors, &mut |index, sink| {
        let entry = model.get(&tensors[index].name).unwrap();
        if !is_quantised(&entry.element_type) {
            let mut bytes = vec![0; entry.bytes as usize];
            model.files()[entry.file].read_exact_at(&mut bytes, entry.offset)?;
            return sink(&bytes);
        }
        let numbers: usize = entry.shape.iter().product();
        let mut bytes: Vec<u8> = (0..dtype.row_bytes(numbers).unwrap()).map(|_| byte()).collect();
        for block in bytes.chunks_mut(dtype.block_bytes()) {
            for &at in halves(dtype) {
                let scale = (f32::from(byte()) - 127.5) * 2e-5;
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            }
            if dtype == DType::Mxfp4 {
                block[0] = 118 + byte() % 4;
            }
        }
        sink(&bytes)
    })
    .unwrap();
    Catalog::open(path).unwrap()
}

pub(super) fn on_gpu(gpu: &Arc<Gpu>, catalog: &Catalog, products: ProductArithmetic, prompt: &[u32]) -> OnGpu {
    let config = GgufModel::of(catalog).unwrap().config().unwrap();
    OnGpu::of(gpu, config, catalog, products, KvDType::F32, prompt, |device, catalog, specs| {
        Box::new(ResidentWeights::load_on(device, catalog, specs, &mut |_, _| ()).unwrap())
    })
}

/// The logits of each token alone, as the first of a sequence.
fn of_single_tokens(mut logits: impl FnMut(u32) -> Vec<f32>) -> Vec<Vec<f32>> {
    (0..24).map(|i| logits(i * 37 % 512)).collect()
}

/// Both round activations alike, but what they round differs in the last bits: where a number lies right between two
/// integers, one may be rounded up and the other down. Most tokens have none of these, and agree; the others are apart
/// by less than rounding itself does. For types with blocks of 256 columns, the processor has other steps than the GPU,
/// and both are apart by up to the sum of both rounding errors.
#[test]
fn logits_in_integers_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = synthesised(dir.path());
    let others: Vec<_> = types().map(|dtype| (dtype, of_type(&model, dtype, dir.path()))).collect();
    for (dtype, catalog) in
        [(DType::Q4K, &model)].into_iter().chain(others.iter().map(|(dtype, other)| (*dtype, other)))
    {
        let config = GgufModel::of(catalog).unwrap().config().unwrap();
        let mut harness = Harness::of(config, catalog, KvDType::F32, 2, 1).at(Level::available().last().unwrap());
        let want =
            of_single_tokens(|token| harness.prompt_logits(&mut harness.sequence(0, &[token]), usize::MAX).concat());
        let by = |products| {
            let mut model = on_gpu(&gpu, catalog, products, &[0]);
            let got = of_single_tokens(|token| {
                (model.tokens, model.computed) = (vec![token], 0);
                model.logits(usize::MAX).concat()
            });
            got.into_iter().zip(&want).map(|(got, want)| distance(&[got], want)).collect::<Vec<_>>()
        };
        let (integer, float) = (by(ProductArithmetic::Integer), by(ProductArithmetic::Float));
        let near = integer.iter().filter(|&&apart| apart < 2e-5).count();
        let largest = |all: &[f32]| all.iter().fold(0f32, |largest, &apart| largest.max(apart));
        let (apart, rounding) = (largest(&integer), largest(&float));
        println!(
            "{dtype}: {near} of {} agree, the others to {apart:.2e}; rounding makes {rounding:.2e}",
            integer.len()
        );
        if dtype.block_len() == 256 {
            assert!(apart < 2.0 * rounding && rounding > 1e-4, "{dtype}: {integer:?}");
        } else {
            assert!(2 * near > integer.len() && apart < rounding && rounding > 1e-4, "{dtype}: {integer:?}");
        }
    }
}

#[test]
fn logits_in_integers_are_the_same_in_chunks_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = synthesised(dir.path());
    let prompt: Vec<u32> = (0..20).map(|i| i * 37 % 512).collect();
    for dtype in [DType::Q4K, DType::Q6K, DType::Q5_1] {
        let catalog = of_type(&model, dtype, dir.path());
        let bits = |chunk| {
            let rows = on_gpu(&gpu, &catalog, ProductArithmetic::Integer, &prompt).logits(chunk);
            rows.concat().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        };
        let whole = bits(usize::MAX);
        for chunk in [1, 7] {
            assert!(bits(chunk) == whole, "{dtype} in chunks of {chunk}");
        }
    }
}
