//! Quantised models whose products a GPU computes in f32: the tokens of the processor over the same weights as f32.

use interbed_kernels::{DType, Matrix};
use interbed_model::gguf::GgufModel;
use interbed_weights::{ElementType, TensorMeta, write_gguf};

use super::integers::{on_gpu, synthesised};
use super::*;
use crate::harness::Harness;

/// The same model with all its weights as f32.
fn widened(model: &Catalog, dir: &std::path::Path) -> Catalog {
    let tensors: Vec<TensorMeta> = model
        .tensors()
        .map(|(name, entry)| TensorMeta { name: name.to_owned(), dtype: DType::F32, shape: entry.shape.clone() })
        .collect();
    let path = dir.join("widened.gguf");
    write_gguf(&path, model.metadata().unwrap(), &tensors, &mut |index, sink| {
        let entry = model.get(&tensors[index].name).unwrap();
        let ElementType::Known(dtype) = entry.element_type else { panic!("synthetic models have known types") };
        let mut bytes = vec![0; entry.bytes as usize];
        model.files()[entry.file].read_exact_at(&mut bytes, entry.offset)?;
        let mut numbers = vec![0.0; entry.shape.iter().product()];
        // Rows are whole blocks, so all of them are one.
        Matrix::new(dtype, 1, numbers.len(), &bytes).widen_row(0, &mut numbers);
        sink(bytemuck::cast_slice(&numbers))
    })
    .unwrap();
    Catalog::open(&path).unwrap()
}

#[test]
fn sixty_four_greedy_tokens_of_a_quantised_model_are_those_of_its_weights_as_f32() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = synthesised(dir.path());
    let exact = widened(&model, dir.path());
    for prompt in [vec![3], (0..20).map(|at| at * 37 % 512).collect()] {
        let config = GgufModel::of(&exact).unwrap().config().unwrap();
        let mut harness = Harness::of(config, &exact, KvDType::F32, 2, 1);
        let want = harness.greedy(&mut harness.sequence(0, &prompt), 64);
        let got = on_gpu(&gpu, &model, ProductArithmetic::Float, &prompt).greedy(64);
        assert_eq!(got, want, "after {} tokens", prompt.len());
        assert!(want.windows(2).any(|pair| pair[0] != pair[1]), "{want:?}");
    }
}
