//! Weights in FP8 (E4M3, the variant without infinities), with a scale for each 128 numbers of a row.
//!
//! Checkpoints store the codes of a matrix and, apart from them, a scale for each block of 128 rows and columns. Here
//! each row carries its own scales, 4 bytes for 128 numbers: whatever is read, stored and multiplied in one piece is a
//! run of rows, and so is complete by itself.
//!
//! ```text
//! row: scales of columns 0 .. 128, 128 .. 256, …, f32 each | a code for each column | zeros up to whole words
//! ```
//!
//! A number is the f32 nearest to code times scale, and products use these numbers: rows are decoded before they are
//! multiplied with few tokens, panels of rows before they are multiplied with many.

use std::ops::Range;

use crate::Level;
use crate::simd::{LANES, Simd, dispatch};

/// The number of weights that share a scale.
pub(crate) const BLOCK: usize = 128;

/// The number of bytes of a scale. The length of a row is a multiple of this number.
const SCALE: usize = size_of::<f32>();

/// Returns the number of bytes of a row; `None` on overflow.
pub(crate) const fn row_bytes(cols: usize) -> Option<usize> {
    match codes_at(cols).checked_add(cols) {
        Some(bytes) => bytes.checked_next_multiple_of(SCALE),
        None => None,
    }
}

/// Returns the offset of the codes in a row.
pub(crate) const fn codes_at(cols: usize) -> usize {
    cols.div_ceil(BLOCK) * SCALE
}

/// Returns the bytes of a row that hold the codes of `columns`; for the first block also the scales before them.
pub(crate) fn bytes_of(columns: Range<usize>, cols: usize) -> Range<usize> {
    let start = if columns.start == 0 { 0 } else { codes_at(cols) + columns.start };
    start..codes_at(cols) + columns.end
}

/// Moves the codes of each row to their final place, and writes the row's scales before its codes.
///
/// - `matrix`: memory for whole rows of [`DType::Fp8`](crate::DType::Fp8) with `cols` columns; at first, the codes of
///   all rows are at the end, row after row, as in a file, and the bytes before the codes may hold anything
/// - `first_row`: index of the first of these rows in the whole matrix
/// - `scales`: scales of the whole matrix, `[rows / 128, cols / 128]`, both rounded up
///
/// # Panics
/// Panics if `matrix` is not whole rows, or `scales` is too short.
pub fn join_scales(matrix: &mut [u8], cols: usize, first_row: usize, scales: &[f32]) {
    let row_bytes = row_bytes(cols).expect("a row that can be addressed");
    assert!(cols > 0 && matrix.len().is_multiple_of(row_bytes));
    let (rows, codes_at, in_row) = (matrix.len() / row_bytes, codes_at(cols), cols.div_ceil(BLOCK));
    let codes = matrix.len() - rows * cols;
    for row in 0..rows {
        // A row ends before the codes of the next one begin, so no code is overwritten before it has moved.
        let (from, to) = (codes + row * cols, row * row_bytes);
        matrix.copy_within(from..from + cols, to + codes_at);
        let of_row = &scales[(first_row + row) / BLOCK * in_row..][..in_row];
        for (bytes, scale) in matrix[to..to + codes_at].as_chunks_mut().0.iter_mut().zip(of_row) {
            *bytes = scale.to_le_bytes();
        }
        matrix[to + codes_at + cols..to + row_bytes].fill(0);
    }
}

/// Decodes `columns` of a row of `cols` numbers, from the start of a block on, and fills the rest of `out` with zeros.
///
/// # Panics
/// Panics if the bytes are not a row of `cols` numbers, or `out` is too short.
pub(crate) fn decode_columns(level: Level, row: &[u8], cols: usize, columns: Range<usize>, out: &mut [f32]) {
    assert!(row_bytes(cols) == Some(row.len()) && columns.start.is_multiple_of(BLOCK) && columns.end <= cols);
    let (scales, codes) = row.split_at(codes_at(cols));
    let (scales, codes) = (&scales.as_chunks().0[columns.start / BLOCK..], &codes[columns]);
    let (out, rest) = out.split_at_mut(codes.len());
    type Scales<'a> = &'a [[u8; SCALE]];
    dispatch!(level, decode::<_>(scales: Scales<'_>, codes: &[u8], out: &mut [f32]));
    rest.fill(0.0);
}

/// Decodes codes, the first of which begins a block.
#[inline(always)]
fn decode<S: Simd>(s: S, scales: &[[u8; SCALE]], codes: &[u8], out: &mut [f32]) {
    for ((codes, out), scale) in codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).zip(scales) {
        let scale = s.splat(f32::from_le_bytes(*scale));
        let (vectors, last) = codes.as_chunks::<LANES>();
        let (outs, last_out) = out.as_chunks_mut::<LANES>();
        for (codes, out) in vectors.iter().zip(outs) {
            s.store(s.mul(s.load_e4m3(codes), scale), out);
        }
        if !last.is_empty() {
            let (mut codes, mut numbers) = ([0; LANES], [0.0; LANES]);
            codes[..last.len()].copy_from_slice(last);
            s.store(s.mul(s.load_e4m3(&codes), scale), &mut numbers);
            last_out.copy_from_slice(&numbers[..last.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{DType, Matrix};

    /// Reads a file that the reference decoders in `tools/reference` wrote.
    fn fixture(name: &str) -> Vec<u8> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures/decoders");
        std::fs::read(dir.join(name)).unwrap()
    }

    fn numbers(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    fn assert_same(got: &[f32], want: &[f32], what: &str) {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{what} {i}: {got}, not {want}");
        }
    }

    /// Returns rows of codes with their scales.
    fn joined(codes: &[u8], cols: usize, scales: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0xa5; codes.len() / cols * row_bytes(cols).unwrap()];
        let at = bytes.len() - codes.len();
        bytes[at..].copy_from_slice(codes);
        join_scales(&mut bytes, cols, 0, scales);
        bytes
    }

    #[test]
    fn every_code_is_what_the_reference_says() {
        let (codes, want) = ((0..=u8::MAX).collect::<Vec<_>>(), numbers(&fixture("e4m3.f32")));
        assert_eq!(want.iter().filter(|want| want.is_nan()).count(), 2);
        let row = joined(&codes, 256, &[1.0; 2]);
        for level in Level::available() {
            let mut got = vec![f32::INFINITY; 256];
            decode_columns(level, &row, 256, 0..256, &mut got);
            assert_same(&got, &want, level.name());
        }
    }

    #[test]
    fn a_matrix_is_what_the_reference_says() {
        const COLS: usize = 132;
        let (codes, scales, want) =
            (fixture("fp8.codes"), numbers(&fixture("fp8.scales")), numbers(&fixture("fp8.f32")));
        let bytes = joined(&codes, COLS, &scales);
        let matrix = Matrix::new(DType::Fp8, codes.len() / COLS, COLS, &bytes);
        for (row, want) in want.chunks_exact(COLS).enumerate() {
            let mut got = [f32::NAN; COLS];
            matrix.widen_row(row, &mut got);
            assert_same(&got, want, "row");
            for level in Level::available() {
                let mut got = [f32::NAN; COLS + 12];
                decode_columns(level, matrix.row(row), COLS, 0..COLS, &mut got);
                assert_same(&got[..COLS], want, level.name());
                assert_same(&got[COLS..], &[0.0; 12], level.name());
                decode_columns(level, matrix.row(row), COLS, 128..COLS, &mut got[..4]);
                assert_same(&got[..4], &want[128..], level.name());
            }
        }
        // A band of rows gets the scales that its rows have in the whole matrix.
        let (first, row_bytes) = (127, row_bytes(COLS).unwrap());
        let mut band = vec![0; 3 * row_bytes];
        let at = band.len() - 3 * COLS;
        band[at..].copy_from_slice(&codes[first * COLS..][..3 * COLS]);
        join_scales(&mut band, COLS, first, &scales);
        assert_eq!(band, bytes[first * row_bytes..][..3 * row_bytes]);
    }
}
