//! Tests that products with coded weights equal those with the plain weights, bit for bit.

use half::bf16;
use interbed_kernels::{
    Activation, Activations, Columns, DType, Level, Matrix, Product, encode_row, gather_rows, matmul_gated, patches_of,
};
use proptest::prelude::*;

use crate::matmul::product;
use crate::support::{Numbers, bits, pool};

/// Codes the matrix `[rows, cols]` of these bf16 numbers; returns its type and bytes.
pub fn coded(numbers: &[u16], cols: usize, spare: usize) -> (DType, Vec<u8>) {
    let needed = numbers.chunks(cols).map(patches_of).max().unwrap() + spare;
    let dtype = DType::CodedBf16 { patches: needed.try_into().unwrap() };
    let row_bytes = dtype.row_bytes(cols).unwrap();
    let mut bytes = vec![0; numbers.len() / cols * row_bytes];
    for (row, out) in numbers.chunks(cols).zip(bytes.chunks_exact_mut(row_bytes)) {
        assert!(encode_row(row, needed.try_into().unwrap(), out));
    }
    (dtype, bytes)
}

/// Rows that are spread in one step and in several, for each number of tokens that registers decode.
#[test]
fn few_tokens_have_the_products_of_the_weights_themselves() {
    for (blocks, rows) in [(1, 5), (64, 4), (65, 9), (130, 5)] {
        let cols = blocks * 64;
        let mut numbers = Numbers(11);
        let weights: Vec<u16> = (numbers.take(rows * cols).into_iter().enumerate())
            .map(|(i, w)| bf16::from_f32(if i % 97 == 0 { w * 1e-9 } else { w }).to_bits())
            .collect();
        let raw: Vec<u8> = weights.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let (dtype, bytes) = coded(&weights, cols, 1);
        for tokens in 1..=5 {
            let x = numbers.take(tokens * cols);
            for level in Level::available() {
                let want = product(level, 2, &x, Matrix::new(DType::BF16, rows, cols, &raw), None);
                let got = product(level, 2, &x, Matrix::new(dtype, rows, cols, &bytes), None);
                assert_eq!(bits(&got), bits(&want), "{} {blocks} blocks, {tokens} tokens", level.name());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn products_are_those_of_the_weights_themselves(
        rows in 1usize..140, blocks in prop_oneof![4 => 1usize..14, 2 => 14usize..36, 1 => 64usize..68],
        tokens in prop_oneof![1 => 1usize..6, 2 => 6usize..100], threads in 1usize..4,
        misaligned in any::<bool>(), rare in 1u32..64, spare in 0usize..3, seed in any::<u64>(),
    ) {
        let cols = blocks * 64;
        let mut numbers = Numbers(seed);
        let x = numbers.take(tokens * cols);
        // Some numbers are smaller than all others, and some are zero.
        let weights: Vec<u16> = numbers.take(rows * cols).into_iter().enumerate().map(|(i, w)| {
            let scale = match (i as u32).wrapping_mul(0x9e37_79b9) >> 20 {
                draw if draw % rare == 0 => 0.0,
                draw => (0.5f32).powi(draw.trailing_zeros() as i32 * 2),
            };
            bf16::from_f32(w * scale).to_bits()
        }).collect();
        let raw: Vec<u8> = weights.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let (dtype, bytes) = coded(&weights, cols, spare);
        let offset = usize::from(misaligned);
        let shifted = [&vec![0; offset][..], &bytes].concat();
        let plain = Matrix::new(DType::BF16, rows, cols, &raw);
        let coded = Matrix::new(dtype, rows, cols, &shifted[offset..]);
        let bias = Matrix::new(DType::BF16, 1, rows, &raw[..2 * rows]);
        for level in Level::available() {
            let want = product(level, threads, &x, plain, Some(bias));
            prop_assert_eq!(bits(&product(level, threads, &x, coded, Some(bias))), bits(&want), "{}", level.name());
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
            for pair in [[coded, coded], [coded, plain]] {
                prop_assert_eq!(gated(pair), gated([plain, plain]), "gated, {}", level.name());
            }
        }
        let gathered = |matrix: Matrix<'_>| {
            let mut out = vec![f32::NAN; 2 * cols];
            gather_rows(&pool(2), matrix, |i| [rows - 1, 0][i], 3.0, &mut out);
            bits(&out)
        };
        prop_assert_eq!(gathered(coded), gathered(plain));
    }
}
