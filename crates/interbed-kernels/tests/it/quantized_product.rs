//! Tests products with quantized weights, against f64 references, and bit for bit against each other.

use half::f16;
use interbed_kernels::{DType, Level, Matrix};
use proptest::prelude::*;

use crate::matmul::product;
use crate::quantized::{QUANTISED, decoded};
use crate::support::{Numbers, assert_close, bits, encode, fused_levels};

/// Sets the half floats of a block to numbers that `next` returns.
fn set_halves(dtype: DType, block: &mut [u8], mut next: impl FnMut() -> f16) {
    for &at in halves(dtype) {
        block[at..at + 2].copy_from_slice(&next().to_le_bytes());
    }
    if dtype == DType::Iq1M {
        // The upper halves of four bytes are the half float.
        let bits = next().to_bits();
        for i in 0..4 {
            let byte = &mut block[49 + 2 * i];
            *byte = *byte & 15 | ((bits >> (4 * i) & 15) as u8) << 4;
        }
    }
}

/// Offsets of the half floats in a block, where they are whole.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::Mxfp4 | DType::Iq1M => &[],
        _ => &[0],
    }
}

/// Blocks of random bytes, with scales of either sign and of different sizes.
pub fn random_weights(dtype: DType, rows: usize, cols: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..dtype.row_bytes(cols).unwrap() * rows).map(|_| (numbers.next() * 128.0) as i8 as u8).collect();
    for block in bytes.chunks_mut(dtype.block_bytes()) {
        set_halves(dtype, block, || f16::from_f32(numbers.next() * 0.02));
        if dtype == DType::Mxfp4 {
            block[0] = 120 + (numbers.next() * 4.0) as i8 as u8 % 4;
        }
    }
    bytes
}

/// Activations whose blocks of 32 have magnitudes up to `2^spread` apart; some blocks are zeros.
pub fn uneven(count: usize, spread: u32, numbers: &mut Numbers) -> Vec<f32> {
    let mut x = numbers.take(count);
    for block in x.chunks_mut(32) {
        let by = (numbers.next().abs() * (spread + 1) as f32) as i32;
        let factor = if spread > 2 && numbers.next() > 0.9 { 0.0 } else { 2f32.powi(-by) };
        block.iter_mut().for_each(|x| *x *= factor);
    }
    x
}

/// Activations of blocks with different magnitudes, at both ends of the numbers for which shifts are computed, and
/// with a number that is not finite.
pub fn borders(count: usize) -> Vec<Vec<f32>> {
    // The largest number is `step * 127`, and shifts are computed for steps from `128 * MIN_POSITIVE` to `MAX / 256`.
    let (least, most) = (127.0 * 128.0 * f32::MIN_POSITIVE, f32::MAX / 256.0 * 127.0);
    let factors =
        [least * 0.5, least * 0.999, least * 1.001, least * 2.0, most * 0.5, most * 0.999, most * 1.001, 1e38];
    let uneven = |factor: f32| {
        let x = uneven(count, 5, &mut Numbers(15));
        x.iter().map(|x| x * factor).collect::<Vec<f32>>()
    };
    let mut all: Vec<_> = factors.into_iter().map(uneven).collect();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = uneven(1.0);
        x[count / 3] = bad;
        all.push(x);
    }
    all
}

/// The values of activations after they have been rounded to bytes for products with weights of `dtype`.
fn as_bytes(dtype: DType, x: &[f32]) -> Vec<f64> {
    let worth = |x: f32, step: f32| match step {
        0.0 => 0.0,
        _ => f64::from((x * (1.0 / step)).round_ties_even()) * f64::from(step),
    };
    x.chunks(dtype.block_len())
        .flat_map(|x| {
            let largest: Vec<f32> = x.chunks(32).map(|x| x.iter().fold(0.0f32, |most, x| most.max(x.abs()))).collect();
            let steps = if largest.len() == 1 { vec![largest[0] / 127.0] } else { steps(&largest) };
            x.chunks(32).zip(steps).flat_map(|(x, step)| x.iter().map(move |x| worth(*x, step))).collect::<Vec<_>>()
        })
        .collect()
}

/// The steps of eight blocks with these largest magnitudes: powers of two apart, at most 8 times, with the smallest sum
/// of squares if one of the blocks uses all its codes.
fn steps(largest: &[f32]) -> Vec<f32> {
    let most = largest.iter().fold(0.0f32, |most, x| most.max(*x));
    if most == 0.0 {
        return vec![0.0; largest.len()];
    }
    let smallest =
        |top: f32, own: f32| [8.0, 4.0, 2.0, 1.0].map(|by| top / by).into_iter().find(|x| *x >= own).unwrap();
    let tops = largest.iter().filter(|own| **own > 0.0).map(|own| {
        let mut top = *own;
        while top < most {
            top *= 2.0;
        }
        // Integers, so that rounding cannot make another choice than the kernels'.
        let squares: f32 = largest.iter().map(|own| (8.0 * smallest(top, *own) / top).powi(2)).sum();
        let relative = top / f32::from_bits(most.to_bits() & 0xff80_0000);
        (squares * (relative * relative), top)
    });
    let (_, top) = tops.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    largest.iter().map(|own| smallest(top, *own) / top * (top / 127.0)).collect()
}

fn reference(x: &[f64], w: &[f32], cols: usize) -> Vec<f64> {
    x.chunks(cols)
        .flat_map(|x| w.chunks(cols).map(|w| x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum()).collect::<Vec<_>>())
        .collect()
}

/// Number of columns: whole blocks, but not always whole spans or groups of blocks.
pub fn columns(dtype: DType, blocks: usize) -> usize {
    if dtype.block_len() == 32 { blocks * 32 } else { blocks.div_ceil(8) * 256 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(320))]

    #[test]
    fn agrees_with_the_references(
        dtype in 0usize..QUANTISED.len(), rows in 1usize..70, blocks in 1usize..21, tokens in 1usize..40,
        threads in 1usize..4, misaligned in 0usize..4, scale in -20i32..20, spread in 0u32..7, seed in any::<u64>(),
    ) {
        let dtype = QUANTISED[dtype];
        let cols = columns(dtype, blocks);
        let mut numbers = Numbers(seed);
        let x: Vec<f32> = uneven(tokens * cols, spread, &mut numbers).iter().map(|x| x * 2f32.powi(scale)).collect();
        let bytes = random_weights(dtype, rows, cols, &mut numbers);
        let w = decoded(dtype, &bytes);
        // A tensor may start at any byte of its file.
        let shifted = [&vec![0; misaligned][..], &bytes].concat();
        let weights = Matrix::new(dtype, rows, cols, &shifted[misaligned..]);
        let tight = reference(&as_bytes(dtype, &x), &w, cols);
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let loose = reference(&exact, &w, cols);
        // Upper bounds of the sums, as if no terms cancelled each other, or the largest of all sums.
        let largest = loose.iter().fold(1e-6f64, |largest, value| largest.max(value.abs()));
        let x_squares: Vec<f64> = exact.iter().map(|x| x * x).collect();
        let w_squares: Vec<f32> = w.iter().map(|w| w * w).collect();
        let reaches: Vec<f64> =
            reference(&x_squares, &w_squares, cols).iter().map(|sum| sum.sqrt().max(largest)).collect();
        for level in Level::available() {
            let got = product(level, threads, &x, weights, None);
            assert_close(&got, &tight, 2e-5 * f64::from(cols as u32).sqrt(), &format!("{dtype} {}", level.name()));
            // If terms cancel each other, the error is that of the terms.
            let near = |(got, (want, reach)): (&f32, (&f64, &f64))| (f64::from(*got) - want).abs() <= 0.03 * reach;
            let all_near = got.iter().zip(loose.iter().zip(&reaches)).all(near);
            assert!(all_near, "{dtype} {} (unquantised): {got:?}, not {loose:?}", level.name());
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_in_company_on_any_number_of_threads() {
    for dtype in QUANTISED {
        // Rows that are no multiple of a vector, whole and partial tiles of tokens, enough work for threads.
        let (rows, cols, tokens) = (67, columns(dtype, 11), 259);
        let mut numbers = Numbers(7);
        let x = uneven(tokens * cols, 5, &mut numbers);
        let bytes = random_weights(dtype, rows, cols, &mut numbers);
        let weights = Matrix::new(dtype, rows, cols, &bytes);
        for level in Level::available() {
            let together = product(level, 1, &x, weights, None);
            for threads in [2, 3] {
                assert_eq!(bits(&product(level, threads, &x, weights, None)), bits(&together));
            }
            for chunk in [1, 2, 3, 4, 5, 7, 16, 33, 129, 257] {
                let apart: Vec<f32> =
                    x.chunks(chunk * cols).flat_map(|x| product(level, 2, x, weights, None)).collect();
                assert_eq!(bits(&apart), bits(&together), "{dtype} {} in chunks of {chunk}", level.name());
            }
            // A row's results do not depend on the other rows either.
            for row in [0, 15, 16, 66] {
                let size = weights.row_bytes();
                let alone = Matrix::new(dtype, 1, cols, &bytes[row * size..][..size]);
                let alone = product(level, 1, &x, alone, None);
                let want: Vec<f32> = together.chunks(rows).map(|out| out[row]).collect();
                assert_eq!(bits(&alone), bits(&want), "{dtype} {} row {row}", level.name());
            }
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_to_the_bit() {
    for dtype in QUANTISED {
        // Part of a span, a whole one, and both; one vector of rows and two; kernels for few and for many tokens.
        for (tokens, rows, blocks) in [
            (1, 35, 14),
            (2, 16, 8),
            (2, 19, 11),
            (3, 5, 1),
            (3, 35, 14),
            (4, 35, 14),
            (5, 9, 3),
            (21, 35, 16),
            (130, 33, 7),
        ] {
            let cols = columns(dtype, blocks);
            let mut numbers = Numbers(3);
            let x = uneven(tokens * cols, 5, &mut numbers);
            let bytes = random_weights(dtype, rows, cols, &mut numbers);
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            let results: Vec<_> = fused_levels().map(|level| bits(&product(level, 1, &x, weights, None))).collect();
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{dtype}, {tokens} tokens");
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_agree_at_the_borders() {
    for dtype in QUANTISED {
        let (rows, cols) = (18, columns(dtype, 8));
        let bytes = random_weights(dtype, rows, cols, &mut Numbers(16));
        let weights = Matrix::new(dtype, rows, cols, &bytes);
        for (kind, x) in borders(5 * cols).into_iter().enumerate() {
            let results: Vec<_> = fused_levels().map(|level| product(level, 1, &x, weights, None)).collect();
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let alike = |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).all(same);
            assert!(results.windows(2).all(alike), "{dtype}, borders {kind}");
        }
    }
}

#[test]
fn a_bias_is_added() {
    let (rows, cols, tokens) = (20, 256, 6);
    let mut numbers = Numbers(8);
    let x = numbers.take(tokens * cols);
    let bytes = random_weights(DType::Q4K, rows, cols, &mut numbers);
    let weights = Matrix::new(DType::Q4K, rows, cols, &bytes);
    let (bias_bytes, bias) = encode(DType::F32, &numbers.take(rows));
    for level in Level::available() {
        let without = product(level, 2, &x, weights, None);
        let with = product(level, 2, &x, weights, Some(Matrix::new(DType::F32, 1, rows, &bias_bytes)));
        let want: Vec<f32> = without.iter().enumerate().map(|(i, out)| out + bias[i % rows]).collect();
        assert_eq!(bits(&with), bits(&want));
    }
}

/// Sets every field to its extremes, where integers are largest: they are still exact, at any level.
#[test]
fn extreme_codes_and_scales_do_not_saturate() {
    for dtype in QUANTISED {
        for fill in [0x00u8, 0x7f, 0x80, 0x81, 0xff] {
            for sign in [1.0f32, -1.0] {
                let (rows, cols, tokens) = (5, 512, 17);
                let mut bytes = vec![fill; dtype.row_bytes(cols).unwrap() * rows];
                for block in bytes.chunks_mut(dtype.block_bytes()) {
                    set_halves(dtype, block, || f16::from_f32(0.5));
                    if dtype == DType::Mxfp4 {
                        block[0] = 127;
                    }
                    if dtype == DType::Q6K && fill == 0 {
                        // The largest integers of all: 256 products of -128, -32 and 127.
                        block[192..208].fill(0x80);
                    }
                }
                let weights = Matrix::new(dtype, rows, cols, &bytes);
                // All codes of the activations are 127 or -127.
                let x = vec![127.0 * sign; tokens * cols];
                let want = reference(&as_bytes(dtype, &x), &decoded(dtype, &bytes), cols);
                for level in Level::available() {
                    for x in [&x[..], &x[..cols * 3]] {
                        let got = product(level, 1, x, weights, None);
                        assert_close(&got, &want[..got.len()], 1e-6, &format!("{dtype} {fill:#x} {}", level.name()));
                    }
                }
            }
        }
    }
}

#[test]
fn any_bytes_and_any_activations_give_some_result() {
    for dtype in QUANTISED {
        // Whole spans, and a partial group of blocks.
        for (fill, blocks) in
            [0x00u8, 0x01, 0x7c, 0x7e, 0x80, 0xfc, 0xff].into_iter().flat_map(|fill| [(fill, 8), (fill, 3)])
        {
            let (rows, cols, tokens) = (18, columns(dtype, blocks), 18);
            let bytes = vec![fill; dtype.row_bytes(cols).unwrap() * rows];
            let weights = Matrix::new(dtype, rows, cols, &bytes);
            // With the smallest numbers, the minima underflow to zeros with a sign.
            for x in [0.0, 1e-45, 1e-43, -1e-43, 1e-38, -1e-38, 1.0, f32::MAX, f32::MIN] {
                let x = vec![x; tokens * cols];
                for level in Level::available() {
                    let together = product(level, 2, &x, weights, None);
                    let alone = product(level, 1, &x[..cols], weights, None);
                    for (a, b) in together.iter().zip(&alone) {
                        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{dtype} {a} {b}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_its_token_and_nowhere_else() {
    for (dtype, tokens) in QUANTISED.into_iter().flat_map(|dtype| [(dtype, 20), (dtype, 3)]) {
        let (rows, cols) = (20, columns(dtype, 11));
        let mut numbers = Numbers(6);
        let sound = numbers.take(tokens * cols);
        let bytes = random_weights(dtype, rows, cols, &mut numbers);
        let weights = Matrix::new(dtype, rows, cols, &bytes);
        for level in Level::available() {
            let want = product(level, 1, &sound, weights, None);
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for token in [0, tokens / 3, tokens - 1] {
                    let mut x = sound.clone();
                    x[token * cols + 250] = bad;
                    let got = product(level, 2, &x, weights, None);
                    for (t, (got, want)) in got.chunks(rows).zip(want.chunks(rows)).enumerate() {
                        if t == token {
                            assert!(got.iter().all(|out| out.is_nan()), "{dtype} {} hides {bad}", level.name());
                        } else {
                            assert_eq!(bits(got), bits(want));
                        }
                    }
                }
            }
            // An infinite scale in the file shows in the results too.
            if dtype != DType::Mxfp4 {
                let mut bytes = bytes.clone();
                set_halves(dtype, &mut bytes[..dtype.block_bytes()], || f16::INFINITY);
                let got = product(level, 1, &sound, Matrix::new(dtype, rows, cols, &bytes), None);
                assert!(got.chunks(rows).all(|out| !out[0].is_finite()), "{dtype} {}", level.name());
                assert!(got.chunks(rows).all(|out| out[1..].iter().all(|out| out.is_finite())));
            }
        }
    }
}

#[test]
fn no_tokens_are_no_work() {
    for dtype in QUANTISED {
        let bytes = random_weights(dtype, 3, 256, &mut Numbers(1));
        for level in Level::available() {
            assert!(product(level, 2, &[], Matrix::new(dtype, 3, 256, &bytes), None).is_empty());
        }
    }
}

#[test]
fn zeros_times_anything_finite_are_zeros() {
    for dtype in QUANTISED {
        let (rows, cols) = (20, columns(dtype, 11));
        let bytes = random_weights(dtype, rows, cols, &mut Numbers(2));
        let weights = Matrix::new(dtype, rows, cols, &bytes);
        for level in Level::available() {
            for tokens in [1, 17] {
                let got = product(level, 1, &vec![0.0; tokens * cols], weights, None);
                assert!(got.iter().all(|out| *out == 0.0), "{dtype} {}", level.name());
            }
        }
    }
}
