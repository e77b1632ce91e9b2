//! Products of each type of weights, with one token and with many.

use interbed_kernels::{Activations, Columns, DType, Matrix, Product, matmul};

use crate::{Entry, Kernel, bytes, entry, numbers};

const ROWS: usize = 128;
const COLS: usize = 2048;

pub fn kernels() -> impl Iterator<Item = Entry> {
    DType::ALL.into_iter().flat_map(|dtype| {
        [1, 32].map(|tokens| entry(format!("product {dtype}, tokens {tokens}"), move || product(dtype, tokens)))
    })
}

fn product(dtype: DType, tokens: usize) -> Kernel {
    let weights = bytes(ROWS * dtype.row_bytes(COLS).expect("whole blocks"));
    let x = numbers(tokens * COLS);
    let mut out = vec![0.0; tokens * ROWS];
    let mut scratch = vec![0.0; Activations::scratch_len(tokens, COLS, 1)];
    Box::new(move |pool, level| {
        let weights = Matrix::new(dtype, ROWS, COLS, &weights);
        let mut activations = Activations::new(&x, COLS, &mut scratch);
        matmul(
            pool,
            level,
            &mut activations,
            [Product { weights, bias: None, out: Columns::new(&mut out, weights.rows()) }],
        );
    })
}
