//! Tests that products with weights in FP8 equal those with the decoded numbers, bit for bit.

use interbed_kernels::{
    Activation, Activations, Columns, DType, Level, Matrix, Product, gather_rows, join_scales, matmul_gated,
};
use proptest::prelude::*;

use crate::matmul::product;
use crate::support::{Numbers, bits, pool};

/// Rows of random codes without NaN, with scales of typical sizes.
pub fn random_fp8(rows: usize, cols: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = vec![0; rows * DType::Fp8.row_bytes(cols).unwrap()];
    let codes = bytes.len() - rows * cols;
    for (code, number) in bytes[codes..].iter_mut().zip(numbers.take(rows * cols)) {
        let byte = (number * 127.99) as i8 as u8;
        *code = if byte & 127 == 127 { 0 } else { byte };
    }
    let scales = numbers.take(rows.div_ceil(128) * cols.div_ceil(128));
    join_scales(&mut bytes, cols, 0, &scales.into_iter().map(|scale| scale / 400.0).collect::<Vec<_>>());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn products_are_those_of_the_numbers_themselves(
        rows in 1usize..140, cols in prop_oneof![2 => 1usize..600, 1 => 600usize..2200], tokens in 1usize..100,
        threads in 1usize..4, misaligned in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let x = numbers.take(tokens * cols);
        let bytes = random_fp8(rows, cols, &mut numbers);
        let offset = usize::from(misaligned);
        let shifted = [&vec![0; offset][..], &bytes].concat();
        let fp8 = Matrix::new(DType::Fp8, rows, cols, &shifted[offset..]);
        let mut widened = vec![f32::NAN; rows * cols];
        widened.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| fp8.widen_row(row, out));
        let raw: Vec<u8> = widened.iter().flat_map(|number| number.to_le_bytes()).collect();
        let plain = Matrix::new(DType::F32, rows, cols, &raw);
        let bias_bytes: Vec<u8> = numbers.take(rows).iter().flat_map(|number| number.to_le_bytes()).collect();
        let bias = Matrix::new(DType::F32, 1, rows, &bias_bytes);
        for level in Level::available() {
            // Products with many tokens use panels, with decoded numbers from fewer tokens on; the sums are the same.
            let want = product(level, threads, &x, plain, Some(bias));
            prop_assert_eq!(bits(&product(level, threads, &x, fp8, Some(bias))), bits(&want), "{}", level.name());
            let gated = |weights: [Matrix<'_>; 2]| {
                let mut out = [(); 2].map(|()| vec![f32::NAN; tokens * rows]);
                let mut scratch = vec![f32::NAN; Activations::scratch_len(tokens, cols, threads)];
                let mut outs = out.iter_mut();
                let pair = weights.map(|weights| {
                    Product { weights, bias: None, out: Columns::new(outs.next().unwrap(), rows) }
                });
                let mut x = Activations::new(&x, cols, &mut scratch);
                matmul_gated(&pool(threads), level, Activation::Silu, &mut x, [pair]);
                bits(&out[0])
            };
            prop_assert_eq!(gated([fp8, fp8]), gated([plain, plain]), "gated, {}", level.name());
        }
        let gathered = |matrix: Matrix<'_>| {
            let mut out = vec![f32::NAN; 2 * cols];
            gather_rows(&pool(2), matrix, |i| [rows - 1, 0][i], 3.0, &mut out);
            bits(&out)
        };
        prop_assert_eq!(gathered(fp8), gathered(plain));
    }
}
