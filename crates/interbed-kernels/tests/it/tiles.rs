//! Tests products by AMX tiles, on machines without AMX through the emulator.

use half::bf16;
use interbed_kernels::{DType, Level, Matrix};
use proptest::prelude::*;

use crate::coded::coded;
use crate::matmul::product;
use crate::quantized::QUANTISED;
use crate::quantized_product::{borders, columns, random_weights, uneven};
use crate::support::{Numbers, assert_close, bits, encode};
use crate::tile_emulator::amx_level;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tiles_agree_with_the_reference(
        rows in 1usize..150, cols in 1usize..300, tokens in 1usize..100, threads in 1usize..3, seed in any::<u64>(),
    ) {
        let Some(level) = amx_level() else { return Ok(()) };
        let mut numbers = Numbers(seed);
        let x = numbers.take(tokens * cols);
        let rounded: Vec<f64> = x.iter().map(|&x| bf16::from_f32(x).to_f64()).collect();
        let (bytes, w) = encode(DType::BF16, &numbers.take(rows * cols));
        let weights = Matrix::new(DType::BF16, rows, cols, &bytes);
        let want: Vec<f64> = (0..tokens * rows)
            .map(|i| {
                let (t, r) = (i / rows, i % rows);
                (0..cols).map(|k| rounded[t * cols + k] * f64::from(w[r * cols + k])).sum()
            })
            .collect();
        assert_close(&product(level, threads, &x, weights, None), &want, 2e-5, "amx");
    }
}

#[test]
fn tiles_serve_one_token_and_many_alike() {
    let Some(level) = amx_level() else { return };
    // Columns of several cache blocks and a remainder, rows of several panels and a remainder; then more tokens than a
    // block has.
    let many = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 82];
    for (rows, cols, tokens, chunks) in
        [(70, 1100, 83, &many[..]), (37, 600, 530, &[512, 513, 17]), (5, 40, 599, &[64])]
    {
        let mut numbers = Numbers(11);
        let x = numbers.take(tokens * cols);
        let (bytes, _) = encode(DType::BF16, &numbers.take(rows * cols));
        let weights = Matrix::new(DType::BF16, rows, cols, &bytes);
        let together = product(level, 2, &x, weights, None);
        for chunk in chunks {
            let apart: Vec<f32> = x.chunks(chunk * cols).flat_map(|x| product(level, 1, x, weights, None)).collect();
            assert_eq!(bits(&apart), bits(&together), "{tokens} tokens in chunks of {chunk}");
        }
    }
}

/// Coded weights are decoded a few rows at a time, with the results of the plain weights.
#[test]
fn tiles_of_coded_weights_are_those_of_the_weights() {
    let Some(level) = amx_level() else { return };
    for (rows, cols, tokens) in [(70, 1088, 1), (37, 640, 40), (150, 64, 150)] {
        let mut numbers = Numbers(17);
        let x = numbers.take(tokens * cols);
        let w: Vec<u16> = numbers.take(rows * cols).iter().map(|&w| bf16::from_f32(w * w * w).to_bits()).collect();
        let (raw, (dtype, bytes)) = (bytemuck::cast_slice(&w), coded(&w, cols, 1));
        let want = product(level, 1, &x, Matrix::new(DType::BF16, rows, cols, raw), None);
        let got = product(level, 2, &x, Matrix::new(dtype, rows, cols, &bytes), None);
        assert_eq!(bits(&got), bits(&want), "{tokens} tokens");
    }
}

/// Integers are exact and the scaling has one order, so tiles and vectors agree to the bit.
#[test]
fn tiles_of_bytes_agree_with_vectors() {
    let Some(level) = amx_level() else { return };
    let vectors = Level::available().find(|level| level.name() == "avx512-vnni").unwrap();
    for dtype in QUANTISED {
        for (tokens, blocks) in [(4, 8), (9, 1), (16, 9), (40, 3), (150, 8)] {
            let (rows, cols) = (37, columns(dtype, blocks));
            let mut numbers = Numbers(13);
            // Some blocks are zeros, and shifts differ between blocks and tokens.
            let x = uneven(tokens * cols, 5, &mut numbers);
            let bytes = random_weights(dtype, rows, cols, &mut numbers);
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            let want = product(vectors, 1, &x, weights, None);
            assert_eq!(bits(&product(level, 2, &x, weights, None)), bits(&want), "{dtype}, {tokens} tokens");
        }
    }
}

/// What is not finite, and the borders of the numbers for which shifts are computed, are the same in tiles too.
#[test]
fn tiles_of_bytes_agree_at_the_borders() {
    let Some(level) = amx_level() else { return };
    let vectors = Level::available().find(|level| level.name() == "avx512-vnni").unwrap();
    for dtype in QUANTISED {
        for (kind, x) in borders(20 * columns(dtype, 8)).into_iter().enumerate() {
            let (rows, cols) = (18, columns(dtype, 8));
            let bytes = random_weights(dtype, rows, cols, &mut Numbers(14));
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            let (want, got) = (product(vectors, 1, &x, weights, None), product(level, 1, &x, weights, None));
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(got.iter().zip(&want).all(same), "{dtype}, borders {kind}");
        }
    }
}
