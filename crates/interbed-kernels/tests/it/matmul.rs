use interbed_kernels::{Activations, Columns, DType, Level, Matrix, Product, matmul};
use proptest::prelude::*;

use crate::support::{DTYPES, Numbers, assert_close, bits, encode, fused_levels, pool};

pub fn product(level: Level, threads: usize, x: &[f32], w: Matrix<'_>, bias: Option<Matrix<'_>>) -> Vec<f32> {
    let tokens = x.len() / w.cols();
    let mut out = vec![f32::NAN; tokens * w.rows()];
    let mut scratch = scratch(tokens, w.cols(), threads);
    let mut x = Activations::new(x, w.cols(), &mut scratch);
    let out_columns = Columns::new(&mut out, w.rows());
    matmul(&pool(threads), level, &mut x, [Product { weights: w, bias, out: out_columns }]);
    out
}

/// Scratch memory filled with NaN, as an earlier pass may have left it.
fn scratch(tokens: usize, cols: usize, threads: usize) -> Vec<f32> {
    vec![f32::NAN; Activations::scratch_len(tokens, cols, threads)]
}

/// The activations as a product at `level` rounds them for weights of `dtype`.
fn rounded(level: Level, dtype: DType, x: &[f32]) -> Vec<f64> {
    let rounds = level.rounds_activations(dtype);
    x.iter().map(|&x| if rounds { half::bf16::from_f32(x).to_f64() } else { f64::from(x) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn agrees_with_the_reference(
        rows in 1usize..140, cols in prop_oneof![4 => 1usize..150, 1 => 500usize..530, 1 => 1000usize..1100],
        tokens in 1usize..30, dtype in 0usize..3, threads in 1usize..4,
        misaligned in any::<bool>(), seed in any::<u64>(),
    ) {
        let dtype = DTYPES[dtype];
        let mut numbers = Numbers(seed);
        let x = numbers.take(tokens * cols);
        let (w_bytes, w) = encode(dtype, &numbers.take(rows * cols));
        let (bias_bytes, bias) = encode(dtype, &numbers.take(rows));
        // A tensor may start at any byte of its file.
        let offset = usize::from(misaligned);
        let shifted = [&vec![0; offset][..], &w_bytes].concat();
        let weights = Matrix::new(dtype, rows, cols, &shifted[offset..]);
        let bias_row = Matrix::new(dtype, 1, rows, &bias_bytes);
        for level in Level::available() {
            let x64 = rounded(level, dtype, &x);
            let want: Vec<f64> = (0..tokens * rows)
                .map(|i| {
                    let (t, r) = (i / rows, i % rows);
                    (0..cols).map(|k| x64[t * cols + k] * f64::from(w[r * cols + k])).sum::<f64>() + f64::from(bias[r])
                })
                .collect();
            let got = product(level, threads, &x, weights, Some(bias_row));
            assert_close(&got, &want, 2e-5, level.name());
        }
    }

    #[test]
    fn many_tokens_give_the_bits_of_each_alone(
        rows in 1usize..150, cols in prop_oneof![1usize..400, 500usize..530, 1000usize..1100],
        tokens in 1usize..100, dtype in 0usize..3, threads in 1usize..4,
        infinite in 0usize..40_000, misaligned in any::<bool>(), seed in any::<u64>(),
    ) {
        let dtype = DTYPES[dtype];
        let mut numbers = Numbers(seed);
        let mut x = numbers.take(tokens * cols);
        // Perhaps one token has no finite results, or a sum consists of negative zeros.
        if let Some(x) = x.get_mut(infinite) {
            *x = f32::INFINITY;
        }
        x[..cols].iter_mut().for_each(|x| *x *= -1e-42);
        let mut w = numbers.take(rows * cols);
        w[..cols].iter_mut().for_each(|w| *w = w.abs() * 1e-4);
        let offset = usize::from(misaligned);
        let shifted = [&vec![0; offset][..], &encode(dtype, &w).0].concat();
        let weights = Matrix::new(dtype, rows, cols, &shifted[offset..]);
        // It is unspecified which of the many NaNs an operation gives.
        let one_nan = |v: &f32| if v.is_nan() { f32::NAN } else { *v };
        let bits = |values: &[f32]| bits(&values.iter().map(one_nan).collect::<Vec<_>>());
        for level in Level::available() {
            let together = product(level, threads, &x, weights, None);
            let alone: Vec<f32> = x.chunks(cols).flat_map(|x| product(level, 1, x, weights, None)).collect();
            prop_assert_eq!(bits(&together), bits(&alone), "{} at {}", dtype, level.name());
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_in_company_on_any_number_of_threads() {
    // The whole product is shared between threads; a few tokens alone are not worth it.
    for (rows, cols, tokens) in [(67, 183, 41), (40, 50, 523)] {
        let mut numbers = Numbers(7);
        let x = numbers.take(tokens * cols);
        for dtype in DTYPES {
            let (bytes, _) = encode(dtype, &numbers.take(rows * cols));
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            for level in Level::available() {
                let together = product(level, 1, &x, weights, None);
                for threads in [2, 3] {
                    assert_eq!(bits(&product(level, threads, &x, weights, None)), bits(&together));
                }
                for chunk in [1, 2, 3, 5, 7, 14, 40, 90] {
                    let apart: Vec<f32> =
                        x.chunks(chunk * cols).flat_map(|x| product(level, 2, x, weights, None)).collect();
                    assert_eq!(bits(&apart), bits(&together), "{dtype} {} in chunks of {chunk}", level.name());
                }
            }
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_to_the_bit() {
    for (rows, cols, tokens) in [(12, 100, 5), (9, 1100, 3), (139, 1100, 20), (139, 1100, 85)] {
        let mut numbers = Numbers(3);
        let x = numbers.take(tokens * cols);
        let (bytes, _) = encode(DType::F16, &numbers.take(rows * cols));
        let results: Vec<_> = fused_levels()
            .map(|level| bits(&product(level, 1, &x, Matrix::new(DType::F16, rows, cols, &bytes), None)))
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{tokens} tokens, [{rows}, {cols}]");
    }
}

#[test]
fn long_prompts_are_cut_into_cache_blocks_without_a_seam() {
    let (rows, cols) = (40, 5000);
    let mut numbers = Numbers(5);
    // Two or three tiles of tokens read weights in place; more do so, or use panels.
    for tokens in [12, 18, 40, 90] {
        let x = numbers.take(tokens * cols);
        for dtype in [DType::F16, DType::BF16] {
            let (bytes, _) = encode(dtype, &numbers.take(rows * cols));
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            for level in Level::available() {
                let apart: Vec<f32> = x.chunks(cols).flat_map(|x| product(level, 1, x, weights, None)).collect();
                let together = product(level, 2, &x, weights, None);
                assert_eq!(bits(&apart), bits(&together), "{tokens} tokens, {dtype} at {}", level.name());
            }
        }
    }
}
