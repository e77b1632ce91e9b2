//! Tests products with bands of a matrix's rows, one after the other and side by side, against the whole matrix, bit
//! for bit.

use interbed_kernels::{Activation, Activations, Columns, DType, Level, Matrix, Product, matmul, matmul_gated};
use proptest::prelude::*;

use crate::quantized_product::{columns, random_weights};
use crate::support::{Numbers, bits, encode, pool};

/// The bytes of a matrix of random numbers, which are the same for the same seed.
fn weights(dtype: DType, rows: usize, cols: usize, numbers: &mut Numbers) -> Vec<u8> {
    match dtype.is_plain() {
        true => encode(dtype, &numbers.take(rows * cols)).0,
        false => random_weights(dtype, rows, cols, numbers),
    }
}

/// Rows `first .. first + rows` of a matrix.
fn band(dtype: DType, cols: usize, bytes: &[u8], first: usize, rows: usize) -> Matrix<'_> {
    let row_bytes = dtype.row_bytes(cols).unwrap();
    Matrix::new(dtype, rows, cols, &bytes[first * row_bytes..(first + rows) * row_bytes])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bands_of_rows_make_up_the_whole(
        dtypes in (0usize..DType::ALL.len(), 0usize..DType::ALL.len()), rows in 1usize..150,
        blocks in prop_oneof![4 => 1usize..9, 1 => 16usize..20],
        tokens in prop_oneof![3 => 1usize..40, 1 => 81usize..90], threads in 1usize..4,
        cuts in prop_oneof![prop::collection::vec(1usize..70, 1..20), prop::collection::vec(1usize..6, 1..20)],
        together in 1usize..40, seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let dtypes = [DType::ALL[dtypes.0], DType::ALL[dtypes.1]];
        let cols = dtypes.into_iter().map(|dtype| columns(dtype, blocks)).max().unwrap();
        let x = numbers.take(tokens * cols);
        let [w0, w1] = dtypes.map(|dtype| weights(dtype, rows, cols, &mut numbers));
        let (bias_bytes, _) = encode(DType::F32, &numbers.take(rows));
        let bias = Matrix::new(DType::F32, 1, rows, &bias_bytes);
        let mut sizes = Vec::new();
        let mut cuts = cuts.into_iter().cycle();
        while sizes.iter().sum::<usize>() < rows {
            sizes.push(cuts.next().unwrap().min(rows - sizes.iter().sum::<usize>()));
        }
        for level in Level::available() {
            let mut scratch = vec![f32::NAN; Activations::scratch_len(tokens, cols, threads)];
            let pool = pool(threads);
            // Computes the same sequence of products, with all rows at once or with bands of them.
            let mut compute = |sizes: &[usize]| {
                let mut out = [(); 6].map(|()| vec![f32::NAN; tokens * rows]);
                let mut rest = out.each_mut().map(|out| Some(Columns::new(out, rows)));
                let mut take = |which: usize, count: usize| {
                    let (part, behind) = rest[which].take().unwrap().split_at(count);
                    rest[which] = Some(behind);
                    part
                };
                let mut x = Activations::new(&x, cols, &mut scratch);
                let (mut products, mut first) = (Vec::new(), 0);
                for &count in sizes {
                    for (which, w) in [&w0, &w1].into_iter().enumerate() {
                        products.push(Product {
                            weights: band(dtypes[which], cols, w, first, count),
                            bias: Some(bias.columns(first..first + count)),
                            out: take(which, count),
                        });
                    }
                    first += count;
                }
                let mut products = products.into_iter();
                while products.len() > 0 {
                    matmul(&pool, level, &mut x, products.by_ref().take(together));
                }
                let (mut pairs, mut first) = (Vec::new(), 0);
                for &count in sizes {
                    // Pairs of two types and of one, which may be computed in one sweep, alternate.
                    for (outs, which) in [([2, 3], [0, 1]), ([4, 5], [0, 0])] {
                        pairs.push([0, 1].map(|side: usize| Product {
                            weights: band(dtypes[which[side]], cols, [&w0, &w1][which[side]], first, count),
                            bias: Some(bias.columns(first..first + count)),
                            out: take(outs[side], count),
                        }));
                    }
                    first += count;
                }
                let mut pairs = pairs.into_iter();
                while pairs.len() > 0 {
                    matmul_gated(&pool, level, Activation::Silu, &mut x, pairs.by_ref().take(together));
                }
                let [a, b, gated, _, same, _] = out;
                [a, b, gated, same].map(|out| bits(&out))
            };
            let whole = compute(&[rows]);
            prop_assert_eq!(compute(&sizes), whole, "{:?} at {}, bands {:?}", dtypes, level.name(), sizes);
        }
    }
}
